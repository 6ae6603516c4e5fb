"""Trainings in the two-patch world, and the results of each group."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sordino.effects.input_attacks import L2
from sordino.kernel.randomness import Key
from sordino_papers.harness.entry import Entry, Measurement
from sordino_papers.harness.results_file import ResultsFile
from sordino_papers.side_effects.two_patch_world import (
    PatchDescent,
    PatchNetwork,
    TwoPatches,
    feature_to_noise,
    move_to_high_loss,
    outcomes,
    train,
    train_without_noise,
)
from sordino_papers.side_effects.two_patch_world.robustness import EVERYWHERE

PER_GROUP = 250


@dataclass(frozen=True)
class PatchExperiment:
    """A world, the number of training rows, and the network. Rows are drawn again for each seed.

    >>> from sordino_papers.side_effects.two_patch_world import PatchDescent, TwoPatches
    >>> bench = PatchExperiment(TwoPatches(dimension=8), examples=40, filters=2)
    >>> measured = bench.measure(PatchDescent(noise_std=0.1, steps=2), 0)
    >>> len(measured.more["groups"])
    4
    """

    world: TwoPatches
    examples: int
    filters: int

    def start(self, seed: int) -> PatchNetwork:
        return PatchNetwork(self.world.dimension, self.filters, seed=seed)

    def trained(self, descent: PatchDescent, seed: int, start: PatchNetwork | None = None) -> PatchNetwork:
        """Trains privately, or without noise if the noise is 0."""
        network = self.start(seed) if start is None else start
        rows = self.world.draw(self.examples, Key.from_seed(seed).stream("training rows"))
        if descent.noise_std:
            return train(network, rows, descent, seed=seed)
        train_without_noise(network, rows, descent, seed=seed)
        return network

    def measure(
        self, descent: PatchDescent, seed: int, *, radius: float | None = None, start: PatchNetwork | None = None
    ) -> Measurement:
        """Mean accuracy of groups in percent; loss, accuracy and ratio of each group, and the same under attack."""
        return Measurement(*self._measured(self.trained(descent, seed, start), descent, seed, radius))

    def _measured(
        self, network: PatchNetwork, descent: PatchDescent, seed: int, radius: float | None
    ) -> tuple[float, dict[str, Any]]:
        rows = self.world.draw_evenly(PER_GROUP, Key.from_seed(seed).stream("test rows"))
        groups = [asdict(outcome) for outcome in outcomes(network, self.world, rows)]
        if descent.noise_std:
            for group, ratio in zip(groups, feature_to_noise(self.world, descent, self.filters), strict=True):
                group |= {"clipping_factor": ratio.clipping_factor, "effective": ratio.effective}
        if radius is not None:
            attack = L2(radius, step=radius / 8, steps=20, low=-EVERYWHERE, high=EVERYWHERE)
            moved = outcomes(network, self.world, move_to_high_loss(network, rows, attack))
            for group, outcome in zip(groups, moved, strict=True):
                group |= {"adversarial_loss": outcome.loss, "adversarial_accuracy": outcome.accuracy}
        accuracy = 100 * sum(group["accuracy"] for group in groups) / len(groups)
        return accuracy, {"groups": groups}

    def settings(self, descent: PatchDescent) -> dict[str, Any]:
        return {"bench": self, "descent": descent}


def groups_of(entry: Entry, folder: Path, seeds: int) -> list[dict[str, Any]]:
    """Kept results of each group of an entry, as means over seeds. Empty if nothing was run."""
    runs = [run["more"]["groups"] for run in ResultsFile(folder / "runs.jsonl").of(entry) if run["seed"] < seeds]
    return [_mean(same_group) for same_group in zip(*runs, strict=True)]


def _mean(same_group: Sequence[dict[str, Any]]) -> dict[str, Any]:
    numbers = {name for name, value in same_group[0].items() if not isinstance(value, str)}
    return same_group[0] | {name: float(np.mean([group[name] for group in same_group])) for name in numbers}
