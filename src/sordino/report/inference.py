"""Who could still learn what: membership attacks that the guarantee leaves possible, and groups."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from numpy.typing import NDArray

from sordino.accounting import PrivacyCurve, Unit
from sordino.accounting.guarantee import rounded_up
from sordino.report.evidence import Evidence
from sordino.report.markup import Html, element, joined, table
from sordino.report.pictures import ACCENT, FAINT, gallery, in_percent, picture
from sordino.report.sections import Section

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
