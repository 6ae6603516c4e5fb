"""Released moments: what one unit can move is bounded, noisy, and paid for before a row is read."""

from math import sqrt

import pytest
import torch
from dp_accounting import GaussianDpEvent

import sordino as so
from sordino.errors import BudgetError, UsageError
from sordino.kernel.noise import Gaussian
from sordino.kernel.randomness import Key
from sordino.kernel.records import as_records, by_user
from sordino.releases.moments import _bounded_sum, _Scale, release_moments

INPUTS = torch.rand(300, 2, 5, 5, generator=torch.Generator().manual_seed(0)) * torch.tensor([1.0, 0.5])[:, None, None]
LABELS = torch.zeros(300, dtype=torch.int64)


def records_of(inputs=INPUTS, input_range=(0.0, 1.0)):
    return as_records((inputs, torch.zeros(len(inputs))), input_range=input_range)


def sum_of(records):
    return _bounded_sum(records, _Scale.of(records))


def test_with_next_to_no_noise_they_are_the_moments_of_the_inputs():
    moments = release_moments(so.Budget(records_of(INPUTS.repeat(40, 1, 1, 1))), noise_multiplier=0.3, seed=0)
    places = INPUTS.transpose(0, 1).flatten(1)
    torch.testing.assert_close(torch.tensor(moments.mean), places.mean(dim=1), atol=1e-3, rtol=0)
    torch.testing.assert_close(torch.tensor(moments.std), places.std(dim=1), atol=3e-3, rtol=0)


def test_moments_are_in_the_units_of_the_inputs():
    pictures = (INPUTS * 255).to(torch.uint8).repeat(40, 1, 1, 1)
    moments = release_moments(so.Budget(records_of(pictures, (0.0, 255.0))), noise_multiplier=0.3, seed=0)
    assert 120 < moments.mean[0] < 135 and 60 < moments.mean[1] < 67 and 70 < moments.std[0] < 77


def hostile_rows():
    extremes = torch.tensor([0.0, 1.0, 1e30, -1e30, torch.nan, torch.inf, 0.5])
    return extremes[:, None].expand(-1, 3)


def test_no_unit_moves_the_sum_by_more_than_the_bound():
    rows = torch.cat([hostile_rows(), torch.rand(20, 3)])
    whole = sum_of(records_of(rows))
    assert whole.bound == sqrt(1 + 2 * 3)
    moved = []
    for row in range(len(rows)):
        without = sum_of(records_of(rows[torch.arange(len(rows)) != row]))
        moved.append(float((whole.value - without.value).norm()))
    assert max(moved) <= whole.bound
    assert max(moved) > 0.99 * whole.bound  # the bound is reached, so the noise is not too large either


def test_a_row_that_is_not_finite_adds_exactly_nothing():
    rows = torch.rand(50, 3)
    spoilt = torch.cat([rows, torch.tensor([[0.1, torch.nan, 0.2], [torch.inf, 0.0, 0.0]])])
    assert torch.equal(sum_of(records_of(spoilt)).value, sum_of(records_of(rows)).value)


def test_a_user_with_many_rows_is_summed_and_held_to_the_same_bound():
    rows, owners = torch.ones(40, 3), torch.tensor([0] * 30 + list(range(1, 11)))
    users = by_user((rows, torch.zeros(40)), owners, rows_per_user=20, input_range=(0.0, 1.0))
    others = by_user((rows[30:], torch.zeros(10)), owners[30:], rows_per_user=20, input_range=(0.0, 1.0))
    moved = (sum_of(users).value - sum_of(others).value).norm()
    assert 0.99 * sqrt(7) < float(moved) <= sqrt(7)


def test_scaling_a_user_down_does_not_bias_the_means():
    rows = torch.full((4000, 2), 0.25)
    users = by_user((rows, torch.zeros(4000)), torch.arange(4000) // 4, rows_per_user=4, input_range=(0.0, 1.0))
    moments = release_moments(so.Budget(users), noise_multiplier=0.3, seed=0)
    assert moments.mean == pytest.approx((0.25, 0.25), abs=0.01)


def test_the_release_is_charged_as_one_gaussian_mechanism():
    budget = so.Budget(records_of())
    release_moments(budget, noise_multiplier=3.0)
    alone = so.Budget(records_of())
    alone.charge(GaussianDpEvent(3.0), so.Adjacency.ZERO_OUT, what="the same")
    assert budget.guarantee(delta=1e-5).epsilon == alone.guarantee(delta=1e-5).epsilon


def test_what_the_budget_cannot_pay_is_refused_before_a_row_is_read():
    class Watched(torch.utils.data.Dataset):
        reads = 0

        def __len__(self):
            return 50

        def __getitem__(self, index):
            Watched.reads += 1
            return torch.zeros(3), torch.tensor(0)

    budget = so.Budget(as_records(Watched(), input_range=(0.0, 1.0)), epsilon=0.5, delta=1e-5)
    reads = Watched.reads
    with pytest.raises(BudgetError, match="the moments of the inputs would bring epsilon to"):
        release_moments(budget, noise_multiplier=1.0)
    assert Watched.reads == reads and budget.releases == ()


def test_a_release_that_fails_on_the_data_stays_charged():
    class Broken(torch.utils.data.Dataset):
        def __len__(self):
            return 50

        def __getitem__(self, index):
            if index == 7:
                raise MemoryError
            return torch.zeros(3), torch.tensor(0)

    budget = so.Budget(as_records(Broken(), input_range=(0.0, 1.0)))
    with pytest.raises(MemoryError):
        release_moments(budget, noise_multiplier=1.0)
    assert budget.releases == ("moments of the inputs",)


def test_replace_one_costs_twice_the_sensitivity():
    by_zero, by_other = so.Budget(records_of()), so.Budget(records_of())
    release_moments(by_zero, noise_multiplier=3.0)
    release_moments(by_other, noise_multiplier=6.0, adjacency=so.Adjacency.REPLACE_ONE)
    assert by_other.guarantee(delta=1e-5).epsilon == pytest.approx(by_zero.guarantee(delta=1e-5).epsilon, rel=1e-6)


def test_two_releases_with_one_seed_do_not_share_their_noise():
    budget = so.Budget(records_of())
    first, second = (release_moments(budget, noise_multiplier=3.0, seed=0) for _ in range(2))
    again = release_moments(so.Budget(records_of()), noise_multiplier=3.0, seed=0)
    assert first.mean != second.mean and first == again


def test_the_noise_is_not_that_of_a_training_run_with_the_same_key():
    key = Key.from_seed(0)
    assert key.stream("moments").normals(9, step=0).tolist() != key.stream("noise").normals(9, step=0).tolist()
    other = release_moments(so.Budget(records_of()), noise_multiplier=3.0, key=key)
    assert other == release_moments(so.Budget(records_of()), noise_multiplier=3.0, seed=0)


def test_the_noise_has_the_scale_that_is_charged():
    records = records_of(torch.full((20, 1), 0.5))
    noise = Gaussian(5.0)
    draws = [
        release_moments(so.Budget(records_of(torch.full((20_000, 1), 0.5))), noise_multiplier=5.0, seed=seed).mean[0]
        for seed in range(60)
    ]
    # The mean is 1/2 + noise / (2 * rows) to first order. 60 draws: a false alarm beyond 4.9 of its standard errors.
    expected = noise.std(sum_of(records).bound) / 2 / 20_000
    assert abs(torch.tensor(draws).std() / expected - 1) < 4.9 / sqrt(2 * 60)


def test_nothing_but_noise_still_gives_numbers_in_the_range():
    moments = release_moments(so.Budget(records_of(torch.full((5, 3), torch.nan))), noise_multiplier=50.0, seed=0)
    assert all(0 <= mean <= 1 for mean in moments.mean) and all(0 < std <= 0.5 for std in moments.std)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ((INPUTS, LABELS), "moments of private inputs need a public range"),
        (
            as_records((INPUTS, INPUTS, LABELS), input_range=(0.0, 1.0)),
            "one input tensor, floating-point or uint8, got torch.float32, torch",
        ),
        (
            as_records((LABELS[:, None], LABELS), input_range=(0.0, 1.0)),
            r"one input tensor, floating-point or uint8, got torch.int64",
        ),
    ],
    ids=["no range", "two inputs", "token ids"],
)
def test_inputs_without_a_public_range_are_refused_and_not_charged(data, said):
    budget = so.Budget(data)
    with pytest.raises(UsageError, match=said):
        release_moments(budget, noise_multiplier=1.0)
    assert budget.releases == ()


@pytest.mark.parametrize("noise_multiplier", [0, -1, float("nan"), 0.0001, "1"])
def test_noise_that_protects_nobody_is_refused_and_not_charged(noise_multiplier):
    budget = so.Budget(records_of())
    with pytest.raises(UsageError, match="noise_multiplier"):
        release_moments(budget, noise_multiplier=noise_multiplier)
    assert budget.releases == ()


def test_seed_and_key_exclude_each_other():
    with pytest.raises(UsageError, match="seed and key exclude each other"):
        release_moments(so.Budget(records_of()), noise_multiplier=1.0, seed=0, key=Key.fresh())
