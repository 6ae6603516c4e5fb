"""Where canaries are put and where they are looked for. Each box trains a recipe anew, as often as it is asked to."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import ClassVar, Protocol

import numpy as np

from sordino.accounting import Guarantee
from sordino.attacks.audit.black_box import InputCanaries, black_box_values, from_worst_start
from sordino.attacks.audit.last_iterate import last_iterate_scores, most_in_last_iterate, on_canaries_alone
from sordino.attacks.audit.scores import Scores, Values, pooled
from sordino.attacks.audit.white_box import white_box_scores
from sordino.convex.noisy_cgd import NoisyCGD
from sordino.errors import UsageError
from sordino.kernel.randomness import Key
from sordino.kernel.states import Layout
from sordino.recipes import Recipe
from sordino.recipes.methods import method_of
from sordino.recipes.prepared import PreparedRecipe, prepare, rehearse
from sordino.recipes.stages import optimizer_of
from sordino.training.schedules import parse as parse_schedule

MOST_CANARIES = 10**6

OnStep = Callable[[int, int], None]  # steps taken, steps planned


@dataclass(frozen=True)
class AuditEvidence:
    """What was seen of the canaries, and what the plan that they were trained by promises."""

    scores: Scores
    guarantee: Guarantee


class ThreatModel(Protocol):
    """A kind of canary, and a kind of attacker."""

    @property
    def name(self) -> str: ...

    @property
    def score(self) -> str:
        """In words: what a canary is judged by."""
        ...

    def check(self, recipe: Recipe) -> None:
        """Refuses a recipe that it cannot attack, before data is touched."""
        ...

    def most_canaries(self, recipe: Recipe) -> int:
        """The largest number of canaries that one training can have. Nothing is trained, and no private row read."""
        ...

    def attack(self, recipe: Recipe, *, canaries: int, seeds: range, delta: float, on_step: OnStep) -> AuditEvidence:
        """One training for each seed, the canaries of all of them together."""
        ...


@dataclass(frozen=True)
class InGradients:
    """Every release is seen, and all that is not a canary is known."""

    name: ClassVar[str] = "white"
    score: ClassVar[str] = "log-likelihood ratio of all released gradients, the other rows known"

    def check(self, recipe: Recipe) -> None:
        if recipe.method != "dp-sgd":
            raise UsageError(f"gradients are released by dp-sgd only, got {recipe.method}.")
        if recipe.freeze:
            raise UsageError(
                f"freeze must be 0 where canaries are in gradients, got {recipe.freeze!r}: its masks follow the "
                "weights that are trained, and this audit trains copies. Use --box black."
            )

    def most_canaries(self, recipe: Recipe) -> int:
        # Supports are disjoint, so that each canary needs a coordinate of its own.
        return min(MOST_CANARIES, Layout.of(rehearse(recipe).built.module).size)

    def attack(self, recipe: Recipe, *, canaries: int, seeds: range, delta: float, on_step: OnStep) -> AuditEvidence:
        prepared = _counting(prepare(recipe, progress=False), canaries)
        plan, settings = method_of(prepared.recipe).plan(prepared), prepared.settings
        if isinstance(plan, NoisyCGD):
            raise UsageError("the steps of a hidden run are not released: only its last iterate can be attacked.")
        scores = []
        for seed in seeds:
            module = deepcopy(prepared.built.module)
            trained = [parameter for parameter in module.parameters() if parameter.requires_grad]
            scores.append(
                white_box_scores(
                    plan,
                    module,
                    prepared.records,
                    optimizer_of(settings, recipe.weight_decay)(trained),
                    divisor=settings.batch_size,
                    canaries=canaries,
                    key=Key.from_seed(seed),
                    schedule=parse_schedule(settings.schedule),
                    on_step=on_step,
                )
            )
        return AuditEvidence(pooled(scores), plan.guarantee(delta=delta, unit=prepared.records.unit))


@dataclass(frozen=True)
class InLastIterate:
    """Only the end of a hidden run is seen. The plan of the recipe is carried out on canaries alone."""

    name: ClassVar[str] = "white"
    score: ClassVar[str] = "weight of the canary's own feature in the last iterate"

    def check(self, recipe: Recipe) -> None:
        if recipe.method != "noisy-cgd":
            raise UsageError(f"a last iterate alone is released by noisy-cgd only, got {recipe.method}.")

    def most_canaries(self, recipe: Recipe) -> int:
        plan = method_of(recipe).plan(rehearse(recipe))
        return most_in_last_iterate(plan) if isinstance(plan, NoisyCGD) else 0

    def attack(self, recipe: Recipe, *, canaries: int, seeds: range, delta: float, on_step: OnStep) -> AuditEvidence:
        plan = method_of(recipe).plan(rehearse(recipe))
        if not isinstance(plan, NoisyCGD):
            raise UsageError(f"a last iterate alone is released by noisy-cgd only, got {recipe.method}.")
        scores = []
        for taken, seed in enumerate(seeds, start=1):
            scores.append(last_iterate_scores(plan, canaries=canaries, delta=delta, seed=seed))
            on_step(taken, len(seeds))
        return AuditEvidence(pooled(scores), on_canaries_alone(plan, canaries).guarantee(delta=delta))


@dataclass(frozen=True)
class InRows:
    """Only the model in the end is seen, and canaries are rows."""

    worst_start: bool = False
    name: ClassVar[str] = "black"

    @property
    def score(self) -> str:
        start = "first weights trained on public rows" if self.worst_start else "first weights"
        return f"loss of the canary at the {start}, less that of the trained model, beside other trainings if any"

    def check(self, recipe: Recipe) -> None:
        if self.worst_start and recipe.method != "dp-sgd":
            raise UsageError(f"a worst-case start goes with dp-sgd, got {recipe.method}, whose weights begin at zero.")

    def most_canaries(self, recipe: Recipe) -> int:
        return MOST_CANARIES

    def attack(self, recipe: Recipe, *, canaries: int, seeds: range, delta: float, on_step: OnStep) -> AuditEvidence:
        prepared = prepare(recipe, progress=False)
        rows = InputCanaries.drawn(prepared, canaries, Key.from_seed(seeds[0]).stream("canaries"))
        prepared = _counting(from_worst_start(prepared, seeds[0]) if self.worst_start else prepared, canaries)
        guarantee = method_of(prepared.recipe).plan(prepared).guarantee(delta=delta, unit=prepared.records.unit)
        found = []
        for taken, seed in enumerate(seeds, start=1):
            found.append(black_box_values(prepared, rows, seed))
            on_step(taken, len(seeds))
        values, included = (np.stack(parts) for parts in zip(*found, strict=True))
        return AuditEvidence(Scores(_beside_the_others(values).reshape(-1), included.reshape(-1)), guarantee)


def _beside_the_others(values: Values) -> Values:
    """Scores (trainings, canaries), each less the mean of the same canary over all trainings.

    How much a model learns about a canary from the other rows differs by canary, and far more than what its own place
    among them changes. The mean is made of what all trainings released and of no coin, so that the theorems hold: a
    canary of one training is in none of the others.
    """
    return values - values.mean(axis=0) if len(values) > 1 else values


def _counting(prepared: PreparedRecipe, canaries: int) -> PreparedRecipe:
    """The same with the canaries among its examples. The delta was chosen for fewer of them."""
    recipe = replace(prepared.recipe, allow_large_delta=True)
    return replace(prepared, recipe=recipe, examples=prepared.examples + canaries)
