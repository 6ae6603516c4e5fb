"""Threat models of an audit: where canaries are inserted, and what the attacker observes.

Each threat model trains the recipe again, once for each seed.
"""

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
from sordino.recipes.transformer_settings import refuse_transformer
from sordino.training.schedules import parse as parse_schedule

MOST_CANARIES = 10**6

OnStep = Callable[[int, int], None]  # steps taken, steps planned


@dataclass(frozen=True)
class AuditEvidence:
    """Scores of the canaries, and the guarantee of the plan by which they were trained."""

    scores: Scores
    guarantee: Guarantee


class ThreatModel(Protocol):
    """A kind of canary together with a kind of attacker."""

    @property
    def name(self) -> str: ...

    @property
    def score(self) -> str:
        """Description of the score of a canary, for the report."""
        ...

    def check(self, recipe: Recipe) -> None:
        """Raises `UsageError` if the recipe cannot be attacked. No data is read."""
        ...

    def most_canaries(self, recipe: Recipe) -> int:
        """The largest number of canaries in one training. Nothing is trained, and no private row is read."""
        ...

    def attack(self, recipe: Recipe, *, canaries: int, seeds: range, delta: float, on_step: OnStep) -> AuditEvidence:
        """Trains once for each seed, and joins the canaries of all trainings."""
        ...


@dataclass(frozen=True)
class InGradients:
    """White box: the attacker sees every release and knows everything but the coins of the canaries."""

    name: ClassVar[str] = "white"
    score: ClassVar[str] = "log-likelihood ratio of all released gradients, all other examples known"

    def check(self, recipe: Recipe) -> None:
        if recipe.method != "dp-sgd":
            raise UsageError(f"canaries in gradients need method dp-sgd, got {recipe.method}.")
        if recipe.freeze:
            raise UsageError(
                f"freeze must be 0 in a white-box audit, got {recipe.freeze!r}: its masks follow the weights that are "
                "trained, and this audit trains a copy of them. Use --box black."
            )

    def most_canaries(self, recipe: Recipe) -> int:
        # The supports of canaries are disjoint, so each needs a coordinate of its own.
        return min(MOST_CANARIES, Layout.of(rehearse(recipe).built.module).size)

    def attack(self, recipe: Recipe, *, canaries: int, seeds: range, delta: float, on_step: OnStep) -> AuditEvidence:
        prepared = _counting(prepare(recipe, progress=False), canaries)
        plan, settings = method_of(prepared.recipe).plan(prepared), prepared.settings
        if isinstance(plan, NoisyCGD):
            raise UsageError("noisy-cgd does not release its steps: only its last iterate can be attacked.")
        scores = []
        for seed in seeds:
            module = deepcopy(prepared.built.module)
            trainable = [parameter for parameter in module.parameters() if parameter.requires_grad]
            scores.append(
                white_box_scores(
                    plan,
                    module,
                    prepared.records,
                    optimizer_of(settings, recipe.weight_decay)(trainable),
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
    """White box of a hidden-state run: the attacker sees the last iterate. The plan trains on canaries only."""

    name: ClassVar[str] = "white"
    score: ClassVar[str] = "weight of the canary's own feature in the last iterate"

    def check(self, recipe: Recipe) -> None:
        if recipe.method != "noisy-cgd":
            raise UsageError(f"an audit of the last iterate needs method noisy-cgd, got {recipe.method}.")

    def most_canaries(self, recipe: Recipe) -> int:
        plan = method_of(recipe).plan(rehearse(recipe))
        return most_in_last_iterate(plan) if isinstance(plan, NoisyCGD) else 0

    def attack(self, recipe: Recipe, *, canaries: int, seeds: range, delta: float, on_step: OnStep) -> AuditEvidence:
        plan = method_of(recipe).plan(rehearse(recipe))
        if not isinstance(plan, NoisyCGD):
            raise UsageError(f"an audit of the last iterate needs method noisy-cgd, got {recipe.method}.")
        scores = []
        for taken, seed in enumerate(seeds, start=1):
            scores.append(last_iterate_scores(plan, canaries=canaries, delta=delta, seed=seed))
            on_step(taken, len(seeds))
        return AuditEvidence(pooled(scores), on_canaries_alone(plan, canaries).guarantee(delta=delta))


@dataclass(frozen=True)
class InRows:
    """Black box: the attacker sees the final model only, and canaries are examples."""

    worst_start: bool = False
    name: ClassVar[str] = "black"

    @property
    def score(self) -> str:
        start = "first weights trained on public rows" if self.worst_start else "first weights"
        return f"loss of the canary at the {start} minus that of the trained model; centered over repeated trainings"

    def check(self, recipe: Recipe) -> None:
        if self.worst_start and recipe.method != "dp-sgd":
            raise UsageError(
                f"a worst-case start needs method dp-sgd, got {recipe.method}, whose weights always begin at zero."
            )
        refuse_transformer(recipe.model, "a black-box audit")

    def most_canaries(self, recipe: Recipe) -> int:
        return MOST_CANARIES

    def attack(self, recipe: Recipe, *, canaries: int, seeds: range, delta: float, on_step: OnStep) -> AuditEvidence:
        prepared = prepare(recipe, progress=False)
        rows = InputCanaries.drawn(prepared, canaries, Key.from_seed(seeds[0]).stream("canaries"))
        prepared = _counting(from_worst_start(prepared, seeds[0]) if self.worst_start else prepared, canaries)
        guarantee = method_of(prepared.recipe).plan(prepared).guarantee(delta=delta, unit=prepared.records.unit)
        results = []
        for taken, seed in enumerate(seeds, start=1):
            results.append(black_box_values(prepared, rows, seed))
            on_step(taken, len(seeds))
        values, included = (np.stack(parts) for parts in zip(*results, strict=True))
        return AuditEvidence(Scores(centered(values).reshape(-1), included.reshape(-1)), guarantee)


def centered(values: Values) -> Values:
    """Subtracts from each score, shape (trainings, canaries), the mean of that canary over all trainings.

    How much a model learns about a canary from other examples differs between canaries, far more than by including it.
    The mean is computed from the released models and from no coin, and each training tosses coins of its own. So the
    theorems still hold.
    """
    return values - values.mean(axis=0) if len(values) > 1 else values


def _counting(prepared: PreparedRecipe, canaries: int) -> PreparedRecipe:
    """Counts the canaries among the examples."""
    recipe = replace(prepared.recipe, allow_large_delta=True)  # delta was chosen for fewer examples
    return replace(prepared, recipe=recipe, examples=prepared.examples + canaries)
