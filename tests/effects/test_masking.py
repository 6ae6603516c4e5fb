import torch
from torch import nn

from sordino.effects import L2, LInfinity
from sordino.effects.robustness import masking_signs

ATTACK = LInfinity(0.1, step=0.02, steps=10)


def signs(model, rows, **settings):
    inputs, target = (each[:80] for each in rows)
    return masking_signs(model, inputs, target, ATTACK, seed=0, **settings)


def test_an_honest_network_shows_no_sign(network, digits):
    found = signs(network, digits[1])
    assert found.found == ()
    assert found.unbounded == 0 and found.robust <= min(found.one_step, found.by_chance)


def test_an_honest_network_shows_no_sign_in_euclidean_distance_either(network, digits):
    inputs, target = (each[:80] for each in digits[1])
    assert masking_signs(network, inputs, target, L2(0.8, step=0.2, steps=10), seed=0).found == ()


def test_steps_in_the_inputs_hide_gradients_and_are_found_out(network, digits):
    """A network with inputs rounded to four levels has no gradient, and looks perfectly robust."""
    found = signs(nn.Sequential(_Rounded(), network), digits[1])
    assert found.zero_gradients == 1
    assert "100 % of the gradients are zero" in found.found
    assert any("an attack without a bound leaves an accuracy of" in sign for sign in found.found)


def test_neighbours_made_for_another_model_find_it_out_too(network, digits):
    found = signs(nn.Sequential(_Rounded(), network), digits[1], other=network)
    assert "perturbations computed for another model are stronger than its own" in found.found


def test_probabilities_and_random_answers_are_named(network, digits):
    found = signs(nn.Sequential(network, nn.Softmax(dim=1), _Shaken()), digits[1])
    assert "the outputs of the model are random" in found.found
    found = signs(nn.Sequential(network, nn.Softmax(dim=1)), digits[1])
    assert any("outputs probabilities" in sign for sign in found.found)


class _Rounded(nn.Module):
    """Rounds inputs to a few levels, with a gradient of zero."""

    def forward(self, inputs):
        return (inputs * 3).round() / 3


class _Shaken(nn.Module):
    def forward(self, outputs):
        return outputs + 1e-4 * torch.rand_like(outputs)
