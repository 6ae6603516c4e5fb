"""Pretraining on features that differ from the private ones by a rotation: Proposition 4.4 of Xu and Chen (2026).

A network is trained without noise on public rows, then privately on rows whose features are rotated by an angle. It is
compared with training from scratch with the same private steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sordino.report.markup import ACCENT, FAINT, INK
from sordino_papers.harness.entry import Entry, Measurement, RunScale, SideTable
from sordino_papers.harness.page import drawing
from sordino_papers.harness.results_file import ResultsFile, write_numbers
from sordino_papers.side_effects.patch_experiment import PatchExperiment, groups_of
from sordino_papers.side_effects.two_patch_world import (
    PatchDescent,
    PatchNetwork,
    harmful_angle,
    one_feature_each,
    starting_loss,
)

ANGLES = (0.0, 15.0, 30.0, 45.0, 60.0, 75.0, 90.0)
FEATURE_NORM = 1.0
PUBLIC_SEED = 10_000  # added to a seed: public rows are other rows
_SCRATCH = "from scratch"
_CHOSEN = "ours, by hand: few private steps, as fine-tuning has, and noise that they can still be seen in."


@dataclass(frozen=True)
class FineTuningSetup:
    """Public and private training, with their rows."""

    bench: PatchExperiment
    public: PatchDescent
    private: PatchDescent

    def entry(self, degrees: float, *, pretrained: bool) -> Entry:
        turned = replace(self.bench, world=self.bench.world.rotated(degrees))

        def measure(seed: int) -> Measurement:
            if not pretrained:
                return turned.measure(self.private, seed)
            start = PatchNetwork.of(_public_weights(self, seed))
            found = turned.measure(self.private, seed, start=start)
            return replace(found, more={**found.more, "strength": self.strength(seed)})

        method = f"fine-tuned, {degrees:g} degrees" if pretrained else f"{_SCRATCH}, {degrees:g} degrees"
        settings = turned.settings(self.private) | {"pretrained": self.public if pretrained else None}
        return Entry(method, "patches", None, None, settings, measure, chosen=_CHOSEN)

    def strength(self, seed: int) -> float:
        """Mean margin of the public network on its own features, without noise in the other patch."""
        features = self.bench.world.features()
        with torch.no_grad():
            outputs = PatchNetwork.of(_public_weights(self, seed))(torch.stack([features, 0 * features], dim=1))
        return float((outputs[0, 0] - outputs[0, 1] + outputs[1, 1] - outputs[1, 0]) / 2)


@lru_cache(maxsize=4)  # angles of a seed share their public network
def _public_weights(tuning: FineTuningSetup, seed: int) -> Tensor:
    return tuning.bench.trained(tuning.public, PUBLIC_SEED + seed).weights()


def _tuning(dimension: int, patch_noise: float, examples: int, filters: int) -> FineTuningSetup:
    world = one_feature_each(FEATURE_NORM, dimension=dimension, patch_noise=patch_noise)
    public = PatchDescent(0.0, learning_rate=4.0 * filters, steps=50)
    return FineTuningSetup(
        PatchExperiment(world, examples, filters), public, PatchDescent(0.02, learning_rate=0.8 * filters, steps=10)
    )


_WHOLE = _tuning(400, 0.1, 1000, 20)
TUNINGS = {RunScale.QUICK: _tuning(100, 0.2, 200, 10), RunScale.CPU: _WHOLE, RunScale.PAPER: _WHOLE}


@dataclass(frozen=True)
class RotatedPatchesTable:
    """The experiment `rotated-patches`."""

    name: str = "rotated-patches"
    about: str = (
        "Test accuracy in percent after a few private steps, from a network that was trained on public rows of other\n"
        "features, and from scratch, by the angle between the features, in a synthetic world. No epsilon is claimed:\n"
        "noise is given. Paper: Xu and Chen (2026), Proposition 4.4 and appendix B; sizes and formulas are ours."
    )

    def entries(self, scale: RunScale) -> Sequence[Entry]:
        return tuple(TUNINGS[scale].entry(degrees, pretrained=way) for way in (True, False) for degrees in ANGLES)

    def ablation(self, scale: RunScale) -> Sequence[Entry]:
        return ()

    def sides(self, scale: RunScale, seeds: int, folder: Path) -> Sequence[SideTable]:
        command = f"sordino reproduce {self.name} --scale {scale} --seeds {seeds}"
        tuning, results = TUNINGS[scale], ResultsFile(folder / "runs.jsonl")
        tuned, scratch = (
            [groups_of(tuning.entry(degrees, pretrained=way), folder, seeds) for degrees in ANGLES]
            for way in (True, False)
        )
        if not all(tuned) or not all(scratch):
            return ()
        strength = float(results.of(tuning.entry(0.0, pretrained=True))[0]["more"]["strength"])
        return (_losses(tuned, scratch, strength, folder, scale, command),)


ROTATED_PATCHES = RotatedPatchesTable()


def _losses(
    tuned: Sequence[list[dict[str, Any]]],
    scratch: Sequence[list[dict[str, Any]]],
    strength: float,
    folder: Path,
    scale: RunScale,
    command: str,
) -> SideTable:
    picture, numbers = folder / f"losses-{scale}.svg", folder / f"losses-{scale}.json"
    before = [starting_loss(degrees, strength=strength) for degrees in ANGLES]
    plain = {"angles": ANGLES, "fine_tuned": tuned, "from_scratch": scratch, "strength": strength, "before": before}
    write_numbers(numbers, plain, command)
    _draw(before, tuned, scratch, picture)
    lines = [
        (
            f"{degrees:g}",
            f"{start:.3f}",
            *(f"{group['loss']:.3f}" for group in pair),
            *(f"{group['loss']:.3f}" for group in other),
            f"{_mean_loss(pair) - _mean_loss(other):+.3f}",
        )
        for degrees, start, pair, other in zip(ANGLES, before, tuned, scratch, strict=True)
    ]
    head = ("angle", "before, formula", "tuned, class 1", "class 2", "scratch, class 1", "class 2", "tuned - scratch")
    title = (
        f"Losses by angle. By formula, pre-training of strength {strength:.2f} (seed 0) begins above a guess from "
        f"{harmful_angle(strength):.0f} degrees on:"
    )
    return SideTable(title, (head, *lines), (picture, numbers))


def _mean_loss(groups: list[dict[str, Any]]) -> float:
    return float(sum(group["loss"] for group in groups)) / len(groups)


def _draw(
    before: Sequence[float],
    tuned: Sequence[list[dict[str, Any]]],
    scratch: Sequence[list[dict[str, Any]]],
    path: Path,
) -> None:
    with drawing(path, width=4.4, height=2.8) as figure:
        axes = figure.subplots()
        axes.plot(ANGLES, before, ":", color=FAINT, label="before fine-tuning, by formula")
        axes.plot(ANGLES, [_mean_loss(pair) for pair in tuned], marker=".", color=ACCENT, label="fine-tuned")
        axes.plot(ANGLES, [_mean_loss(pair) for pair in scratch], "--", marker=".", color=INK, label=_SCRATCH)
        axes.set(xlabel="angle in degrees", ylabel="test loss", xticks=ANGLES)
        axes.legend()
