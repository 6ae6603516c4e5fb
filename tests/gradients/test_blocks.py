"""Each form of a block gives the same results as the matrix of its gradients."""

from dataclasses import replace
from functools import cache
from itertools import pairwise

import pytest
import torch
import torch.nn.functional as F
from contracts import relative_error
from hypothesis import given
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from sordino.gradients import rounding
from sordino.gradients.blocks import (
    DenseBlock,
    GramProducts,
    MaskedBlock,
    MaskedOuter,
    OfUnits,
    Outer,
    Products,
    Several,
    gram_is_cheaper,
    weight_block,
)
from sordino.gradients.convolution import ChannelsLastPatches, GramPatches, RoundedPatches, Window, WindowBlock
from sordino.gradients.embedding_bags import BagBlock
from sordino.gradients.layers import EmbeddingBlock
from sordino.gradients.operations import tensors_in
from sordino.gradients.products import EinsumGradients, HeadProducts
from sordino.gradients.projections import StackedBlocks
from sordino.gradients.view_blocks import merged
from sordino.gradients.views import ParameterView

ROWS = 6
CONVOLVE = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}


def random(*shape, seed=1):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def kept(size, seed=2):
    return torch.rand(size, generator=torch.Generator().manual_seed(seed)) < 0.5


def sum_of_outer_products(g, x):
    return torch.einsum("rto,rti->roi", g.double(), x.double()).flatten(1)


def products(kind, places=3, outputs=7, inputs=8):
    g, x = random(ROWS, places, outputs), random(ROWS, places, inputs, seed=2)
    return kind(g, x), sum_of_outer_products(g, x)


def outer():
    g, x = random(ROWS, 4), random(ROWS, 5, seed=2)
    return Outer(g, x), sum_of_outer_products(g[:, None], x[:, None])


def masked_outer():
    block, rows = outer()
    keep = kept(20, seed=3)
    return MaskedOuter(block, keep.reshape(4, 5).float()), rows * keep


def scattered(table=7):
    """Tokens that repeat in a row, and one that all rows have."""
    tokens = torch.tensor([[0, 3, 3], [0, 1, 2], [0, 0, 0], [5, 5, 0], [4, 0, 4], [0, 6, 1]])
    g = random(ROWS, 3, 4)
    one_hot = F.one_hot(tokens, table)
    return EmbeddingBlock(tokens, g, (table, 4)), sum_of_outer_products(one_hot, g)


def bag(padding=None, table=7):
    """Rows with one vector each, for all of their tokens."""
    block, _ = scattered()
    g, counted = random(ROWS, 4), None if padding is None else block.tokens != padding
    one_hot = F.one_hot(block.tokens, table) * (1 if counted is None else counted[..., None])
    return BagBlock(block.tokens, g, (table, 4), counted), sum_of_outer_products(one_hot, g[:, None].expand(-1, 3, -1))


def heads(heads=3, places=2):
    left, right = random(ROWS, heads, places, 4), random(ROWS, heads, places, 5, seed=2)
    return HeadProducts(left, right), torch.einsum("rhto,rhti->rhoi", left.double(), right.double()).flatten(1)


def quadratic():
    g, x = random(ROWS, 3, 2), random(ROWS, 3, 5, seed=2)
    block = EinsumGradients("rto,rti,rtj->roij", (g, x, x), 50)
    return block, torch.einsum("rto,rti,rtj->roij", g.double(), x.double(), x.double()).flatten(1)


def seen_through(make, shape, strides, offset, size):
    """Gradients by a view of a parameter, as gradients by the parameter."""
    block, rows = make()
    view = ParameterView("weight", size, shape, strides, offset)
    expected = rows.new_zeros(len(rows), size).index_add_(1, view.indices(), rows)
    return merged([(view, block)], torch.zeros(ROWS, 0)), expected


def side_by_side():
    """Three slices of a parameter, of which two overlap, and one that a layer uses twice."""
    (one, rows), (other, others) = products(Products, places=2, outputs=3, inputs=4), outer()
    views = [ParameterView("weight", 60, (size,), (1,), start) for size, start in ((12, 2), (20, 30), (12, 8), (12, 2))]
    uses = list(zip(views, (one, other, one, one), strict=True))
    expected = torch.zeros(ROWS, 60, dtype=torch.float64)
    for view, each in zip(views, (rows, others, rows, rows), strict=True):
        expected.index_add_(1, view.indices(), each)
    return merged(uses, torch.zeros(ROWS, 0)), expected


def convolution(kind, channels, outputs, sizes, kernel, *, stride=1, padding=0, dilation=1, groups=1, rows=ROWS):
    """A block of patches, and the gradients of a loop over rows in float64."""
    axes = len(kernel)
    spread = lambda setting: (setting,) * axes if isinstance(setting, int) else setting  # noqa: E731
    sides = tuple((side, side) if isinstance(side, int) else side for side in spread(padding))
    window = Window(kernel, spread(stride), sides, spread(dilation), groups)
    x = random(rows, channels, *sizes)
    weight = torch.zeros(outputs, channels // groups, *kernel, dtype=torch.float64, requires_grad=True)
    padded = F.pad(x.double(), [side for pair in reversed(sides) for side in pair])
    y = CONVOLVE[axes](padded, weight, stride=window.stride, dilation=window.dilation, groups=groups)
    g = random(*y.shape, seed=2)
    losses = (y * g).flatten(1).sum(dim=1)
    truth = [torch.autograd.grad(loss, weight, retain_graph=True)[0].flatten() for loss in losses]
    return kind(window, x, g), torch.stack(truth)


def by_offset():
    block, rows = convolution(WindowBlock, 4, 6, (7, 6), (3, 2), stride=(2, 1), padding=1, groups=2)
    return block.formed(), rows


def by_offset_channels_last():
    block, rows = convolution(ChannelsLastPatches, 5, 6, (7, 6), (3, 2), stride=(2, 1), padding=1)
    return block.formed(), rows


def several():
    """A table that is used for lookups and as a linear layer."""
    (one, rows), g, x = scattered(), random(ROWS, 7, seed=4), random(ROWS, 4, seed=5)
    other, uses = Outer(g, x), sum_of_outer_products(g[:, None], x[:, None])
    return Several((one, other, one)), 2 * rows + uses


def masked(make):
    block, rows = make()
    keep = kept(rows.shape[1], seed=3)
    return MaskedBlock(block, keep, block.laid_out(keep)), rows * keep


def of_units(make, starts=(0, 1, 4, 6)):
    """Units of one, three and two rows."""
    block, rows = make()
    return OfUnits(block, starts), torch.stack([rows[a:b].sum(dim=0) for a, b in pairwise(starts)])


def units_of(make, starts=(0, 2, 4, 6)):
    """A block whose rows are summed by unit by the block itself."""
    block, rows = make()
    return block.of_units(starts), torch.stack([rows[a:b].sum(dim=0) for a, b in pairwise(starts)])


BLOCKS = {
    "Instantiated": lambda: (DenseBlock(random(ROWS, 9)), random(ROWS, 9).double()),
    "Instantiated, longer than a piece": lambda: (DenseBlock(random(3, 40_000)), random(3, 40_000).double()),
    "Outer": outer,
    "MaskedOuter": masked_outer,
    "Products": lambda: products(Products),
    "Products of one place": lambda: products(Products, places=1),
    "GramProducts": lambda: products(GramProducts),
    "Scattered": scattered,
    "BagBlock": bag,
    "BagBlock with padding": lambda: bag(padding=0),
    "uneven units of Scattered": lambda: units_of(lambda: scattered(40), (0, 1, 4, 6)),
    "units of BagBlock": lambda: units_of(lambda: bag(table=40), (0, 3, 3, 6)),
    "HeadProducts": heads,
    "HeadProducts of one place": lambda: heads(places=1),
    "EinsumGradients": quadratic,
    "a slice of Products": lambda: seen_through(BLOCKS["Products"], (7, 8), (8, 1), 8, 80),
    "a slice of GramProducts": lambda: seen_through(BLOCKS["GramProducts"], (7, 8), (8, 1), 0, 64),
    "a slice of Scattered": lambda: seen_through(scattered, (7, 4), (4, 1), 4, 36),
    "transposed Outer": lambda: seen_through(outer, (4, 5), (1, 4), 0, 20),
    "a slice of transposed Products": lambda: seen_through(BLOCKS["Products"], (7, 8), (1, 7), 14, 100),
    "columns of Products": lambda: seen_through(BLOCKS["Products"], (7, 8), (11, 1), 2, 77),
    "expanded Outer": lambda: seen_through(outer, (4, 5), (0, 1), 0, 5),
    "slices side by side": side_by_side,
    "Several": several,
    "Masked Instantiated": lambda: masked(BLOCKS["Instantiated"]),
    "Masked GramProducts": lambda: masked(BLOCKS["GramProducts"]),
    "Masked Several": lambda: masked(several),
    "Masked Patches": lambda: masked(BLOCKS["Patches 2d, strided groups"]),
    "Masked Products": lambda: masked(BLOCKS["Products"]),
    "OfUnits of Outer": lambda: of_units(outer),
    "OfUnits of Scattered": lambda: of_units(scattered),
    "OfUnits of Patches": lambda: of_units(BLOCKS["Patches 2d, strided groups"]),
    "OfUnits of Masked": lambda: of_units(BLOCKS["Masked GramProducts"]),
    "uneven units of Products": lambda: units_of(BLOCKS["Products"], (0, 1, 4, 6)),
    "equal units of Instantiated": lambda: units_of(BLOCKS["Instantiated"]),
    "equal units of Outer": lambda: units_of(outer),
    "equal units of Products": lambda: units_of(BLOCKS["Products"]),
    "equal units of GramProducts": lambda: units_of(BLOCKS["GramProducts"]),
    "equal units of Scattered": lambda: units_of(lambda: scattered(40)),
    "equal units of Patches": lambda: units_of(BLOCKS["Patches 2d, strided groups"]),
    "ByOffset": by_offset,
    "Patches 1d": lambda: convolution(WindowBlock, 3, 4, (11,), (3,), stride=2, padding=2, dilation=2),
    "Patches 1d, by channel": lambda: convolution(WindowBlock, 4, 8, (9,), (4,), padding=((1, 2),), groups=4),
    "Patches 2d": lambda: convolution(WindowBlock, 3, 4, (6, 7), (3, 2), padding=(1, 0)),
    "Patches 2d, strided groups": lambda: convolution(
        WindowBlock, 4, 6, (9, 8), (3, 2), stride=(3, 2), padding=(1, 2), dilation=(2, 1), groups=2
    ),
    "Patches 3d": lambda: convolution(
        WindowBlock, 2, 4, (5, 6, 4), (2, 3, 1), stride=(2, 1, 3), padding=(1, 0, 1), dilation=(1, 2, 1), groups=2
    ),
    "RoundedPatches 1d": lambda: convolution(RoundedPatches, 3, 4, (11,), (3,), stride=2, padding=2, dilation=2),
    "RoundedPatches 2d": lambda: convolution(
        RoundedPatches, 4, 6, (9, 8), (3, 2), stride=(3, 2), padding=(1, 2), dilation=(2, 1), groups=2
    ),
    "ByOffsetChannelsLast": by_offset_channels_last,
    "Masked ChannelsLastPatches": lambda: masked(BLOCKS["ChannelsLastPatches 2d"]),
    "ChannelsLastPatches 1d": lambda: convolution(
        ChannelsLastPatches, 3, 4, (11,), (3,), stride=2, padding=2, dilation=2
    ),
    "ChannelsLastPatches 2d": lambda: convolution(
        ChannelsLastPatches, 4, 6, (9, 8), (3, 2), stride=(3, 2), padding=(1, 2), dilation=(2, 1)
    ),
    "ChannelsLastPatches 2d, not padded": lambda: convolution(ChannelsLastPatches, 9, 4, (5, 3), (3, 3)),
    "ChannelsLastPatches 3d": lambda: convolution(
        ChannelsLastPatches, 2, 4, (5, 6, 4), (2, 3, 2), stride=(2, 1, 3), padding=(1, 0, 1), dilation=(1, 2, 1)
    ),
    "GramPatches 1d": lambda: convolution(GramPatches, 40, 30, (11,), (3,), stride=3, padding=2, dilation=2),
    "GramPatches 1d, uneven padding": lambda: convolution(GramPatches, 30, 20, (6,), (4,), padding=((1, 2),)),
    "GramPatches 2d": lambda: convolution(
        GramPatches, 50, 40, (4, 5), (3, 2), stride=(2, 1), padding=(1, 0), dilation=(1, 2)
    ),
    "GramPatches 3d": lambda: convolution(
        GramPatches, 90, 90, (3, 2, 3), (2, 1, 2), stride=(1, 1, 2), padding=(1, 0, 1), dilation=(2, 1, 1)
    ),
}


@cache
def made(name):
    return BLOCKS[name]()


class LargestMade(TorchDispatchMode):
    """Records the size of the largest tensor that is made while it is active. Views do not count."""

    numbers = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        given = {x.untyped_storage().data_ptr() for x in tensors_in((*args, *(kwargs or {}).values()))}
        made = (x.numel() for x in tensors_in(result) if x.untyped_storage().data_ptr() not in given)
        self.numbers = max(self.numbers, *made, 0)
        return result


@pytest.mark.parametrize("name", BLOCKS)
class TestBlock:
    """The contract of blocks: `dense` has the gradients, and all other methods must agree with it."""

    def agree(self, block, rows):
        """Compares size, gradients, norms and sums. A sum is added to the values that were there."""
        assert block.size == rows.shape[1]
        torch.testing.assert_close(block.dense().double(), rows, rtol=1e-5, atol=1e-5)
        squares = block.squared_norms()
        assert squares.dtype == torch.float64
        torch.testing.assert_close(squares, rows.square().sum(dim=1), rtol=1e-5, atol=1e-12)
        weights = torch.linspace(0.5, -1, len(rows))
        before = random(block.size, seed=7)
        total = before.clone()
        block.add_to(total, weights)
        assert relative_error(total.double(), before.double() + weights.double() @ rows) < 1e-6

    def test_size_norms_and_sums_are_those_of_the_gradients(self, name):
        block, rows = made(name)
        self.agree(block, rows)

    @pytest.mark.parametrize("some", [slice(0, 1), slice(1, 3), slice(2, 99), slice(None)])
    def test_some_rows_are_some_of_the_gradients(self, name, some):
        block, rows = made(name)
        self.agree(block.take(some), rows[some])
        self.agree(block.take(slice(1, None)).take(slice(0, 1)), rows[1:2])

    def test_formed_they_are_the_same_and_need_no_forming(self, name):
        block, rows = made(name)
        self.agree(block.formed(), rows)
        self.agree(block.take(slice(1, 3)).formed(), rows[1:3])
        self.agree(block.formed().take(slice(1, 3)), rows[1:3])
        assert not block.formed().is_formed_later

    def test_only_what_is_formed_later_has_yet_to_make_a_gradient_per_row(self, name):
        block, rows = made(name)
        with LargestMade() as largest:
            ready = block.formed()
        coordinates = int(rows.any(dim=0).sum()) if isinstance(block, StackedBlocks) else rows.shape[1]
        assert (largest.numbers >= len(rows) * coordinates) == block.is_formed_later
        with LargestMade() as largest:
            ready.squared_norms()
            ready.add_to(torch.zeros(block.size), torch.ones(len(rows)))
        assert largest.numbers < rows.numel()

    def test_a_mask_leaves_the_kept_coordinates(self, name):
        block, rows = made(name)
        keep = kept(block.size)
        self.agree(block.masked(keep), rows * keep)
        self.agree(block.masked(keep).formed(), rows * keep)
        self.agree(block.masked(keep).take(slice(1, 3)), rows[1:3] * keep)
        self.agree(block.take(slice(1, 3)).masked(keep), rows[1:3] * keep)

    def test_two_masks_leave_what_both_keep(self, name):
        block, rows = made(name)
        one, other = kept(block.size), kept(block.size, seed=5)
        self.agree(block.masked(one).masked(other), rows * (one & other))

    def test_masks_of_all_and_of_nothing(self, name):
        block, rows = made(name)
        self.agree(block.masked(torch.ones(block.size, dtype=torch.bool)), rows)
        nothing = block.masked(torch.zeros(block.size, dtype=torch.bool))
        total = torch.zeros(block.size)
        nothing.add_to(total, torch.ones(len(rows)))
        assert not total.any() and not nothing.dense().any()
        assert float(nothing.squared_norms().max()) < 1e-24

    def test_rows_are_apart(self, name):
        block, rows = made(name)
        whole = block.squared_norms()
        alone = torch.cat([block.take(slice(r, r + 1)).squared_norms() for r in range(len(rows))])
        torch.testing.assert_close(whole, alone, rtol=1e-6, atol=0)


def cancelling(residue, scale, places=6):
    """Pairs of places that cancel except for a relative `residue`, in an order that separates the pairs."""
    g, x = random(ROWS, places, 5), scale * random(ROWS, places, 8, seed=2)
    order = torch.randperm(2 * places, generator=torch.Generator().manual_seed(3))
    g, x = torch.cat([g, -g], dim=1)[:, order], torch.cat([x, (1 + residue) * x], dim=1)[:, order]
    return g, x


def gram_of_places(g, x):
    return GramProducts(g, x), sum_of_outer_products(g, x)


def gram_of_patches(g, x):
    """The places as pixels under a kernel of one pixel."""
    window = Window((1,), (1,), ((0, 0),), (1,), 1)
    return GramPatches(window, x.transpose(1, 2), g.transpose(1, 2)), sum_of_outer_products(g, x)


def gram_of_tokens(g, x):
    """The vectors as gradients of one token."""
    tokens = torch.zeros(x.shape[:2], dtype=torch.int64)
    moved = x * g[:, :, :1].sign()
    return EmbeddingBlock(tokens, moved, (1, x.shape[2])), moved.double().sum(dim=1)


GRAMS = pytest.mark.parametrize("form", [gram_of_places, gram_of_patches, gram_of_tokens])


@GRAMS
@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e8])
@pytest.mark.parametrize("residue", [1.0, 1e-1, 1e-2])
def test_places_that_nearly_cancel_have_the_norm_of_what_is_left(form, residue, scale):
    """It is never below: the margin for rounding is 2^-16 of the magnitude that cancels, added in squares."""
    block, rows = form(*cancelling(residue, scale))
    norms, truth = block.squared_norms().sqrt(), rows.norm(dim=1)
    g, x = cancelling(residue, scale)
    cancelled = (
        (g.double().norm(dim=2) * x.double().norm(dim=2)).sum(dim=1).clamp(min=x.double().norm(dim=2).sum(dim=1))
    )
    assert (norms >= truth * (1 - 1e-9)).all()
    assert (norms <= (truth.square() + (2.0**-16 * cancelled).square()).sqrt() * (1 + 1e-5)).all()


def added_alone(block, row):
    """The sum of this row alone, in the float32 arithmetic of plain training."""
    total = torch.zeros(block.size)
    block.take(slice(row, row + 1)).add_to(total, torch.ones(1))
    return total.double()


@GRAMS
@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e8])
@pytest.mark.parametrize("residue", [1e-3, 1e-4, 1e-5, 1e-6])
def test_the_norm_of_what_is_left_is_not_taken_for_less_than_it_is(form, residue, scale):
    block, rows = form(*cancelling(residue, scale))
    norms, truth = block.squared_norms().sqrt(), rows.norm(dim=1)
    for row in range(ROWS):
        assert float(norms[row]) >= float(truth[row]) - 1e-5 * float(added_alone(block, row).norm())


@GRAMS
def test_a_norm_covers_what_the_sum_adds_when_all_places_cancel(form):
    block, _ = form(*cancelling(0.0, 1e8))
    norms = block.squared_norms().sqrt()
    assert all(float(added_alone(block, row).norm()) <= float(norms[row]) * (1 + 1e-3) for row in range(ROWS))


def test_a_factor_whose_squares_vanish_does_not_hide_the_other():
    block = Outer(torch.full((1, 300), 2e-23), torch.full((1, 3), 1e19))
    assert float(block.squared_norms().sqrt()) >= float(block.dense().double().norm()) * (1 - 1e-5)


def test_a_huge_number_under_the_mask_does_not_hide_the_others():
    keep = torch.ones(3, 4)
    keep[:, 0] = 0
    for huge in (1e10, 1e18, 1e25, 1e30, 3e38):
        x = torch.tensor([[huge, 1e5, -1e5, 1e5]])
        block = MaskedOuter(Outer(torch.ones(1, 3), x), keep)
        assert float(block.squared_norms().sqrt()) >= 3e5 * (1 - 1e-5)


@given(st.lists(st.integers(-38, 38), min_size=5, max_size=5), st.lists(st.booleans(), min_size=6, max_size=6))
def test_a_masked_norm_is_never_below_the_truth(exponents, keep):
    """For values of any size. A norm that is too large costs accuracy, one that is too small costs privacy."""
    numbers = torch.tensor([10.0**exponent for exponent in exponents])
    block = MaskedOuter(Outer(numbers[None, :2], numbers[None, 2:]), torch.tensor(keep).reshape(2, 3).float())
    truth = (numbers[:2, None].double() * numbers[2:].double() * block.mask).norm()
    assert float(block.squared_norms().sqrt()) >= float(truth) * (1 - 1e-5)


def test_units_of_equally_many_rows_need_no_gradient_per_row():
    g, x = random(ROWS, 4, 256), random(ROWS, 4, 256, seed=2)
    assert isinstance(Products(g, x).of_units((0, 2, 4, 6)), GramProducts)
    assert isinstance(Products(g, x).of_units((0, 1, 4, 6)), OfUnits)
    assert isinstance(DenseBlock(g[:, 0]).of_units((0, 3, 6)), DenseBlock)


def test_units_of_many_rows_count_what_their_rows_take_while_they_are_formed():
    block = OfUnits(DenseBlock(random(ROWS, 5)), (0, 1, 4, 6))
    assert block.numbers_formed == 3 * 5


def test_few_places_and_many_parameters_are_cheaper_by_a_gram_matrix():
    assert gram_is_cheaper(places=8, size=512 * 512, features=1024)
    assert not gram_is_cheaper(places=1024, size=64 * 64, features=128)
    assert isinstance(weight_block(random(2, 4, 256), random(2, 4, 256)), GramProducts)
    assert type(weight_block(random(2, 200, 8), random(2, 200, 8))) is Products


@given(st.integers(1, 10**4), st.integers(1, 10**7), st.integers(1, 4096), st.integers(1, 10**4))
def test_more_places_never_make_a_gram_matrix_cheaper(places, size, features, more):
    cost = {"size": size, "features": features}
    assert gram_is_cheaper(places=places, **cost) or not gram_is_cheaper(places=places + more, **cost)


def test_a_convolution_of_few_pixels_and_many_channels_is_taken_by_its_gram_matrix():
    window = Window((3, 3), (1, 1), ((1, 1), (1, 1)), (1, 1), 1)
    assert type(window.patches(random(2, 256, 3, 3), random(2, 256, 3, 3))) is GramPatches
    assert type(window.patches(random(2, 3, 30, 30), random(2, 3, 30, 30))) is WindowBlock
    grouped = replace(window, groups=2)
    assert type(grouped.patches(random(2, 256, 3, 3), random(2, 256, 3, 3))) is WindowBlock


@pytest.mark.parametrize(
    ("channels", "side", "groups", "kind"),
    [
        (128, 8, 1, ChannelsLastPatches),
        (32, 32, 1, RoundedPatches),
        (3, 32, 1, RoundedPatches),
        (128, 8, 2, RoundedPatches),
    ],
)
def test_half_precision_has_channels_last_where_lines_of_pixels_are_short(channels, side, groups, kind):
    window = Window((3, 3), (1, 1), ((1, 1), (1, 1)), (1, 1), groups)
    x, g = (random(2, depth, side, side).to(torch.bfloat16) for depth in (channels, 32))
    assert type(window.patches(x, g)) is kind


def test_a_table_is_added_up_for_the_tokens_that_occur_only(monkeypatch):
    """Three groups and more than `GROUPS` of them, each row with a token of its own and one that many rows have."""
    made, honest = [], rounding.zeros
    monkeypatch.setattr(rounding, "zeros", lambda like, size, *dtype: made.append(size) or honest(like, size, *dtype))
    for rows in (300, 700):
        tokens = torch.stack([torch.arange(rows) * 7 + 1, torch.arange(rows) % 3 * 1000], dim=1)
        block = EmbeddingBlock(tokens, random(rows, 2, 4), (10_000, 4))
        total, weights = torch.zeros(40_000), torch.rand(rows, generator=torch.Generator().manual_seed(3))
        block.add_bounded(total, weights, block.lengths(), 1e-3)
        expected = torch.zeros(10_000, 4, dtype=torch.float64)
        expected.index_put_((tokens,), weights[:, None, None].double() * block.g, accumulate=True)
        assert relative_error(total, expected.flatten()) < 1e-6
        assert made and max(made) <= (rows + 3) * 4
