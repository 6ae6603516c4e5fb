"""The gradients of the tape equal those of a loop over single examples, for every layer that it knows."""

import pytest
import torch
import torch.nn.functional as F
from contracts import PerExampleContract
from products import product_of
from taped_models import (
    MODELS,
    ROWS,
    Tokens,
    gradients,
    make,
    random,
)
from torch import nn

import sordino as so
from sordino.gradients.blocks import Outer, Products
from sordino.gradients.convolution import GramPatches
from sordino.gradients.row_loss import RowLoss
from sordino.gradients.tape import record, survey
from sordino.gradients.taped import TapedGradients
from sordino.kernel.clipping import SCALED_TO
from sordino.kernel.records import as_records


@pytest.mark.parametrize("name", MODELS)
class TestTaped(PerExampleContract):
    @pytest.fixture(autouse=True)
    def _named(self, name):
        self.name = name

    def make(self):
        model, inputs = make(self.name)
        return gradients(model, *inputs, classes=9 if self.name == "tokens" else 3)[0]

    def test_it_is_taped_and_agrees_with_the_loop(self, name):
        model, inputs = make(name)
        each, expected = gradients(model, *inputs, classes=9 if name == "tokens" else 3)
        assert isinstance(each, TapedGradients)
        torch.testing.assert_close(torch.cat(list(each.rows(3))), expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(("name", "norm"), product_of(MODELS, [0.01, 1.0, 100.0]))
def test_the_clipped_sum_is_that_of_the_loop(name, norm):
    model, inputs = make(name)
    each, expected = gradients(model, *inputs, classes=9 if name == "tokens" else 3)
    rows = expected.double()
    clipped = (rows * (norm * SCALED_TO / rows.norm(dim=1, keepdim=True)).clamp(max=1)).sum(dim=0)
    error = (so.ClipByNorm(norm)(each).value - clipped).norm() / clipped.norm()
    assert float(error) < 1e-5


def test_vectors_through_a_linear_layer_are_never_a_matrix_of_gradients():
    model, inputs = make("mlp")
    each = gradients(model, *inputs)[0]
    assert isinstance(each.blocks[0], Outer) and isinstance(each.blocks[2], Outer)


def test_a_layer_called_on_several_vectors_is_like_one_on_a_sequence():
    model, inputs = make("thrice")
    assert isinstance(gradients(model, *inputs)[0].blocks[0], Products)


def test_few_places_and_many_weights_are_never_a_matrix_of_gradients():
    model, inputs = make("conv of few places")
    assert isinstance(gradients(model, *inputs)[0].blocks[0], GramPatches)


def test_only_what_no_rule_knows_is_differentiated_directly():
    assert set(survey(Tokens(), (torch.zeros(1, 5, dtype=torch.int64),)).direct) == {"place"}
    assert survey(make("conv")[0], (random(1, 2, 9, 8),)).direct == ()


def test_a_row_that_does_not_count_has_gradients_of_zeros():
    model, (inputs,) = make("conv")
    poisoned = inputs.clone()
    poisoned[2] = float("nan")
    batch = as_records((poisoned, torch.tensor([0, 1, 2, 0, 99, 1, -1]))).gather(torch.arange(ROWS))
    each = so.LossGradient(F.cross_entropy).of(model, batch, torch.arange(ROWS))
    rows = torch.cat(list(each.rows(ROWS)))
    assert isinstance(each, TapedGradients)
    assert rows.abs().sum(dim=1).gt(0).tolist() == [True, True, False, True, False, True, False]
    assert torch.equal(each.squared_norms().sum(dim=1) == 0, rows.abs().sum(dim=1) == 0)


def test_a_model_that_changes_its_mind_is_taken_row_by_row():
    class Fickle(nn.Linear):
        calls = 0

        def forward(self, x):
            Fickle.calls += 1
            return super().forward(x) if Fickle.calls == 1 else x @ self.weight.T + self.bias

    model = Fickle(4, 3)
    batch = as_records((random(5, 4), torch.zeros(5, dtype=torch.int64))).gather(torch.arange(5))
    each = so.LossGradient(F.cross_entropy).of(model, batch, torch.arange(5))
    assert not isinstance(each, TapedGradients)
    straight = so.LossGradient(F.cross_entropy).of(nn.Linear(4, 3), batch, torch.arange(5))
    assert isinstance(straight, TapedGradients)


def test_dropout_on_the_tape_draws_from_the_seed_of_the_row():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 30), nn.Dropout(0.5), nn.Linear(30, 3))
    batch = as_records((random(6, 8), torch.zeros(6, dtype=torch.int64))).gather(torch.arange(6))
    seeds = torch.arange(6)
    whole = so.LossGradient(F.cross_entropy).of(model, batch, seeds)
    alone = so.LossGradient(F.cross_entropy).of(
        model, as_records((batch.inputs[0], batch.target)).gather(torch.tensor([4])), seeds[4:5]
    )
    assert isinstance(whole, TapedGradients) and isinstance(alone, TapedGradients)
    torch.testing.assert_close(torch.cat(list(whole.rows(6)))[4:5], torch.cat(list(alone.rows(1))))


def test_recording_leaves_the_model_and_the_global_generator_alone():
    model, inputs = make("group norm")
    before = {name: value.clone() for name, value in model.state_dict().items()}
    state = torch.get_rng_state()
    plan = survey(model, tuple(x[:1] for x in inputs))
    record(model, RowLoss.of(F.cross_entropy), inputs, torch.zeros(ROWS, dtype=torch.int64), torch.arange(ROWS), plan)
    assert torch.equal(state, torch.get_rng_state())
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert not any(module._forward_hooks for module in model.modules())


def test_without_torchs_own_names_the_long_way_gives_the_same(monkeypatch):
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.GELU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(18, 3))
    data = as_records((torch.randn(5, 1, 8, 8), torch.randint(0, 3, (5,))))
    gradient = so.LossGradient(F.cross_entropy)

    def rows():
        return torch.cat(list(gradient.of(model, data.gather(torch.arange(5)), torch.arange(5)).rows(5)))

    short = rows()
    monkeypatch.setattr("sordino.gradients.rowwise.HAS_FAST_VMAP", False)
    assert torch.allclose(rows(), short, atol=1e-6)
