"""Federated training equals one central run, has the same guarantee, and counts every byte."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import sordino as so
from sordino.encodings import Combined, Freeze, MatchedBought, RandomSparsify, RankedSparsify
from sordino.errors import UsageError
from sordino.kernel.sampling import Poisson
from sordino.training.communication import DenseFormat, IndexFormat, SeedFormat, federated_sgd

DATA = (
    torch.randn(90, 6, generator=torch.Generator().manual_seed(0)),
    torch.randint(0, 4, (90,), generator=torch.Generator().manual_seed(1)),
)
PLAN = so.Plan(Poisson(0.4, steps=6), so.LossGradient(F.cross_entropy), so.ClipByNorm(0.5), so.Gaussian(3.0))
SPARSE = replace(PLAN, encoding=RandomSparsify(0.9, epochs=3, steps_per_epoch=2))
SIZE = 6 * 4 + 4
HALF = RandomSparsify(0.5, epochs=3, steps_per_epoch=2)


def sgd(parameters):
    return torch.optim.SGD(parameters, lr=0.2, momentum=0.5)


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Linear(6, 4)


def trained(plan=PLAN, **options):
    return federated_sgd(
        plan, network(), DATA, **({"clients": 7, "delta": 1e-3, "optimizer": sgd, "seed": 3} | options)
    )


def alone(plan) -> nn.Module:
    model = network()
    optimizer = sgd(model.parameters())
    run = so.PrivateRun(plan, model, DATA, seed=3)
    for private in run:
        private.divide(run.expected_batch_size).write_to(model)
        optimizer.step()
    return model


@pytest.mark.parametrize("plan", [PLAN, SPARSE], ids=["dense", "sparse"])
@pytest.mark.parametrize("wire", [DenseFormat(), IndexFormat(), SeedFormat()], ids=lambda wire: wire.name)
def test_clients_together_train_what_one_run_trains(plan, wire):
    got, expected = trained(plan, wire=wire).model.state_dict(), alone(plan).state_dict()
    for name, weights in expected.items():
        torch.testing.assert_close(got[name], weights, rtol=0, atol=2e-5)


def test_the_number_of_clients_changes_no_more_than_rounding():
    one, many = trained(clients=1).model.weight, trained(clients=90).model.weight
    torch.testing.assert_close(one, many, rtol=0, atol=2e-5)


def test_the_guarantee_is_that_of_the_plan():
    assert trained(SPARSE).guarantee.epsilon == PLAN.guarantee(delta=1e-3).epsilon


def test_noise_is_scaled_to_a_bound_that_covers_the_rounding_of_messages(monkeypatch):
    bounds = []
    add = so.Gaussian.add

    def noting(self, total, at):
        bounds.append(total.bound)
        return add(self, total, at)

    monkeypatch.setattr(so.Gaussian, "add", noting)
    trained()
    assert set(bounds) == {0.5 * (1 + 2 * 13 * 2.0**-24)}  # 90 examples of 7 clients: at most 13 each


def test_bytes_are_counted_up_and_down_for_every_client():
    dense = trained().traffic
    assert {(step.up, step.down) for step in dense} == {(7 * 4 * SIZE, 7 * 4 * SIZE)}


def test_seed_coded_messages_shrink_as_the_rate_rises():
    sent = trained(SPARSE, wire=SeedFormat())
    kept = [SIZE - int(rate * SIZE) for rate in (0.0, 0.0, 0.45, 0.45, 0.9, 0.9)]
    assert [step.up for step in sent.traffic] == [7 * 4 * number for number in kept]
    assert sent.bytes_up == sent.bytes_down == sum(7 * 4 * number for number in kept)


def test_the_indices_of_kept_coordinates_are_sent_once_for_each_mask():
    sent = trained(SPARSE, wire=IndexFormat())
    kept = [SIZE - int(rate * SIZE) for rate in (0.0, 0.0, 0.45, 0.45, 0.9, 0.9)]
    extra = [4 + min(4 * number, -(-SIZE // 8)) if step % 2 == 0 else 0 for step, number in enumerate(kept)]
    assert [step.up for step in sent.traffic] == [
        7 * (4 * number + more) for number, more in zip(kept, extra, strict=True)
    ]
    assert sent.bytes_up == sent.bytes_down


def adam(parameters):
    return torch.optim.AdamW(parameters, lr=0.2, weight_decay=0.1)


def test_what_is_frozen_is_not_moved_by_the_optimizer_either():
    frozen = trained(replace(PLAN, encoding=Freeze(["weight"])), optimizer=adam).model
    assert torch.equal(frozen.weight, network().weight) and not torch.equal(frozen.bias, network().bias)


def test_masks_of_two_encodings_are_sent_as_one():
    both = replace(PLAN, encoding=Combined(Freeze(["bias"]), RandomSparsify(0.9, epochs=3, steps_per_epoch=2)))
    lengths = [step.up // (7 * 4) for step in trained(both, wire=SeedFormat()).traffic]
    assert lengths[:2] == [SIZE - 4] * 2 and lengths[0] > lengths[2] > lengths[4] > 0


def test_what_is_pruned_is_zero_at_the_end():
    model = network()
    pruning = Freeze.by_magnitude(model, stages=(2,), final=0.5, prune=True)
    federated_sgd(
        replace(PLAN, encoding=pruning), model, DATA, clients=7, delta=1e-3, optimizer=adam, wire=SeedFormat(), seed=3
    )
    assert sum(int((x == 0).sum()) for x in model.parameters()) == SIZE // 2


REFUSED = [
    ({"plan": replace(PLAN, encoding=RankedSparsify(0.5, epochs=3, steps_per_epoch=2))}, "got RankedSparsify"),
    ({"plan": replace(PLAN, encoding=Combined(HALF, RankedSparsify(0.5, 3, 2)))}, "got RankedSparsify"),
    ({"plan": replace(PLAN, encoding=MatchedBought())}, "got MatchedBought"),
    ({"plan": PLAN.event}, "plan must be a Plan"),
    ({"wire": "dense"}, "wire must be a Wire or NoneType, got str"),
    ({"wire": DenseFormat}, "wire must be a Wire or NoneType, got"),
    ({"optimizer": None}, "optimizer must be a function from parameters to an optimizer, got NoneType"),
    ({"delta": -1.0}, "delta must be"),
    ({"delta": float("nan")}, "delta must be"),
]


@pytest.mark.parametrize(("change", "message"), REFUSED, ids=[message for _, message in REFUSED])
def test_what_cannot_be_is_refused_before_any_charge(change, message):
    budget = so.Budget(DATA)
    arguments = {"plan": PLAN, "model": network(), "data": budget, "clients": 7, "delta": 1e-3, "optimizer": sgd}
    with pytest.raises(UsageError, match=message):
        federated_sgd(**(arguments | change))
    assert budget.releases == ()


def test_every_client_sends_in_every_step_even_if_nobody_joined():
    rare = replace(PLAN, sampler=Poisson(0.001, steps=6))
    assert [step.up for step in trained(rare).traffic] == [7 * 4 * SIZE] * 6


def test_more_clients_than_examples_are_refused():
    with pytest.raises(UsageError, match="clients must be"):
        trained(clients=91)


def test_a_secret_number_of_examples_is_refused():
    secret = replace(PLAN, sampler=Poisson(0.4, 6, so.Adjacency.ADD_OR_REMOVE, expected_examples=90))
    with pytest.raises(UsageError, match="must be zero-out or replace-one"):
        trained(secret)
