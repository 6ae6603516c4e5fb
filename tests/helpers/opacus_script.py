"""Parts of a script as users of Opacus write it."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import sordino as so
from sordino.opacus import PrivacyEngine

ROWS, INPUTS, CLASSES = 40, 4, 3


def data_set(rows=ROWS, seed=0):
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(rows, INPUTS, generator=generator)
    return TensorDataset(inputs, torch.randint(0, CLASSES, (rows,), generator=generator))


def network(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(INPUTS, 8), nn.Tanh(), nn.Linear(8, CLASSES))


def made_private(
    *, model=None, data=None, loader=None, seed=1, batch_size=8, make_optimizer=torch.optim.SGD, engine=None, **options
):
    """Returns (engine, module, optimizer, loader) after `make_private`."""
    model = network() if model is None else model
    if loader is None:
        loader = DataLoader(data or data_set(), batch_size=batch_size, shuffle=True)
    engine = engine or PrivacyEngine(seed=seed)
    options = {"noise_multiplier": 1.0, "max_grad_norm": 1.0} | options
    optimizer = make_optimizer(model.parameters(), lr=0.1)
    return engine, *engine.make_private(module=model, optimizer=optimizer, data_loader=loader, **options)


def train(module, optimizer, loader, criterion=F.cross_entropy):
    """Trains for one epoch."""
    for inputs, labels in loader:
        optimizer.zero_grad()
        criterion(module(inputs), labels).backward()
        optimizer.step()


def gradient(module):
    return torch.cat([p.grad.reshape(-1) for p in module.parameters()])


def kernel_gradients(model, data, steps, *, loss=F.cross_entropy, seed=1, clip=None):
    """The releases of a kernel run at fixed parameters, with the seed, rate and noise of the script."""
    plan = so.Plan(so.Poisson(8 / ROWS, steps), so.LossGradient(loss), clip or so.ClipByNorm(1.0), so.Gaussian(1.0))
    return [
        torch.cat([x.reshape(-1) for x in p.divide(8).tensors().values()])
        for p in so.PrivateRun(plan, model, data, seed=seed)
    ]


def script_gradients(steps, criterion=F.cross_entropy, **options):
    """The contents of `.grad` after each step of the script, with learning rate zero."""
    _, module, optimizer, loader = made_private(**options)
    optimizer.param_groups[0]["lr"] = 0.0
    found = []
    for inputs, labels in loader:
        optimizer.zero_grad()
        criterion(module(inputs), labels).backward()
        optimizer.step()
        found.append(gradient(module))
    return found[:steps]


def assert_same(found, expected):
    for one, other in zip(found, expected, strict=True):
        assert torch.allclose(one.double(), other.double(), atol=1e-5)
