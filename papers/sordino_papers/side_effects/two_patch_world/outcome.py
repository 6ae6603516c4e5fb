"""How well a network does on each group of a world, on rows as they are or as an attack left them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F

from sordino_papers.side_effects.two_patch_world.network import PatchNetwork
from sordino_papers.side_effects.two_patch_world.world import Patches, TwoPatches


@dataclass(frozen=True)
class Outcome:
    """Of one group: the mean cross-entropy, and the share of rows that are right."""

    group: str
    loss: float
    accuracy: float


def outcomes(network: PatchNetwork, world: TwoPatches, rows: Patches) -> tuple[Outcome, ...]:
    """One for each group of the world. There must be rows of all of them, as `draw_evenly` draws.

    >>> from sordino.kernel.randomness import Key
    >>> world = TwoPatches(dimension=8)
    >>> rows = world.draw_evenly(10, Key.from_seed(0).stream("rows"))
    >>> [one.group for one in outcomes(PatchNetwork(8, 4, seed=0), world, rows)][0]
    'class 1, majority'
    """
    with torch.no_grad():
        outputs = network(rows.inputs)
    losses = F.cross_entropy(outputs, rows.target, reduction="none")
    right = (outputs.argmax(dim=1) == rows.target).float()
    return tuple(
        Outcome(group.name, float(losses[rows.group == place].mean()), float(right[rows.group == place].mean()))
        for place, group in enumerate(world.groups)
    )
