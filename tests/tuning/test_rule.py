import math

import pytest
import torch
from torch import nn

from sordino.encodings import Combined, Freeze, Project, ProjectBiased, PublicGradients, RandomSparsify, Subspace
from sordino.errors import UsageError
from sordino.kernel.encoding import Unchanged
from sordino.tuning import Adam, AlongTheLine, Candidate, CandidateGrid, Clips, Momenta, Sgd, clip_momentum

START = Candidate(clip=0.1, momentum=0.9)
SUBSPACE = Subspace(PublicGradients(nn.Linear(2, 2), torch.zeros(4, 2), classes=2), directions=1, groups=1)
SPARSE = RandomSparsify(0.5, epochs=2, steps_per_epoch=5)


def moved(optimizer, momentum, gradients):
    """Where each of a sequence of gradients takes a weight that begins at 0."""
    model = nn.Linear(1, 1, bias=False)
    nn.init.zeros_(model.weight)
    made, places = optimizer.make(model, momentum), [0.0]
    for gradient in gradients:
        model.weight.grad = torch.full((1, 1), gradient)
        made.step()
        places.append(float(model.weight.detach()))
    return places


@pytest.mark.parametrize("candidate", AlongTheLine((0.0, 0.5, 0.8)).around(START))
def test_along_the_line_one_gradient_of_norm_c_moves_the_weights_equally_far_in_the_end(candidate):
    assert candidate.displacement == pytest.approx(START.displacement)
    once = [candidate.clip] + [0.0] * 60
    assert moved(Sgd(lr=1.0), candidate.momentum, once)[-1] == pytest.approx(-START.displacement, rel=1e-4)


def test_the_noise_in_the_velocity_is_less_than_the_displacement():
    """1 / sqrt(1 - mu^2) by simulation: the terms of a velocity are independent, and do not add up like equal ones."""
    generator = torch.Generator().manual_seed(0)
    places = moved(Sgd(lr=1.0), 0.9, torch.randn(4000, generator=generator).tolist())
    velocities = torch.tensor(places).diff()[100:]
    found = Candidate(1.0, 0.9)
    assert float(velocities.std()) == pytest.approx(found.velocity_noise, rel=0.1)
    assert found.velocity_noise == pytest.approx(1 / math.sqrt(1 - 0.81)) and found.displacement == pytest.approx(10)


def test_momentum_sgd_is_searched_along_the_line_and_then_across_it():
    along, across = clip_momentum(Sgd(lr=0.5), Unchanged(), momenta=(0.0, 0.9), factors=(0.5, 1.0, 2.0))
    assert [each.momentum for each in along.around(START)] == [0.0]
    constants = [each.displacement for each in across.around(START)]
    assert constants == pytest.approx([0.5 * START.displacement, 2 * START.displacement])


def test_a_grid_has_every_pair_once_apart_from_where_it_starts():
    tried = CandidateGrid(AlongTheLine((0.0, 0.9)), Clips((0.5, 2.0))).around(START)
    assert len(set(tried)) == 5 and START not in tried
    assert {each.momentum for each in tried} == {0.0, 0.9}


def test_adam_is_searched_one_by_one():
    assert clip_momentum(Adam(lr=0.1), SPARSE, momenta=(0.5,), factors=(2.0,)) == (Clips((2.0,)), Momenta((0.5,)))
    assert Momenta((0.5, 0.9)).around(START) == (Candidate(0.1, 0.5),)


def test_the_momentum_of_adam_is_its_first_beta():
    made = Adam(lr=0.1, weight_decay=0.01).make(nn.Linear(2, 2), 0.7)
    assert made.defaults["betas"] == (0.7, 0.999) and made.defaults["weight_decay"] == 0.01


def test_only_what_is_trained_goes_to_the_optimizer():
    model = nn.Linear(2, 2)
    model.bias.requires_grad_(False)
    assert sum(len(group["params"]) for group in Sgd(lr=0.1).make(model, 0.0).param_groups) == 1


@pytest.mark.parametrize("encoding", [Project(SUBSPACE), ProjectBiased(SUBSPACE), Combined(SPARSE, Project(SUBSPACE))])
def test_projected_gradients_are_refused(encoding):
    with pytest.raises(UsageError, match="does not support projected gradients"):
        clip_momentum(Sgd(lr=0.5), encoding)


def test_masks_are_allowed():
    assert clip_momentum(Sgd(lr=0.5), Combined(Freeze(["bias"]), SPARSE))


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: AlongTheLine(()),
        lambda: AlongTheLine((1.0,)),
        lambda: Momenta((0.5, 0.5)),
        lambda: Clips((0.0,)),
        lambda: Clips([2.0]),
        lambda: Candidate(0.0, 0.5),
        lambda: Sgd(lr=0.0),
    ],
)
def test_what_cannot_be_tried_is_refused(wrong):
    with pytest.raises(UsageError, match="must be"):
        wrong()
