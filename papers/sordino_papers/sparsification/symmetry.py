"""Symmetry of gradient deviations: figures 6 to 9 of Zhu and Blaschko (2023), with a test.

Figures 6 and 7 show two random planes of DP-SGD, figures 8 and 9 two of DP-SGD with random sparsification. The
gradients are those that the clip of a step receives.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from torch import Tensor

from sordino.training.not_private import NOT_PRIVATE
from sordino_papers.harness.entry import Entry, Measurement, RunScale, SideTable
from sordino_papers.harness.page import drawing
from sordino_papers.harness.results_file import write_numbers
from sordino_papers.harness.training import DpSgdTrial, Sparsity
from sordino_papers.sparsification.diagnostics import Deviations, Symmetry, deviations
from sordino_papers.sparsification.gradient_snapshots import (
    ExposedTraining,
    GradientSnapshots,
    kept_details,
    mark_not_private,
)

FINAL_RATE = 0.9
METHODS = {"DP-SGD": None, "DP-SGD with RS": Sparsity(FINAL_RATE)}
PLANES, BINS, FLIPS, LEVEL = 2, 16, 199, 0.05


_PIXELS = DpSgdTrial("dp-cnn", batch_size=1000, epochs=80, learning_rate=1.0, clip=1.0, momentum=0.0)
# Batches are smaller than the paper's where rows are fewer, and noise is as much smaller: that on the mean is the same.
_FEW_PIXELS = replace(_PIXELS, batch_size=250, epochs=6)
_CLOTHES = DpSgdTrial("dp-cnn-s", batch_size=2048, epochs=20, learning_rate=4.0, clip=1.0, momentum=0.0)
_DIGITS = DpSgdTrial("two-layer", batch_size=128, epochs=4, learning_rate=1.0, clip=1.0, momentum=0.0)
LOOKS = {
    RunScale.QUICK: (GradientSnapshots(ExposedTraining("digits", _DIGITS, 1.0), (0, 1, 2, 3), units=64),),
    RunScale.CPU: (
        GradientSnapshots(ExposedTraining("fashion-mnist", _CLOTHES, 1.8), (0, 1, 2, 3, 5, 10, 15, 19), units=400),
        GradientSnapshots(ExposedTraining("cifar10", _FEW_PIXELS, 0.4, examples=5000), (0, 1, 2, 3, 4, 5), units=200),
    ),
    RunScale.PAPER: (
        GradientSnapshots(ExposedTraining("cifar10", _PIXELS, 1.6), (0, 3, 6, 9, 20, 40, 60, 79), units=1000),
    ),
}


@dataclass(frozen=True)
class SymmetryTable:
    """The experiment `symmetry`."""

    name: str = "symmetry"
    about: str = (
        "Asymmetry of gradient deviations in random planes at the last look, in percent: the energy distance between\n"
        "deviations and their reflection, as a share of the distance between both, above that of random\n"
        "signs. No epsilon: raw gradients were looked at. Paper: Zhu and Blaschko (2023), figures 6 to 9, no numbers."
    )

    def entries(self, scale: RunScale) -> Sequence[Entry]:
        return tuple(_entry(looks, method) for looks in LOOKS[scale] for method in METHODS)

    def ablation(self, scale: RunScale) -> Sequence[Entry]:
        return ()

    def sides(self, scale: RunScale, seeds: int, folder: Path) -> Sequence[SideTable]:
        command = f"sordino reproduce {self.name} --scale {scale} --seeds {seeds}"
        found = [(entry, kept_details(entry, folder, seeds)) for entry in self.entries(scale)]
        return tuple(_side(entry, more, scale, folder, command) for entry, more in found if more)


SYMMETRY = SymmetryTable()


def _entry(looks: GradientSnapshots, method: str) -> Entry:
    trial = replace(looks.training.trial, sparsity=METHODS[method])
    used = replace(looks, training=replace(looks.training, trial=trial))
    settings = {"snapshots": used, "planes": PLANES, "flips": FLIPS}

    def measure(seed: int) -> Measurement:
        found = [
            (epoch, deviations(step, units=used.units, planes=PLANES, flips=FLIPS)) for epoch, step in used.shown(seed)
        ]
        last = [one.asymmetry for one in found[-1][1].in_planes]
        more = {"warning": NOT_PRIVATE, "looks": [_look(one, epoch) for epoch, one in found]}
        return Measurement(100 * sum(last) / len(last), more)

    return Entry(method, used.training.data, None, None, settings, measure)


def _look(found: Deviations, epoch: int) -> dict[str, Any]:
    planes = [_numbers(one) | _histogram(points) for one, points in zip(found.in_planes, found.planes, strict=True)]
    return {"epoch": epoch, "step": found.step, "planes": planes, "in_full": _numbers(found.in_full)}


def _numbers(found: Symmetry) -> dict[str, Any]:
    return {"asymmetry": found.asymmetry, "p_value": found.p_value, "points": found.points}


def _histogram(points: Tensor) -> dict[str, Any]:
    """Counts on a square about the mean that holds 99 % of the points."""
    reach = float(np.quantile(points.abs().numpy(), 0.99)) or 1.0
    counts, _, _ = np.histogram2d(points[:, 0].numpy(), points[:, 1].numpy(), bins=BINS, range=[[-reach, reach]] * 2)
    return {"reach": reach, "counts": counts.astype(int).tolist()}


def _side(entry: Entry, more: Sequence[dict[str, Any]], scale: RunScale, folder: Path, command: str) -> SideTable:
    name = f"{entry.method} {entry.data}".lower().replace(" ", "-")
    picture, numbers = folder / f"{name}-{scale}.svg", folder / f"{name}-{scale}.json"
    looks = more[0]["looks"]
    _draw(looks, picture)
    write_numbers(numbers, {"seeds": len(more), "runs": [_without_counts(one) for one in more]}, command)
    head = ("epoch", "in planes, %", "p-values", "in all coordinates, %", "p-value")
    tests = [plane for one in more for look in one["looks"] for plane in look["planes"]]
    rejected = sum(test["p_value"] <= LEVEL for test in tests)
    title = (
        f"{entry.method}, {entry.data}, seed 0, not private: asymmetry by epoch. In planes, {rejected} of {len(tests)} "
        f"tests of all seeds reject symmetry at {LEVEL:g}:"
    )
    return SideTable(title, (head, *(_line(look) for look in looks)), (picture, numbers))


def _line(look: dict[str, Any]) -> tuple[str, ...]:
    planes, full = look["planes"], look["in_full"]
    return (
        str(look["epoch"]),
        ", ".join(f"{100 * plane['asymmetry']:.2f}" for plane in planes),
        ", ".join(f"{plane['p_value']:.3f}" for plane in planes),
        f"{100 * full['asymmetry']:.2f}",
        f"{full['p_value']:.3f}",
    )


def _without_counts(more: dict[str, Any]) -> dict[str, Any]:
    looks = [look | {"planes": [_plain(plane) for plane in look["planes"]]} for look in more["looks"]]
    return {"warning": more["warning"], "looks": looks}


def _plain(plane: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in plane.items() if name not in ("counts", "reach")}


def _draw(looks: Sequence[dict[str, Any]], path: Path) -> None:
    """Draws one row per plane and one column per snapshot."""
    with drawing(path, width=1.3 * len(looks), height=1.5 * PLANES + 0.4) as figure:
        panels = figure.subplots(PLANES, len(looks), squeeze=False)
        for column, look in enumerate(looks):
            for row, plane in enumerate(look["planes"]):
                _fill(panels[row][column], plane, look["epoch"])
        mark_not_private(figure)


def _fill(panel: Axes, plane: dict[str, Any], epoch: int) -> None:
    reach = plane["reach"]
    counts = np.array(plane["counts"]).T  # the first coordinate to the right
    panel.imshow(counts, cmap="Greys", origin="lower", interpolation="none", extent=(-reach, reach, -reach, reach))
    panel.set(xticks=[], yticks=[])
    panel.set_title(f"epoch {epoch}, p {plane['p_value']:.2f}", fontsize=7)
