"""Rows moved to where a network's loss is high: an attack that goes on after a row is wrong, for an adversarial loss.

`sordino.effects.input_attacks.pgd` asks whether a row can be made wrong, and stops there; how high the loss gets is another
question. Steps and balls are the same.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from sordino.effects.input_attacks import PgdAttack, Victim
from sordino_papers.side_effects.two_patch_world.network import PatchNetwork
from sordino_papers.side_effects.two_patch_world.world import Patches

EVERYWHERE = 1e30  # patches have no range to stay in


def attacked(network: PatchNetwork, rows: Patches, attack: PgdAttack) -> Patches:
    """Each row at the place with the highest loss on the way of projected ascent, which begins at the row itself.

    >>> from sordino.effects.input_attacks import L2
    >>> from sordino_papers.side_effects.two_patch_world.world import TwoPatches
    >>> from sordino.kernel.randomness import Key
    >>> rows = TwoPatches(dimension=8).draw(5, Key.from_seed(0).stream("rows"))
    >>> attack = L2(radius=0.1, step=0.02, steps=10, low=-EVERYWHERE, high=EVERYWHERE)
    >>> moved = attacked(PatchNetwork(8, 4, seed=0), rows, attack).inputs - rows.inputs
    >>> bool((moved.flatten(1).norm(dim=1) < 0.1001).all())
    True
    """
    victim, place = Victim(network), rows.inputs
    best, (highest, _, gradient) = place, victim.losses(place, rows.target)
    for _ in range(attack.steps):
        place = attack.nearest(rows.inputs, place + attack.along(gradient))
        losses, _, gradient = victim.losses(place, rows.target)
        worse = losses > highest
        best = torch.where(worse[:, None, None], place, best)
        highest = torch.where(worse, losses, highest)
    return replace(rows, inputs=best)
