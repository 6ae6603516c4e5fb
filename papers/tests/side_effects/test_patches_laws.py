"""The laws of the feature-to-noise ratio, measured on networks that are trained side by side: five seeds each.

Sizes are small, and seeds are fixed. Where a law holds in another form than it is stated in, the test says which.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import sqrt

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.stats import spearmanr

from sordino.effects.input_attacks import L2, LInfinity, PgdAttack
from sordino.kernel.randomness import Key
from sordino_papers.side_effects.two_patch_world import (
    PatchDescent,
    PatchNetwork,
    TwoPatches,
    adversarial_term_l2,
    adversarial_term_linf,
    feature_to_noise,
    l1_growth,
    l2_growth,
    move_to_high_loss,
    one_feature_each,
    outcomes,
    train_side_by_side,
    upper_terms,
)
from sordino_papers.side_effects.two_patch_world.robustness import EVERYWHERE

SEEDS = range(5)
FILTERS, EXAMPLES = 10, 100
WORLD = TwoPatches(dimension=100, patch_noise=0.2)
QUIET = PatchDescent(noise_std=0.0, learning_rate=40.0, steps=200)
NOISE = (0.005, 0.01, 0.02, 0.04, 0.08)

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Trained:
    """Networks by what was varied, and seed."""

    worlds: tuple[TwoPatches, ...]
    networks: tuple[tuple[PatchNetwork, ...], ...]

    def measured(self, what: str, attack: PgdAttack | None = None, per_group: int = 150) -> Array:
        """Losses or accuracies, shape (varied, seed, group)."""
        return np.array(
            [
                [self._of(world, network, seed, what, attack, per_group) for seed, network in enumerate(row)]
                for world, row in zip(self.worlds, self.networks, strict=True)
            ]
        )

    def mean_norms(self, order: int) -> Array:
        """The mean length of filters, by what was varied."""
        return np.array([np.mean([net.weights().norm(p=order, dim=2).mean() for net in row]) for row in self.networks])

    def _of(
        self, world: TwoPatches, network: PatchNetwork, seed: int, what: str, attack: PgdAttack | None, per_group: int
    ) -> list[float]:
        rows = world.draw_evenly(per_group, Key.from_seed(seed).stream("test"))
        rows = rows if attack is None else move_to_high_loss(network, rows, attack)
        return [getattr(outcome, what) for outcome in outcomes(network, world, rows)]


def trained(worlds: Sequence[TwoPatches], descents: Sequence[PatchDescent], examples: int = EXAMPLES) -> Trained:
    """World i by descent i, once for each seed."""
    pairs = [(world, descent, seed) for world, descent in zip(worlds, descents, strict=True) for seed in SEEDS]
    networks = train_side_by_side(
        [PatchNetwork(world.dimension, FILTERS, seed=seed) for world, _, seed in pairs],
        [world.draw(examples, Key.from_seed(seed).stream("train")) for world, _, seed in pairs],
        [descent for _, descent, _ in pairs],
        Key.from_seed(0).stream("laws"),
    )
    count = len(SEEDS)
    return Trained(
        tuple(worlds), tuple(tuple(networks[place : place + count]) for place in range(0, len(networks), count))
    )


def slope(x: Sequence[float], y: Array) -> float:
    """The power with which y grows in x."""
    return float(np.polyfit(np.log(x), np.log(y), 1)[0])


@pytest.fixture(scope="module")
def by_noise() -> Trained:
    return trained([WORLD] * len(NOISE), [replace(QUIET, noise_std=std) for std in NOISE])


@pytest.fixture(scope="module")
def inverse_ratios() -> Array:
    found = [feature_to_noise(WORLD, replace(QUIET, noise_std=std), FILTERS) for std in NOISE]
    return np.array([[1 / ratio.effective for ratio in ratios] for ratios in found])


def test_group_losses_have_the_order_of_the_inverse_effective_ratio(by_noise, inverse_ratios) -> None:
    losses = by_noise.measured("loss")
    assert spearmanr(losses.mean(axis=1).ravel(), inverse_ratios.ravel()).statistic > 0.95
    every_seed = np.broadcast_to(inverse_ratios[:, None], losses.shape)
    assert spearmanr(losses.ravel(), every_seed.ravel()).statistic > 0.9


def test_gaps_between_groups_grow_with_noise(by_noise) -> None:
    losses = by_noise.measured("loss").mean(axis=1)
    gaps = losses.max(axis=1) - losses.min(axis=1)
    assert (np.diff(gaps) > 0).all() and gaps[-1] > 5 * gaps[0]


def test_filters_grow_with_noise_and_at_most_as_noise_alone_says(by_noise) -> None:
    """Noise alone makes filters as long as `l2_growth` says; a feature that is learnt adds little to it here."""
    for order, growth in ((2, l2_growth), (1, l1_growth)):
        expected = [growth(replace(QUIET, noise_std=std), WORLD.dimension) for std in NOISE]
        norms = by_noise.mean_norms(order)
        assert (np.diff(norms) > 0).all()
        assert norms[2:] == pytest.approx(expected[2:], rel=0.1)


def test_filters_grow_with_the_root_of_steps_where_noise_outweighs_the_rest() -> None:
    steps, norms = (25, 50, 100, 200), []
    for count in steps:
        norms.append(float(trained([WORLD], [replace(QUIET, noise_std=0.05, steps=count)], 50).mean_norms(2)[0]))
    assert slope(steps, np.array(norms)) == pytest.approx(0.5, abs=0.03)


@pytest.mark.parametrize("kind", [L2, LInfinity])
def test_an_attack_costs_more_the_larger_its_radius_and_the_noise_and_never_more_than_the_bound(by_noise, kind) -> None:
    is_l2 = kind is L2
    term, unit = (adversarial_term_l2, 1.0) if is_l2 else (adversarial_term_linf, 0.1)
    clean = by_noise.measured("loss", per_group=50)
    raised = []
    for radius in (0.05 * unit, 0.1 * unit, 0.2 * unit):
        attack = kind(radius, step=radius / 4, steps=8, low=-EVERYWHERE, high=EVERYWHERE)
        gap = by_noise.measured("loss", attack, per_group=50) - clean
        bound = np.array([[term(network, radius) for network in row] for row in by_noise.networks])
        assert (gap >= 0).all() and (gap <= bound[:, :, None]).all()
        raised.append(gap.mean(axis=(1, 2)))
    assert (np.diff(raised, axis=0) > 0).all()  # by radius
    assert (np.diff(raised, axis=1) > 0).all()  # by noise


def test_accuracy_jumps_from_a_guess_to_near_one_within_a_decade_of_feature_size() -> None:
    """And the jump lies at longer features the more noise there is, while the loss falls all the way."""
    sizes = (0.1, 0.18, 0.32, 0.56, 1.0, 1.8)
    jumps = []
    for std in (0.005, 0.02, 0.08):
        worlds = [one_feature_each(size, dimension=100, patch_noise=0.2) for size in sizes]
        found = trained(worlds, [PatchDescent(std, learning_rate=4.0, steps=50)] * len(worlds), 60)
        accuracies = found.measured("accuracy").mean(axis=(1, 2))
        assert accuracies[0] < 0.6 and accuracies[-1] > 0.95
        jumps.append(np.interp(0.75, accuracies, np.log(sizes)))
    assert np.diff(jumps).min() > np.log(1.2)


def test_at_a_fixed_budget_the_privacy_term_grows_as_the_root_of_steps() -> None:
    steps, terms = (50, 200, 800), []
    for count in steps:
        descent = replace(QUIET, steps=count).calibrated(1000, epsilon=2.0, delta=1e-5)
        common, *_ = upper_terms(WORLD, replace(descent, learning_rate=4000.0), filters=FILTERS, examples=1000)
        terms.append(common.privacy)
    assert slope(steps, np.array(terms)) == pytest.approx(0.5, abs=0.03)


def test_at_a_fixed_budget_what_noise_adds_to_the_loss_grows_with_steps_as_the_learning_rate_decides() -> None:
    """About as sqrt(T) with a learning rate of 1 / sqrt(T), and faster with a constant one: noise adds up as well."""
    steps = (50, 100, 200)
    slopes = []
    for length in (lambda count: 40 * sqrt(50 / count), lambda count: 40.0):
        added = []
        for count in steps:
            quiet = replace(QUIET, steps=count, learning_rate=length(count))
            loss = trained([WORLD] * 2, [quiet.calibrated(1000, epsilon=2.0, delta=1e-5), quiet]).measured("loss")
            added.append(loss[0].mean() - loss[1].mean())
        slopes.append(slope(steps, np.array(added)))
    assert 0.35 < slopes[0] < 0.85 < slopes[1]


def test_the_loss_without_noise_falls_with_the_number_of_rows() -> None:
    world, rows = replace(WORLD, patch_noise=0.4), (40, 160, 640)
    losses = [float(trained([world], [QUIET], count).measured("loss").mean()) for count in rows]
    assert losses == sorted(losses, reverse=True) and losses[-1] < 0.8 * losses[0]
    noisy = replace(QUIET, noise_std=0.01)
    terms = [upper_terms(world, noisy, filters=FILTERS, examples=count)[0].generalisation for count in rows]
    assert slope(rows, np.array(terms)) == pytest.approx(-0.5, abs=1e-6)
