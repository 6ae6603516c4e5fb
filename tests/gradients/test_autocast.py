"""Mixed precision in forward and backward pass, full precision in norms and sums."""

import pytest
import torch
import torch.nn.functional as F
from taped_models import MODELS, make, random
from torch import nn

import sordino as so
from sordino.errors import UsageError
from sordino.gradients.blocks import RoundedProducts
from sordino.gradients.convolution import RoundedPatches
from sordino.gradients.projections import StackedBlocks
from sordino.gradients.row_loss import RowLoss
from sordino.gradients.rules import MultipliesAsItRan
from sordino.gradients.tape import record, survey
from sordino.gradients.taped import TapedGradients
from sordino.kernel.clipping import SCALED_TO
from sordino.kernel.records import as_records
from sordino.kernel.states import Dense

NAMES = ["mlp", "sequence", "conv", "sliding conv", "many channels", "group norm", "self-attention", "repeated tokens"]


def gradients(model, inputs, autocast, classes=3):
    labels = torch.randint(0, classes, (len(inputs[0]),), generator=torch.Generator().manual_seed(0))
    batch = as_records((*inputs, labels)).gather(torch.arange(len(labels)))
    return so.LossGradient(F.cross_entropy, autocast).of(model, batch, torch.arange(len(labels)))


@pytest.mark.parametrize("name", NAMES)
def test_mixed_precision_is_near_full_precision_and_is_used(name):
    model, inputs = make(name)
    full, mixed = (gradients(model, inputs, dtype) for dtype in (None, torch.bfloat16))
    assert isinstance(mixed, TapedGradients)
    one, other = (torch.cat(list(each.rows(3))) for each in (full, mixed))
    error = float((one - other).norm() / one.norm())
    assert other.dtype == torch.float32
    assert 1e-5 < error < 0.05


@pytest.mark.parametrize("name", NAMES)
def test_norms_and_sums_are_those_of_the_rows_in_full_precision(name):
    model, inputs = make(name)
    each = gradients(model, inputs, torch.bfloat16)
    rows = torch.cat(list(each.rows(3))).double()
    torch.testing.assert_close(each.squared_norms().sum(dim=1), rows.square().sum(dim=1), rtol=1e-5, atol=1e-12)
    clipped = rows * (0.1 * SCALED_TO / rows.norm(dim=1, keepdim=True)).clamp(max=1)
    assert float((so.ClipByNorm(0.1)(each).value - clipped.sum(dim=0)).norm()) < 1e-5 * float(clipped.norm(dim=1).sum())


def test_a_recurrent_model_trains_in_mixed_precision():
    class Last(nn.Module):
        def __init__(self):
            super().__init__()
            self.lstm, self.out = nn.LSTM(6, 8, batch_first=True), nn.Linear(8, 3)

        def forward(self, x):
            return self.out(self.lstm(x)[0][:, -1])

    torch.manual_seed(0)
    model, inputs = Last(), (random(5, 4, 6),)
    one, other = (torch.cat(list(gradients(model, inputs, dtype).rows(5))) for dtype in (None, torch.bfloat16))
    assert float((one - other).norm() / one.norm()) < 0.1


def test_a_whole_training_takes_it():
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    data = (random(100, 4), torch.zeros(100, dtype=torch.int64))
    settings = dict(epsilon=3.0, delta=1e-3, batch_size=50, epochs=2, seed=0, progress=False)
    fitted = so.fit(model, data, autocast=torch.bfloat16, **settings)
    assert all(p.dtype == torch.float32 and p.isfinite().all() for p in fitted.model.parameters())


@pytest.mark.parametrize("wrong", [torch.float16, torch.float64, "bfloat16", True])
def test_other_precisions_are_refused(wrong):
    with pytest.raises(UsageError, match=r"autocast must be torch\.bfloat16 or None"):
        so.LossGradient(F.cross_entropy, wrong)


def test_the_models_named_here_exist():
    assert set(NAMES) <= set(MODELS)


@pytest.mark.parametrize("name", ["conv", "sliding conv", "sequence", "self-attention"])
def test_a_tape_in_half_precision_keeps_half_the_bytes(name):
    model, inputs = make(name)
    labels, seeds = torch.zeros(len(inputs[0]), dtype=torch.int64), torch.arange(len(inputs[0]))
    plan = survey(model, tuple(x[:1] for x in inputs), torch.bfloat16)
    tape = record(model, RowLoss.of(F.cross_entropy), inputs, labels, seeds, plan)
    halved = [i for i, use in enumerate(tape.uses) if isinstance(use.rule, MultipliesAsItRan)]
    assert halved
    assert {x.dtype for i in halved for x in (tape.saved[i], tape.output_gradients[i])} == {torch.bfloat16}
    assert plan.bytes_per_row < survey(model, tuple(x[:1] for x in inputs)).bytes_per_row


def test_a_model_of_another_precision_than_surveyed_is_taken_row_by_row():
    calls = []

    class Moody(nn.Linear):
        def forward(self, x):
            calls.append(1)
            with torch.autocast("cpu", torch.bfloat16, enabled=len(calls) == 1):
                return super().forward(x)

    torch.manual_seed(0)
    model, inputs = Moody(8, 3), (random(5, 8),)
    full = gradients(as_linear(model), inputs, None)
    each = gradients(model, inputs, torch.bfloat16)
    assert isinstance(each, Dense)
    one, other = (torch.cat(list(found.rows(5))) for found in (each, full))
    assert float((one - other).norm() / other.norm()) < 0.02


def as_linear(model):
    plain = nn.Linear(model.in_features, model.out_features)
    plain.load_state_dict(model.state_dict())
    return plain


@pytest.mark.parametrize("name", ["sequence", "sliding conv", "many channels", "self-attention"])
def test_products_in_half_precision_are_clipped_as_they_are_added(name):
    """Norms of exact products would not bound a sum of rounded products, and the reverse."""
    model, inputs = make(name)
    each = gradients(model, inputs, torch.bfloat16)
    rounded = [block for block in leaves(each.blocks) if isinstance(block, (RoundedProducts, RoundedPatches))]
    assert rounded
    weights = torch.rand(each.num_units, generator=torch.Generator().manual_seed(1))
    for block in rounded:
        dense = block.dense()
        total = torch.zeros(block.size)
        block.add_to(total, weights)
        torch.testing.assert_close(total, weights @ dense, rtol=1e-5, atol=1e-6 * float(dense.abs().max()))
        torch.testing.assert_close(block.squared_norms(), dense.double().square().sum(dim=1), rtol=1e-5, atol=0.0)
        assert torch.equal(dense, dense.to(torch.bfloat16).float())  # they are rounded, so the above can fail


def leaves(blocks):
    for block in blocks:
        yield from leaves(block.pieces) if isinstance(block, StackedBlocks) else (block,)
