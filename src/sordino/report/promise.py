"""Sections of the card on the guarantee: what it means, and which inference attacks it leaves possible.

The guarantee in plain words and as a table, and what it does and does not promise.

Who could still learn what: membership attacks that the guarantee leaves possible, and groups.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from numpy.typing import NDArray

from sordino.accounting import Adjacency, Guarantee, PrivacyCurve, Unit, View
from sordino.accounting.guarantee import rounded_up
from sordino.report.evidence import Evidence
from sordino.report.markup import (
    ACCENT,
    FAINT,
    Html,
    bullets,
    element,
    gallery,
    in_percent,
    joined,
    pairs,
    paragraphs,
    picture,
    table,
)
from sordino.report.sections import Section

OBSERVERS = {View.EVERY_STEP: "every step of the training", View.FINAL_MODEL: "the final model only"}


def guarantee(run: Evidence) -> Section:
    """What is promised."""
    promise, guess = run.guarantee, _best_guess(run)
    unit, observer = promise.unit, OBSERVERS[promise.view]
    apart = f", apart from a probability of {promise.delta!r}" if promise.delta else ""
    words = paragraphs(
        f"Whether or not one {unit}'s data was used, whatever is seen of this training is about as likely: no outcome "
        f"becomes more than {_factor(promise.epsilon)} times as likely{apart}.",
        f"So whoever sees {observer} and has to guess whether a given {unit} was used, at even odds, is right in at "
        f"most {rounded_up(100 * guess, 3)} of 100 cases. Tossing a coin is right in 50.",
    )
    rows = (
        ("epsilon", f"{rounded_up(promise.epsilon)}, rounded up"),
        ("delta", repr(promise.delta)),
        ("whose privacy", f"every {unit}'s"),
        ("adjacency", f"{promise.adjacency}: {promise.adjacency.in_words.replace('unit', str(unit))}"),
        ("the observer sees", observer),
        ("proved by", f"the accountant {promise.accountant}"),
        ("assumed", "; ".join(promise.assumptions) or "nothing beyond the mechanism itself"),
    )
    facts = promise.as_dict() | {"best_guess": guess}
    return Section("guarantee", "The guarantee", joined((element("div", words, class_="lead"), pairs(rows))), facts, 10)


def limits(run: Evidence) -> Section:
    """What the guarantee does and does not promise."""
    does, does_not = _does(run), _does_not(run)
    columns = (_column("It promises", does), _column("It does not promise", does_not))
    html = element("div", *columns, class_="columns")
    return Section("limits", "What this means", html, {"promised": does, "not_promised": does_not}, 20)


def _column(title: str, texts: list[str]) -> Html:
    return element("div", element("h3", title), bullets(texts))


def _does(run: Evidence) -> list[str]:
    unit, steps = run.guarantee.unit, run.question.num_steps
    counted = f"It counts all {steps:,} steps that were planned"
    if run.searched is not None:
        counted = (
            f"It counts a whole search for settings, {run.searched}, with {steps:,} steps and a score in each trial"
        )
    return [
        f"It holds for every {unit}, the unusual ones too, and whatever their data is.",
        f"It holds against somebody who knows every other {unit}, the code, the settings and the first weights.",
        "It cannot be undone: whatever is computed from the model later, with whatever else is known, stays within it.",
        counted + ", and everything that was charged to the same budget.",
    ]


def _does_not(run: Evidence) -> list[str]:
    promise = run.guarantee
    texts = ["What is true of people in general. A model may well reveal that smoking harms, whoever took part."]
    if promise.unit is Unit.EXAMPLE:
        texts.append("As much to somebody who has several examples: they are a group, see the table below.")
    else:
        texts.append("As much to users who act together: they are a group, see the table below.")
    if promise.adjacency is not Adjacency.ADD_OR_REMOVE:
        texts.append(f"That the number of {promise.unit}s is secret: under {promise.adjacency} adjacency it is public.")
    if run.has_seed:
        texts.append(
            "Anything against whoever knows the seed of this run: they can remove the noise. "
            "Keep it secret, and use it once."
        )
    texts.append("Other releases from the same data. They add up with this one, and nothing here counts them.")
    texts.append("Secrecy of the machine: its memory, the time that steps take, who else reads the data.")
    return texts


def _best_guess(run: Evidence) -> float:
    """The largest share of right guesses if present and absent are equally likely: (1 + delta(0)) / 2."""
    return (1 + run.curve.delta(0.0)) / 2


def _factor(epsilon: float) -> str:
    return rounded_up(math.exp(epsilon), 3) if epsilon < 12 else f"exp({rounded_up(epsilon)})"


def headline(promise: Guarantee) -> Html:
    """The numbers that everything else explains. No epsilon stands without its adjacency."""
    numbers = element("p", f"ε = {rounded_up(promise.epsilon)}, δ = {promise.delta!r}", class_="numbers")
    around = (
        f"for every {promise.unit}, under {promise.adjacency} adjacency; the observer sees {OBSERVERS[promise.view]}"
    )
    return element("div", numbers, element("p", around), class_="headline")


Rates = NDArray[np.float64]

GROUPS = (2, 4, 10)
_FALSE_ALARMS = (0.001, 0.01, 0.1)
_LOWEST = 1e-4
_POINTS = 60
_LINES = 32


@dataclass(frozen=True)
class TradeOff:
    """The best detection rate that is left possible at each false alarm rate: a bound, made of straight lines.

    Every (epsilon, delta) that holds gives two of them (Kairouz, Oh, Viswanath 2015). Each is a bound by itself, so
    their minimum over any selection is one.

    >>> from sordino.accounting import GaussianCurve
    >>> float(TradeOff.of(GaussianCurve(1.0)).detected(np.array([0.01]))[0].round(3))  # exactly 0.092
    0.093
    """

    epsilons: tuple[float, ...]
    deltas: tuple[float, ...]

    @classmethod
    def of(cls, curve: PrivacyCurve) -> TradeOff:
        """From so many epsilons up to where nothing is left to tell."""
        widest = curve.epsilon(1e-6)
        epsilons = np.linspace(0.0, widest, _LINES) if math.isfinite(widest) else np.zeros(1)
        return cls(tuple(epsilons.tolist()), tuple(curve.delta(epsilon) for epsilon in epsilons.tolist()))

    def detected(self, false_alarms: Rates) -> Rates:
        """The most that any attack detects."""
        epsilons, deltas = np.array(self.epsilons)[:, None], np.array(self.deltas)[:, None]
        present = np.exp(np.minimum(epsilons, 700)) * false_alarms + deltas
        absent = 1 - np.exp(-epsilons) * (1 - false_alarms - deltas)
        bound: Rates = np.minimum(np.minimum(present, absent).min(axis=0), 1.0)
        return bound


def inference(run: Evidence) -> Section:
    """What is left to learn about single units and about groups."""
    promise = run.guarantee
    rates = {alarms: min(1.0, promise.best_true_positive_rate(alarms)) for alarms in _FALSE_ALARMS}
    groups = {size: promise.for_group(size) for size in GROUPS}
    html = joined(
        (
            element("p", _words(run)),
            gallery((_picture(run, rates), element("div", _groups(groups, promise.unit), class_="beside"))),
        )
    )
    facts = {
        "membership": [
            {"false_positive_rate": alarms, "best_true_positive_rate": rate} for alarms, rate in rates.items()
        ],
        "groups": [
            {"size": size, "epsilon": value if math.isfinite(value) else None, "delta": promise.delta}
            for size, value in groups.items()
        ],
        "adjacency": str(promise.adjacency),
    }
    return Section("inference", "Who could still learn what", html, facts, 30)


def _words(run: Evidence) -> str:
    return (
        f"The strongest attack asks whether one {run.guarantee.unit} was used. It can be made bolder, at the price of "
        "accusing more of those who were absent. The curve is what the proof leaves possible to the best of all "
        "attacks, knowing everything else; real ones do worse."
    )


def _picture(run: Evidence, rates: dict[float, float]) -> Html:
    alarms = np.logspace(math.log10(_LOWEST), 0, _POINTS)
    detected = TradeOff.of(run.curve).detected(alarms)

    def draw(axes: Axes) -> None:
        axes.plot(alarms, detected, color=ACCENT, linewidth=1.8)
        axes.plot(alarms, alarms, color=FAINT, linewidth=1, linestyle="--")
        axes.plot(list(rates), list(rates.values()), "o", color=ACCENT, markersize=3.5)
        for alarm, rate in rates.items():
            axes.annotate(_percent(rate), (alarm, rate), (-4, 4), textcoords="offset points", ha="right", color=ACCENT)
        axes.annotate("guessing", (0.012, 0.012), (5, -6), textcoords="offset points", color=FAINT)
        axes.set(xscale="log", yscale="log", xlim=(_LOWEST, 1), ylim=(_LOWEST, 1.15))
        axes.set(xlabel="absent ones accused", ylabel="present ones found, at most")
        for axis in (axes.xaxis, axes.yaxis):
            in_percent(axis)

    said = "; ".join(f"{_percent(rate)} at {100 * alarm:g} % false alarms" for alarm, rate in rates.items())
    caption = "The best membership attack that the guarantee leaves possible."
    words = f"Curve of the largest detection rate against the false alarm rate: {said}."
    return picture("membership", draw, caption=caption, words=words)


def _groups(groups: dict[int, float], unit: Unit) -> Html:
    words = f"Protection of several {unit}s together, such as a family or one person with several records, is weaker."
    rows = [(f"{size} {unit}s", _together(value)) for size, value in groups.items()]
    return joined((element("p", words), table((f"{unit}s together", "ε at the same δ and adjacency"), rows)))


def _together(epsilon: float) -> str:
    return rounded_up(epsilon) if math.isfinite(epsilon) else "nothing is proved"


def _percent(share: float) -> str:
    return f"{rounded_up(100 * share, 3)} %"
