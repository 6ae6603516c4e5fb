"""Ablation of random sparsification: rising or constant rate, one mask per epoch or per step.

Accuracy is that of private training; bytes are those of a federated run. A rate that rises to 0.9 keeps as many
coordinates on average as a constant rate of 0.45, so both are compared.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path

from sordino.encodings import ConstantRate, Cooling
from sordino.encodings.sparsify import RateSchedule
from sordino_papers.harness.entry import Entry, RunScale, SideTable
from sordino_papers.harness.results_file import ResultsFile
from sordino_papers.harness.training import DpSgdTrial, Sparsity
from sordino_papers.harness.training_entries import SetPart, training_entry
from sordino_papers.sparsification.communication_cost import (
    WIRES,
    CommunicationCost,
    communication_entry,
    in_every_format,
    traffic,
)

FINAL_RATE = 0.9
EPSILONS = (3.0, 1.0)


@dataclass(frozen=True)
class MaskSchedule:
    """Schedule of the rate, and number of masks per epoch: None is one mask per step."""

    schedule: RateSchedule
    per_epoch: int | None

    def __str__(self) -> str:
        rate = "constant" if isinstance(self.schedule, ConstantRate) else "cooling"
        return f"{rate}, mask per {'step' if self.per_epoch is None else 'epoch'}"

    def of(self, trial: DpSgdTrial, rate: float) -> DpSgdTrial:
        return replace(trial, sparsity=Sparsity(rate, self.per_epoch, self.schedule) if rate else None)


KINDS = tuple(MaskSchedule(schedule, per_epoch) for schedule in (Cooling(), ConstantRate()) for per_epoch in (1, None))


@dataclass(frozen=True)
class MaskSetup:
    """Settings of the accuracy runs, of the `clients` whose bytes are counted, and the rates of both."""

    part: SetPart
    trial: DpSgdTrial
    sent_part: SetPart
    sent_trial: DpSgdTrial
    rates: tuple[float, ...]
    chosen: str
    clients: int = 4


_CNN = DpSgdTrial("dp-cnn", batch_size=1000, epochs=40, learning_rate=1.0, clip=1.0, momentum=0.0)
_SMALL = replace(_CNN, network="dp-cnn-s", batch_size=500, epochs=20)
_TINY = replace(_SMALL, batch_size=200, epochs=2)
_SENT = replace(_SMALL, batch_size=40, epochs=5)
_TENTHS = tuple(tenth / 10 for tenth in range(10))
_BY_HAND = "by hand, once, before any accuracy was seen: the paper's, with a smaller network, fewer rows and epochs."
_PUBLISHED = "those of the authors' code at epsilon 3 without sparsification, for all."

SETTINGS = {
    RunScale.QUICK: MaskSetup(
        SetPart("fashion-mnist", 1_000),
        _TINY,
        SetPart("fashion-mnist", 40),
        replace(_SENT, batch_size=10, epochs=3),
        (0.0, 0.5, 0.9),
        _BY_HAND,
    ),
    RunScale.CPU: MaskSetup(
        SetPart("fashion-mnist", 10_000), _SMALL, SetPart("fashion-mnist", 160), _SENT, _TENTHS, _BY_HAND
    ),
    RunScale.PAPER: MaskSetup(
        SetPart("cifar10", 50_000), _CNN, SetPart("cifar10", 50_000), replace(_CNN, epochs=2), _TENTHS, _PUBLISHED
    ),
}


@dataclass(frozen=True)
class MaskAblation:
    """The experiment `sparsification-ablation`."""

    name: str = "sparsification-ablation"
    about: str = (
        "Test accuracy in percent by how the rate of random sparsification goes and how often its mask changes, delta\n"
        "1e-5, zero-out, Poisson batches. The paper (Zhu and Blaschko 2023) has cooling and a mask per epoch."
    )

    def entries(self, scale: RunScale) -> Sequence[Entry]:
        return tuple(_entries(SETTINGS[scale]))

    def ablation(self, scale: RunScale) -> Sequence[Entry]:
        return ()

    def sides(self, scale: RunScale, seeds: int, folder: Path) -> Sequence[SideTable]:
        command = f"sordino reproduce {self.name} --scale {scale} --seeds {seeds}"
        results = ResultsFile.of_extra_entries(folder)
        kept = [run["more"] for entry in self.extra_entries(scale) for run in results.of(entry)]
        found = in_every_format(CommunicationCost(**one) for one in kept)
        return (traffic(found, scale, folder, command),) if found else ()

    def extra_entries(self, scale: RunScale) -> Sequence[Entry]:
        """One federated run per kind of mask, final rate and wire format."""
        setting = SETTINGS[scale]
        return tuple(
            communication_entry(
                masks.of(setting.sent_trial, rate), str(masks), setting.sent_part, clients=setting.clients, wire=wire
            )
            for masks, rate, wire in product(KINDS, setting.rates, WIRES)
        )


SPARSIFICATION_ABLATION = MaskAblation()


def _entries(setting: MaskSetup) -> Iterator[Entry]:
    for epsilon in EPSILONS:
        yield training_entry("none", setting.part, setting.trial, epsilon, chosen=setting.chosen)
        for masks in KINDS:
            for rate in _rates(masks):
                method, trial = f"{masks}, rate {rate:g}", masks.of(setting.trial, rate)
                yield training_entry(method, setting.part, trial, epsilon, chosen=setting.chosen)


def _rates(masks: MaskSchedule) -> tuple[float, ...]:
    return (FINAL_RATE,) if isinstance(masks.schedule, Cooling) else (FINAL_RATE, FINAL_RATE / 2)
