"""Three causes of unequal losses, varied one at a time: section 4.1 of Xu and Chen (2026).

There are two classes with one feature each. Class 2 gets a smaller feature or fewer rows. For the third cause, the clip
norm is varied while class 2 has half the feature, because a clip has no effect on disparity otherwise.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from scipy.stats import spearmanr

from sordino.report.markup import ACCENT, INK
from sordino_papers.harness.entry import Entry, Measurement, RunScale, SideTable
from sordino_papers.harness.page import drawing
from sordino_papers.harness.results_file import write_numbers
from sordino_papers.side_effects.patch_experiment import PatchExperiment, groups_of
from sordino_papers.side_effects.two_patch_world import PatchDescent, PatchGroup, TwoPatches

NORMS = (1.0, 0.8, 0.6, 0.4, 0.2)
SHARES = (0.5, 0.4, 0.3, 0.2, 0.1)
CLIPS = (1.0, 0.3, 0.1, 0.03, 0.01)
FEATURE, SHARE, CLIP = "feature of class 2", "share of class 2", "clip norm"
_CHOSEN = "ours, as those of feature-to-noise, at one level of noise."


@dataclass(frozen=True)
class WorldSize:
    """Size of the world and the network, and the noise of all entries."""

    dimension: int
    patch_noise: float
    examples: int
    filters: int
    noise_std: float

    def bench(self, feature_norm: float, share: float) -> PatchExperiment:
        groups = PatchGroup("class 1", 0, 1.0, 1.0 - share), PatchGroup("class 2", 1, feature_norm, share)
        return PatchExperiment(TwoPatches(groups, self.dimension, self.patch_noise), self.examples, self.filters)

    @property
    def descent(self) -> PatchDescent:
        return PatchDescent(self.noise_std, learning_rate=4.0 * self.filters)


_WHOLE = WorldSize(400, 0.1, 1000, 20, noise_std=0.02)
SIZES = {RunScale.QUICK: WorldSize(100, 0.2, 100, 10, noise_std=0.02), RunScale.CPU: _WHOLE, RunScale.PAPER: _WHOLE}


@dataclass(frozen=True)
class CauseCase:
    """One value of one cause."""

    cause: str
    value: float
    bench: PatchExperiment
    descent: PatchDescent

    def entry(self) -> Entry:
        def measure(seed: int) -> Measurement:
            found = self.bench.measure(self.descent, seed)
            return replace(found, value=100 * float(found.more["groups"][1]["accuracy"]))

        settings = self.bench.settings(self.descent)
        return Entry(f"{self.cause}: {self.value:g}", "patches", None, None, settings, measure, chosen=_CHOSEN)


def cases(scale: RunScale) -> Iterator[CauseCase]:
    """All cases by cause, from the least harmful value."""
    size = SIZES[scale]
    for norm in NORMS:
        yield CauseCase(FEATURE, norm, size.bench(norm, 0.5), size.descent)
    for share in SHARES:
        yield CauseCase(SHARE, share, size.bench(1.0, share), size.descent)
    for clip in CLIPS:
        yield CauseCase(CLIP, clip, size.bench(0.5, 0.5), replace(size.descent, clip_norm=clip))


@dataclass(frozen=True)
class DisparityCausesTable:
    """The experiment `disparity-causes`."""

    name: str = "disparity-causes"
    about: str = (
        "Test accuracy of class 2 in percent, in a synthetic world of two classes, with one cause of disparity varied\n"
        "at a time and the noise on the mean gradient kept. No epsilon is claimed. Paper: Xu and Chen (2026), section\n"
        "4.1, in words only; sizes and formulas are ours."
    )

    def entries(self, scale: RunScale) -> Sequence[Entry]:
        return tuple(case.entry() for case in cases(scale))

    def ablation(self, scale: RunScale) -> Sequence[Entry]:
        return ()

    def sides(self, scale: RunScale, seeds: int, folder: Path) -> Sequence[SideTable]:
        command = f"sordino reproduce {self.name} --scale {scale} --seeds {seeds}"
        every = list(cases(scale))
        found = [groups_of(case.entry(), folder, seeds) for case in every]
        if not all(found):
            return ()
        return (_losses(every, found, folder, scale, command),)


DISPARITY_CAUSES = DisparityCausesTable()


def _losses(
    every: Sequence[CauseCase], found: Sequence[list[dict[str, Any]]], folder: Path, scale: RunScale, command: str
) -> SideTable:
    ranks, gaps = (
        {cause: rank(cause, every, found) for cause in (FEATURE, SHARE, CLIP)} for rank in (_rank, _gap_rank)
    )
    picture, numbers = folder / f"causes-{scale}.svg", folder / f"causes-{scale}.json"
    plain = [
        {"cause": case.cause, "value": case.value, "groups": pair} for case, pair in zip(every, found, strict=True)
    ]
    write_numbers(numbers, {"cases": plain, "rank_correlation": ranks, "rank_correlation_of_gaps": gaps}, command)
    _draw(every, found, picture)
    lines = [
        (
            case.cause,
            f"{case.value:g}",
            *(f"{1 / group['effective']:.3f}" for group in pair),
            *(f"{group['loss']:.3f}" for group in pair),
            f"{pair[1]['loss'] - pair[0]['loss']:+.3f}",
        )
        for case, pair in zip(every, found, strict=True)
    ]
    head = ("varied", "value", "1 / ratio, class 1", "class 2", "loss, class 1", "class 2", "gap")
    shown = ", ".join(f"{ranks[cause]:.2f} and {gaps[cause]:.2f} ({cause})" for cause in ranks)
    title = (
        "Losses of both classes. Rank correlation with 1 / effective ratio, of all losses, and of gaps with its "
        f"difference: {shown}. The ratio counts what a clip takes of a row that is wrong; of one that is learnt it "
        "takes less, or nothing:"
    )
    return SideTable(title, (head, *lines), (picture, numbers))


def _rank(cause: str, every: Sequence[CauseCase], found: Sequence[list[dict[str, Any]]]) -> float:
    groups = [group for case, pair in zip(every, found, strict=True) if case.cause == cause for group in pair]
    inverse = [1 / group["effective"] for group in groups]
    return float(spearmanr([group["loss"] for group in groups], inverse).statistic)


def _gap_rank(cause: str, every: Sequence[CauseCase], found: Sequence[list[dict[str, Any]]]) -> float:
    pairs = [pair for case, pair in zip(every, found, strict=True) if case.cause == cause]
    apart = [1 / two["effective"] - 1 / one["effective"] for one, two in pairs]
    return float(spearmanr([two["loss"] - one["loss"] for one, two in pairs], apart).statistic)


def _draw(every: Sequence[CauseCase], found: Sequence[list[dict[str, Any]]], path: Path) -> None:
    with drawing(path, width=7.2, height=2.6) as figure:
        for axes, cause in zip(figure.subplots(1, 3), (FEATURE, SHARE, CLIP), strict=True):
            chosen = [(case.value, pair) for case, pair in zip(every, found, strict=True) if case.cause == cause]
            for place, (colour, dash) in enumerate(((INK, "--"), (ACCENT, "-"))):
                losses = [pair[place]["loss"] for _, pair in chosen]
                axes.plot(
                    [value for value, _ in chosen], losses, dash, marker=".", color=colour, label=f"class {place + 1}"
                )
            axes.set(xlabel=cause, ylim=(0, None))
            if cause == CLIP:
                axes.set_xscale("log")
        figure.axes[0].set_ylabel("test loss")
        figure.axes[0].legend()
