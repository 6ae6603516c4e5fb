"""Epsilon over the steps: by the accountant that proves the promise, by others, and for other ways to draw batches."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from dp_accounting.dp_event import DpEvent
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from sordino.accounting import View, all_answers, privacy_of
from sordino.accounting.guarantee import rounded_up
from sordino.errors import UnsupportedEvent, UsageError
from sordino.kernel.sampling import Sampler
from sordino.recipes.planning import Question, SamplerName, make_sampler
from sordino.report.evidence import Evidence
from sordino.report.markup import ACCENT, DASHES, INK, Html, decimal_logarithmic, element, gallery, joined, picture
from sordino.report.sections import Section

_MARKS = 8


@dataclass(frozen=True)
class Spent:
    """What the steps up to each mark are worth, to somebody who sees them all."""

    label: str
    steps: tuple[int, ...]
    epsilons: tuple[float, ...]

    def as_dict(self) -> dict[str, object]:
        return {"name": self.label, "steps": list(self.steps), "epsilons": list(self.epsilons)}


def spending(run: Evidence) -> Section | None:
    """How epsilon grew, and what it would have been.

    A tuned run has no such line, because it has many trials; nor has a run whose sampler or noise is code of one's own.
    """
    if run.searched is not None or run.planned is None:
        return None
    promise, question, (sampler, release) = run.guarantee, run.question, run.planned
    by_accountant = _spent_by_accountant(sampler, release, promise.delta)
    by_sampler = [] if question is None else spent_by_sampler(question)
    if promise.view is View.EVERY_STEP:
        solid = (promise.accountant, sampler.name)
        words = "Every line is a valid bound. The solid one is what is promised."
        if run.holds_more_than_the_plan:
            words += " The promise also pays for releases beside the planned steps, which the lines leave out."
    else:
        solid = ("", "")
        words = (
            f"What is promised is about the final model only, epsilon = {rounded_up(promise.epsilon)}, and has no way "
            "that may be shown. The lines are what would hold if every step were seen."
        )
    figures = [_picture("accountants", by_accountant, solid[0], f"Accountants of {sampler.name} sampling.")]
    if by_sampler:
        figures.append(_picture("samplers", by_sampler, solid[1], "Ways to draw batches, with the same noise."))
    about = f"Epsilon at delta = {promise.delta!r} under {promise.adjacency} adjacency. "
    facts = {
        "adjacency": str(promise.adjacency),
        "delta": promise.delta,
        "accountants": [each.as_dict() for each in by_accountant],
        "samplers": [each.as_dict() for each in by_sampler],
    }
    html = joined((element("p", about + words), gallery(figures)))
    return Section("spending", "How the privacy was spent", html, facts, 50)


def spent_by_accountant(question: Question) -> list[Spent]:
    """The same steps as each accountant sees them, tightest first."""
    return _spent_by_accountant(make_sampler(question), _release(question), question.delta or 0.0)


def _spent_by_accountant(sampler: Sampler, release: DpEvent, delta: float) -> list[Spent]:
    said = [
        {answer.accountant: answer.epsilon for answer in all_answers(event, sampler.adjacency, delta)}
        for event in (sampler.compose(release, step) for step in _marks(sampler))
    ]
    names = [name for name in said[-1] if all(math.isfinite(each.get(name, math.inf)) for each in said)]
    return [Spent(name, _marks(sampler), tuple(each[name] for each in said)) for name in names]


def spent_by_sampler(question: Question) -> list[Spent]:
    """Each sampler that has a guarantee under the same adjacency, by its tightest bound; smallest end first."""
    found = []
    for name in SamplerName:
        other = replace(question, sampler=name)
        try:
            sampler = make_sampler(other)
            found.append(_spent(name.value, sampler, other))
        except (UsageError, UnsupportedEvent):
            continue  # it has none
    return sorted(found, key=lambda spent: spent.epsilons[-1])


def _spent(label: str, sampler: Sampler, question: Question) -> Spent:
    marks = _marks(sampler)
    curves = (privacy_of(sampler.compose(_release(question), step), question.effective_adjacency) for step in marks)
    return Spent(label, marks, tuple(curve.epsilon(question.delta or 0.0) for curve in curves))


def _marks(sampler: Sampler) -> tuple[int, ...]:
    """Some steps up to the last, at ends of epochs where batches are drawn by epoch."""
    periods = sampler.steps // sampler.period
    return tuple(sorted({max(1, periods * mark // _MARKS) * sampler.period for mark in range(1, _MARKS + 1)}))


def _release(question: Question) -> DpEvent:
    return question.release(question.noise_multiplier or 0.0)


def _picture(name: str, lines: Sequence[Spent], chosen: str, caption: str) -> Html:
    styles = iter(DASHES)

    def draw(axes: Axes) -> None:
        for line in lines:
            is_chosen = line.label == chosen
            colour, width = (ACCENT, 1.8) if is_chosen else (INK, 1.0)
            style = "-" if is_chosen else next(styles)
            label = f"{line.label}: {rounded_up(line.epsilons[-1], 3)}"
            marker = "" if len(line.steps) > 1 else "o"  # one point is no line
            shown: dict[str, Any] = {
                "linestyle": style,
                "color": colour,
                "linewidth": width,
                "marker": marker,
                "markersize": 3,
            }
            axes.plot(line.steps, line.epsilons, label=label, **shown)
        axes.set(xlabel="step", ylabel="epsilon", yscale="log")
        axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
        decimal_logarithmic(axes.yaxis)

    ends = "; ".join(f"{line.label} {rounded_up(line.epsilons[-1], 3)}" for line in lines)
    return picture(
        name, draw, caption=caption, words=f"Epsilon over steps, in the end: {ends}.", legend=True, height=3.0
    )
