"""How often coordinates are masked: by noise as if at random, without noise always the same ones."""

from __future__ import annotations

import pytest
import torch
from contracts import stream
from exposed_runs import INPUTS, LABELS, make_exposed, make_plan

from sordino.encodings import ConstantRate, RandomSparsify, RankedSparsify
from sordino.errors import UsageError
from sordino.kernel.states import Layout
from sordino_papers.sparsification.diagnostics import count_masks, expected_counts
from sordino_papers.sparsification.diagnostics.mask_counts import times_zeroed


def counted(noise: float, schedule=None, **changes):
    ranked = RankedSparsify(0.9, epochs=20, steps_per_epoch=2, **(schedule or {}))
    return count_masks(make_exposed(make_plan(ranked, steps=40, noise=noise), at=range(40), **changes))


@pytest.fixture(scope="module")
def noisy():
    return counted(noise=1000.0)


def test_every_coordinate_is_counted_and_every_mask_zeroes_its_share(noisy) -> None:
    for counts in (noisy.ranked, noisy.random, noisy.noise_free):
        assert len(counts) == 21 and sum(counts) == 57
        zeroed = sum(int(0.9 * mask / 19 * 57) for mask in range(20))
        assert sum(times * number for times, number in enumerate(counts)) == zeroed


def test_masks_of_much_noise_are_counted_like_random_ones(noisy) -> None:
    # Of 57 coordinates, random ones lie about 0.25 apart from what is expected of them; 0.5 would be another law.
    assert noisy.distance(noisy.ranked) < 0.45 and noisy.distance(noisy.random) < 0.45
    assert noisy.distance(noisy.expected) == 0.0


@pytest.mark.parametrize(("noise", "finds_them"), [(1000.0, False), (0.001, True)])
def test_coordinates_without_a_gradient_are_found_without_noise_and_by_private_ranks_if_there_is_little(
    noise, finds_them
) -> None:
    inputs = INPUTS.clone()
    inputs[:, :2] = 0.0  # 12 weights that no example ever moves
    found = counted(noise, {"schedule": ConstantRate()}, data=(inputs, LABELS))
    assert found.noise_free[19] >= 12  # the first of 20 masks zeroes none
    assert (found.ranked[19] >= 12) is finds_them


def test_a_rate_that_stays_has_its_first_mask_counted_as_the_ranking_has_it_everywhere() -> None:
    found = counted(1000.0, {"schedule": ConstantRate()})
    zeroed = {sum(times * n for times, n in enumerate(counts)) for counts in (found.ranked, found.random)}
    assert zeroed == {19 * int(0.9 * 57)}
    assert sum(times * n for times, n in enumerate(found.expected)) == pytest.approx(19 * int(0.9 * 57))


@pytest.mark.parametrize("rate", [-0.1, 2.0, float("nan")])
def test_rates_of_no_mask_are_refused(rate) -> None:
    with pytest.raises(UsageError, match=r"rates\[1\] must be in"):
        expected_counts([0.5, rate], 10)


def test_what_is_expected_is_what_random_masks_do_in_the_mean() -> None:
    layout, epochs = Layout(("w",), ((40_000,),)), 5
    sparsify = RandomSparsify(0.3, epochs=epochs, steps_per_epoch=1, schedule=ConstantRate())
    counts = times_zeroed(sparsify.mask(step, layout, stream("coding")) for step in range(epochs))
    for number, expected in zip(counts, expected_counts([0.3] * epochs, 40_000), strict=True):
        assert number == pytest.approx(expected, abs=6 * expected**0.5 + 1)


def test_what_is_masked_is_told_from_what_is_kept() -> None:
    assert times_zeroed([torch.tensor([True, False])] * 3) == (1, 0, 0, 1)


def test_it_needs_a_ranking_and_every_step_of_it() -> None:
    with pytest.raises(UsageError, match="encoding must be a RankedSparsify, got Unchanged"):
        count_masks(make_exposed(make_plan(), at=range(6)))
    with pytest.raises(UsageError, match="steps_on_view"):
        count_masks(make_exposed(make_plan(RankedSparsify(0.5, epochs=3, steps_per_epoch=2)), at=(0, 1)))
