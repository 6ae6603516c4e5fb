"""Gradients of products with bare parameters, of views of parameters, of bags and of transposed convolutions."""

import pytest
import torch
import torch.nn.functional as F
from contracts import PerExampleContract, relative_error
from product_models import CLASSES, PRODUCTS, ROWS, made
from row_gradients import rows_of
from torch import nn

import sordino as so
from sordino.errors import UsageError
from sordino.gradients.blocks import GramProducts, Outer, Products, Several
from sordino.gradients.embedding_bags import BagBlock
from sordino.gradients.layers import EmbeddingBlock
from sordino.gradients.projections import StackedBlocks, stacked
from sordino.gradients.tape import survey
from sordino.gradients.taped import TapedGradients
from sordino.kernel.clipping import SCALED_TO
from sordino.kernel.records import as_records, by_user

LABELS = torch.arange(ROWS) % CLASSES
DIRECT = {
    "a diagonal": {"weights.0"},
    "an axis of the weight only": {"weights.0"},
    "two trained operands": {"weights.0", "weights.1"},
    "scale and shift": {"weights.0", "weights.1"},
    "class token": {"weights.0"},
    "PReLU": {"0.weight"},
    "bilinear with a frozen weight": {"layer.bias"},
    "heads by a copy": {"weights.0"},
    "a detached view": {"weights.0"},
    "bag scaled by frequency": {"bag.weight"},  # torch divides by the frequency of another token
}


def taped(model, inputs, dtype=torch.float32, autocast=None):
    batch = as_records((inputs, LABELS), dtype=dtype).gather(torch.arange(ROWS))
    return so.LossGradient(F.cross_entropy, autocast).of(model, batch, torch.arange(ROWS))


def loop(model, inputs, labels=LABELS):
    """The gradients of single examples by plain autograd."""
    parameters, rows = [p for p in model.parameters() if p.requires_grad], []
    for x, label in zip(inputs.split(1), labels.split(1), strict=True):
        found = torch.autograd.grad(F.cross_entropy(model(x), label), parameters, allow_unused=True)
        each = zip(parameters, found, strict=True)
        rows.append(torch.cat([(torch.zeros_like(p) if g is None else g).flatten() for p, g in each]))
    return torch.stack(rows)


@pytest.mark.parametrize("name", PRODUCTS)
class TestProducts(PerExampleContract):
    @pytest.fixture(autouse=True)
    def _named(self, name):
        self.name = name

    def make(self):
        return taped(*made(self.name))

    def test_it_agrees_with_autograd_in_double_precision(self, name):
        model, inputs = made(name, torch.float64)
        each = taped(model, inputs, torch.float64)
        assert isinstance(each, TapedGradients)
        assert relative_error(rows_of(each).double(), loop(model, inputs)) < 1e-9

    def test_what_is_differentiated_directly_is_listed(self, name):
        model, inputs = made(name)
        assert set(survey(model, (inputs[:1],)).direct) == DIRECT.get(name, set())

    def test_the_clipped_sum_is_that_of_the_loop(self, name):
        model, inputs = made(name)
        each, rows = taped(model, inputs), loop(model, inputs).double()
        for norm in (0.3 * float(rows.norm(dim=1).median()), 1e6):
            clipped = (rows * (norm * SCALED_TO / rows.norm(dim=1, keepdim=True)).clamp(max=1)).sum(dim=0)
            assert relative_error(so.ClipByNorm(norm)(each).value.double(), clipped) < 1e-5

    def test_users_of_several_rows_have_the_sum_of_their_rows(self, name):
        model, inputs = made(name)
        rows = loop(model, inputs).double()
        for owners in (torch.tensor([0, 1, 1, 1, 2]), torch.tensor([0, 0, 1, 1, 1]), torch.tensor([0, 0, 0, 0, 1])):
            records = by_user((inputs, LABELS), owners, rows_per_user=5)
            units = torch.arange(records.num_units)
            batch = records.gather(units)
            each = so.LossGradient(F.cross_entropy).of(model, batch, torch.arange(len(batch.units)))
            expected = rows.new_zeros(len(units), rows.shape[1]).index_add_(0, owners, rows)
            assert relative_error(rows_of(each).double(), expected) < 1e-5
            lengths = expected.norm(dim=1, keepdim=True)
            clipped = (expected * (0.1 * SCALED_TO / lengths).clamp(max=1)).sum(dim=0)
            assert relative_error(so.ClipByNorm(0.1)(each).value.double(), clipped) < 1e-5

    def test_a_row_of_nan_or_with_a_wrong_label_adds_zeros_and_changes_no_other(self, name):
        model, inputs = made(name)
        broken, labels = inputs.clone(), LABELS.clone()
        if inputs.is_floating_point():
            broken[1] = float("nan")
        labels[3] = 99
        batch = as_records((broken, labels)).gather(torch.arange(ROWS))
        each = so.LossGradient(F.cross_entropy).of(model, batch, torch.arange(ROWS))
        absent = [1, 3] if inputs.is_floating_point() else [3]
        rows, expected = rows_of(each), loop(model, inputs)
        expected[absent] = 0.0
        assert not rows[absent].any()
        assert relative_error(rows.double(), expected.double()) < 1e-5
        assert so.ClipByNorm(1e6)(each).value.isfinite().all()

    def test_half_precision_is_near_and_norms_are_those_of_what_is_added(self, name):
        model, inputs = made(name)
        each = taped(model, inputs, autocast=torch.bfloat16)
        rows = rows_of(each).double()
        assert relative_error(rows, loop(model, inputs).double()) < 0.1
        torch.testing.assert_close(each.squared_norms().sum(dim=1), rows.square().sum(dim=1), rtol=1e-5, atol=1e-12)
        clipped = rows * (0.1 * SCALED_TO / rows.norm(dim=1, keepdim=True)).clamp(max=1)
        error = (so.ClipByNorm(0.1)(each).value - clipped.sum(dim=0)).norm()
        assert float(error) < 1e-5 * float(clipped.norm(dim=1).sum())


def block_of(name, parameter, owners=None):
    """The block of a parameter, for examples or for users."""
    model, inputs = made(name)
    data = (inputs, LABELS)
    records = as_records(data) if owners is None else by_user(data, owners, rows_per_user=5)
    batch = records.gather(torch.arange(records.num_units))
    each = so.LossGradient(F.cross_entropy).of(model, batch, torch.arange(len(batch.units)))
    names = [name for name, p in model.named_parameters() if p.requires_grad]
    return each.blocks[names.index(parameter)]


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        *(("bag, sum", BagBlock), ("bag, mean, padding", BagBlock), ("bag, max", EmbeddingBlock)),
        *((name, EmbeddingBlock) for name in ("bag with weights", "folded bags", "bags by offset, sum")),
    ],
)
def test_a_table_is_never_formed_for_a_row_or_a_user(name, kind):
    assert type(block_of(name, "bag.weight")) is kind
    assert type(block_of(name, "bag.weight", torch.tensor([0, 1, 1, 1, 2]))) is EmbeddingBlock


@pytest.mark.parametrize("name", ["bilinear", "bilinear of one output", "a matrix per place", "heads of vectors"])
def test_products_of_one_place_are_closed(name):
    block = block_of(name, "layer.weight" if name == "bilinear" else "weights.0")
    pieces = block.pieces if isinstance(block, StackedBlocks) else (block,)
    assert all(type(piece) is Outer for piece in pieces) and len(pieces) in (1, 5)


def test_slices_of_a_packed_weight_stay_side_by_side():
    block = block_of("packed attention", "qkv")
    assert isinstance(block, StackedBlocks) and len(block.pieces) == 3


def test_slices_are_formed_together_so_that_no_sum_of_a_chunk_cancels():
    """A slice that is formed, beside a slice of a table: the table's places would be added up in float32."""
    formed, table = Products(torch.randn(4, 3, 5), torch.randn(4, 3, 2)), torch.randint(0, 3, (4, 6))
    tables = EmbeddingBlock(table, torch.randn(4, 6, 2), (3, 2)), BagBlock(table, torch.randn(4, 2), (3, 2))
    block = stacked((formed, *tables))
    assert [type(piece) for piece in block.pieces] == [Products, Several, Several]
    gram = GramProducts(torch.randn(4, 3, 5), torch.randn(4, 3, 2))
    masked = stacked((gram, tables[0])).masked(torch.arange(16) % 2 == 0)
    assert type(masked.pieces[1]) is Several


def test_the_norm_of_a_bag_is_not_below_what_is_added():
    """Also for vectors whose squares vanish in float32, and for tokens that occur often."""
    tokens = torch.tensor([[0, 0, 0, 0, 1], [2, 2, 2, 2, 2]])
    for scale in (1e-30, 1e-3, 1e8):
        block = BagBlock(tokens, scale * torch.tensor([[1.0, -2.0], [3.0, 0.5]]), (4, 2))
        assert (block.squared_norms().sqrt() >= block.dense().double().norm(dim=1) * (1 - 1e-6)).all()
        assert (block.squared_norms().sqrt() <= block.dense().double().norm(dim=1) * (1 + 1e-5)).all()
    huge = BagBlock(tokens, torch.full((2, 2), 1e15), (4, 2))
    assert huge.squared_norms().isinf().all()


def test_bags_of_short_integers_have_the_same_gradients():
    torch.manual_seed(0)
    model = nn.Sequential(nn.EmbeddingBag(9, 3, mode="sum", padding_idx=0), nn.Linear(3, 3))
    tokens, target = torch.randint(9, (6, 4)), torch.arange(6) % 3
    sums = []
    for ids in (tokens, tokens.int()):
        batch = as_records((ids, target)).gather(torch.arange(6))
        sums.append(so.ClipByNorm(0.1)(so.LossGradient(F.cross_entropy).of(model, batch, torch.arange(6))).value)
    assert torch.equal(*sums)


def test_bags_that_change_or_show_their_ids_are_refused():
    records = as_records((torch.zeros(8, 3, dtype=torch.int64), torch.arange(8) % 3))
    for settings, message in (({"max_norm": 1.0}, "use max_norm=None"), ({"sparse": True}, "use sparse=False")):
        bag = torch.nn.Sequential(torch.nn.EmbeddingBag(5, 3, **settings))
        with pytest.raises(UsageError, match=message):
            so.LossGradient(F.cross_entropy).check(bag, records)
