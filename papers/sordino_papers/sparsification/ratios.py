"""Norm of the noise and of kept coordinates against the rate: figure 1c-d of Zhu and Blaschko (2023)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from math import sqrt
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes

from sordino.report.markup import ACCENT, DASHES, FAINT
from sordino_papers.harness.entry import Entry, Measurement, RunScale, SideTable
from sordino_papers.harness.page import drawing
from sordino_papers.harness.results_file import write_numbers
from sordino_papers.harness.training import DpSgdTrial
from sordino_papers.sparsification.diagnostics import gradient_ratios, noise_ratio
from sordino_papers.sparsification.gradient_snapshots import (
    ExposedTraining,
    GradientSnapshots,
    kept_details,
    mark_not_private,
)

RATES = tuple(round(0.05 * place, 2) for place in range(20))
SHOWN_RATES, TABLE_RATE = (0.0, 0.25, 0.5, 0.75, 0.9, 0.95), 0.9
CLIPS = (0.1, 1.0)
SIZE = 550_570  # parameters of DP-CNN


_PIXELS = DpSgdTrial("dp-cnn", batch_size=1000, epochs=40, learning_rate=1.0, clip=1.0, momentum=0.0)
_FEW_PIXELS = DpSgdTrial("dp-cnn", batch_size=250, epochs=4, learning_rate=1.0, clip=1.0, momentum=0.0)
_DIGITS = DpSgdTrial("two-layer", batch_size=128, epochs=2, learning_rate=1.0, clip=1.0, momentum=0.0)
LOOKS = {
    RunScale.QUICK: GradientSnapshots(ExposedTraining("digits", _DIGITS, 1.0), (0, 1), units=64),
    # A quarter of the paper's batch and of its noise: that on the mean is the same.
    RunScale.CPU: GradientSnapshots(ExposedTraining("cifar10", _FEW_PIXELS, 0.4, examples=5000), (0, 3), units=128),
    RunScale.PAPER: GradientSnapshots(ExposedTraining("cifar10", _PIXELS, 1.6), (0, 10, 20, 39), units=1000),
}


@dataclass(frozen=True)
class RatiosTable:
    """The experiment `sparsification-ratios`."""

    name: str = "sparsification-ratios"
    about: str = (
        f"Norms with random sparsification over norms without it, in percent, at rate {TABLE_RATE:g}: of noise, which "
        "needs no\ndata, and of the kept coordinates of clipped gradients, which is not private and has no epsilon.\n"
        "Paper: Zhu and Blaschko (2023), figure 1c-d, a picture only."
    )

    def entries(self, scale: RunScale) -> Sequence[Entry]:
        return (
            Entry("noise", "none", None, None, {"size": SIZE, "rates": RATES}, _noise),
            _gradients(LOOKS[scale]),
        )

    def ablation(self, scale: RunScale) -> Sequence[Entry]:
        return ()

    def sides(self, scale: RunScale, seeds: int, folder: Path) -> Sequence[SideTable]:
        command = f"sordino reproduce {self.name} --scale {scale} --seeds {seeds}"
        noise, gradients = (kept_details(entry, folder, seeds) for entry in self.entries(scale))
        if not noise or not gradients:
            return ()
        curves = _curves(noise[0], gradients[0])
        picture, numbers = folder / f"ratios-{scale}.svg", folder / f"ratios-{scale}.json"
        write_numbers(numbers, {"noise": noise, "gradients": gradients, "seeds": len(gradients)}, command)
        _draw(curves, picture)
        head = ("ratio", *(f"rate {rate:g}" for rate in SHOWN_RATES))
        lines = [(name, *(f"{curve[rate]:.3f}" for rate in SHOWN_RATES)) for name, curve in curves.items()]
        title = "Ratios by rate, seed 0. Those of gradients are means over units and not private:"
        return (SideTable(title, (head, *lines), (picture, numbers)),)


SPARSIFICATION_RATIOS = RatiosTable()

_NOISE, _NOISE_LAW, _GRADIENT_LAW = "noise", "sqrt(1 - r)", "1 / sqrt(1 - r)"


def _noise(seed: int) -> Measurement:
    ratios = {rate: noise_ratio(rate, SIZE, seed=seed) for rate in RATES}
    return Measurement(100 * ratios[TABLE_RATE], {"ratios": [ratios[rate] for rate in RATES]})


def _gradients(looks: GradientSnapshots) -> Entry:
    """The entry for gradients. The table shows the last snapshot, at the clip norm of the training."""
    clip = looks.training.trial.clip

    def measure(seed: int) -> Measurement:
        found = [
            (epoch, gradient_ratios(step, rates=RATES, clip_norms=CLIPS, units=looks.units, seed=seed))
            for epoch, step in looks.shown(seed)
        ]
        (value,) = [one.of_each for one in found[-1][1] if (one.rate, one.clip_norm) == (TABLE_RATE, clip)]
        shown = [{"epoch": epoch, "ratios": [asdict(one) for one in ratios]} for epoch, ratios in found]
        return Measurement(100 * value, {"looks": shown})

    settings = {"snapshots": looks, "rates": RATES, "clips": CLIPS}
    return Entry(f"kept coordinates, clip {clip:g}", looks.training.data, None, None, settings, measure)


def _curves(noise: dict[str, Any], gradients: dict[str, Any]) -> dict[str, dict[float, float]]:
    """Ratios by rate, with the laws that they are compared with."""
    curves = {
        _NOISE: dict(zip(RATES, noise["ratios"], strict=True)),
        _NOISE_LAW: {rate: sqrt(1 - rate) for rate in RATES},
    }
    for look in gradients["looks"]:
        for one in look["ratios"]:
            name = f"kept coordinates, clip {one['clip_norm']:g}, epoch {look['epoch']}"
            curves.setdefault(name, {})[one["rate"]] = one["of_each"]
    return curves | {_GRADIENT_LAW: {rate: 1 / sqrt(1 - rate) for rate in RATES}}


def _draw(curves: dict[str, dict[float, float]], path: Path) -> None:
    with drawing(path, width=7.6, height=3.6) as figure:
        noise, gradient = figure.subplots(1, 2)
        for name, curve in curves.items():
            if name in (_NOISE, _NOISE_LAW):
                _plot(noise, name, curve, is_law=name == _NOISE_LAW, place=0)
            else:
                _plot(gradient, name, curve, is_law=name == _GRADIENT_LAW, place=len(gradient.lines))
        noise.set(xlabel="rate r", ylabel="norm of noise, with over without", ylim=(0, 1.05))
        gradient.set(xlabel="rate r", ylabel="norm of kept coordinates, with over without")
        for panel in (noise, gradient):
            panel.legend()
        mark_not_private(figure)


def _plot(panel: Axes, name: str, curve: dict[float, float], *, is_law: bool, place: int) -> None:
    look = {"color": FAINT, "linewidth": 2.4} if is_law else {"color": ACCENT, "linestyle": DASHES[place]}
    panel.plot(list(curve), list(curve.values()), label=name, zorder=1 if is_law else 2, **look)
