"""Table of the poster: six methods for private models on pixels, two datasets, two epsilons; and our own methods."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Generic, TypeVar

from sordino.convex.random_features import GatedFeatures, RandomFourier, RandomReLU
from sordino_papers.harness.entry import Entry, Measurement, RunScale, SideTable
from sordino_papers.hidden_state.inputs import InputTransform, ScatteringInputs, SpectrumInputs, rows_of
from sordino_papers.hidden_state.methods import (
    ADJACENCY,
    DpSgdWithMomentum,
    HiddenStateMethod,
    NoisyCgdMethod,
    StatisticsMethod,
)
from sordino_papers.hidden_state.side_tables import measure_sides, sides

EPSILONS = (1.33, 4.76)
DATA = ("mnist", "cifar10")

# Koskela et al. (2025): accuracy in percent by (method, data), at the two epsilons.
PAPER = {
    ("SSP, convex", "mnist"): (51.9, 67.0),
    ("SSP, random ReLU", "mnist"): (52.5, 65.6),
    ("SSP, random Fourier", "mnist"): (64.1, 77.4),
    ("DP-SGD, convex", "mnist"): (93.1, 94.9),
    ("DP-SGD, ReLU network", "mnist"): (91.7, 94.3),
    ("NoisyCGD, convex", "mnist"): (92.4, 94.4),
    ("SSP, convex", "cifar10"): (19.2, 23.3),
    ("SSP, random ReLU", "cifar10"): (19.3, 25.9),
    ("SSP, random Fourier", "cifar10"): (21.3, 28.5),
    ("DP-SGD, convex", "cifar10"): (41.5, 45.5),
    ("DP-SGD, ReLU network", "cifar10"): (42.5, 47.0),
    ("NoisyCGD, convex", "cifar10"): (41.0, 45.4),
}
CHOSEN = {
    "mnist": "the values did best on public rows: inputs on the digits of scikit-learn, enlarged to 28 pixels and with "
    "the noise of the whole run at epsilon 1.33; everything else on 10,000 left-out training rows of Fashion-MNIST. "
    "They were not chosen blindly: while this was developed, about a dozen runs on MNIST's training rows and one "
    "earlier table were seen, which made us look for better inputs and for more steps on scattering features. Epsilon "
    "does not count these looks, as it would have to where the rows are private.",
    "cifar10": "inputs by hand on the last 5,000 training rows, declared public and not trained on (4,000 of them "
    "against 1,000, in turn, with the noise of the whole run at both epsilons); everything else as for MNIST. Not "
    "blindly either: before that, one run on the other training rows had been seen, with inputs that did badly. "
    "Epsilon does not count this look.",
}
PRIVATE_ROWS = {"mnist": 60_000, "cifar10": 45_000}
QUICK_ROWS = 10_000
PIXELS: dict[str, InputTransform] = {
    "mnist": SpectrumInputs(power=0.75, below=10.0),
    "cifar10": SpectrumInputs(power=0.5, below=6.0, mean_weight=0.5, colour_weight=4.0),
}
SCATTERING: dict[str, InputTransform] = {"mnist": ScatteringInputs()}


M = TypeVar("M", bound=HiddenStateMethod, covariant=True)


@dataclass(frozen=True)
class MethodLine(Generic[M]):
    """A method of the table: its inputs by dataset, and its settings at each of the two epsilons."""

    method: str
    inputs: dict[str, InputTransform]
    at: tuple[M, M]


CONVEX_IN_HIDING = MethodLine(
    "NoisyCGD, convex",
    PIXELS,
    (
        NoisyCgdMethod(gates=256, clip=0.5, steps=1200),
        NoisyCgdMethod(gates=256, clip=0.5, steps=4000),
    ),
)
LINES: tuple[MethodLine[Any], ...] = (
    MethodLine("SSP, convex", PIXELS, (StatisticsMethod(GatedFeatures(gates=8)),) * 2),
    MethodLine("SSP, random ReLU", PIXELS, (StatisticsMethod(RandomReLU(width=1000)),) * 2),
    MethodLine("SSP, random Fourier", PIXELS, (StatisticsMethod(RandomFourier(width=2000, gamma=1.0)),) * 2),
    MethodLine(
        "DP-SGD, convex",
        PIXELS,
        (
            DpSgdWithMomentum(clip=0.5, batch_size=4000, epochs=20, learning_rate=8.0, momentum=0.9, gates=256),
            DpSgdWithMomentum(clip=0.5, batch_size=4000, epochs=40, learning_rate=16.0, momentum=0.9, gates=256),
        ),
    ),
    MethodLine(
        "DP-SGD, ReLU network",
        PIXELS,
        (
            DpSgdWithMomentum(clip=0.5, batch_size=4000, epochs=20, learning_rate=2.0, momentum=0.9, width=600),
            DpSgdWithMomentum(clip=0.5, batch_size=4000, epochs=40, learning_rate=4.0, momentum=0.9, width=600),
        ),
    ),
    CONVEX_IN_HIDING,
)
BEYOND = (
    MethodLine(
        "NoisyCGD, scattering",
        SCATTERING,
        (
            NoisyCgdMethod(gates=None, clip=1.0, steps=900),
            NoisyCgdMethod(gates=None, clip=1.0, steps=3000),
        ),
    ),
    MethodLine(
        "NoisyCGD, gates over scattering",
        SCATTERING,
        (
            NoisyCgdMethod(gates=2, clip=1.0, steps=900),
            NoisyCgdMethod(gates=2, clip=1.0, steps=3000),
        ),
    ),
)


@dataclass(frozen=True)
class HiddenStateTable:
    """The experiment `hidden-state`."""

    name: str = "hidden-state"
    about: str = (
        "Test accuracy in percent of private models, delta 1e-5, replace-one. Pictures are evened out by frequency\n"
        "(a public transform of each row). Paper: Koskela et al. (2025), whose epsilons count as printed there."
    )

    def entries(self, scale: RunScale) -> Sequence[Entry]:
        return tuple(_entries(scale))

    def ablation(self, scale: RunScale) -> Sequence[Entry]:
        """Varies the gates and the batches of NoisyCGD on MNIST, one at a time."""
        return tuple(_ablation(scale))

    def sides(self, scale: RunScale, seeds: int, folder: Path) -> Sequence[SideTable]:
        return sides(scale, seeds, folder, self._command(scale, seeds))

    def measure_sides(self, scale: RunScale, seeds: int, folder: Path) -> None:
        measure_sides(scale, seeds, folder, self._command(scale, seeds))

    def _command(self, scale: RunScale, seeds: int) -> str:
        return f"sordino reproduce {self.name} --scale {scale} --seeds {seeds}"


HIDDEN_STATE = HiddenStateTable()


def _entries(scale: RunScale) -> Iterator[Entry]:
    for data in DATA:
        for line in (*LINES, *BEYOND):
            if (inputs := line.inputs.get(data)) is None:
                continue
            for place, (method, epsilon) in enumerate(zip(line.at, EPSILONS, strict=True)):
                printed = PAPER.get((line.method, data))
                paper = None if printed is None else printed[place]
                yield _entry(line.method, data, inputs, method, epsilon, scale, paper)


def _ablation(scale: RunScale) -> Iterator[Entry]:
    for method, epsilon in zip(CONVEX_IN_HIDING.at, EPSILONS, strict=True):
        variants = {f"{gates} gates": replace(method, gates=gates) for gates in (32, 64, 128, 256)}
        variants |= {
            f"batches of {size}": replace(method, batches=round(PRIVATE_ROWS["mnist"] / size))
            for size in (250, 1000, 4000, 12_000, 30_000)
        }
        for what, variant in variants.items():
            name = f"{CONVEX_IN_HIDING.method}, {what}"
            yield _entry(name, "mnist", PIXELS["mnist"], variant, epsilon, scale, None)


def _entry(
    name: str,
    data: str,
    inputs: InputTransform,
    method: HiddenStateMethod,
    epsilon: float,
    scale: RunScale,
    paper: float | None,
) -> Entry:
    quick = scale is RunScale.QUICK
    used, private_rows = (method.quick(), QUICK_ROWS) if quick else (method, PRIVATE_ROWS[data])

    def measure(seed: int) -> Measurement:
        return used.train(rows_of(data, inputs, private_rows), epsilon, seed)

    settings = {"inputs": inputs, "training": used, "private_rows": private_rows}
    return Entry(name, data, epsilon, str(ADJACENCY), settings, measure, paper, CHOSEN[data])
