"""An audit of a recipe or a run, and its report: the proved epsilon beside a lower bound from canaries.

An audit of a recipe: what is promised, beside what canaries show. "Not refuted" is the best that it can say.

An audit written down: a page and its numbers, which say of themselves that they are not private.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes

from sordino._input import validate
from sordino._input.files import write_atomically
from sordino.accounting.guarantee import rounded_up
from sordino.accounting.tightest import check_delta
from sordino.attacks.audit.lower_bounds import METHODS, BoundMethod, ByGuesses
from sordino.attacks.audit.scores import Scores
from sordino.attacks.audit.threat_models import MOST_CANARIES, InGradients, InLastIterate, InRows, OnStep, ThreatModel
from sordino.errors import DataError, UsageError
from sordino.kernel.randomness import Key
from sordino.recipes import Recipe
from sordino.recipes.prepared import rehearse
from sordino.report.markup import ACCENT, FAINT, INK, Html, element, gallery, joined, pairs, paragraphs, picture, table
from sordino.report.sections import Section, page
from sordino.training.not_private import ExposedResult, refuse_in_run

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
class Audit(ExposedResult):
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
    recipe: Recipe,
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

    Without a number of `canaries`, each training has 1000 of them, or as many as fit if that is less: canaries in
    gradients need a trainable weight each.

    >>> from sordino.recipes import Recipe
    >>> found = audit(Recipe("digits", "linear", epsilon=3.0, delta=1e-4, steps=5), canaries=100)
    >>> found.says, found.bound.epsilon <= found.epsilon <= 3.0
    ('not refuted', True)
    """
    if delta is None:
        delta = recipe.delta if recipe.delta is not None else rehearse(recipe).delta
    check_delta(delta, is_pure=False)
    validate.between(0.5, 1, low_open=True, high_open=True, confidence=confidence)
    validate.count(at_most=10**5, repeats=repeats)
    fewest = -(-_FEWEST_CANARIES // repeats)
    if canaries is not None:
        validate.count(at_least=fewest, at_most=MOST_CANARIES, canaries=canaries)
    validate.count(at_least=0, at_most=2**32, seed=seed)
    if method not in METHODS:
        raise UsageError(f"method must be one of {', '.join(METHODS)}, got {validate.option(method)}.")
    recipe = replace(recipe, seed=seed)  # of the first weights too
    looked_for = _box(recipe, box, worst_start)
    looked_for.check(recipe)
    most = looked_for.most_canaries(recipe)
    canaries = min(_USUAL_CANARIES, most) if canaries is None else canaries
    validate.count(at_least=fewest, at_most=most, canaries=canaries)
    seeds = range(seed * 10**5, seed * 10**5 + repeats)
    seen = looked_for.attack(recipe, canaries=canaries, seeds=seeds, delta=delta, on_step=on_step)
    scores = seen.scores
    halves = int(Key.from_seed(seed).stream("halves of canaries").words(1, step=0)[0])
    bounds = (_shown(each, scores, halves, delta, confidence) for each in METHODS.values())
    return Audit(
        title=f"{recipe.model} on {recipe.data} by {recipe.method}",
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


def _box(recipe: Recipe, name: str, worst_start: bool) -> ThreatModel:
    if name not in BOXES:
        raise UsageError(f"box must be {' or '.join(BOXES)}, got {validate.option(name)}.")
    if name == "black":
        return InRows(worst_start)
    if worst_start:
        raise UsageError("a worst-case start goes with the black box: in the white one the other rows are known.")
    return InLastIterate() if recipe.method == "noisy-cgd" else InGradients()


def _shown(method: BoundMethod, scores: Scores, halves: int, delta: float, confidence: float) -> LowerBound:
    epsilon = method.bound(scores, np.random.default_rng(halves), delta=delta, confidence=confidence)
    fixed = None
    if isinstance(method, ByGuesses):
        fixed = method.bound_without_split(scores, delta=delta, confidence=confidence)
    ceiling = method.ceiling(scores.number, delta=delta, confidence=confidence)
    return LowerBound(method.name, epsilon, fixed, ceiling, method.assumes)


HEADINGS = ("method", "epsilon at least", "at fixed guesses", "ceiling", "assumes")
_BINS = 40


def check_place(folder: Path) -> None:
    """Refuses the folder of a run before anything is trained."""
    refuse_in_run(folder / "audit.json", NOT_PRIVATE)


def write_audit(audit: Audit, folder: Path) -> Path:
    """audit.html and audit.json. The folder of a run is refused: its files may leave."""
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        audit.write(folder / "audit.json")  # refuses first
        os.chmod(folder / "audit.json", 0o600)
        write_atomically(folder / "audit.html", audit_page(audit).encode(), private=True)
    except OSError as error:
        raise DataError(f"{str(folder)!r} cannot be written to: {error.strerror}.") from None
    return folder / "audit.html"


def bound_rows(audit: Audit) -> list[tuple[str, ...]]:
    """One line for each method. Bounds from below are rounded down."""
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
    """What a verdict has to be read with."""
    return [
        ("epsilon in theory", f"{rounded_up(audit.epsilon, 4)} at delta {audit.delta:g} under {audit.adjacency}"),
        ("epsilon by attack", f"at least {_down(audit.bound.epsilon)} by {audit.method}"),
        ("confidence", f"{audit.confidence:.12g}"),
        ("canaries", f"{audit.canaries}, of which {len(audit.inside)} were in; trainings: {audit.trainings}"),
        ("box", audit.box),
        ("score", audit.score),
    ]


def audit_page(audit: Audit) -> str:
    """The verdict, theory above and attack below, and the scores."""
    said = joined((paragraphs(f"{audit.says}.", *audit.notes), pairs(facts(audit))))
    warning = element("div", paragraphs(f"This page is {audit.warning}."), class_="warning")
    about = (
        "A bound is too large with a chance of at most one less the confidence, if what it assumes holds. What has to "
        "be chosen was chosen on half of the canaries, and the bound is of the other half. An audit can refute a "
        "guarantee; it cannot confirm one, because a better attack may exist."
    )
    sections = [
        Section("verdict", "What was found", said, {}, 10),
        Section("bounds", "Theory above, attack below", gallery([_bounds(audit), _scores(audit)]), {}, 20),
        Section("methods", "By method", joined((table(HEADINGS, bound_rows(audit)), paragraphs(about))), {}, 30),
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
    caption = "Bars: shown by attack. Line: promised. Grey: the most that so many canaries could show."
    return picture("bounds", draw, caption=caption, words=f"Theory {rounded_up(audit.epsilon, 3)}; {words}.")


def _scores(audit: Audit) -> Html:
    values = np.array([*audit.inside, *audit.outside])
    low, high = np.quantile(values[np.isfinite(values)], (0.002, 0.998))
    edges = np.linspace(low, max(high, low + 1e-9), _BINS).tolist()

    def draw(axes: Axes) -> None:
        axes.hist(np.clip(audit.outside, low, high), edges, histtype="step", color=FAINT, linestyle="--", label="out")
        axes.hist(np.clip(audit.inside, low, high), edges, histtype="step", color=ACCENT, label="in")
        axes.set(xlabel="score", ylabel="canaries")

    words = f"Mean score {np.mean(audit.inside):.3g} of those in, {np.mean(audit.outside):.3g} of those out."
    return picture("scores", draw, caption="Scores of canaries that were in and out.", words=words, legend=True)


def _down(epsilon: float) -> str:
    return f"{np.floor(epsilon * 1000) / 1000:.3f}"
