"""Random features: bounded for every possible row, fixed by the seed, and independent of data."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from sordino.convex.random_features import (
    FeatureMap,
    GatedFeatures,
    RandomFourier,
    RandomReLU,
    RandomSigns,
    at_most,
)
from sordino.errors import UsageError

KINDS = [
    GatedFeatures(gates=6),
    GatedFeatures(gates=1, bias=1.0),
    RandomReLU(width=7, bias=0.3),
    RandomReLU(width=1),
    RandomSigns(width=5),
    RandomFourier(width=6, gamma=3.0, bias=1.0),
    RandomFourier(width=5, gamma=1e-3),
]
ANY_FLOAT = st.floats(width=32, allow_nan=True, allow_infinity=True)


@pytest.mark.parametrize("features", KINDS, ids=str)
@given(inputs=arrays("float32", (4, 3), elements=ANY_FLOAT))
def test_no_row_has_features_beyond_the_bound(features, inputs):
    mapped = FeatureMap(features, (3,))(torch.from_numpy(inputs))
    assert mapped.shape == (4, features.size(3))
    assert float(mapped.double().norm(dim=1).max()) <= features.bound


@pytest.mark.parametrize("features", KINDS, ids=str)
def test_each_row_is_mapped_by_itself(features):
    feature_map, inputs = FeatureMap(features, (3,)).double(), torch.randn(5, 3, dtype=torch.float64)
    alone = torch.cat([feature_map(row[None]) for row in inputs])
    torch.testing.assert_close(feature_map(inputs), alone)


@pytest.mark.parametrize("features", [GatedFeatures(500), RandomReLU(4000), RandomSigns(4000), RandomFourier(100, 2.0)])
def test_rows_of_norm_one_come_near_the_bound_so_that_no_noise_is_wasted(features):
    mapped = FeatureMap(features, (30,))(torch.randn(20, 30))
    assert float(mapped.norm(dim=1).min()) > 0.9


def test_gated_features_are_the_input_once_for_each_gate_that_it_opens():
    feature_map = FeatureMap(GatedFeatures(gates=50), (4,))
    x = torch.tensor([0.1, -0.2, 0.3, 0.4])
    blocks = feature_map(x[None]).reshape(50, 4)
    expected = (feature_map.directions.T @ x >= 0).float()[:, None] * x
    torch.testing.assert_close(blocks / blocks.norm(), expected / expected.norm())
    assert 10 < int((blocks.norm(dim=1) > 0).sum()) < 40


def test_fourier_features_approach_their_kernel():
    feature_map, rows = FeatureMap(RandomFourier(width=20_000, gamma=1.5), (3,)), torch.randn(6, 3)
    mapped, bounded = feature_map(rows), at_most(1.0, rows)
    kernel = torch.exp(-1.5 * torch.cdist(bounded, bounded).square())
    torch.testing.assert_close(mapped @ mapped.T, kernel, atol=0.03, rtol=0)


def test_the_constant_feature_is_the_same_for_every_row():
    mapped = FeatureMap(RandomReLU(width=4, bias=0.7), (2,))(torch.randn(3, 2))
    assert mapped[:, -1].tolist() == pytest.approx([0.7] * 3)


def test_the_seed_decides_the_directions():
    same, again, other = (RandomReLU(width=4, seed=seed).directions(3) for seed in (1, 1, 2))
    assert torch.equal(same, again) and not torch.equal(same, other)


def test_inputs_of_any_shape_are_taken_row_by_row():
    assert FeatureMap(RandomSigns(width=4), (1, 2, 3))(torch.zeros(5, 1, 2, 3, dtype=torch.uint8)).shape == (5, 4)


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: GatedFeatures(gates=0), "gates must be a whole number from 1"),
        (lambda: RandomReLU(width=2.5), "width must be a whole number"),
        (lambda: RandomFourier(width=4, gamma=0.0), "gamma must be a finite number above 0"),
        (lambda: RandomReLU(width=4, bias=-1.0), "bias must be in"),
        (lambda: RandomReLU(width=4, seed=-1), "seed must be a whole number from 0"),
    ],
)
def test_features_that_make_no_sense_are_refused(make, message):
    with pytest.raises(UsageError, match=message):
        make()


def test_long_rows_are_shortened_and_short_ones_stay():
    rows = torch.tensor([[30.0, 40.0], [0.03, 0.04]])
    assert at_most(1.0, rows).norm(dim=1).tolist() == pytest.approx([1.0, 0.05], rel=1e-5)
