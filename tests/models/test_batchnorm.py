"""Replacing batch normalisation keeps the model and loses the mixing."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from sordino.errors import UsageError
from sordino.models.batchnorm import replace_batchnorm


@pytest.mark.parametrize(
    ("channels", "groups"), [(64, 32), (48, 24), (33, 11), (16, 8), (7, 1), (6, 3), (2, 1), (1, 1)]
)
def test_groups_are_the_largest_divisor_that_leaves_two_channels(channels: int, groups: int) -> None:
    layer = replace_batchnorm(nn.Sequential(nn.BatchNorm2d(channels)))[0]
    assert isinstance(layer, nn.GroupNorm)
    assert (layer.num_groups, layer.num_channels) == (groups, channels)


def test_vectors_are_normalised_over_all_channels() -> None:
    layer = replace_batchnorm(nn.BatchNorm1d(10))
    x = torch.randn(5, 10)
    torch.testing.assert_close(layer(x), nn.LayerNorm(10)(x))


@pytest.mark.parametrize("shape", [(4, 4), (4, 4, 1)])
def test_the_signal_is_not_erased(shape: tuple[int, ...]) -> None:
    layer = replace_batchnorm(nn.BatchNorm1d(4))
    assert layer(torch.randn(shape)).std() > 0.5


def test_affine_weights_and_flags_are_kept_and_the_original_is_untouched() -> None:
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4, eps=0.01), nn.BatchNorm2d(4, affine=False)).double()
    nn.init.normal_(model[1].weight)
    nn.init.normal_(model[1].bias).requires_grad_(False)
    model[1].eval()
    before = copy.deepcopy(model.state_dict())
    replaced = replace_batchnorm(model)
    assert torch.equal(replaced[1].weight, model[1].weight)
    assert torch.equal(replaced[1].bias, model[1].bias)
    assert replaced[1].weight is not model[1].weight
    assert (replaced[1].weight.requires_grad, replaced[1].bias.requires_grad) == (True, False)
    assert (replaced[1].eps, replaced[1].training, replaced[2].training) == (0.01, False, True)
    assert (replaced[1].weight.dtype, replaced[2].weight) == (torch.float64, None)
    assert torch.equal(replaced[0].weight, model[0].weight)
    assert isinstance(model[1], nn.BatchNorm2d)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_a_layer_used_twice_stays_one_layer() -> None:
    norm = nn.BatchNorm2d(4)
    replaced = replace_batchnorm(nn.Sequential(norm, nn.ReLU(), norm))
    assert replaced[0] is replaced[2]


def test_nothing_is_printed_and_every_kind_is_found(capsys: pytest.CaptureFixture[str]) -> None:
    model = nn.ModuleDict({"a": nn.Sequential(nn.BatchNorm1d(4)), "b": nn.BatchNorm3d(4), "c": nn.SyncBatchNorm(4)})
    replaced = replace_batchnorm(model)
    assert not [m for m in replaced.modules() if "BatchNorm" in type(m).__name__]
    assert sum(isinstance(m, nn.GroupNorm) for m in replaced.modules()) == 3
    assert capsys.readouterr() == ("", "")


def test_the_number_of_groups_can_be_chosen() -> None:
    assert replace_batchnorm(nn.BatchNorm2d(8), groups=2).num_groups == 2


@pytest.mark.parametrize(
    ("model", "groups", "message"),
    [
        (nn.Sequential(nn.BatchNorm2d(8)), 3, r"layer '0' \(BatchNorm2d\) has 8 channels, not a multiple of 3"),
        (nn.Sequential(nn.BatchNorm1d(8)), 8, r"layer '0' \(BatchNorm1d\) needs groups of 2 channels"),
        (nn.Sequential(nn.BatchNorm1d(1)), None, r"layer '0' \(BatchNorm1d\) needs groups of 2 channels"),
        (nn.Sequential(nn.LazyBatchNorm2d()), None, r"layer '0' \(LazyBatchNorm2d\) has 0 channels"),
        (nn.Sequential(nn.BatchNorm2d(8)), 0, "groups must be a whole number"),
    ],
)
def test_groups_that_do_not_fit_or_would_erase_the_signal_are_refused(
    model: nn.Module, groups: int | None, message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        replace_batchnorm(model, groups=groups)
