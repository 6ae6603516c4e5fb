"""Layers of users with a registered gradient."""

import pytest
import torch
import torch.nn.functional as F
from contracts import PerExampleContract
from taped_models import gradients, random
from torch import nn

import sordino as so
from sordino.errors import UsageError
from sordino.gradients import agreement
from sordino.gradients.rules import _gradients
from sordino.gradients.tape import survey
from sordino.gradients.taped import TapedGradients

ROWS = 6


class Quadratic(nn.Module):
    """y_o = x^T A_o x + b_o: no layer of torch."""

    def __init__(self, inputs=5, outputs=4):
        super().__init__()
        self.form = nn.Parameter(0.1 * random(outputs, inputs, inputs, seed=3))
        self.shift = nn.Parameter(random(outputs, seed=4))

    def forward(self, x):
        return (x[:, None, :, None] * self.form * x[:, None, None]).sum(dim=(2, 3)) + self.shift


def right(layer, x, output_gradient):
    return {"form": torch.einsum("ro,ri,rj->oij", output_gradient, x, x), "shift": output_gradient.sum(dim=0)}


def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 5), nn.Tanh(), Quadratic(), nn.ReLU(inplace=True), nn.Linear(4, 3))


@pytest.fixture
def registry():
    before = dict(_gradients)
    yield so.register_gradient
    _gradients.clear()
    _gradients.update(before)


def check(a_model):
    labels = torch.zeros(20, dtype=torch.int64)
    plan = so.Plan(so.Poisson(0.5, 2), so.LossGradient(F.cross_entropy), so.ClipByNorm(1.0), so.Gaussian(1.0))
    return so.PrivateRun(plan, a_model, (random(20, 6), labels), seed=0)


class TestRegistered(PerExampleContract):
    @pytest.fixture(autouse=True)
    def _registered(self, registry):
        registry(Quadratic)(right)

    def make(self):
        return gradients(model(), random(ROWS, 6))[0]

    def test_it_agrees_with_the_loop(self):
        each, expected = gradients(model(), random(ROWS, 6))
        assert isinstance(each, TapedGradients)
        torch.testing.assert_close(torch.cat(list(each.rows(4))), expected, rtol=1e-4, atol=1e-6)

    def test_no_parameter_is_differentiated_directly(self):
        assert survey(model(), (random(1, 6),)).direct == ()

    def test_the_layer_is_left_without_hooks(self):
        a_model = model()
        gradients(a_model, random(ROWS, 6))
        assert not any(m._forward_hooks or m._forward_pre_hooks for m in a_model.modules())

    def test_a_run_takes_it(self):
        assert next(check(model())).value.isfinite().all()


def test_without_a_registered_gradient_it_is_differentiated_directly():
    assert set(survey(model(), (random(1, 6),)).direct) == {"2.form", "2.shift"}


def test_a_wrong_gradient_is_refused_before_any_data_is_touched(registry):
    registry(Quadratic)(lambda layer, x, g: {**right(layer, x, g), "shift": 2 * g.sum(dim=0)})
    with pytest.raises(UsageError, match=r"gradient of '2\.shift' by register_gradient differs from autograd's"):
        check(model())


def test_a_gradient_of_the_wrong_shape_is_refused(registry):
    registry(Quadratic)(lambda layer, x, g: {"form": g, "shift": g.sum(dim=0)})
    with pytest.raises(UsageError, match=r"gradient of Quadratic\.form must have shape \(4, 5, 5\), got \(1, 4\)"):
        check(model())


def test_a_gradient_that_is_missing_is_refused(registry):
    registry(Quadratic)(lambda layer, x, g: {"form": right(layer, x, g)["form"]})
    with pytest.raises(UsageError, match=r"Quadratic\.shift must have shape \(4,\), got none"):
        check(model())


def test_only_layers_can_be_registered():
    with pytest.raises(UsageError, match=r"takes a subclass of nn\.Module"):
        so.register_gradient(print)


def test_a_registered_gradient_cannot_let_examples_meet(registry, monkeypatch):
    trusting = agreement.Agreement(0.0, "form", tolerance=1.0)
    monkeypatch.setattr(agreement, "agreement", lambda *_: trusting)  # it is wrong, and would be refused
    registry(Quadratic)(lambda layer, x, g: {name: v - v.mean() for name, v in right(layer, x, g).items()})
    inputs = random(ROWS, 6)
    changed = inputs.clone()
    changed[0] *= 7
    one, other = (torch.cat(list(gradients(model(), x)[0].rows(ROWS))) for x in (inputs, changed))
    torch.testing.assert_close(one[1:], other[1:], rtol=1e-6, atol=1e-7)
    assert not torch.allclose(one[0], other[0])
