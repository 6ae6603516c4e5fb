"""The lemmas about masks and clips hold, with nothing to spare; where they do not as printed, what holds is tested."""

from __future__ import annotations

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from symmetric import DEVIATIONS, DIMENSION, all_masks, draw, kappa, progress, reached, with_opposites

SEEDS = st.integers(min_value=0, max_value=10**6)
LENGTHS = st.floats(min_value=0.01, max_value=10.0)
ZEROED = st.integers(min_value=1, max_value=DIMENSION - 1)
NAMES = st.sampled_from(sorted(DEVIATIONS))
E1 = torch.eye(DIMENSION, dtype=torch.float64)[0]


def vector(seed: int, length: float = 1.0) -> torch.Tensor:
    normals = torch.randn(DIMENSION, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return length * normals / normals.norm()


@given(SEEDS, SEEDS, st.integers(min_value=0, max_value=DIMENSION - 1))
def test_a_mask_keeps_its_share_of_every_product(seed: int, other: int, zeroed: int) -> None:
    u, v, masks = vector(seed), vector(other), all_masks(zeroed).double()
    share = (1 - zeroed / DIMENSION) * (u @ v)
    torch.testing.assert_close(((masks * u) @ v).mean(), share)  # Lemma A.1
    torch.testing.assert_close(((masks * u) * (masks * v)).sum(dim=1).mean(), share)  # Corollary A.2


def test_a_vector_that_knows_the_mask_has_another_share() -> None:
    u, masks = vector(0), all_masks(3).double()
    v = masks * u  # what is left of a gradient after steps under the same mask
    share_of_expectation = 0.5 * (v @ u).mean()
    assert float(((masks * u) * v).sum(dim=1).mean()) == pytest.approx(2 * float(share_of_expectation))


@given(SEEDS, ZEROED)
def test_a_mask_keeps_a_length_between_its_share_and_the_root_of_it(seed: int, zeroed: int) -> None:
    u, kept = vector(seed), 1 - zeroed / DIMENSION
    assert kept < float((all_masks(zeroed) * u).norm(dim=1).mean()) < kept**0.5  # Lemma B.1, and Jensen's inequality


@given(ZEROED)
def test_a_vector_along_an_axis_keeps_exactly_the_share(zeroed: int) -> None:
    kept = 1 - zeroed / DIMENSION
    assert float((all_masks(zeroed) * E1).norm(dim=1).mean()) == pytest.approx(kept)


@given(NAMES, SEEDS, LENGTHS, LENGTHS)
def test_clipped_gradients_with_symmetric_deviations_make_progress(name, seed, length, deviation) -> None:
    gradient, deviations = vector(seed + 1, length), draw(name, deviation, seed)
    assert progress(gradient, deviations, 1.0) >= reached(gradient, deviations, 1.0) * (1 - 1e-12)  # Lemma 3.2


def test_the_progress_is_exactly_that_where_nothing_is_clipped() -> None:
    gradient, deviations = vector(1, 0.25), draw("sphere", 0.749, 0)
    assert progress(gradient, deviations, 1.0) == pytest.approx(float(reached(gradient, deviations, 1.0)))


@pytest.mark.parametrize("constants", [{"short": 0.9}, {"quarter": 0.4}])
def test_neither_constant_of_the_progress_could_be_larger(constants: dict[str, float]) -> None:
    deviation = constants.get("short", 0.75) - 0.01
    gradient, deviations = constants.get("quarter", 0.25) * E1, with_opposites(deviation * E1[None])
    assert progress(gradient, deviations, 1.0) < 0.9 * reached(gradient, deviations, 1.0, **constants)


def test_deviations_that_are_not_symmetric_can_turn_progress_around() -> None:
    deviations = torch.stack([-0.7 * E1] * 10 + [7 * E1])  # the mean is zero, but the long one is clipped
    assert progress(0.1 * E1, deviations, 1.0) < 0 < reached(0.1 * E1, deviations, 1.0)


@given(NAMES, SEEDS, LENGTHS, LENGTHS, ZEROED)
def test_kappa_is_never_below_the_share_of_kept_coordinates(name, seed, length, deviation, zeroed) -> None:
    gradient, deviations = vector(seed + 1, length), draw(name, deviation, seed)
    assume(reached(gradient, deviations, 1.0) > 0)
    assert kappa(gradient, deviations, 1.0, all_masks(zeroed)) >= (1 - zeroed / DIMENSION) * (1 - 1e-12)


@given(NAMES, SEEDS, LENGTHS, st.floats(min_value=0.01, max_value=1.0), ZEROED)
def test_kappa_is_at_most_one_if_enough_deviations_are_short(name, seed, length, deviation, zeroed) -> None:
    gradient, deviations = vector(seed + 1, length), draw(name, deviation, seed)
    assume((deviations.norm(dim=1) < 0.75).double().mean() >= (1 - zeroed / DIMENSION) ** 0.5)
    assert kappa(gradient, deviations, 1.0, all_masks(zeroed)) <= 1 + 1e-12  # Lemma 3.3


@pytest.mark.parametrize("zeroed", [1, 3, 5])
def test_kappa_is_the_share_of_kept_coordinates_once_gradients_are_short(zeroed: int) -> None:
    """The lemma prints an open interval. Its lower end is where every training arrives that converges."""
    deviations = draw("sphere", 0.7, 0)
    assert kappa(vector(1, 0.2), deviations, 1.0, all_masks(zeroed)) == pytest.approx(1 - zeroed / DIMENSION)


def deviations_of_which_short(share: float) -> torch.Tensor:
    """Along the diagonal: the long ones are just too long, and short under any mask."""
    diagonal = torch.full((1, DIMENSION), DIMENSION**-0.5, dtype=torch.float64)
    short = round(100 * share)
    return with_opposites(torch.cat([0.7 * diagonal.expand(short, -1), 0.76 * diagonal.expand(100 - short, -1)]))


def test_kappa_reaches_one_and_exceeds_it_where_few_deviations_are_short() -> None:
    gradient = torch.full((DIMENSION,), 2.0 * DIMENSION**-0.5, dtype=torch.float64)
    masks = all_masks(3)
    shares = {share: kappa(gradient, deviations_of_which_short(share), 1.0, masks) for share in (0.9, 0.71, 0.2)}
    assert shares[0.9] == pytest.approx(0.5**0.5 / 0.9)  # below one
    assert shares[0.71] == pytest.approx(0.5**0.5 / 0.71) and 0.99 < shares[0.71] < 1  # as near as one likes
    assert shares[0.2] == pytest.approx(0.5**0.5 / 0.2)  # then sparsifying helps a clip without noise as well
