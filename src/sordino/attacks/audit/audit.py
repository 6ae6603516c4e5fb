"""Audit of a recipe or a run, and its report: the proved epsilon and a lower bound on epsilon from canaries.

The verdict is "REFUTED" or "not refuted"; an audit cannot confirm a guarantee. The page and the JSON file carry a
warning that they are not private.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes

from sordino._input import validate
from sordino._input.files import write_atomically
from sordino.accounting.guarantee import rounded_up
from sordino.accounting.tightest import check_delta
from sordino.attacks.audit.lower_bounds import METHODS, BoundMethod, ByGuesses
from sordino.attacks.audit.own_run import OwnBox, own_box
from sordino.attacks.audit.scores import Scores
from sordino.attacks.audit.threat_models import MOST_CANARIES, InGradients, InLastIterate, InRows, OnStep, ThreatModel
from sordino.errors import DataError, UsageError
from sordino.kernel.randomness import Key
from sordino.recipes import OwnRun, Recipe
from sordino.recipes.prepared import rehearse
from sordino.report.markup import ACCENT, FAINT, INK, Html, element, gallery, joined, pairs, paragraphs, picture, table
from sordino.report.sections import Section, page
from sordino.training.not_private import ExposedResult, refuse_in_run

NOT_PRIVATE = "not private: its trainings are charged to no budget and their seed is known; for internal use only"
BOXES = ("white", "black")
_USUAL_CANARIES = 1000
_FEWEST_CANARIES = 22  # over all trainings: of each half, a twentieth is guessed, rounded to at least one canary


@dataclass(frozen=True)
class LowerBound:
    """Lower bound on epsilon by one method.

    `at_fixed_guesses` is the bound at a fixed number of guesses: nothing is chosen, so all canaries are judged.
    `ceiling` is the largest bound that an audit with this number of canaries can give, whatever the mechanism does.
    """

    method: str
    epsilon: float
    at_fixed_guesses: float | None
    ceiling: float
    assumes: str


@dataclass(frozen=True)
class Audit(ExposedResult):
    """Result of an audit: the proved epsilon, the lower bounds, and the scores of included and left-out canaries."""

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
        """The lower bound of the chosen method."""
        return next(bound for bound in self.bounds if bound.method == self.method)

    @property
    def refuted(self) -> bool:
        return self.bound.epsilon > self.epsilon

    @property
    def says(self) -> str:
        return "REFUTED" if self.refuted else "not refuted"

    @property
    def notes(self) -> tuple[str, ...]:
        """Limits of this audit, and verdicts of the other methods where they refute epsilon."""
        notes = []
        if self.bound.ceiling <= self.epsilon:
            notes.append(
                f"{self.canaries} canaries can show at most epsilon {self.bound.ceiling:.2f} by {self.method}: "
                f"an audit of this size cannot refute epsilon {self.epsilon:.4g}. Use more canaries or another method."
            )
        for other in self.bounds:
            if other.epsilon > self.epsilon and other.method != self.method:
                notes.append(f"Method {other.method} refutes epsilon {self.epsilon:.4g}, assuming {other.assumes}.")
        return tuple(notes)


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
    on_start: Callable[[], object] = lambda: None,
    on_step: OnStep = lambda taken, planned: None,
) -> Audit:
    """Trains `repeats` times by the recipe with new canaries, and computes lower bounds on epsilon from their scores.

    By default each training has 1000 canaries, or as many as fit: a canary in gradient space needs a trainable weight
    of its own. A run of the user's own model is trained again by the plan in its folder. `on_start` is called after all
    arguments were checked.

    >>> from sordino.recipes import Recipe
    >>> result = audit(Recipe("digits", "linear", epsilon=3.0, delta=1e-4, steps=5), canaries=100)
    >>> result.says, result.bound.epsilon <= result.epsilon <= 3.0
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
    threat_model: ThreatModel | OwnBox
    if isinstance(recipe, OwnRun):
        threat_model = own_box(recipe, box, worst_start)
        most = threat_model.most_canaries()
        canaries = min(_USUAL_CANARIES, most) if canaries is None else canaries
        validate.count(at_least=fewest, at_most=most, canaries=canaries)
        on_start()
        evidence = threat_model.attack(canaries=canaries, seeds=seeds, delta=delta, on_step=on_step)
        title = f"{recipe.model_name} by the plan of {str(recipe.folder.path)!r}"
    else:
        recipe = replace(recipe, seed=seed)  # the first weights follow from it too
        threat_model = _threat_model(recipe, box, worst_start)
        threat_model.check(recipe)
        most = threat_model.most_canaries(recipe)
        canaries = min(_USUAL_CANARIES, most) if canaries is None else canaries
        validate.count(at_least=fewest, at_most=most, canaries=canaries)
        on_start()
        evidence = threat_model.attack(recipe, canaries=canaries, seeds=seeds, delta=delta, on_step=on_step)
        title = f"{recipe.model} on {recipe.data} by {recipe.method}"
    scores = evidence.scores
    split_seed = int(Key.from_seed(seed).stream("halves of canaries").words(1, step=0)[0])
    bounds = (_lower_bound(each, scores, split_seed, delta, confidence) for each in METHODS.values())
    return Audit(
        title=title,
        box=threat_model.name,
        score=threat_model.score,
        epsilon=evidence.guarantee.epsilon,
        delta=delta,
        adjacency=str(evidence.guarantee.adjacency),
        canaries=scores.number,
        trainings=repeats,
        confidence=confidence,
        method=method,
        bounds=tuple(bounds),
        inside=tuple(scores.values[scores.included].tolist()),
        outside=tuple(scores.values[~scores.included].tolist()),
    )


def _delta_of(recipe: Recipe | OwnRun) -> float:
    """Delta of the guarantee, or the one that the recipe would choose."""
    if isinstance(recipe, Recipe):
        return recipe.delta if recipe.delta is not None else rehearse(recipe).delta
    promised = recipe.folder.privacy().get("delta")
    if not isinstance(promised, float) or promised <= 0:
        raise UsageError(
            "delta must be given: the run promises a pure guarantee, and canaries are compared at a delta."
        )
    return promised


def _threat_model(recipe: Recipe, name: str, worst_start: bool) -> ThreatModel:
    if name == "black":
        return InRows(worst_start)
    if worst_start:
        raise UsageError(
            "a worst-case start is for the black box only: the white box knows the other examples anyway. "
            "Use box 'black', or leave the worst-case start out."
        )
    return InLastIterate() if recipe.method == "noisy-cgd" else InGradients()


def _lower_bound(method: BoundMethod, scores: Scores, split_seed: int, delta: float, confidence: float) -> LowerBound:
    epsilon = method.bound(scores, np.random.default_rng(split_seed), delta=delta, confidence=confidence)
    fixed = None
    if isinstance(method, ByGuesses):
        fixed = method.bound_without_split(scores, delta=delta, confidence=confidence)
    ceiling = method.ceiling(scores.number, delta=delta, confidence=confidence)
    return LowerBound(method.name, epsilon, fixed, ceiling, method.assumes)


HEADINGS = ("method", "epsilon at least", "at fixed guesses", "ceiling", "assumes")
_BINS = 40


def check_place(folder: Path) -> None:
    """Raises `UsageError` if `folder` is, or lies in, the folder of a run. Call it before training."""
    refuse_in_run(folder / "audit.json", NOT_PRIVATE)


def write_audit(audit: Audit, folder: Path) -> Path:
    """Writes audit.html and audit.json, and returns the page's path.

    The folder of a run is refused, because its files may be published.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        audit.write(folder / "audit.json")  # first, because it refuses the folder of a run
        os.chmod(folder / "audit.json", 0o600)
        write_atomically(folder / "audit.html", audit_page(audit).encode(), private=True)
    except OSError as error:
        raise DataError(f"{str(folder)!r} cannot be written to: {error.strerror}.") from None
    return folder / "audit.html"


def bound_rows(audit: Audit) -> list[tuple[str, ...]]:
    """One table row for each method, under `HEADINGS`. Lower bounds are rounded down."""
    return [
        (
            bound.method,
            _down(bound.epsilon),
            "-" if bound.at_fixed_guesses is None else _down(bound.at_fixed_guesses),
            _down(bound.ceiling),
            bound.assumes,
        )
        for bound in audit.bounds
    ]


def facts(audit: Audit) -> list[tuple[str, str]]:
    """Names and values that belong to the verdict."""
    return [
        ("epsilon proved", f"{rounded_up(audit.epsilon, 4)} at delta {audit.delta:g} under {audit.adjacency}"),
        ("epsilon by attack", f"at least {_down(audit.bound.epsilon)} by {audit.method}"),
        ("confidence", f"{audit.confidence:.12g}"),
        ("canaries", f"{audit.canaries}, of which {len(audit.inside)} were included; trainings: {audit.trainings}"),
        ("box", audit.box),
        ("score", audit.score),
    ]


def audit_page(audit: Audit) -> str:
    """The page: the verdict, the bounds, and the scores of the canaries."""
    verdict = joined((paragraphs(f"The proved epsilon is {audit.says}.", *audit.notes), pairs(facts(audit))))
    warning = element("div", paragraphs(f"This page is {audit.warning}."), class_="warning")
    about = (
        "Each lower bound is wrong, that is above the true epsilon, with a probability of at most 1 - confidence, if "
        "its assumption holds. Its free parameters were chosen on one half of the canaries; the bound was computed on "
        "the other half. An audit can refute a guarantee. It cannot confirm one, because a better attack may exist."
    )
    sections = [
        Section("verdict", "Verdict", verdict, {}, 10),
        Section("bounds", "Proved epsilon and lower bounds", gallery([_bounds(audit), _scores(audit)]), {}, 20),
        Section(
            "methods", "Lower bounds by method", joined((table(HEADINGS, bound_rows(audit)), paragraphs(about))), {}, 30
        ),
    ]
    return page("Internal", f"Audit of {audit.title}", warning, sections)


def _bounds(audit: Audit) -> Html:
    names = [bound.method for bound in audit.bounds]

    def draw(axes: Axes) -> None:
        axes.axhline(audit.epsilon, color=INK, linewidth=1.4)
        axes.annotate("theory", (len(names) - 0.8, audit.epsilon), (0, 3), textcoords="offset points", ha="right")
        axes.bar(names, [bound.epsilon for bound in audit.bounds], color=ACCENT, width=0.5)
        axes.plot(names, [bound.ceiling for bound in audit.bounds], "_", color=FAINT, markersize=16)
        axes.set(ylabel="epsilon", ylim=(0, 1.15 * max(audit.epsilon, *(bound.epsilon for bound in audit.bounds))))
        axes.tick_params(axis="x", labelsize=7)

    words = "; ".join(f"{bound.method} at least {_down(bound.epsilon)}" for bound in audit.bounds)
    caption = "Line: proved epsilon. Bars: lower bounds by attack. Gray: the largest bound that the canaries allow."
    return picture("bounds", draw, caption=caption, words=f"Proved epsilon {rounded_up(audit.epsilon, 3)}; {words}.")


def _scores(audit: Audit) -> Html:
    values = np.array([*audit.inside, *audit.outside])
    low, high = np.quantile(values[np.isfinite(values)], (0.002, 0.998))
    edges = np.linspace(low, max(high, low + 1e-9), _BINS).tolist()

    def draw(axes: Axes) -> None:
        outside, inside = (np.clip(scores, low, high) for scores in (audit.outside, audit.inside))
        axes.hist(outside, edges, histtype="step", color=FAINT, linestyle="--", label="left out")
        axes.hist(inside, edges, histtype="step", color=ACCENT, label="included")
        axes.set(xlabel="score", ylabel="canaries")

    included, left_out = np.mean(audit.inside), np.mean(audit.outside)
    words = f"Mean score: {included:.3g} of included canaries, {left_out:.3g} of those left out."
    caption = "Scores of canaries that were included in training or left out."
    return picture("scores", draw, caption=caption, words=words, legend=True)


def _down(epsilon: float) -> str:
    return f"{np.floor(epsilon * 1000) / 1000:.3f}"
