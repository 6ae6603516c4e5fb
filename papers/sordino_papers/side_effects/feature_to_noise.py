"""Loss of groups against the inverse of their feature-to-noise ratio: figure 3a of Xu and Chen (2026)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from scipy.stats import spearmanr

from sordino.kernel.randomness import Key
from sordino.report.markup import ACCENT, FAINT, INK
from sordino_papers.harness.entry import Entry, Measurement, RunScale, SideTable
from sordino_papers.harness.page import drawing
from sordino_papers.harness.results_file import read_numbers, write_numbers
from sordino_papers.side_effects.measured_ratio import exposed_descent, measure_ratios
from sordino_papers.side_effects.patch_experiment import PatchExperiment, groups_of
from sordino_papers.side_effects.two_patch_world import FeatureToNoise, PatchDescent, TwoPatches, feature_to_noise

NOISE = {
    RunScale.QUICK: (0.0, 0.005, 0.01, 0.02, 0.04, 0.08),
    RunScale.CPU: (0.0, 0.0025, 0.005, 0.01, 0.02, 0.04),
    RunScale.PAPER: (0.0, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.04, 0.05),
}
_SMALL = PatchExperiment(TwoPatches(dimension=100, patch_noise=0.2), examples=200, filters=10)
_WHOLE = PatchExperiment(TwoPatches(), examples=1000, filters=20)
BENCHES = {RunScale.QUICK: _SMALL, RunScale.CPU: _WHOLE, RunScale.PAPER: _WHOLE}
RADIUS = 0.1  # in L2: a tenth of the longest feature
_CHOSEN = "ours, by sweeps over draws of the world, which are nobody's data: long enough for all groups without noise."
_COLOURS, _MARKERS = (ACCENT, INK), ("o", "x")


@dataclass(frozen=True)
class FeatureToNoiseTable:
    """The experiment `feature-to-noise`."""

    name: str = "feature-to-noise"
    about: str = (
        "Mean test accuracy of four groups in percent, by the standard deviation of the noise on the mean gradient,\n"
        "in a synthetic world. Losses by group are below. No epsilon is claimed: noise is given, not a budget.\n"
        "Paper: Xu and Chen (2026), figure 3a, a picture only; sizes and formulas are ours."
    )

    def entries(self, scale: RunScale) -> Sequence[Entry]:
        return tuple(_entry(BENCHES[scale], noise_std) for noise_std in NOISE[scale])

    def ablation(self, scale: RunScale) -> Sequence[Entry]:
        return ()

    def sides(self, scale: RunScale, seeds: int, folder: Path) -> Sequence[SideTable]:
        command = f"sordino reproduce {self.name} --scale {scale} --seeds {seeds}"
        found = {
            std: groups_of(entry, folder, seeds) for std, entry in zip(NOISE[scale], self.entries(scale), strict=True)
        }
        if not all(found.values()):
            return ()
        return _losses(found, folder, scale, command), _ratios(folder, scale)

    def measure_sides(self, scale: RunScale, seeds: int, folder: Path) -> None:
        """Writes the ratios of the formula, and those of raw gradients at the first step of seed 0."""
        bench, steps = BENCHES[scale], _noisiest(scale)
        rows = bench.world.draw(bench.examples, Key.from_seed(0).stream("training rows"))
        run = exposed_descent(bench.start(0), rows, steps, at=(0,), seed=0)
        measured = measure_ratios(run, rows.group, divisor=steps.batch_size(len(rows)))
        formula = feature_to_noise(bench.world, steps, bench.filters)
        write_numbers(
            folder / f"ratios-{scale}.json",
            {"formula": [asdict(one) for one in formula], "measured": [asdict(one) for one in measured]},
            f"sordino reproduce {self.name} --scale {scale} --seeds {seeds}",
        )


FEATURE_TO_NOISE = FeatureToNoiseTable()


def descent(bench: PatchExperiment, noise_std: float) -> PatchDescent:
    """SGD with a learning rate of four per filter: see `PatchDescent`."""
    return PatchDescent(noise_std, learning_rate=4.0 * bench.filters)


def _entry(bench: PatchExperiment, noise_std: float) -> Entry:
    steps = descent(bench, noise_std)

    def measure(seed: int) -> Measurement:
        return bench.measure(steps, seed, radius=RADIUS)

    method = f"noise {noise_std:g}" if noise_std else "no noise, not private"
    return Entry(method, "patches", None, None, bench.settings(steps) | {"radius": RADIUS}, measure, chosen=_CHOSEN)


def _losses(found: dict[float, list[dict[str, Any]]], folder: Path, scale: RunScale, command: str) -> SideTable:
    noisy = [group for std, groups in found.items() if std for group in groups]
    inverse = [1 / group["effective"] for group in noisy]
    ranks = {
        name: float(spearmanr([group[name] for group in noisy], inverse).statistic)
        for name in ("loss", "adversarial_loss")
    }
    picture, numbers = folder / f"losses-{scale}.svg", folder / f"losses-{scale}.json"
    by_noise = [{"noise_std": std, "groups": groups} for std, groups in found.items()]
    write_numbers(numbers, {"radius": RADIUS, "by_noise": by_noise, "rank_correlation": ranks}, command)
    _draw(found, picture)
    lines = [
        (
            group["group"],
            f"{std:g}",
            f"{1 / group['effective']:.3f}" if std else "-",
            f"{group['loss']:.3f}",
            f"{100 * group['accuracy']:.1f}",
            f"{group['adversarial_loss']:.3f}",
            f"{100 * group['adversarial_accuracy']:.1f}",
        )
        for std, groups in found.items()
        for group in groups
    ]
    title = (
        f"By group, attacked within {RADIUS:g} in L2. Rank correlation of the loss with 1 / effective ratio: "
        f"{ranks['loss']:.2f}, and {ranks['adversarial_loss']:.2f} under attack:"
    )
    head = ("group", "noise", "1 / ratio", "loss", "accuracy", "loss, attacked", "accuracy, attacked")
    return SideTable(title, (head, *lines), (picture, numbers))


def _noisiest(scale: RunScale) -> PatchDescent:
    return descent(BENCHES[scale], NOISE[scale][-1])


def _ratios(folder: Path, scale: RunScale) -> SideTable:
    """Side table of measured ratios and those of the formula."""
    numbers = folder / f"ratios-{scale}.json"
    noise_std = _noisiest(scale).noise_std
    title = f"Ratios by formula, and on the raw gradients of the first step, at noise {noise_std:g} (not private):"
    if (kept := read_numbers(numbers)) is None:
        return SideTable.not_measured(title)
    formula = [FeatureToNoise(**fields) for fields in kept["formula"]]
    lines = [
        (
            one.group,
            *(f"{x:.2f}" for x in (one.share, shown["share"], one.clipping_factor, shown["clipping_factor"])),
            *(f"{x:.3g}" for x in (one.effective, shown["effective"])),
        )
        for one, shown in zip(formula, kept["measured"], strict=True)
    ]
    head = ("group", "share", "measured", "clipping factor", "measured", "effective ratio", "measured")
    return SideTable(title, (head, *lines), (numbers,))


def _draw(found: dict[float, list[dict[str, Any]]], path: Path) -> None:
    panels = {"loss": "test loss", "adversarial_loss": f"test loss, attacked within {RADIUS:g}"}
    with drawing(path, width=6.4, height=2.8) as figure:
        for axes, (name, label) in zip(figure.subplots(1, 2), panels.items(), strict=True):
            every = [group for std, groups in found.items() if std for group in groups]
            for place, title in enumerate(dict.fromkeys(group["group"] for group in every)):
                line = [group for group in every if group["group"] == title]
                axes.plot(
                    [1 / group["effective"] for group in line],
                    [group[name] for group in line],
                    marker=_MARKERS[place % 2],
                    color=_COLOURS[place // 2],
                    linewidth=0.8,
                    label=title,
                )
            ends = sorted(1 / group["effective"] for group in every)
            axes.plot([ends[0], ends[-1]], [ends[0], ends[-1]], color=FAINT, linewidth=0.8, label="loss = 1 / ratio")
            axes.set(xscale="log", yscale="log", xlabel="1 / effective feature-to-noise ratio", ylabel=label)
        figure.axes[0].legend(fontsize=6)
