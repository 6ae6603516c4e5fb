"""Accuracy against the final rate of sparsification in six training frameworks: figure 4 of Zhu and Blaschko (2023).

Settings are those of training without sparsification.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from sordino.training.transfer import AllParameters, BiasOnly, EmbeddingPerturbation, LinearProbe
from sordino.training.transfer.pretraining import PICTURES
from sordino_papers.harness.entry import Entry, Measurement, RunScale, SideTable
from sordino_papers.harness.training import ADJACENCY, DpSgdTrial, forget, unfinished
from sordino_papers.sparsification.largest_rate import RateCurve, largest_rates
from sordino_papers.sparsification.methods import ComparedMethod, DpSgdMethod, EmbeddedMethod, PretrainedPart, rows_for

DATA = "cifar10"
RATES = {
    RunScale.QUICK: (0.0, 0.9),
    RunScale.CPU: (0.0, 0.5, 0.7, 0.9),
    RunScale.PAPER: tuple(tenth / 10 for tenth in range(10)),
}
PUBLISHED = (
    "as published for training without sparsification (DP-CNN by the authors, for earlier work; H-CNN by Tramèr and "
    "Boneh 2021; GEP by Yu et al. 2021, with made-up pictures in the place of photographs). Those of transfer were set "
    "by hand; how the inputs of a probe are scaled was chosen on the first training rows, at epsilon 2 and without "
    "sparsification, and one way was seen on test rows too. Epsilon does not count these looks."
)
SHORTENED = (
    f"{PUBLISHED} At this scale there are fewer rows and epochs, and smaller batches. Rates were raised for so few "
    "steps, but for those of the probe and of GEP, by what they had on training rows that were left out, without "
    "sparsification (`python -m bench.frameworks`), after smaller ones had been seen on the test rows."
)


@dataclass(frozen=True)
class FrameworkSetup:
    """A training method at an epsilon, on the first `examples` private rows and the first `public` test rows."""

    title: str
    epsilon: float
    way: ComparedMethod
    examples: int | None = None
    public: int | None = None

    def quick(self) -> FrameworkSetup:
        return replace(self, way=self.way.quick(), examples=64, public=100)


CNN = DpSgdTrial("dp-cnn", batch_size=1000, epochs=40, learning_rate=1.0, clip=0.1, momentum=0.9)
SCATTERING = DpSgdTrial("h-cnn", batch_size=8192, epochs=60, learning_rate=4.0, clip=0.1, momentum=0.9)
PROBE = DpSgdTrial(
    "resnet-20",
    batch_size=1024,
    epochs=40,
    learning_rate=2.0,
    clip=0.1,
    momentum=0.9,
    start=PretrainedPart(LinearProbe(), PICTURES),
)
BIASES = replace(PROBE, epochs=20, learning_rate=1.0, start=PretrainedPart(BiasOnly(), PICTURES))
EVERYTHING = replace(BIASES, start=PretrainedPart(AllParameters(), PICTURES))
EMBEDDED = EmbeddedMethod("resnet-20", EmbeddingPerturbation())
SMALLER: dict[str, Any] = {"batch_size": 250, "epochs": 3, "learning_rate": 2.0}
_SHORT_SCATTERING = replace(SCATTERING, batch_size=1000, epochs=6, learning_rate=2.0)
FEW = replace(EMBEDDED.settings, batch_size=250, epochs=4, public_rows=64, directions=48)

PAPER = (
    FrameworkSetup("DP-CNN", 3.0, DpSgdMethod(CNN)),
    FrameworkSetup("H-CNN", 3.0, DpSgdMethod(SCATTERING)),
    FrameworkSetup("transfer, linear probe", 2.0, DpSgdMethod(PROBE)),
    FrameworkSetup("transfer, biases", 2.0, DpSgdMethod(BIASES)),
    FrameworkSetup("transfer, everything", 2.0, DpSgdMethod(EVERYTHING)),
    FrameworkSetup("GEP", 8.0, EMBEDDED),
)
CPU = (
    FrameworkSetup("DP-CNN", 3.0, DpSgdMethod(replace(CNN, **SMALLER)), 4000, 2000),
    FrameworkSetup("H-CNN", 3.0, DpSgdMethod(_SHORT_SCATTERING), 10_000, 2000),
    FrameworkSetup("transfer, linear probe", 2.0, DpSgdMethod(PROBE), 10_000, 2000),
    FrameworkSetup("transfer, biases", 2.0, DpSgdMethod(replace(BIASES, **SMALLER)), 4000, 2000),
    FrameworkSetup("transfer, everything", 2.0, DpSgdMethod(replace(EVERYTHING, **SMALLER)), 4000, 2000),
    FrameworkSetup("GEP", 8.0, replace(EMBEDDED, settings=FEW), 1000, 2000),
)
FRAMEWORKS = {RunScale.QUICK: tuple(framework.quick() for framework in PAPER), RunScale.CPU: CPU, RunScale.PAPER: PAPER}


@dataclass(frozen=True)
class SparsificationFrameworks:
    """The experiment `sparsification-frameworks`."""

    name: str = "sparsification-frameworks"
    about: str = (
        "Test accuracy in percent by the final rate r* of random sparsification, delta 1e-5, zero-out,\n"
        "Poisson batches, CIFAR-10. Settings are those of training without it. Transfer is from made-up pictures."
    )

    def entries(self, scale: RunScale) -> Sequence[Entry]:
        return [entry for curve in _curves(scale) for entry in curve.entries]

    def ablation(self, scale: RunScale) -> Sequence[Entry]:
        return ()

    def sides(self, scale: RunScale, seeds: int, folder: Path) -> Sequence[SideTable]:
        command = f"sordino reproduce {self.name} --scale {scale} --seeds {seeds}"
        return (largest_rates(_curves(scale), folder, scale, seeds, command),)


SPARSIFICATION_FRAMEWORKS = SparsificationFrameworks()


def _curves(scale: RunScale) -> list[RateCurve]:
    rates = RATES[scale]
    return [
        RateCurve(framework.title, framework.epsilon, rates, tuple(_entry(framework, rate, scale) for rate in rates))
        for framework in FRAMEWORKS[scale]
    ]


def _entry(framework: FrameworkSetup, rate: float, scale: RunScale) -> Entry:
    way, epsilon = framework.way, framework.epsilon

    def measure(seed: int) -> Measurement:
        rows = rows_for(way, DATA, framework.examples, framework.public)
        return way.train(rows, epsilon, rate, seed, folder(seed))

    def folder(seed: int) -> Path:
        return unfinished(DATA, framework, rate, seed)

    settings = {"method": way, "rate": rate, "examples": framework.examples, "public": framework.public}
    method, chosen = f"{framework.title}, r* {rate:g}", PUBLISHED if scale is RunScale.PAPER else SHORTENED
    return Entry(
        method,
        DATA,
        epsilon,
        str(ADJACENCY),
        settings,
        measure,
        chosen=chosen,
        forget=lambda seed: forget(folder(seed)),
    )
