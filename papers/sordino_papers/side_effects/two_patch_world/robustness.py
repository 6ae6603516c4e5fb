"""How much an attack can raise the loss of a `PatchNetwork`: its filters' lengths in the norm dual to the attack's.

Derived, and a bound: relu is 1-Lipschitz, so that a change (e_1, e_2) of the patches moves F_j by at most (1 / m) sum
over its filters of |<w, e_1>| + |<w, e_2>|, and each product by at most |w|_* |e_p|. The loss moves by no more than the
margin F_y - F_other. That noise makes the filters longer, and by how much, is what Theorem 3.7 of Xu and Chen (2026)
says as we read it; its formula was lost.
"""

from __future__ import annotations

from dataclasses import replace
from math import pi, sqrt

import torch

from sordino._input import validate
from sordino.effects.input_attacks import PgdAttack, Victim
from sordino_papers.side_effects.two_patch_world.descent import PatchDescent
from sordino_papers.side_effects.two_patch_world.network import PatchNetwork
from sordino_papers.side_effects.two_patch_world.world import PatchRows


def adversarial_term_l2(network: PatchNetwork, radius: float) -> float:
    """Largest increase of the loss of any row if both patches together move by `radius` in L2.

    |e_1| + |e_2| <= sqrt(2) * radius.

    >>> adversarial_term_l2(PatchNetwork(8, 4, seed=0), radius=0.0)
    0.0
    """
    return sqrt(2) * radius * _summed_norms(network, 2, radius)


def adversarial_term_linf(network: PatchNetwork, radius: float) -> float:
    """Largest increase of the loss if no number moves by more than `radius`: uses the L1 norms of filters."""
    return 2 * radius * _summed_norms(network, 1, radius)


def l2_growth(descent: PatchDescent, dimension: int) -> float:
    """Growth of a filter by noise alone: eta sigma_n sqrt(T d), the norm of a sum of T normal vectors.

    >>> round(l2_growth(PatchDescent(noise_std=0.01, learning_rate=1.0, steps=100), dimension=400), 3)
    2.0
    """
    validate.count(dimension=dimension)
    return descent.learning_rate * descent.noise_std * sqrt(descent.steps * dimension)


def l1_growth(descent: PatchDescent, dimension: int) -> float:
    """Growth of a filter by noise alone, in L1: eta sigma_n sqrt(T) d sqrt(2 / pi)."""
    return l2_growth(descent, dimension) * sqrt(2 * dimension / pi)


def _summed_norms(network: PatchNetwork, order: int, radius: float) -> float:
    validate.between(0, float("inf"), radius=radius)
    norms = network.weights().norm(p=order, dim=2)
    return float(norms.mean(dim=1).sum())


EVERYWHERE = 1e30  # patches have no range to stay in


def move_to_high_loss(network: PatchNetwork, rows: PatchRows, attack: PgdAttack) -> PatchRows:
    """Moves each row to the point with the highest loss along projected gradient ascent from the row.

    Unlike `sordino.effects.input_attacks.pgd`, it does not stop when a row is misclassified: it is used for adversarial
    losses.

    >>> from sordino.effects.input_attacks import L2
    >>> from sordino_papers.side_effects.two_patch_world.world import TwoPatches
    >>> from sordino.kernel.randomness import Key
    >>> rows = TwoPatches(dimension=8).draw(5, Key.from_seed(0).stream("rows"))
    >>> attack = L2(radius=0.1, step=0.02, steps=10, low=-EVERYWHERE, high=EVERYWHERE)
    >>> moved = move_to_high_loss(PatchNetwork(8, 4, seed=0), rows, attack).inputs - rows.inputs
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
