"""Reconstruction error against the mask rate: figure 5 of Zhu and Blaschko (2023).

The paper writes its noise as N(0, 10^-3); both readings, variance and standard deviation, are measured. Every entry
attacks several public images; another seed uses the next images and another network.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from sordino.attacks.reconstruction import GradientInversion, public_pictures
from sordino.attacks.reconstruction.attack import known_network
from sordino.attacks.reconstruction.gallery import MeanWithInterval, Sent, reconstruct
from sordino.report.markup import ACCENT, FAINT, INK
from sordino_papers.attacks.reconstruction_gallery import as_json, draw_pictures, gallery_side
from sordino_papers.attacks.reconstruction_theorem import measure_theorem, theorem_side
from sordino_papers.harness.entry import Entry, Measurement, RunScale, SideTable
from sordino_papers.harness.page import drawing
from sordino_papers.harness.results_file import ResultsFile, write_numbers

NOISES = {"variance 1e-3": math.sqrt(1e-3), "std 1e-3": 1e-3}
PAPER_PLAIN, PAPER_SPREAD = 0.02, 0.02
_PLAIN = "plain gradient"
_THOUSAND = 1000.0  # errors are shown in thousandths


@dataclass(frozen=True)
class ReconstructionSetup:
    """Network, images, rates and attack of one scale."""

    model: str
    data: str
    pictures: int
    rates: tuple[float, ...]
    attack: GradientInversion

    def entries(self) -> tuple[Entry, ...]:
        """The plain gradient first, then each noise at each rate."""
        return (self.entry(_PLAIN, Sent()), *(entry for name in NOISES for entry in self.line(name)))

    def line(self, noise: str) -> tuple[Entry, ...]:
        """Entries of all rates with one noise."""
        return tuple(self.entry(f"{noise}, rate {rate:g}", Sent(NOISES[noise], rate)) for rate in self.rates)

    def entry(self, method: str, sent: Sent) -> Entry:
        def measure(seed: int) -> Measurement:
            rows = range(seed * self.pictures, (seed + 1) * self.pictures)
            pixels, target, facts = public_pictures(self.data, rows.stop)
            known = known_network(self.model, facts, seed=seed)
            found = list(reconstruct(self.attack, known, pixels, target, sent, rows=rows, seed=seed))
            return Measurement(
                _THOUSAND * statistics.mean(one.likeness.mse for one in found), {"pictures": as_json(found)}
            )

        settings = {"model": self.model, "pictures": self.pictures, "attack": self.attack, "sent": sent}
        paper = _THOUSAND * PAPER_PLAIN if method == _PLAIN and self.data == "cifar10" else None
        return Entry(method, self.data, None, None, settings, measure, paper=paper)

    def is_whole(self, results: ResultsFile) -> bool:
        """Whether every entry was run with seed 0."""
        return all(results.has(entry, seed=0) for entry in self.entries())

    def shown(self, results: ResultsFile) -> dict[str, list[dict[str, Any]]]:
        """Reconstructions of seed 0, by entry."""
        return {entry.method: _pictures(results, entry, 1) for entry in self.entries()}


_RESNET = "resnet-34-batchnorm"
BENCHES = {
    RunScale.QUICK: ReconstructionSetup("two-layer", "digits", 10, (0.0, 0.5, 0.9), GradientInversion(100)),
    RunScale.CPU: ReconstructionSetup(_RESNET, "cifar10", 4, (0.0, 0.5, 0.9, 0.99), GradientInversion(300)),
    RunScale.PAPER: ReconstructionSetup(
        _RESNET, "cifar10", 40, tuple(tenth / 10 for tenth in range(10)), GradientInversion(24_000)
    ),
}


@dataclass(frozen=True)
class ReconstructionTable:
    """The experiment `reconstruction`."""

    name: str = "reconstruction"
    about: str = (
        "Mean squared error of pictures rebuilt from their gradients by Inverting Gradients, in thousandths of the\n"
        "squared range of pixels, against the rate of a random mask; the attack compares coordinates that were sent.\n"
        "Public pictures, networks with first weights and BatchNorm in eval mode. No epsilon: nothing was clipped.\n"
        "Paper: Zhu and Blaschko (2023), figure 5, with 20 ± 20 for plain gradients of ResNet-34 on 200 pictures."
    )

    def entries(self, scale: RunScale) -> Sequence[Entry]:
        return BENCHES[scale].entries()

    def ablation(self, scale: RunScale) -> Sequence[Entry]:
        return ()

    def sides(self, scale: RunScale, seeds: int, folder: Path) -> Sequence[SideTable]:
        command = f"sordino reproduce {self.name} --scale {scale} --seeds {seeds}"
        bench, results = BENCHES[scale], ResultsFile(folder / "runs.jsonl")
        sides = [theorem_side(folder, scale)]
        if bench.is_whole(results):
            sides.append(_curves(bench, results, folder, command, scale, seeds))
            sides.append(gallery_side(bench.shown(results), folder / f"gallery-{scale}.svg"))
        return tuple(sides)

    def measure_sides(self, scale: RunScale, seeds: int, folder: Path) -> None:
        """Attacks the layer of Theorem 5.1, and draws the gallery, whose originals come from the dataset."""
        bench, results = BENCHES[scale], ResultsFile(folder / "runs.jsonl")
        measure_theorem(folder, f"sordino reproduce {self.name} --scale {scale} --seeds {seeds}", scale)
        if bench.is_whole(results):
            draw_pictures(bench.shown(results), bench.data, folder / f"gallery-{scale}.svg")


RECONSTRUCTION = ReconstructionTable()


def _pictures(results: ResultsFile, entry: Entry, seeds: int) -> list[dict[str, Any]]:
    """Kept results of all images of an entry."""
    return [one for run in results.of(entry) if run["seed"] < seeds for one in run["more"]["pictures"]]


def _curves(
    bench: ReconstructionSetup, results: ResultsFile, folder: Path, command: str, scale: RunScale, seeds: int
) -> SideTable:
    """Errors with confidence intervals, and their increase over the lowest rate."""
    picture, numbers = folder / f"by-rate-{scale}.svg", folder / f"by-rate-{scale}.json"
    plain = MeanWithInterval.of([one["mse"] for one in _pictures(results, bench.entries()[0], seeds)])
    errors = {
        noise: [[one["mse"] for one in _pictures(results, entry, seeds)] for entry in bench.line(noise)]
        for noise in NOISES
    }
    found = {noise: [MeanWithInterval.of(values) for values in line] for noise, line in errors.items()}
    plain_numbers = {"rates": bench.rates, "plain": asdict(plain), "paper_plain": [PAPER_PLAIN, PAPER_SPREAD]}
    curves = {noise: [asdict(one) for one in line] for noise, line in found.items()}
    write_numbers(numbers, plain_numbers | {"mse": curves, "pictures": errors}, command)
    _draw(bench, plain, found, picture)
    lines = [(_PLAIN, "-", f"{plain.value:.4f}", _interval(plain), "-")]
    for noise, line in errors.items():
        for rate, values, one in zip(bench.rates, line, found[noise], strict=True):
            risen = MeanWithInterval.of([later - first for first, later in zip(line[0], values, strict=True)])
            above = "-" if values is line[0] else f"{risen.value:+.4f} ({risen.low:+.4f} to {risen.high:+.4f})"
            lines.append((noise, f"{rate:g}", f"{one.value:.4f}", _interval(one), above))
    head = ("noise", "rate", "MSE", "95 % interval over pictures", "above the lowest rate, paired")
    title = "Mean squared error by rate, and how much it rises (Student's intervals):"
    return SideTable(title, (head, *lines), (picture, numbers))


def _interval(one: MeanWithInterval) -> str:
    return f"{max(one.low, 0):.4f} to {one.high:.4f}"


def _draw(
    bench: ReconstructionSetup, plain: MeanWithInterval, found: dict[str, list[MeanWithInterval]], path: Path
) -> None:
    with drawing(path, width=4.4, height=2.8) as figure:
        axes = figure.subplots()
        for (noise, line), style, colour in zip(found.items(), ("o-", "s--"), (ACCENT, INK), strict=True):
            values = [one.value for one in line]
            reach = [[one.value - max(one.low, 0) for one in line], [one.high - one.value for one in line]]
            axes.errorbar(bench.rates, values, reach, fmt=style, color=colour, label=noise, markersize=3, capsize=2)
        axes.axhline(plain.value, linestyle=":", color=ACCENT, label="no noise, ours")
        if bench.data == "cifar10":
            axes.axhline(PAPER_PLAIN, linestyle="-.", color=FAINT, label="no noise, paper (0.02 ± 0.02)")
        axes.set(xlabel="sparsification rate", ylabel="mean squared error", ylim=(0, None))
        axes.legend()
