"""One row moves the clipped sum by at most the clip norm, in the arithmetic that runs and for any values of the rows.

A row that is replaced by zero keeps its place, so that only its own values change.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction

import pytest
import torch
import torch.nn.functional as F
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import sordino as so
from sordino.convex.model import bounded
from sordino.gradients import rounding
from sordino.gradients.blocks import Block, DenseBlock, GramProducts, Outer, Products, RoundedProducts, Several
from sordino.gradients.convolution import GramPatches, Window, WindowBlock
from sordino.gradients.layers import EmbeddingBlock
from sordino.gradients.norms import squared_norms
from sordino.gradients.projections import StackedBlocks
from sordino.gradients.rounding import AT_ONCE, SUM_ERROR, TOGETHER
from sordino.gradients.taped import TapedGradients, _zeroed
from sordino.kernel.clipping import RELATIVE_ERROR, SCALED_TO
from sordino.kernel.states import Layout
from sordino.verification.synthetic import cancelling_places

POINT = Window((1, 1), (1, 1), ((0, 0), (0, 0)), (1, 1), 1)
THREE = Window((3,), (1,), ((1, 1),), (1,), 1)

Make = Callable[[Tensor, Tensor], Block]  # of output gradients and inputs, (r, t, 4) and (r, t, 6)


def tokens(g: Tensor, x: Tensor) -> EmbeddingBlock:
    """All places have the same token, and the model multiplies it with a factor of the output gradient."""
    return EmbeddingBlock(torch.zeros(x.shape[:2], dtype=torch.int64), g[..., :1] * x, (3, x.shape[2]))


def pixels(kind: type[WindowBlock]) -> Make:
    return lambda g, x: kind(
        POINT, x.transpose(1, 2)[..., None].contiguous(), g.transpose(1, 2)[..., None].contiguous()
    )


def kept(block: Block) -> Block:
    return block.masked(torch.arange(block.size) % 3 != 0)


def two_by_two(block: Block) -> Block:
    """Units of two rows each, in order."""
    return block.of_units(tuple(range(0, 2 * (len(block.dense()) // 2) + 1, 2)))


def users(g: Tensor, x: Tensor) -> Block:
    return two_by_two(GramProducts(g, x))


KINDS: dict[str, Make] = {
    "linear on places, by its Gram matrix": GramProducts,
    "linear on places, formed": Products,
    "linear on places, in bfloat16": lambda g, x: RoundedProducts(g.bfloat16(), x.bfloat16()),
    "linear": lambda g, x: Outer(g.flatten(1), x.flatten(1)),
    "masked linear": lambda g, x: kept(Outer(g.flatten(1), x.flatten(1))),
    "masked linear on places": lambda g, x: kept(GramProducts(g, x)),
    "convolution with a kernel of one pixel, by its Gram matrix": pixels(GramPatches),
    "convolution with a kernel of one pixel, formed": pixels(WindowBlock),
    "convolution of lines, by its Gram matrix": lambda g, x: GramPatches(THREE, x.mT.contiguous(), g.mT.contiguous()),
    "convolution by channel": lambda g, x: WindowBlock(replace(THREE, groups=2), x.mT.contiguous(), g.mT.contiguous()),
    "masked convolution": lambda g, x: kept(pixels(GramPatches)(g, x)),
    "embedding": tokens,
    "masked embedding": lambda g, x: kept(tokens(g, x)),
    "a bias": lambda g, x: DenseBlock((g[..., :1] * x).sum(dim=1)),
    "a layer and a table with one weight": lambda g, x: Several((Products(x[..., :3], g), tokens(x[..., :1], g))),
    "queries and keys": lambda g, x: StackedBlocks((GramProducts(g, x), DenseBlock(g.sum(dim=1)), GramProducts(x, g))),
    "users with two rows": users,
}


def taped(*blocks: Block) -> TapedGradients:
    layout = Layout(tuple(map(str, range(len(blocks)))), tuple((block.size,) for block in blocks))
    return TapedGradients(blocks, len(blocks[0].squared_norms()), layout, torch.zeros(()))


def without(g: Tensor, row: int) -> Tensor:
    """The gradients with row `row` replaced by zero."""
    return g.index_fill(0, torch.tensor([row]), 0.0)


def moved_by(make: Make, g: Tensor, x: Tensor, row: int = 0, clip: so.Clip | None = None) -> float:
    clip = clip or so.ClipByNorm(1.0)
    nothing = without(without(g, row), row ^ 1) if make is users else without(g, row)
    whole, rest = (clip(taped(make(each, x))).value.double() for each in (g, nothing))
    return float((whole - rest).norm()) / clip.bound


def among_others(hostile: Tensor, rows: int, features: int) -> Tensor:
    """A row with `hostile` values at its places, and ordinary rows."""
    x = torch.randn(rows, len(hostile), features, generator=torch.Generator().manual_seed(0))
    x[0] = hostile[:, None]
    return x


@pytest.mark.parametrize("rows", [1, 6])
@pytest.mark.parametrize("places", [64, 128, 256])
@pytest.mark.parametrize("kind", KINDS)
def test_a_row_whose_places_cancel_moves_the_sum_by_no_more_than_the_clip_norm(kind, places, rows):
    """Before this was fixed, it moved the sum by 2.5 (linear on 64 places), 5.3 (128) and 10.5 (256) clip norms."""
    rows *= 2 if KINDS[kind] is users else 1
    x, g = among_others(cancelling_places(places), rows, 6), torch.ones(rows, places, 4)
    assert moved_by(KINDS[kind], g, x) <= 1
    assert moved_by(KINDS[kind], g, x, row=rows - 1) <= 1


@pytest.mark.parametrize("kind", KINDS)
def test_a_row_whose_places_cancel_all_but_something_is_still_clipped_to_the_norm(kind):
    x, g = among_others(cancelling_places(64), 4, 6), torch.ones(4, 64, 4)
    x[0, 5] += 1e3
    assert moved_by(KINDS[kind], g, x) <= 1


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    kind=st.sampled_from(
        ["linear on places, by its Gram matrix", "embedding", "queries and keys", "users with two rows"]
    ),
    scale=st.integers(-30, 12),
    residue=st.integers(-20, 24),
    rows=st.integers(2, 80).map(lambda half: 2 * half),
)
def test_no_row_moves_the_rounding_of_others_whose_places_cancel(kind, scale, residue, rows):
    """All rows are hostile. At magnitudes between float32 and float64 sums, no row decides how others are summed."""
    x = 2.0**scale * cancelling_places(32)[None, :, None].expand(rows, 32, 6).clone()
    x[:, 3] += 2.0 ** (scale + residue) * torch.randn(rows, 6, generator=torch.Generator().manual_seed(rows))
    assert max(moved_by(KINDS[kind], torch.ones(rows, 32, 4), x, row) for row in (0, rows - 1)) <= 1


def test_ordinary_rows_are_added_up_in_float32_and_others_in_float64(monkeypatch):
    doubled = []
    honest = GramProducts.doubled
    monkeypatch.setattr(GramProducts, "doubled", lambda self, rows: doubled.append(rows) or honest(self, rows))
    g, x = (torch.randn(100, 28, n, generator=torch.Generator().manual_seed(n)) for n in (16, 24))
    x += 1  # as in training: the gradients at most places of a row have something in common
    so.ClipByNorm(1.0)(taped(GramProducts(g + 1, x)))
    assert doubled == []
    x[40] = cancelling_places(28)[:, None]
    so.ClipByNorm(1.0)(taped(GramProducts(torch.ones_like(g), x)))
    assert len(doubled) == 1 and doubled[0].start <= 40 < doubled[0].stop


PLACES = 9
CLIPS = (so.ClipByNorm(1.0), so.ClipByNorm(1e-12), so.ClipByNorm(1e12), so.Normalise(1.0, stabiliser=1e-12))
EXPONENTS = st.lists(st.integers(-44, 38), min_size=3 * PLACES, max_size=3 * PLACES)


def numbers(exponents: list[int], seed: int, features: int) -> Tensor:
    """Values of these sizes, nine in a row, of which the first and the last cancel."""
    generator = torch.Generator().manual_seed(seed)
    sizes = torch.tensor([10.0**exponent for exponent in exponents], dtype=torch.float64).reshape(-1, PLACES, 1)
    drawn = sizes * torch.randn(len(sizes), PLACES, features, generator=generator, dtype=torch.float64)
    drawn[:, -1] = -drawn[:, 0]
    return drawn.clamp(-3e38, 3e38).float()


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "users with two rows"])
@settings(max_examples=25, deadline=None, derandomize=True)
@given(of_gradients=EXPONENTS, of_inputs=EXPONENTS, clip=st.sampled_from(CLIPS), seed=st.integers(0, 99))
@example(of_gradients=[0] * 27, of_inputs=[38] * 27, clip=CLIPS[0], seed=0)
@example(of_gradients=[-44] * 27, of_inputs=[38] * 27, clip=CLIPS[1], seed=0)
@example(of_gradients=[15] * 27, of_inputs=[-44] * 27, clip=CLIPS[2], seed=0)
def test_no_row_moves_the_sum_by_more_than_the_clip_norm_whatever_the_sizes_of_its_numbers(
    kind, of_gradients, of_inputs, clip, seed
):
    g, x = numbers(of_gradients, seed, 4), numbers(of_inputs, seed + 1, 6)
    moved = [moved_by(KINDS[kind], g, x, row, clip) for row in range(3)]
    assert max(moved) <= 1  # which NaN is not


@pytest.mark.parametrize("clip", [so.ClipByNorm(1.0), so.ClipByNorm(1e-12)])
@pytest.mark.parametrize("kind", KINDS)
def test_the_bound_holds_where_subnormal_numbers_are_flushed_to_zero(kind, clip):
    flushes = torch.set_flush_denormal(True)
    try:
        for gradients, inputs in itertools.product((-44, -30, -6, 13), (-44, -20, 12, 38)):
            g, x = numbers([gradients] * 54, 0, 4)[:, :8], numbers([inputs, -3] * 27, 1, 6)[:, :8]
            assert max(moved_by(KINDS[kind], g[:2], x[:2], row, clip) for row in range(2)) <= 1
    finally:
        torch.set_flush_denormal(False)
    assert flushes or not torch.backends.cpu.get_cpu_capability().startswith("AVX")


@settings(max_examples=40, deadline=None, derandomize=True)
@given(exponents=st.lists(st.integers(-9, 9), min_size=3 * PLACES, max_size=3 * PLACES), seed=st.integers(0, 99))
def test_norms_of_places_are_never_below_those_in_exact_arithmetic(exponents, seed):
    g, x = numbers(exponents, seed, 4), numbers([0] * 27, seed + 1, 6)
    for block, left in ((GramProducts(g, x), g), (tokens(g, x), g[..., :1]), (pixels(GramPatches)(g, x), g)):
        right = tokens(g, x).g if isinstance(block, EmbeddingBlock) else x
        left = torch.ones_like(left) if isinstance(block, EmbeddingBlock) else left
        for row, square in enumerate(block.squared_norms().tolist()):
            assert Fraction(square) >= exact_square(left[row], right[row]) * (1 - Fraction(2) ** -40)


def exact_square(g: Tensor, x: Tensor) -> Fraction:
    """The squared norm of sum_t g_t x_t^T."""
    of_places = [[[Fraction(number) for number in place] for place in side.tolist()] for side in (g, x)]
    coordinates = itertools.product(range(g.shape[1]), range(x.shape[1]))
    return sum(sum(a[o] * b[i] for a, b in zip(*of_places, strict=True)) ** 2 for o, i in coordinates)


@pytest.mark.parametrize("rows", [1, TOGETHER, TOGETHER + 1, 300, AT_ONCE + 5])
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in ("users with two rows", "linear")])
def test_a_sum_is_that_of_the_clipped_rows_to_what_the_clip_has_paid_for(kind, rows):
    """Also if all rows are equal, so that rounding errors add up: 512 equal rows have the largest error."""
    x, g = (torch.randn(1, 5, n, generator=torch.Generator().manual_seed(n)).expand(rows, 5, n) for n in (6, 4))
    each = taped(KINDS[kind](g.contiguous(), x.contiguous()))
    total, weights = each.sum_weighted_by(lambda squares: SCALED_TO / squares.sum(dim=1).sqrt(), 1.0)
    exact = weights[:1, 0].double() * torch.cat(list(taped(KINDS[kind](g[:1], x[:1])).rows(1)))[0].double() * rows
    if "bfloat16" not in kind:
        exact = weights[0, 0] * KINDS[kind](g[:1].double(), x[:1].double()).dense()[0] * rows
    groups = -(-rows // TOGETHER)
    assert float((total.double() - exact).norm()) <= SUM_ERROR * groups + 2e-6 * rows


def test_absent_rows_change_nothing_about_the_others():
    """Before this was fixed, a row that is not finite changed the sum of all others, to float64 row by row."""
    g, x = torch.ones(6, 5, 4), torch.randn(6, 5, 6, generator=torch.Generator().manual_seed(0))
    for kind, make in KINDS.items():
        row = 0 if "users" in kind else 2
        poisoned = x.clone()
        poisoned[row] = float("nan")
        whole = so.ClipByNorm(1.0)(taped(make(g, poisoned))).value
        nothing = without(without(g, row), 1) if "users" in kind else without(g, row)
        rest = so.ClipByNorm(1.0)(taped(make(nothing, x))).value
        assert torch.equal(whole, rest), kind


@pytest.mark.parametrize(
    "gradients",
    [
        torch.ones(6, 5, 4),
        torch.ones(6, 4, 5).mT,
        torch.ones(6, 1, 4).expand(6, 5, 4),
        torch.ones(6, 5, 9)[..., :4],
        torch.ones(6, 3, 4, 4).contiguous(memory_format=torch.channels_last),
        torch.ones(()).expand(6, 5),
        torch.ones(6, 0),
    ],
)
def test_whether_a_row_counts_does_not_decide_the_layout_of_the_others(gradients):
    everybody, all_but_one = torch.ones(6, dtype=torch.bool), torch.arange(6) != 2
    whole, rest = _zeroed(gradients, everybody), _zeroed(gradients, all_but_one)
    assert whole.stride() == rest.stride()
    assert (
        torch.equal(whole, gradients) and not rest[2].any() and torch.equal(rest[all_but_one], gradients[all_but_one])
    )


def test_rows_are_grouped_by_their_number_alone():
    for rows, together in itertools.product((0, 1, 5, 128, 129, 1000), (1, 7, 128)):
        found = list(rounding.groups(rows, together))
        assert [slice(a.start, a.stop) for a in found] == found and found[0].start == 0 and found[-1].stop == rows
        assert all(one.stop == other.start for one, other in itertools.pairwise(found))
        assert max(some.stop - some.start for some in found) <= together


def test_what_is_scaled_away_pays_for_all_that_is_rounded():
    """The constants of the theorem follow from their definitions."""
    unit, rows = 2.0**-24, TOGETHER
    for chunk in range(1, rows + 1):  # formed so many at a time: additions to what is there, and products
        chunks = -(-rows // chunk)
        there = sum(min(chunk, rows - chunk * k) * min(chunk * k, rows) for k in range(chunks))
        assert (there + (chunk + 2) * rows) * unit <= rounding.ROWS_ERROR
    assert 1 - SCALED_TO >= 2 * SUM_ERROR + RELATIVE_ERROR + unit
    assert 1 - SCALED_TO < 0.0035


@pytest.mark.parametrize("size", [1_000, 1_024, 5_000, 300_000])
def test_norms_of_long_vectors_are_not_low(size):
    """A large value before many whose squares are below half a unit in its last place. Too low by 6e-5 before."""
    row = torch.full((1, size), 2.0**-12.6)
    row[0, :: 1 << 14] = 1.0
    exact = float(row.double().square().sum().sqrt())
    assert float(squared_norms(row).sqrt()) >= exact * (1 - RELATIVE_ERROR)
    assert float(so.ClipByNorm(0.5)(taped(DenseBlock(row))).value.double().norm()) <= 0.5


def test_a_norm_that_is_a_product_of_two_is_not_low():
    row = torch.full((1, 1_000), 2.0**-12.6)
    row[0, 0] = 1.0
    exact = float(row.double().square().sum())
    assert float(Outer(row, row).squared_norms().sqrt()) >= exact * (1 - RELATIVE_ERROR)
    assert float(so.ClipByNorm(0.5)(taped(Outer(row, row))).value.double().norm()) <= 0.5


def test_squares_that_vanish_in_float32_do_not_make_a_row_shorter():
    row = torch.full((1, 10**6), 1e-20)  # of norm 1e-17
    assert float(so.ClipByNorm(1e-12)(taped(DenseBlock(row))).value.norm()) <= 1e-12
    left, right = torch.full((1, 10**5), 1e-24), torch.full((1, 3), 1e12)
    assert float(so.ClipByNorm(1e-12)(taped(Outer(left, right))).value.double().norm()) <= 1e-12


@pytest.mark.parametrize("size", [1_000, 20_000, 3_000_000])
def test_features_of_a_convex_model_are_no_longer_than_one(size):
    """They were longer by 6e-5 before this was fixed."""
    row = torch.full((1, size), 2.0**-12.6)
    row[0, :: 1 << 14] = 1.0
    generator = torch.Generator().manual_seed(0)
    for rows in (
        row,
        1e6 * row,
        1e30 * row,
        row / row.double().norm().float(),
        torch.rand(3, size, generator=generator),
    ):
        assert float(bounded(rows).double().norm(dim=1).max()) <= 1


def test_a_huge_number_leaves_a_feature_that_is_finite():
    assert bounded(torch.tensor([[3e38, 3e38]])).isfinite().all()


class Failing(nn.Module):
    """A lookup of tokens in a small table, in which an id outside of the table raises."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.out = nn.Embedding(7, 64), nn.Linear(64, 33)

    def forward(self, tokens: Tensor) -> Tensor:
        hidden = self.table(tokens).mean(dim=1)
        return self.out(hidden.tanh())


@pytest.mark.parametrize("autocast", [None, torch.bfloat16])
def test_a_row_on_which_the_model_fails_changes_nothing_about_the_others(autocast):
    """Before this was fixed, all others used other kernels: 1,024 equal rows moved by 3.6 clip norms in bfloat16."""
    torch.manual_seed(0)
    model, rows = Failing(), 200
    tokens, labels = torch.tensor([[1, 2, 2, 5]]).repeat(rows, 1), torch.full((rows,), 3)
    contribution = so.LossGradient(F.cross_entropy, autocast=autocast)

    def total(tokens: Tensor, labels: Tensor) -> Tensor:
        batch = so.as_records((tokens, labels)).gather(torch.arange(rows))
        return so.ClipByNorm(0.1)(contribution.of(model, batch, torch.arange(rows))).value

    failing, absent = tokens.clone(), labels.clone()
    failing[[3, 150], 1], absent[[3, 150]] = 99, -1
    assert torch.equal(total(failing, labels), total(tokens, absent))


def test_rows_fail_alone_also_without_a_tape():
    """A linear system without a solution, in a model that the tape cannot record."""

    class Solving(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(2, 2))

        def forward(self, x: Tensor) -> Tensor:
            return torch.linalg.solve(x * self.scale, torch.ones(x.shape[0], 2, 1))[..., 0]

    torch.manual_seed(0)
    x, y = torch.eye(2) + 0.1 * torch.randn(9, 2, 2), torch.randint(2, (9,))
    contribution, model = so.LossGradient(F.cross_entropy), Solving()

    def total(x: Tensor, y: Tensor) -> Tensor:
        batch = so.as_records((x, y)).gather(torch.arange(9))
        return so.ClipByNorm(0.1)(contribution.of(model, batch, torch.arange(9))).value

    singular, absent = x.clone(), y.clone()
    singular[4], absent[4] = 0.0, -1
    assert torch.equal(total(singular, y), total(x, absent))
