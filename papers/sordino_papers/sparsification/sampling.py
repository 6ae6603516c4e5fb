"""Sampling methods compared: Zhu and Blaschko (2023), Table 3.

The paper shuffles the rows, splits them into batches, and uses the noise that Poisson sampling would need. This has no
proof. So three methods are compared: Poisson sampling; a new partition in each epoch with the noise that its own
accountant requires; and the paper's, which has no guarantee at that epsilon.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar, Protocol

from sordino.accounting.guarantee import rounded_up
from sordino.kernel.calibration import calibrate
from sordino.kernel.sampling import Shuffled
from sordino_papers.harness.entry import Entry, Measurement, RunScale, SideTable
from sordino_papers.harness.results_file import ResultsFile, write_numbers
from sordino_papers.harness.table import gain
from sordino_papers.harness.training import ADJACENCY, DELTA, DpSgdTrial, Sparsity
from sordino_papers.harness.training_entries import SetPart, training_entry

Paper = dict[str, tuple[float, float]]
EPSILONS = (3.0, 1.0)


@dataclass(frozen=True)
class SamplingSetup:
    """Part of a dataset, and the trainings on it without and with sparsification."""

    part: SetPart
    none: DpSgdTrial
    sparse: DpSgdTrial
    chosen: str

    def of(self, kind: str) -> DpSgdTrial:
        return {"none": self.none, "RS": self.sparse}[kind]


_CNN = DpSgdTrial("dp-cnn", batch_size=1000, epochs=40, learning_rate=1.0, clip=1.0, momentum=0.0)
_SMALL = replace(_CNN, network="dp-cnn-s", batch_size=500, epochs=20)
_TINY = replace(_SMALL, batch_size=200, epochs=2)
_BY_HAND = "by hand, once, before any accuracy was seen: the paper's, with a smaller network, fewer rows and epochs."


def _sparsified(part: SetPart, trial: DpSgdTrial, chosen: str) -> SamplingSetup:
    return SamplingSetup(part, trial, replace(trial, sparsity=Sparsity(0.9)), chosen)


SETTINGS = {
    RunScale.QUICK: _sparsified(SetPart("fashion-mnist", 1_000), _TINY, _BY_HAND),
    RunScale.CPU: _sparsified(SetPart("fashion-mnist", 10_000), _SMALL, _BY_HAND),
    RunScale.PAPER: SamplingSetup(
        SetPart("cifar10", 50_000),
        _CNN,
        replace(_CNN, epochs=48, sparsity=Sparsity(0.9)),
        "those of the authors' code at epsilon 3, at both epsilons.",
    ),
}


class Sampling(Protocol):
    """A sampling method, with the paper's accuracies at the two epsilons by kind."""

    paper: ClassVar[Paper]

    def entry(self, kind: str, setting: SamplingSetup, epsilon: float, paper: float | None) -> Entry: ...


class PoissonBatches:
    """Poisson sampling: every row joins every batch independently."""

    paper: ClassVar[Paper] = {"none": (62.8, 52.8), "RS": (64.6, 55.2)}

    def entry(self, kind: str, setting: SamplingSetup, epsilon: float, paper: float | None) -> Entry:
        trial = setting.of(kind)
        return training_entry(f"Poisson, {kind}", setting.part, trial, epsilon, paper=paper, chosen=setting.chosen)


class Partition:
    """A new partition in each epoch, without amplification, with the noise that its accountant requires."""

    paper: ClassVar[Paper] = {}

    def entry(self, kind: str, setting: SamplingSetup, epsilon: float, paper: float | None) -> Entry:
        trial = setting.of(kind)
        sampler = partition(trial, setting.part.size)
        method = f"partition, {kind}"
        return training_entry(method, setting.part, trial, epsilon, sampler=sampler, paper=paper, chosen=setting.chosen)


class PartitionAsPoisson:
    """Partitions with the noise of Poisson sampling. The epsilon that is proved for them is in `more`."""

    paper: ClassVar[Paper] = {"none": (62.8, 52.5), "RS": (64.3, 55.1)}

    def entry(self, kind: str, setting: SamplingSetup, epsilon: float, paper: float | None) -> Entry:
        trial, part = setting.of(kind), setting.part
        sampler = partition(trial, part.size)

        def measure(seed: int) -> Measurement:
            noise = poisson_noise(trial, part.size, epsilon)
            return trial.with_noise(part.rows(trial), sampler, noise, seed)

        method = f"partition accounted as Poisson, not guaranteed, noise for {epsilon:g}, {kind}"
        settings = {"training": trial, "rows": part, "sampler": sampler, "noise_of_poisson_at": epsilon}
        return Entry(method, part.data, None, None, settings, measure, paper, setting.chosen)


SAMPLINGS: tuple[Sampling, ...] = (PoissonBatches(), Partition(), PartitionAsPoisson())


@dataclass(frozen=True)
class SamplingTable:
    """The experiment `sparsification-sampling`."""

    name: str = "sparsification-sampling"
    about: str = (
        "Test accuracy in percent by how batches are drawn, without and with random sparsification, delta 1e-5,\n"
        "zero-out. A partition that is accounted as Poisson sampling has no guarantee at that epsilon; what is proved\n"
        "of it is below. Paper: Zhu and Blaschko (2023), Table 3, DP-CNN on CIFAR-10, beside scale `paper` only."
    )

    def entries(self, scale: RunScale) -> Sequence[Entry]:
        return tuple(entry for pair in _pairs(scale) for entry in pair)

    def ablation(self, scale: RunScale) -> Sequence[Entry]:
        return ()

    def sides(self, scale: RunScale, seeds: int, folder: Path) -> Sequence[SideTable]:
        return (proved(tuple(_pairs(scale)), scale, seeds, folder, self.name),)


SPARSIFICATION_SAMPLING = SamplingTable()


def partition(trial: DpSgdTrial, examples: int) -> Shuffled:
    """A sampler with as many batches as Poisson sampling would draw, in whole epochs."""
    return Shuffled(round(examples / trial.batch_size), round(trial.epochs), ADJACENCY)


@lru_cache
def poisson_noise(trial: DpSgdTrial, examples: int, epsilon: float) -> float:
    """The noise multiplier at which Poisson sampling has this epsilon."""
    plan = calibrate(trial.plan(trial.poisson(examples), 1.0, examples), epsilon=epsilon, delta=DELTA)
    noise: Any = plan.noise
    return float(noise.noise_multiplier)


def proved(pairs: Sequence[tuple[Entry, Entry]], scale: RunScale, seeds: int, folder: Path, name: str) -> SideTable:
    """Noise multiplier, proved epsilon and gain of sparsification, one line per sampling method and epsilon."""
    results, numbers = ResultsFile(folder / "runs.jsonl"), folder / f"sampling-{scale}.json"
    lines, plain = [], []
    for none, sparse in pairs:
        found, runs = gain(none, sparse, results, seeds=seeds), results.of(sparse)
        more = runs[-1]["more"] if runs else {}
        printed = None if none.paper is None or sparse.paper is None else sparse.paper - none.paper
        lines.append(
            (
                sparse.method,
                "none" if sparse.epsilon is None else f"{sparse.epsilon:g}",
                f"{more['noise_multiplier']:.3f}" if more else "-",
                rounded_up(more["epsilon"], 3) if more else "-",
                "-" if printed is None else f"{printed:+.1f}",
                found.shown,
            )
        )
        plain.append({"method": sparse.method, "proved": more, "gain": found.mean, "half_width": found.half_width})
    write_numbers(numbers, {"samplings": plain}, f"sordino reproduce {name} --scale {scale} --seeds {seeds}")
    head = ("sampling", "epsilon", "noise", "epsilon proved", "gain, paper", "gain, ours")
    title = "What is proved of each, and what sparsification gains, paired by seed (Student's 95 % interval):"
    return SideTable(title, (head, *lines), (numbers,))


def _pairs(scale: RunScale) -> Iterator[tuple[Entry, Entry]]:
    setting = SETTINGS[scale]
    for sampling in SAMPLINGS:
        for place, epsilon in enumerate(EPSILONS):
            papers = sampling.paper if scale is RunScale.PAPER else {}
            none, sparse = (
                sampling.entry(kind, setting, epsilon, papers[kind][place] if kind in papers else None)
                for kind in ("none", "RS")
            )
            yield none, sparse
