"""Unusual models and losses, and checks of them. The name of a check is the statement that it tests."""

import functools

import torch
import torch.nn.functional as F
from torch import nn
from unharmed_trainings import fixed_model, gradients, trains
from watched_attempts import INPUTS, LABELS, NAN


class MinusMean(nn.Module):
    def forward(self, x):
        return x - x.mean(dim=0)


class Shifting(nn.Module):
    """A layer that keeps a running mean of its inputs."""

    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(4))

    def forward(self, x):
        self.mean = 0.9 * self.mean + 0.1 * x.detach().mean(dim=0)
        return x


class Bare(nn.Module):
    """A model with a bare parameter, a parameter that is used twice, and an unused one."""

    def __init__(self):
        super().__init__()
        self.shift = nn.Parameter(torch.ones(4))
        self.tied = nn.Parameter(torch.eye(4))
        self.unused = nn.Parameter(torch.ones(5))

    def forward(self, x):
        return ((x + self.shift) @ self.tied.tanh() @ self.tied)[:, :3]


class Scaled(nn.Linear):
    """A layer with a scalar parameter and an empty one."""

    def __init__(self):
        super().__init__(4, 3)
        self.scale = nn.Parameter(torch.tensor(2.0))
        self.empty = nn.Parameter(torch.zeros(0, 3))

    def forward(self, x):
        return self.scale * super().forward(x)


def half_frozen():
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 3))
    model[0].requires_grad_(False)
    return model


def sparse_embedding():
    return nn.Sequential(nn.Embedding(5, 4, sparse=True), nn.Flatten(), nn.Linear(8, 3))


def with_dtype(dtype):
    model = nn.Linear(4, 3)
    model.weight = nn.Parameter(torch.zeros(3, 4, dtype=dtype))
    return model


def contrastive(outputs, target):
    return -F.log_softmax(outputs @ outputs.T, dim=1).diagonal().sum()


def gradients_by_hand(model, inputs=INPUTS[:6], labels=LABELS[:6]):
    rows = []
    for x, y in zip(inputs, labels, strict=True):
        loss = F.cross_entropy(model(x[None]), y[None])
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        parts = torch.autograd.grad(loss, trained, allow_unused=True)
        filled = [torch.zeros_like(p) if g is None else g for p, g in zip(trained, parts, strict=True)]
        rows.append(torch.cat([g.flatten() for g in filled]))
    return torch.stack(rows)


def exact_by_hand(make_model):
    def check():
        model = make_model()
        torch.testing.assert_close(gradients(model=model), gradients_by_hand(model), atol=1e-5, rtol=1e-4)
        trains(model=model)

    return check


def frozen_public_statistics_are_allowed():
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 3))
    model[1].eval()
    before = {name: buffer.clone() for name, buffer in model.named_buffers()}
    trains(model=model)
    assert all(torch.equal(before[name], buffer) for name, buffer in model.named_buffers())


def the_reduction_of_the_loss_changes_nothing():
    releases = [
        trains(model=fixed_model(), loss=loss)
        for loss in (
            F.cross_entropy,
            functools.partial(F.cross_entropy, reduction="sum"),
            functools.partial(F.cross_entropy, reduction="none"),
            nn.CrossEntropyLoss(reduction="mean"),
        )
    ]
    assert all(torch.equal(release, releases[0]) for release in releases)


def a_loss_that_is_not_a_number_counts_as_absent():
    def not_a_number_for_class_two(outputs, target):
        value = F.cross_entropy(outputs, target.clamp(min=0), reduction="none")
        return torch.where(target == 2, value * NAN, value).sum()

    trains(loss=not_a_number_for_class_two)


def frozen_parameters_get_no_noise():
    model = half_frozen()
    before = model[0].weight.clone()
    assert trains(model=model).shape == (3, 15)
    assert torch.equal(model[0].weight, before) and model[0].weight.grad is None


def an_unused_parameter_gets_noise():
    model, unused = Bare(), slice(4 + 16, 4 + 16 + 5)
    assert (gradients(model=model)[:, unused] == 0).all()
    assert (trains(model=model)[:, unused] != 0).all()


def dropout_is_drawn_for_each_example():
    model = nn.Sequential(nn.Dropout(0.5), nn.Linear(4, 3))
    rows = gradients(torch.ones(6, 4), torch.zeros(6, dtype=torch.int64), model=model)
    assert len(rows.unique(dim=0)) > 1
    trains(model=model)


def an_integer_parameter_cannot_be_trained_and_does_no_harm():
    class Shifted(nn.Linear):
        def __init__(self):
            super().__init__(4, 3)
            self.offset = nn.Parameter(torch.tensor([1, 2, 3]), requires_grad=False)

        def forward(self, x):
            return super().forward(x) + self.offset

    exact_by_hand(Shifted)()
