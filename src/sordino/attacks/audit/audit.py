"""An audit of a recipe: what is promised, beside what canaries show. "Not refuted" is the best that it can say."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from sordino._input import validate
from sordino.accounting.answer import check_delta
from sordino.attacks.audit.boxes import MOST_CANARIES, Box, InGradients, InLastIterate, InRows, OnStep
from sordino.attacks.audit.methods import METHODS, ByGuesses, Method
from sordino.attacks.audit.own_run import OwnBox, own_box
from sordino.attacks.audit.scores import Scores
from sordino.errors import UsageError
from sordino.kernel.randomness import Key
from sordino.recipes import OwnRun, Recipe
from sordino.recipes.prepared import rehearse
from sordino.training.not_private import Exposed

NOT_PRIVATE = "not private: its trainings are in no budget and their seed is known; to be looked at, not to be released"
BOXES = ("white", "black")
_USUAL_CANARIES = 1000
_FEWEST_CANARIES = 4  # of all trainings: half of them choose the number of guesses, half of them are guessed


@dataclass(frozen=True)
class LowerBound:
    """What a method shows of epsilon. `at_fixed_guesses` is the same without a choice, so that all canaries count.

    No audit with as many canaries shows more than the `ceiling`, whatever the mechanism does.
    """

    method: str
    epsilon: float
    at_fixed_guesses: float | None
    ceiling: float
    assumes: str


@dataclass(frozen=True)
class Audit(Exposed):
    """What is promised, and what was shown. `inside` and `outside` are the scores of canaries that were in and out."""

    title: str
    box: str
    score: str
    epsilon: float
    delta: float
    adjacency: str
    canaries: int
    trainings: int
    confidence: float
    method: str
    bounds: tuple[LowerBound, ...]
    inside: tuple[float, ...] = field(repr=False)
    outside: tuple[float, ...] = field(repr=False)
    warning: str = field(default=NOT_PRIVATE, init=False)

    @property
    def bound(self) -> LowerBound:
        """That of the method which was asked for."""
        return next(bound for bound in self.bounds if bound.method == self.method)

    @property
    def refuted(self) -> bool:
        return self.bound.epsilon > self.epsilon

    @property
    def says(self) -> str:
        return "REFUTED" if self.refuted else "not refuted"

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader of the verdict has to know."""
        found = []
        if self.bound.ceiling <= self.epsilon:
            found.append(
                f"{self.canaries} canaries show at most {self.bound.ceiling:.2f} by {self.method}, whatever goes on: "
                f"no audit of this size can refute epsilon {self.epsilon:.4g}. Take more canaries, or another method."
            )
        for other in self.bounds:
            if other.epsilon > self.epsilon and other.method != self.method:
                found.append(f"{other.method} is above epsilon, which refutes it, assuming {other.assumes}.")
        return tuple(found)


def audit(
    recipe: Recipe | OwnRun,
    *,
    canaries: int | None = None,
    box: str = "white",
    method: str = "one-run",
    worst_start: bool = False,
    repeats: int = 1,
    confidence: float = 0.95,
    delta: float | None = None,
    seed: int = 0,
    on_step: OnStep = lambda taken, planned: None,
) -> Audit:
    """Trains `repeats` times by the recipe with new canaries, and bounds epsilon from below by what is seen of them.

    A run of a model of one's own is trained again by the plan in its folder.

    Without a number of `canaries`, each training has 1000 of them, or as many as fit if that is less: canaries in
    gradients need a trainable weight each.

    >>> from sordino.recipes import Recipe
    >>> found = audit(Recipe("digits", "linear", epsilon=3.0, delta=1e-4, steps=5), canaries=100)
    >>> found.says, found.bound.epsilon <= found.epsilon <= 3.0
    ('not refuted', True)
    """
    if delta is None:
        delta = _delta_of(recipe)
    check_delta(delta, is_pure=False)
    validate.between(0.5, 1, low_open=True, high_open=True, confidence=confidence)
    validate.count(at_most=10**5, repeats=repeats)
    fewest = -(-_FEWEST_CANARIES // repeats)
    if canaries is not None:
        validate.count(at_least=fewest, at_most=MOST_CANARIES, canaries=canaries)
    validate.count(at_least=0, at_most=2**32, seed=seed)
    if method not in METHODS:
        raise UsageError(f"method must be one of {', '.join(METHODS)}, got {validate.option(method)}.")
    if box not in BOXES:
        raise UsageError(f"box must be {' or '.join(BOXES)}, got {validate.option(box)}.")
    seeds = range(seed * 10**5, seed * 10**5 + repeats)
    looked_for: Box | OwnBox
    if isinstance(recipe, OwnRun):
        looked_for = own_box(recipe, box, worst_start)
        most = looked_for.most_canaries()
        canaries = min(_USUAL_CANARIES, most) if canaries is None else canaries
        validate.count(at_least=fewest, at_most=most, canaries=canaries)
        seen = looked_for.attack(canaries=canaries, seeds=seeds, delta=delta, on_step=on_step)
        title = f"{recipe.model_name} by the plan of {str(recipe.folder.path)!r}"
    else:
        recipe = replace(recipe, seed=seed)  # of the first weights too
        looked_for = _box(recipe, box, worst_start)
        looked_for.check(recipe)
        most = looked_for.most_canaries(recipe)
        canaries = min(_USUAL_CANARIES, most) if canaries is None else canaries
        validate.count(at_least=fewest, at_most=most, canaries=canaries)
        seen = looked_for.attack(recipe, canaries=canaries, seeds=seeds, delta=delta, on_step=on_step)
        title = f"{recipe.model} on {recipe.data} by {recipe.method}"
    scores = seen.scores
    halves = int(Key.from_seed(seed).stream("halves of canaries").words(1, step=0)[0])
    bounds = (_shown(each, scores, halves, delta, confidence) for each in METHODS.values())
    return Audit(
        title=title,
        box=looked_for.name,
        score=looked_for.score,
        epsilon=seen.guarantee.epsilon,
        delta=delta,
        adjacency=str(seen.guarantee.adjacency),
        canaries=scores.number,
        trainings=repeats,
        confidence=confidence,
        method=method,
        bounds=tuple(bounds),
        inside=tuple(scores.values[scores.included].tolist()),
        outside=tuple(scores.values[~scores.included].tolist()),
    )


def _delta_of(recipe: Recipe | OwnRun) -> float:
    """The delta that was promised, or that the recipe would choose."""
    if isinstance(recipe, Recipe):
        return recipe.delta if recipe.delta is not None else rehearse(recipe).delta
    promised = recipe.folder.privacy().get("delta")
    if not isinstance(promised, float) or promised <= 0:
        raise UsageError(
            "delta must be given: the run promises a pure guarantee, and canaries are compared at a delta."
        )
    return promised


def _box(recipe: Recipe, name: str, worst_start: bool) -> Box:
    if name == "black":
        return InRows(worst_start)
    if worst_start:
        raise UsageError("a worst-case start goes with the black box: in the white one the other rows are known.")
    return InLastIterate() if recipe.method == "noisy-cgd" else InGradients()


def _shown(method: Method, scores: Scores, halves: int, delta: float, confidence: float) -> LowerBound:
    epsilon = method.bound(scores, np.random.default_rng(halves), delta=delta, confidence=confidence)
    fixed = None
    if isinstance(method, ByGuesses):
        fixed = method.bound_without_split(scores, delta=delta, confidence=confidence)
    ceiling = method.ceiling(scores.number, delta=delta, confidence=confidence)
    return LowerBound(method.name, epsilon, fixed, ceiling, method.assumes)
