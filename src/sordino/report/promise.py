"""Sections of the card on the guarantee: its meaning, what it does not cover, and the attacks that remain possible."""

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
    """The section that states the guarantee, in words and as a table."""
    promise, guess = run.guarantee, _best_guess(run)
    unit, observer = promise.unit, OBSERVERS[promise.view]
    apart = f", apart from a probability of {promise.delta!r} (delta)" if promise.delta else ""
    words = paragraphs(
        f"Whether or not the data of one {unit} was used, nothing that can be observed of this training becomes more "
        f"than {_factor(promise.epsilon)} times as likely{apart}.",
        f"Suppose someone observes {observer} and guesses whether a given {unit} was used, when both are equally "
        f"likely. The guess is right in at most {rounded_up(100 * guess, 3)} of 100 cases. A coin toss is right in 50.",
    )
    rows = (
        ("epsilon", f"{rounded_up(promise.epsilon)}, rounded up"),
        ("delta", repr(promise.delta)),
        ("privacy unit", f"one {unit}"),
        ("adjacency", f"{promise.adjacency}: {promise.adjacency.in_words.replace('unit', str(unit))}"),
        ("the observer sees", observer),
        ("proved by", f"the accountant {promise.accountant}"),
        ("assumed", "; ".join(promise.assumptions) or "nothing beyond the mechanism itself"),
    )
    facts = promise.as_dict() | {"best_guess": guess}
    return Section("guarantee", "The guarantee", joined((element("div", words, class_="lead"), pairs(rows))), facts, 10)


def limits(run: Evidence) -> Section:
    """The section on what the guarantee covers and what it does not."""
    does, does_not = _does(run), _does_not(run)
    columns = (_column("What is guaranteed", does), _column("What is not guaranteed", does_not))
    html = element("div", *columns, class_="columns")
    return Section("limits", "What this means", html, {"promised": does, "not_promised": does_not}, 20)


def _column(title: str, texts: list[str]) -> Html:
    return element("div", element("h3", title), bullets(texts))


def _does(run: Evidence) -> list[str]:
    unit, steps = run.guarantee.unit, run.num_steps
    counted = f"It counts all {steps:,} planned steps"
    if run.searched is not None:
        counted = (
            f"It counts a whole search for settings ({run.searched}) with {steps:,} steps and a score in each trial"
        )
    return [
        f"It holds for every {unit}, including unusual ones, whatever its data is.",
        f"It holds against an attacker who knows every other {unit}, the code, the settings and the first weights.",
        "It cannot be undone: it also covers all that is computed from the model later, with any other knowledge.",
        f"{counted}." if _is_alone(run) else counted + ", and everything else that was charged to the same budget.",
    ]


def _is_alone(run: Evidence) -> bool:
    """Whether the run shares a budget with other releases that its guarantee does not count."""
    return any(each.startswith("this run is counted alone") for each in run.guarantee.assumptions)


def _does_not(run: Evidence) -> list[str]:
    promise = run.guarantee
    texts = [
        "Secrecy of facts about people in general. A model may reveal that smoking is harmful, no matter whose data "
        "was used."
    ]
    if promise.unit is Unit.EXAMPLE:
        texts.append("Equal protection of a person with several examples: they are a group, see the table of groups.")
    else:
        texts.append("Equal protection of several users together: they are a group, see the table of groups.")
    if promise.adjacency is not Adjacency.ADD_OR_REMOVE:
        texts.append(f"Secrecy of the number of {promise.unit}s: under {promise.adjacency} adjacency it is public.")
    if run.has_seed:
        texts.append(
            "Protection against anyone who knows the seed of this run: they can remove the noise. "
            "Keep the seed secret, and use it once."
        )
    if run.declaration is not None and run.declaration.is_open:
        texts.append(run.declaration.in_words)
    texts.append("Protection from other releases of the same data. Their epsilons add up with this one.")
    texts.append("Security of the computer: its memory, the time that steps take, and who else can read the data.")
    return texts


def _best_guess(run: Evidence) -> float:
    """The largest probability of a right guess if used and not used are equally likely: (1 + delta(0)) / 2."""
    return (1 + run.curve.delta(0.0)) / 2


def _factor(epsilon: float) -> str:
    return rounded_up(math.exp(epsilon), 3) if epsilon < 12 else f"exp({rounded_up(epsilon)})"


def headline(promise: Guarantee) -> Html:
    """Epsilon and delta, always together with unit, adjacency and observer."""
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
    """An upper bound on the true positive rate of any attack at each false positive rate, made of straight lines.

    Every valid pair of epsilon and delta gives two lines (Kairouz, Oh and Viswanath 2015). Each is a bound, so their
    minimum over any selection is one too.

    >>> from sordino.accounting import GaussianCurve
    >>> float(TradeOff.of(GaussianCurve(1.0)).detected(np.array([0.01]))[0].round(3))  # exactly 0.092
    0.093
    """

    epsilons: tuple[float, ...]
    deltas: tuple[float, ...]

    @classmethod
    def of(cls, curve: PrivacyCurve) -> TradeOff:
        """The bound from evenly spaced epsilons, up to the one at delta = 1e-6."""
        widest = curve.epsilon(1e-6)
        epsilons = np.linspace(0.0, widest, _LINES) if math.isfinite(widest) else np.zeros(1)
        return cls(tuple(epsilons.tolist()), tuple(curve.delta(epsilon) for epsilon in epsilons.tolist()))

    def detected(self, false_alarms: Rates) -> Rates:
        """The upper bound on the true positive rate at each of `false_alarms`."""
        epsilons, deltas = np.array(self.epsilons)[:, None], np.array(self.deltas)[:, None]
        present = np.exp(np.minimum(epsilons, 700)) * false_alarms + deltas
        absent = 1 - np.exp(-epsilons) * (1 - false_alarms - deltas)
        bound: Rates = np.minimum(np.minimum(present, absent).min(axis=0), 1.0)
        return bound


def inference(run: Evidence) -> Section:
    """The section on membership attacks against single units, and on the protection of groups."""
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
    return Section("inference", "Attacks that remain possible", html, facts, 30)


def _words(run: Evidence) -> str:
    return (
        f"A membership attack guesses whether one {run.guarantee.unit} was used for training (a member). The more "
        "members it finds, the more false alarms it raises about others. The curve is an upper bound for every attack, "
        "even one that knows everything else; real attacks find fewer members."
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
        axes.set(xlabel="false alarms", ylabel="members found, at most")
        for axis in (axes.xaxis, axes.yaxis):
            in_percent(axis)

    values = "; ".join(f"{_percent(rate)} at {100 * alarm:g} % false alarms" for alarm, rate in rates.items())
    caption = "The most that any membership attack can find under the guarantee."
    words = f"Curve of the largest fraction of members found against the false alarm rate: {values}."
    return picture("membership", draw, caption=caption, words=words)


def _groups(groups: dict[int, float], unit: Unit) -> Html:
    words = f"Several {unit}s together, such as a family or one person with several records, are protected less."
    rows = [(f"{size} {unit}s", _together(value)) for size, value in groups.items()]
    return joined((element("p", words), table((f"{unit}s together", "ε at the same δ and adjacency"), rows)))


def _together(epsilon: float) -> str:
    return rounded_up(epsilon) if math.isfinite(epsilon) else "no bound is known"


def _percent(fraction: float) -> str:
    return f"{rounded_up(100 * fraction, 3)} %"
