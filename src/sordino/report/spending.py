"""The card's section on epsilon over the steps: by each accountant, and for each sampler with the same noise."""

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
    """Epsilon after each number of `steps`, for an observer who sees all of them."""

    label: str
    steps: tuple[int, ...]
    epsilons: tuple[float, ...]

    def as_dict(self) -> dict[str, object]:
        return {"name": self.label, "steps": list(self.steps), "epsilons": list(self.epsilons)}


def spending(run: Evidence) -> Section | None:
    """The section on epsilon over the steps.

    None for a tuned run, which has many trials, and for a run whose sampler or noise is the user's own code.
    """
    if run.searched is not None or run.planned is None:
        return None
    promise, question, (sampler, release) = run.guarantee, run.question, run.planned
    by_accountant = _spent_by_accountant(sampler, release, promise.delta)
    by_sampler = [] if question is None else spent_by_sampler(question)
    if promise.view is View.EVERY_STEP:
        solid = (promise.accountant, sampler.name)
        words = "Every line is a valid upper bound on epsilon. The solid line is the bound of the guarantee."
        if run.holds_more_than_the_plan:
            words += " The guarantee also counts releases in addition to the planned steps, which the lines leave out."
    else:
        solid = ("", "")
        words = (
            f"The guarantee, epsilon = {rounded_up(promise.epsilon)}, is for the final model only, so there is no "
            "epsilon for the steps before. The lines show what would hold if every step were observed."
        )
    figures = [_picture("accountants", by_accountant, solid[0], f"By accountant, with {sampler.name} sampling.")]
    if by_sampler:
        figures.append(_picture("samplers", by_sampler, solid[1], "By sampler, with the same noise."))
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
    """Epsilon of the planned steps by each accountant, tightest first."""
    return _spent_by_accountant(make_sampler(question), _release(question), question.delta or 0.0)


def _spent_by_accountant(sampler: Sampler, release: DpEvent, delta: float) -> list[Spent]:
    by_mark = [
        {answer.accountant: answer.epsilon for answer in all_answers(event, sampler.adjacency, delta)}
        for event in (sampler.compose(release, step) for step in _marks(sampler))
    ]
    names = [name for name in by_mark[-1] if all(math.isfinite(each.get(name, math.inf)) for each in by_mark)]
    return [Spent(name, _marks(sampler), tuple(each[name] for each in by_mark)) for name in names]


def spent_by_sampler(question: Question) -> list[Spent]:
    """Epsilon of each sampler that has a guarantee under the same adjacency, by its tightest bound, smallest first."""
    lines = []
    for name in SamplerName:
        other = replace(question, sampler=name)
        try:
            sampler = make_sampler(other)
            lines.append(_spent(name.value, sampler, other))
        except (UsageError, UnsupportedEvent):
            continue  # this sampler has no guarantee under this adjacency
    return sorted(lines, key=lambda spent: spent.epsilons[-1])


def _spent(label: str, sampler: Sampler, question: Question) -> Spent:
    marks = _marks(sampler)
    curves = (privacy_of(sampler.compose(_release(question), step), question.effective_adjacency) for step in marks)
    return Spent(label, marks, tuple(curve.epsilon(question.delta or 0.0) for curve in curves))


def _marks(sampler: Sampler) -> tuple[int, ...]:
    """Evenly spaced numbers of steps up to the last, at ends of epochs if the sampler works by epoch."""
    periods = sampler.steps // sampler.period
    return tuple(sorted({max(1, periods * mark // _MARKS) * sampler.period for mark in range(1, _MARKS + 1)}))


def _release(question: Question) -> DpEvent:
    return question.release(question.noise_multiplier or 0.0)


def _picture(name: str, lines: Sequence[Spent], chosen: str, caption: str) -> Html:
    styles = iter(DASHES)

    def draw(axes: Axes) -> None:
        for line in lines:
            is_chosen = line.label == chosen
            color, width = (ACCENT, 1.8) if is_chosen else (INK, 1.0)
            style = "-" if is_chosen else next(styles)
            label = f"{line.label}: {rounded_up(line.epsilons[-1], 3)}"
            marker = "" if len(line.steps) > 1 else "o"  # a single point needs a marker
            shown: dict[str, Any] = {
                "linestyle": style,
                "color": color,
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
        name, draw, caption=caption, words=f"Epsilon over steps; at the end: {ends}.", legend=True, height=3.0
    )
