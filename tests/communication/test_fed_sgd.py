"""Many clients and one server train as one run would, under the same guarantee, and count every byte."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import sordino as so
from sordino.communication import Dense, IndexCoded, SeedCoded, federated_sgd
from sordino.encodings import RandomSparsify
from sordino.errors import UsageError
from sordino.sampling import Poisson

DATA = (
    torch.randn(90, 6, generator=torch.Generator().manual_seed(0)),
    torch.randint(0, 4, (90,), generator=torch.Generator().manual_seed(1)),
)
PLAN = so.Plan(Poisson(0.4, steps=6), so.LossGradient(F.cross_entropy), so.ClipByNorm(0.5), so.Gaussian(3.0))
SPARSE = replace(PLAN, encoding=RandomSparsify(0.9, epochs=3, steps_per_epoch=2))
SIZE = 6 * 4 + 4


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
@pytest.mark.parametrize("wire", [Dense(), IndexCoded(), SeedCoded()], ids=lambda wire: wire.name)
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
    assert set(bounds) == {0.5 * (1 + 2 * 13 * 2.0**-24)}  # 90 examples, so at most 13 of one of 7 clients


def test_bytes_are_counted_up_and_down_for_every_client():
    dense = trained().traffic
    assert {(step.up, step.down) for step in dense} == {(7 * 4 * SIZE, 7 * 4 * SIZE)}


def test_seed_coded_messages_shrink_as_the_rate_rises():
    sent = trained(SPARSE, wire=SeedCoded())
    kept = [SIZE - int(rate * SIZE) for rate in (0.0, 0.0, 0.45, 0.45, 0.9, 0.9)]
    assert [step.up for step in sent.traffic] == [7 * 4 * number for number in kept]
    assert sent.bytes_up == sent.bytes_down == sum(7 * 4 * number for number in kept)


def test_every_client_sends_in_every_step_even_if_nobody_joined():
    rare = replace(PLAN, sampler=Poisson(0.001, steps=6))
    assert [step.up for step in trained(rare).traffic] == [7 * 4 * SIZE] * 6


def test_more_clients_than_examples_are_refused():
    with pytest.raises(UsageError, match="clients must be"):
        trained(clients=91)


def test_a_secret_number_of_examples_is_refused():
    secret = replace(PLAN, sampler=Poisson(0.4, 6, so.Adjacency.ADD_OR_REMOVE, expected_examples=90))
    with pytest.raises(UsageError, match="clients hold a public number of examples"):
        trained(secret)
