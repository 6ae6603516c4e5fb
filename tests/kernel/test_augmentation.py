"""Several views per example, averaged before the clip, against an explicit loop over views."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from sordino import ClipByNorm, Gaussian, Plan, Poisson, PrivateRun
from sordino.errors import UsageError
from sordino.gradients.row_randomness import RowRandomness
from sordino.kernel.augmentation import Crop, Flip, Jitter, Transform, Views
from sordino.kernel.contribution import LossGradient
from sordino.kernel.records import Batch, Records, as_records, by_user

ROWS, PICTURE = 5, (2, 6, 6)
AUGMENTED = Views(4, (Flip(), Crop(2), Jitter(0.1)))


def network() -> nn.Module:
    return nn.Sequential(nn.Conv2d(2, 3, 3), nn.Tanh(), nn.Flatten(), nn.Linear(48, 3)).double()


def with_dropout() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(72, 8), nn.Dropout(0.5), nn.Linear(8, 3)).double()


def pictures(rows: int = ROWS) -> Records:
    data = torch.randn(rows, *PICTURE, dtype=torch.float64), torch.randint(3, (rows,))
    return as_records(data, dtype=torch.float64)


def matrix(model: nn.Module, views: Views, batch: Batch, seeds: Tensor) -> Tensor:
    return torch.cat(list(LossGradient(F.cross_entropy, views=views).of(model, batch, seeds).rows(100)))


def gradient(model: nn.Module, picture: Tensor, label: Tensor) -> Tensor:
    loss = F.cross_entropy(model(picture[None]), label[None])
    return torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(model.parameters()))])


@pytest.mark.parametrize("number", [1, 2, 3, 8])
def test_the_gradient_of_an_example_is_the_mean_over_its_views(number: int) -> None:
    model, batch, seeds = network(), pictures().gather(torch.arange(ROWS)), torch.arange(ROWS)
    views = Views(number, AUGMENTED.transforms)
    seen, _ = views.of(batch, seeds)
    looped = torch.stack([gradient(model, *row) for row in zip(seen.inputs[0], seen.target, strict=True)])
    expected = looped.reshape(ROWS, number, -1).mean(dim=1)
    torch.testing.assert_close(matrix(model, views, batch, seeds), expected, rtol=1e-10, atol=1e-12)


def test_the_gradient_of_a_user_is_the_sum_over_rows_of_the_mean_over_views() -> None:
    rows = pictures(6).gather(torch.arange(6))
    owners = torch.tensor([3, 1, 3, 3, 2, 1])
    users = by_user((*rows.inputs, rows.target), owners, rows_per_user=3, dtype=torch.float64)
    model, batch, seeds = network(), users.gather(torch.tensor([2, 0])), torch.arange(5)
    seen, _ = AUGMENTED.of(batch, seeds)
    looped = torch.stack([gradient(model, *row) for row in zip(seen.inputs[0], seen.target, strict=True)])
    expected = torch.stack([looped[:12].sum(dim=0), looped[12:].sum(dim=0)]) / 4  # three rows and two, of four views
    torch.testing.assert_close(matrix(model, AUGMENTED, batch, seeds), expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("make", [network, with_dropout])
def test_one_view_without_a_transform_is_no_view(make: type[nn.Module]) -> None:
    model, batch, seeds = make(), pictures().gather(torch.arange(ROWS)), torch.arange(ROWS)
    plain = torch.cat(list(LossGradient(F.cross_entropy).of(model, batch, seeds).rows(100)))
    assert torch.equal(matrix(model, Views(1, ()), batch, seeds), plain)


def test_views_without_a_transform_are_told_apart_by_dropout_alone() -> None:
    batch, seeds = pictures().gather(torch.arange(ROWS)), torch.arange(ROWS)
    still, drawing = network(), with_dropout()
    torch.testing.assert_close(matrix(still, Views(3), batch, seeds), matrix(still, Views(), batch, seeds))
    assert not torch.allclose(matrix(drawing, Views(3), batch, seeds), matrix(drawing, Views(), batch, seeds))


@settings(max_examples=15)
@given(cut=st.integers(0, ROWS), order=st.permutations(range(ROWS)))
def test_the_composition_of_a_micro_batch_changes_no_view(cut: int, order: list[int]) -> None:
    records, seeds, order_ = pictures(), torch.arange(ROWS) << 20, torch.tensor(order)

    def seen(indices: Tensor) -> Tensor:
        return AUGMENTED.of(records.gather(indices), seeds[indices])[0].inputs[0].unflatten(0, (-1, 4))

    parts = torch.cat([seen(order_[:cut]), seen(order_[cut:])])
    assert torch.equal(parts, seen(torch.arange(ROWS))[order_])


def test_the_seed_decides_every_view_and_the_global_generator_is_left_alone() -> None:
    batch, seeds = pictures().gather(torch.arange(ROWS)), torch.arange(ROWS)
    state = torch.get_rng_state()
    first, second = (AUGMENTED.of(batch, seeds)[0].inputs[0] for _ in range(2))
    other = AUGMENTED.of(batch, seeds + 100)[0].inputs[0]
    assert torch.equal(first, second) and torch.equal(torch.get_rng_state(), state)
    assert not torch.isclose(first, other).all(dim=(1, 2, 3)).any()


def test_no_two_views_of_a_batch_have_a_seed_in_common() -> None:
    units, rows = torch.arange(300)[:, None] << 20, torch.arange(4)
    batch = as_records((torch.zeros(1200, 1), torch.zeros(1200))).gather(torch.arange(1200))
    _, seeds = Views(64).of(batch, (2**62 + units + rows).flatten())
    assert len(seeds.unique()) == 1200 * 64


def test_a_change_of_one_example_moves_its_own_gradient_only() -> None:
    records, seeds, model = pictures(), torch.arange(ROWS), network()
    batch = records.gather(torch.arange(ROWS))
    before = matrix(model, AUGMENTED, batch, seeds)
    batch.inputs[0][2] = 1e3
    after = matrix(model, AUGMENTED, batch, seeds)
    moved = (before != after).any(dim=1)
    assert moved.tolist() == [False, False, True, False, False]


def test_an_example_that_is_not_finite_adds_nothing() -> None:
    data = torch.randn(ROWS, *PICTURE)
    data[1, 0, 0, 0] = torch.nan
    batch = as_records((data, torch.zeros(ROWS, dtype=torch.int64))).gather(torch.arange(ROWS))
    each = matrix(network().float(), AUGMENTED, batch, torch.arange(ROWS))
    assert each[1].count_nonzero() == 0 and (each[[0, 2, 3, 4]] != 0).any(dim=1).all()


def test_a_flip_mirrors_half_of_the_views() -> None:
    # 4,096 fair coins, within 5 standard deviations of 32 (false alarm below 1e-6).
    batch = as_records((torch.arange(6.0).expand(64, 1, 2, 6), torch.zeros(64))).gather(torch.arange(64))
    seen = Views(64, (Flip(),)).of(batch, torch.arange(64))[0].inputs[0]
    mirrored = (seen == torch.arange(5.0, -1.0, -1.0)).all(dim=(1, 2, 3))
    straight = (seen == torch.arange(6.0)).all(dim=(1, 2, 3))
    assert (mirrored ^ straight).all()
    assert abs(int(mirrored.sum()) - 2048) < 160


def test_a_crop_is_one_of_the_windows_of_the_padded_picture_and_each_is_met() -> None:
    picture = torch.randn(1, 3, 6, 5)
    padded = F.pad(picture, (2, 2, 2, 2), mode="reflect")[0]
    windows = torch.stack([padded[:, y : y + 6, x : x + 5] for y in range(5) for x in range(5)])
    batch = as_records((picture.expand(16, 3, 6, 5), torch.zeros(16))).gather(torch.arange(16))
    seen = Views(64, (Crop(2),)).of(batch, torch.arange(16))[0].inputs[0]
    which = (seen[:, None] == windows).all(dim=(2, 3, 4))
    assert (which.sum(dim=1) == 1).all()
    # Each of 25 windows is met 41 times on average in 1,024; never with chance 25 * exp(-41).
    assert which.any(dim=0).all()


def test_the_draws_of_a_view_are_not_those_of_the_model() -> None:
    # 4,096 pairs of coins, correlation within 5 standard deviations (false alarm below 1e-6).
    ones = as_records((torch.ones(64, 1, 1, 2), torch.zeros(64))).gather(torch.arange(64))
    ones.inputs[0][..., 1] = -1.0
    views = Views(64, (Flip(),))
    seen, seeds = views.of(ones, torch.arange(64))
    dropped = (RowRandomness(seeds).uniform((4096,)) < 0.5).double() * 2 - 1
    assert abs(float((seen.inputs[0][:, 0, 0, 0] * dropped).mean())) < 5 / 64


def test_micro_batches_shrink_by_the_number_of_views() -> None:
    model, records = network(), pictures()
    plain = LossGradient(F.cross_entropy).bytes_per_row(model, records)
    assert LossGradient(F.cross_entropy, views=AUGMENTED).bytes_per_row(model, records) == 4 * plain


def test_a_run_with_views_is_the_same_in_micro_batches_of_any_size() -> None:
    data, sums = (torch.randn(20, *PICTURE), torch.randint(3, (20,))), []
    for size in (1, 7, 20):
        gradient = LossGradient(F.cross_entropy, views=Views(3, (Flip(), Crop(1))))
        plan = Plan(Poisson(0.5, 1), gradient, ClipByNorm(1.0), Gaussian(1.0))
        torch.manual_seed(3)
        run = PrivateRun(plan, network().float(), data, seed=5, physical_batch_size=size)
        sums.append(next(iter(run)).value)
    torch.testing.assert_close(sums[1], sums[0], rtol=0, atol=1e-4)
    torch.testing.assert_close(sums[2], sums[0], rtol=0, atol=1e-4)


@dataclass(frozen=True)
class Deciding:
    """Branches in Python on a value, which `vmap` does not allow."""

    def apply(self, picture: Tensor) -> Tensor:
        return picture if picture.mean() > 0 else -picture


@dataclass(frozen=True)
class Looking:
    """Looks up a value of the image in a table, and fails on an index outside of it."""

    def apply(self, picture: Tensor) -> Tensor:
        return picture + torch.zeros(4, dtype=picture.dtype)[picture[0, 0, :1].abs().long()]


@dataclass(frozen=True)
class Shrinking:
    def apply(self, picture: Tensor) -> Tensor:
        return picture[:, 1:]


def test_a_view_that_fails_counts_as_absent() -> None:
    model, records, seeds = network(), pictures(), torch.arange(ROWS)
    batch, views = records.gather(torch.arange(ROWS)), Views(2, (Looking(),))
    expected = matrix(model, Views(2), batch, seeds)
    batch.inputs[0][3, 0, 0, 0] = 99.0
    found = matrix(model, views, batch, seeds)
    assert found[3].count_nonzero() == 0
    torch.testing.assert_close(found[[0, 1, 2, 4]], expected[[0, 1, 2, 4]])


@pytest.mark.parametrize(
    ("transform", "message"),
    [
        (Deciding(), "a transform cannot be applied to one input at a time"),
        (Flip, "transform 0 must be a Transform, got type"),  # the class, not a value
        (Shrinking(), r"must keep the shape \(2, 6, 6\) of an input, got \(2, 5, 6\)"),
        (Crop(6), "padding must be less than height and width of the image, 6 x 6, got 6"),
    ],
)
def test_a_transform_that_cannot_be_used_is_refused_on_synthetic_rows(transform: Transform, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        LossGradient(F.cross_entropy, views=Views(2, (transform,))).check(network(), pictures())


@pytest.mark.parametrize("transform", [Flip(), Crop(1)])
def test_pictures_are_asked_for_by_name(transform: Transform) -> None:
    table = as_records((torch.zeros(9, 4), torch.zeros(9, dtype=torch.int64)))
    message = rf"{type(transform).__name__} needs images .* got inputs of shape \(4,\)"
    with pytest.raises(UsageError, match=message):
        LossGradient(F.cross_entropy, views=Views(2, (transform,))).check(nn.Linear(4, 3), table)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Views(0), "number must be a whole number from 1 to 64, got 0"),
        (lambda: Views(2, [Flip()]), "transforms must be a tuple"),
        (lambda: Views(2, ("flip",)), "transform 0 must be a Transform"),
        (lambda: Crop(0), "padding must be a whole number from 1"),
        (lambda: Jitter(-1.0), "std must be a finite number above 0, got -1.0"),
        (lambda: LossGradient(F.cross_entropy, views=8), "views must be a Views, got int"),
    ],
)
def test_settings_that_mean_nothing_are_refused(make, message: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(UsageError, match=message):
        make()
