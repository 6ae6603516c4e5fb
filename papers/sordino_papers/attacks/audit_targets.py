"""Audit targets: recipes, the last iterate of a hidden-state run, and the exact mechanism."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, Protocol

import numpy as np
from dp_accounting.dp_event import DpEvent, GaussianDpEvent

from sordino.accounting import Adjacency, smallest
from sordino.attacks.audit.audit import audit
from sordino.attacks.audit.last_iterate import last_iterate_scores
from sordino.attacks.audit.lower_bounds import METHODS, ONE_RUN, ByGuesses
from sordino.attacks.audit.scores import Scores, simulated_scores
from sordino.convex.model import Linear
from sordino.convex.noisy_cgd import NoisyCGD
from sordino.kernel.sampling import Cyclic, Poisson
from sordino.recipes import Recipe
from sordino_papers.harness.entry import Measurement
from sordino_papers.harness.keys import as_key

CONFIDENCE, DELTA = 0.95, 1e-5
AT_FIXED = "at fixed guesses"


class AuditTarget(Protocol):
    """A training with canaries that can be run at any epsilon."""

    @property
    def data(self) -> str: ...

    def measure(self, epsilon: float, seed: int) -> Measurement:
        """The one-run bound, and the bounds of all methods."""
        ...

    def settings(self) -> Mapping[str, object]:
        """The settings except epsilon, as a key. The noise of a plan follows from epsilon."""
        ...


@dataclass(frozen=True)
class RecipeAudit:
    """A recipe, audited like `sordino audit`."""

    kind: ClassVar[str] = "recipe"
    recipe: Recipe
    canaries: int
    box: str = "white"
    worst_start: bool = False
    repeats: int = 1

    @property
    def data(self) -> str:
        return self.recipe.data

    def measure(self, epsilon: float, seed: int) -> Measurement:
        found = audit(
            replace(self.recipe, epsilon=epsilon),
            canaries=self.canaries,
            box=self.box,
            worst_start=self.worst_start,
            repeats=self.repeats,
            confidence=CONFIDENCE,
            seed=seed,
        )
        bounds = {bound.method: bound.epsilon for bound in found.bounds}
        fixed = {f"{each.method} {AT_FIXED}": each.at_fixed_guesses for each in found.bounds}
        bounds |= {name: bound for name, bound in fixed.items() if bound is not None}
        return Measurement(bounds[ONE_RUN.name], {**bounds, "theory": found.epsilon})

    def settings(self) -> dict[str, object]:
        recipe = {name: value for name, value in as_key(self.recipe).items() if name != "epsilon"}
        return {**as_key(self), "recipe": recipe}


@dataclass(frozen=True)
class LastIterateAudit:
    """NoisyCGD where the canary is in the last of three batches, followed by just enough noise: the bound is tight
    here.
    """

    kind: ClassVar[str] = "last-iterate"
    canaries: int
    data: str = "canaries alone"

    def measure(self, epsilon: float, seed: int) -> Measurement:
        plan = _HIDDEN.calibrated(epsilon=epsilon, delta=DELTA)
        scores = last_iterate_scores(plan, canaries=self.canaries, delta=DELTA, seed=seed)
        theory = plan.guarantee(delta=DELTA).epsilon
        return _measured([_bounds(scores, np.random.default_rng(seed))], theory)

    def settings(self) -> dict[str, object]:
        return {**as_key(self), "plan": as_key(replace(_HIDDEN, noise_multiplier=1.0))}


@dataclass(frozen=True)
class MechanismAudit:
    """Exact Gaussian releases of sampled canaries without a network: the strongest white-box audit."""

    kind: ClassVar[str] = "mechanism"
    canaries: int
    runs: int
    rate: float = 0.1
    steps: int = 100
    data: str = "canaries alone"

    def measure(self, epsilon: float, seed: int) -> Measurement:
        sampler = Poisson(self.rate, self.steps)

        def event(noise_multiplier: float) -> DpEvent:
            return sampler.compose(GaussianDpEvent(noise_multiplier), self.steps)

        noise = smallest(event, Adjacency.ZERO_OUT, epsilon=epsilon, delta=DELTA)
        found = []
        for run in range(self.runs):
            randomness = np.random.default_rng((seed, run))
            scores = simulated_scores(
                self.canaries, randomness, noise_multiplier=noise, rate=self.rate, steps=self.steps
            )
            found.append(_bounds(scores, randomness))
        return _measured(found, epsilon)

    def settings(self) -> dict[str, object]:
        return {**as_key(self)}


_HIDDEN = NoisyCGD(
    Cyclic(3, 8), Linear(), clip=0.5, noise_multiplier=2.0, learning_rate=0.5, strength=0.02, trailing_steps=2
)


def _bounds(scores: Scores, randomness: np.random.Generator) -> dict[str, float]:
    judged = {"delta": DELTA, "confidence": CONFIDENCE}
    found = {name: method.bound(scores, randomness, **judged) for name, method in METHODS.items()}
    for name, method in METHODS.items():
        if isinstance(method, ByGuesses):
            found[f"{name} {AT_FIXED}"] = method.bound_without_split(scores, **judged)
    return found


def _measured(runs: list[dict[str, float]], theory: float) -> Measurement:
    means: Mapping[str, float] = {name: float(np.mean([run[name] for run in runs])) for name in runs[0]}
    return Measurement(means[ONE_RUN.name], {**means, "theory": theory, "runs": len(runs)})
