"""Max pooling in chunks, with indices of few bytes, equals torch's."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.func import functional_call, grad, vmap

import sordino as so
from sordino.gradients import fused_kernels
from sordino.kernel.records import as_records

SETTINGS = [
    dict(kernel_size=2),
    dict(kernel_size=3, stride=1, padding=1),
    dict(kernel_size=3, stride=2, ceil_mode=True),
]


@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("shape", [(5, 2, 9, 8), (3, 1, 200, 170)])
@pytest.mark.parametrize("numbers", [1, 300, 1 << 19])
def test_values_and_gradients_are_torchs_whatever_the_pieces(settings, shape, numbers, monkeypatch):
    """An image of 200 by 170 pixels has indices that do not fit into two bytes."""
    monkeypatch.setattr(fused_kernels, "_VALUES_AT_A_TIME", numbers)
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0), requires_grad=True)
    of_rows = vmap(lambda row: fused_kernels.max_pool(F.max_pool2d, (row[None],), settings)[0])
    ours, torchs = of_rows(x), F.max_pool2d(x, **settings)
    assert torch.equal(ours, torchs)
    weights = torch.arange(torchs.numel()).reshape(torchs.shape).float()
    (by_ours,), (by_torchs,) = (torch.autograd.grad((y * weights).sum(), x) for y in (ours, torchs))
    torch.testing.assert_close(by_ours, by_torchs)


def test_rows_of_a_network_that_pools_large_pictures_are_those_of_vmap():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.MaxPool2d(4), nn.Flatten(), nn.Linear(2 * 49 * 49, 3))
    inputs, labels = torch.randn(3, 1, 200, 200), torch.tensor([0, 2, 1])
    batch = as_records((inputs, labels)).gather(torch.arange(3))
    rows = torch.cat(list(so.LossGradient(F.cross_entropy).of(model, batch, torch.arange(3)).rows(3)))

    def loss(parameters, x, label):
        return F.cross_entropy(functional_call(model, parameters, (x[None],)), label[None])

    each = vmap(grad(loss), in_dims=(None, 0, 0))(dict(model.named_parameters()), inputs, labels)
    torch.testing.assert_close(rows, torch.cat([x.flatten(1) for x in each.values()], dim=1), rtol=1e-4, atol=1e-6)
