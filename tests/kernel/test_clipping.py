"""Clips bound what each unit adds to a sum."""

import pytest
import torch
from contracts import LAYOUT, ClipContract, PerExampleContract

from sordino import ClipByNorm, ClipPerLayer, Normalise
from sordino.errors import UsageError
from sordino.kernel.states import Dense, Layout


class TestClipByNorm(ClipContract):
    clip = ClipByNorm(0.7)


class TestClipByATinyNorm(ClipContract):
    clip = ClipByNorm(1e-6)


class TestClipPerLayer(ClipContract):
    clip = ClipPerLayer((0.7, 0.2))


class TestNormalise(ClipContract):
    clip = Normalise(2.0, stabiliser=0.01)


class TestDense(PerExampleContract):
    def make(self):
        return Dense(torch.randn(7, LAYOUT.size, generator=torch.Generator().manual_seed(0)), LAYOUT)


def test_a_gradient_below_the_norm_is_untouched():
    row = torch.tensor([[0.3, 0.4]])
    total = ClipByNorm(1.0)(Dense(row, Layout(("w",), ((2,),))))
    assert torch.equal(total.value, row[0].double())


def test_the_bound_per_layer_is_the_root_of_the_sum_of_squares():
    assert ClipPerLayer((3.0, 4.0)).bound == 5.0


def test_a_number_of_norms_that_is_not_that_of_the_parameters_is_refused():
    with pytest.raises(UsageError, match="must hold 2 clip norms, got 3"):
        ClipPerLayer((1.0, 1.0, 1.0))(Dense(torch.zeros(1, LAYOUT.size), LAYOUT))


@pytest.mark.slow
@pytest.mark.parametrize("clip", [ClipByNorm(1.0), ClipPerLayer((1.0, 0.5)), Normalise(1.0)])
def test_the_bound_holds_in_float64_at_ten_million_parameters(clip):
    size = 10**7
    rows = torch.randn(3, size, generator=torch.Generator().manual_seed(0))
    layout = Layout(("weight", "bias"), ((size - 10,), (10,)))
    whole = clip(Dense(rows, layout)).value
    for unit in range(3):
        rest = clip(Dense(rows[torch.arange(3) != unit], layout)).value
        assert float((whole - rest).norm()) <= clip.bound


@pytest.mark.parametrize(("norm", "stabiliser"), [(1.0, 1e-13), (1e-6, 1e-13), (1e6, 1e-7), (1.0, 0.0)])
def test_a_stabiliser_that_lets_weights_overflow_is_refused(norm, stabiliser):
    with pytest.raises(UsageError, match="stabiliser must be"):
        Normalise(norm, stabiliser)


@pytest.mark.parametrize("norm", [0, -1.0, float("nan"), float("inf"), 1e-30, 1e13, "1", None, True])
@pytest.mark.parametrize("clip", [ClipByNorm, Normalise, lambda norm: ClipPerLayer((1.0, norm))])
def test_a_clip_norm_that_bounds_nothing_is_refused(clip, norm):
    with pytest.raises(UsageError, match="norm"):
        clip(norm)
