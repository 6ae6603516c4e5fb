"""What a model and its loss do is known again by what they make of synthetic rows, whatever their weights are."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import sordino as so
from sordino.kernel.augmentation import Jitter, Views
from sordino.kernel.records import Records, as_records
from sordino.training.checkpoint import gradient_fingerprint

RECORDS = as_records((torch.randn(20, 6), torch.randint(0, 3, (20,))))


def network(*between: nn.Module) -> nn.Sequential:
    return nn.Sequential(nn.Linear(6, 8), *(between or (nn.Tanh(), nn.Dropout(0.3))), nn.Linear(8, 3))


def rehearsed(model: nn.Module, gradient: so.LossGradient | None = None, records: Records = RECORDS) -> str:
    return gradient_fingerprint(gradient or so.LossGradient(F.cross_entropy), model, records)


def test_weights_make_no_difference_and_stay_bit_for_bit() -> None:
    model, other = network(), network()
    before = {name: x.clone() for name, x in model.state_dict().items()}
    assert rehearsed(model) == rehearsed(other)
    assert all(torch.equal(x, before[name]) for name, x in model.state_dict().items())
    assert all(x.requires_grad and x.grad is None for x in model.parameters())


@pytest.mark.parametrize(
    "other", [network(nn.ReLU(), nn.Dropout(0.3)), network(nn.Tanh(), nn.Dropout(0.4)), network().eval()]
)
def test_another_function_of_the_same_weights_is_noticed(other: nn.Module) -> None:
    assert rehearsed(other) != rehearsed(network())


@pytest.mark.parametrize(
    "other",
    [
        so.LossGradient(F.multi_margin_loss),
        so.LossGradient(F.cross_entropy, autocast=torch.bfloat16),
        so.LossGradient(F.cross_entropy, views=Views(2, (Jitter(0.1),))),
    ],
)
def test_another_gradient_is_noticed(other: so.LossGradient) -> None:
    assert rehearsed(network(), other) != rehearsed(network())


class Shifted(nn.Module):
    """Adds numbers that are saved with the weights, or not."""

    def __init__(self, shift: float, persistent: bool) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 3)
        self.register_buffer("shift", torch.full((3,), shift), persistent=persistent)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.linear(x) + self.shift)


def test_what_a_checkpoint_restores_makes_no_difference_and_what_it_does_not_restore_does() -> None:
    assert rehearsed(Shifted(0.0, persistent=True)) == rehearsed(Shifted(1.0, persistent=True))
    assert rehearsed(Shifted(0.0, persistent=False)) != rehearsed(Shifted(1.0, persistent=False))


def test_no_record_makes_a_difference() -> None:
    others = as_records((torch.full((20, 6), 1e6), torch.full((20,), 2)))
    assert rehearsed(network(), records=others) == rehearsed(network())


def test_nothing_is_drawn_from_the_global_generator() -> None:
    model, before = network(), torch.get_rng_state()
    rehearsed(model)
    assert torch.equal(torch.get_rng_state(), before)


def test_the_weights_stay_where_the_model_fails() -> None:
    model = nn.Sequential(nn.Linear(5, 3))  # of another width than the rows
    before = model[0].weight.detach().clone()
    with pytest.raises(so.errors.UsageError):
        rehearsed(model)
    assert torch.equal(model[0].weight, before)


def test_gradients_of_deep_networks_neither_vanish_nor_overflow() -> None:
    pictures = as_records((torch.randn(20, 3, 8, 8), torch.randint(0, 3, (20,))))

    def deep(first: nn.Module) -> nn.Module:
        layers = [nn.Sequential(nn.Conv2d(16, 16, 3, padding=1), nn.GroupNorm(4, 16), nn.Tanh()) for _ in range(12)]
        return nn.Sequential(nn.Conv2d(3, 16, 3), first, *layers, nn.Flatten(), nn.Linear(576, 3))

    assert rehearsed(deep(nn.ReLU()), records=pictures) != rehearsed(deep(nn.ELU()), records=pictures)


def momentum(model: nn.Module, **changes: object) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), **({"lr": 0.1, "momentum": 0.9} | changes))  # type: ignore[arg-type]


def test_another_optimizer_is_noticed() -> None:
    digests = set()
    for changes in ({}, {"lr": 0.2}, {"momentum": 0.8}, {"nesterov": True}):
        model = network()
        digests.add(gradient_fingerprint(so.LossGradient(F.cross_entropy), model, RECORDS, momentum(model, **changes)))
    assert len(digests) == 4


def test_the_optimizer_is_left_as_it_was() -> None:
    model = network()
    optimizer = momentum(model)
    elsewhere = nn.Parameter(torch.ones(3))
    optimizer.add_param_group({"params": [elsewhere]})
    elsewhere.grad = torch.ones(3)
    model(RECORDS.template(2).inputs[0]).sum().backward()
    optimizer.step()
    state = {id(x): entries["momentum_buffer"].clone() for x, entries in optimizer.state.items()}
    weights, gradients = ([of(p).clone() for p in model.parameters()] for of in (lambda p: p, lambda p: p.grad))
    moved, attributes = elsewhere.detach().clone(), dict(vars(optimizer))
    gradient_fingerprint(so.LossGradient(F.cross_entropy), model, RECORDS, optimizer)
    assert all(torch.equal(entries["momentum_buffer"], state[id(x)]) for x, entries in optimizer.state.items())
    assert all(torch.equal(x, before) for x, before in zip(model.parameters(), weights, strict=True))
    assert all(torch.equal(x.grad, before) for x, before in zip(model.parameters(), gradients, strict=True))
    assert torch.equal(elsewhere, moved) and torch.equal(elsewhere.grad, torch.ones(3))
    assert vars(optimizer) == attributes and optimizer.param_groups[0]["lr"] == 0.1
