"""Private training of a part of a network: noise falls on that part, and the rest stays where it was."""

from __future__ import annotations

import pytest
import torch
from torch import Generator
from torch.nn.functional import cross_entropy

import sordino as so
from sordino.data import Facts
from sordino.training.transfer import (
    AllParameters,
    BiasOnly,
    DeadLeaves,
    InputNormalisation,
    LinearProbe,
    PretrainedNetwork,
)

SHAPE = (1, 28, 28)
FACTS = Facts("pictures", SHAPE, 4, (0.0, 255.0))
PRETRAINED = PretrainedNetwork.fresh("dp-cnn-s", SHAPE)
DRAWN = DeadLeaves(SHAPE).draw(60, Generator().manual_seed(0))


def fitted(part):
    built = part.built(PRETRAINED, FACTS, seed=0)
    data = built.prepare(DRAWN.pictures), DRAWN.forms
    before = {name: x.detach().clone() for name, x in built.module.state_dict().items()}
    run = so.fit(built.module, data, epsilon=3.0, delta=1e-3, batch_size=20, steps=2, seed=0, progress=False)
    moved = {name for name, x in built.module.state_dict().items() if not torch.equal(x, before[name])}
    return run, built.module, moved


@pytest.mark.parametrize("part", [LinearProbe(), BiasOnly(), AllParameters()])
def test_what_is_trained_moves_and_nothing_else(part) -> None:
    _, network, moved = fitted(part)
    assert moved == {name for name, x in network.named_parameters() if x.requires_grad}


def test_every_part_costs_the_same_epsilon() -> None:
    events = [fitted(part)[0].plan.event for part in (LinearProbe(), BiasOnly(), AllParameters())]
    assert events[0] == events[1] == events[2]


def test_frozen_parameters_get_no_noise() -> None:
    network = BiasOnly().built(PRETRAINED, FACTS, seed=0)
    plan = so.Plan(so.Poisson(rate=0.5, steps=1), so.LossGradient(cross_entropy), so.ClipByNorm(1.0), so.Gaussian(1.0))
    data = network.prepare(DRAWN.pictures), DRAWN.forms
    [private] = so.PrivateRun(plan, network.module, data, seed=0)
    assert private.value.numel() == sum(x.numel() for x in network.module.parameters() if x.requires_grad)


def test_moments_and_training_share_one_budget() -> None:
    features = torch.rand(200, 3, 5, 5, generator=Generator().manual_seed(0))
    labels = torch.arange(200) % 2
    budget = so.Budget(so.as_records((features, labels), input_range=(0.0, 1.0)))
    moments = so.release_moments(budget, noise_multiplier=8.0, seed=0)
    model = torch.nn.Sequential(InputNormalisation(moments), torch.nn.Flatten(), torch.nn.Linear(75, 2))
    run = so.fit(model, budget, epsilon=3.0, delta=1e-3, batch_size=50, steps=4, seed=0, progress=False)
    alone = run.plan.guarantee(delta=1e-3)
    assert budget.releases == ("moments of the inputs", "training run")
    assert alone.epsilon == run.guarantee.epsilon <= 3.0 < budget.guarantee(delta=1e-3).epsilon


def test_released_moments_bring_inputs_to_mean_0_and_variance_1() -> None:
    features = 0.2 + 0.1 * torch.rand(5000, 2, 3, 3, generator=Generator().manual_seed(0))
    budget = so.Budget(so.as_records((features, torch.arange(5000) % 2), input_range=(0.0, 1.0)))
    normal = InputNormalisation(so.release_moments(budget, noise_multiplier=1.0, seed=0))(features)
    assert float(normal.mean().abs()) < 0.2
    assert 0.5 < float(normal.std()) < 1.5
