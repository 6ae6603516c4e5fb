"""The gradient of each example, and a whole training that must end with finite weights."""

import torch
import torch.nn.functional as F
from torch import nn
from watched_attempts import INPUTS, LABELS

import sordino as so


def gradients(inputs=INPUTS[:6], labels=LABELS[:6], model=None, loss=F.cross_entropy, **records):
    """The gradients of the examples, one per row."""
    batch = so.as_records((inputs, labels), **records).gather(torch.arange(len(inputs)))
    each = so.LossGradient(loss).of(model or fixed_model(), batch, torch.arange(len(inputs)))
    return torch.cat(list(each.rows(8)))


def fixed_model():
    model = nn.Linear(4, 3)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.linspace(-1, 1, parameter.numel()).reshape(parameter.shape))
    return model


def trains(data=(INPUTS, LABELS), model=None, loss=F.cross_entropy):
    """Checks that a run on all examples ends with finite weights. Returns the releases."""
    model = model or nn.Linear(4, 3)
    plan = so.Plan(so.Poisson(1.0, 3), so.LossGradient(loss), so.ClipByNorm(1.0), so.Gaussian(1.0))
    releases = []
    for private in so.PrivateRun(plan, model, data, seed=0):
        releases.append(private.value)
        private.divide(1000).write_to(model)
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.grad is not None:
                    parameter -= parameter.grad
    assert all(parameter.isfinite().all() for parameter in model.parameters())
    return torch.stack(releases)
