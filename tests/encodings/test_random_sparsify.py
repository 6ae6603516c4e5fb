"""Random masks: their rates, their addresses in the stream, and the coordinates that get noise."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from contracts import stream
from scipy import stats
from small_runs import CODING, INPUTS, LABELS, make_model, make_plan, released
from torch import nn

import sordino as so
from sordino.encodings import ConstantRate, RandomSparsify, RankedSparsify
from sordino.errors import UsageError
from sordino.kernel.clipping import SCALED_TO
from sordino.kernel.encoding import Unchanged
from sordino.kernel.randomness import Key
from sordino.kernel.states import Dense, Layout

LAYOUT = Layout(("weight",), ((1000,),))


@pytest.mark.parametrize(("epochs", "refresh"), [(5, 1), (4, 3), (2, 6), (1, 2)])
def test_the_rate_rises_by_the_published_formula(epochs: int, refresh: int) -> None:
    sparsify = RandomSparsify(0.9, epochs=epochs, steps_per_epoch=6, refresh=refresh)
    for epoch in range(epochs):
        for iteration in range(6):
            j = iteration // (6 // refresh)
            expected = np.clip(0.9 * (epoch * refresh + j) / (refresh * epochs - 1), 0, 0.9)
            step = 6 * epoch + iteration
            assert sparsify.rate(step) == expected
            assert int((~sparsify.mask(step, LAYOUT, CODING)).sum()) == int(expected * LAYOUT.size)


def test_later_epochs_go_on_at_the_last_rate() -> None:
    assert RandomSparsify(0.9, epochs=2, steps_per_epoch=6).rate(100) == 0.9


@pytest.mark.parametrize("kind", [RandomSparsify, RankedSparsify])
def test_a_rate_that_rises_under_a_single_mask_is_refused_because_it_would_zero_nothing(kind) -> None:
    with pytest.raises(UsageError, match=r"final_rate 0\.9 needs at least two masks to ramp up to, got 1 mask"):
        kind(0.9, epochs=1, steps_per_epoch=6)
    assert kind(0.9, epochs=1, steps_per_epoch=6, refresh=2).rate(5) == 0.9
    assert kind(0.9, epochs=1, steps_per_epoch=6, schedule=ConstantRate()).rate(0) == 0.9
    assert kind(0.0, epochs=1, steps_per_epoch=6).rate(5) == 0.0


@pytest.mark.parametrize(("steps", "per_epoch"), [(1406, 29), (366, 6), (367, 6), (60, 29), (58, 29), (2400, 50)])
def test_the_final_rate_holds_for_a_whole_epoch_and_for_less_than_two(steps: int, per_epoch: int) -> None:
    sparsify = RandomSparsify.throughout(steps, final_rate=0.9, steps_per_epoch=per_epoch)
    rates = [sparsify.rate(step) for step in range(steps)]
    assert rates[0] == 0.0 and rates == sorted(rates)
    assert per_epoch <= rates.count(0.9) < 2 * per_epoch


@pytest.mark.parametrize(("refresh", "different"), [(1, 2), (3, 6), (6, 12)])
def test_a_mask_holds_for_its_share_of_an_epoch(refresh: int, different: int) -> None:
    sparsify = RandomSparsify(0.5, epochs=2, steps_per_epoch=6, refresh=refresh, schedule=ConstantRate())
    masks = [tuple(sparsify.mask(step, LAYOUT, CODING).tolist()) for step in range(12)]
    assert len(set(masks)) == different
    assert all(masks[step] == masks[step - step % (6 // refresh)] for step in range(12))


def test_a_mask_is_addressed_by_stream_and_number() -> None:
    sparsify = RandomSparsify(0.5, epochs=2, steps_per_epoch=1, schedule=ConstantRate())
    assert torch.equal(sparsify.mask(3, LAYOUT, stream("coding")), sparsify.mask(3, LAYOUT, stream("coding")))
    assert not torch.equal(sparsify.mask(3, LAYOUT, stream("coding")), sparsify.mask(3, LAYOUT, stream("other")))
    assert torch.equal(sparsify.mask(3, LAYOUT, CODING).nonzero()[:, 0], sparsify.kept(3, LAYOUT, CODING))


def test_every_coordinate_is_masked_equally_often() -> None:
    """Chi-square over 400 masks of 100 coordinates, false alarms one in a million."""
    sparsify = RandomSparsify(0.3, epochs=400, steps_per_epoch=1, schedule=ConstantRate())
    layout = Layout(("weight",), ((100,),))
    counts = sum((~sparsify.mask(step, layout, CODING)).double() for step in range(400))
    variance = 400 * 0.3 * 0.7
    statistic = float((counts - 120).square().sum()) / variance * 99 / 100  # counts of a mask add up to 30
    assert 1e-6 < stats.chi2.cdf(statistic, 99) < 1 - 1e-6


def test_changing_what_was_given_out_changes_no_mask() -> None:
    sparsify = RandomSparsify(0.5, epochs=2, steps_per_epoch=1, schedule=ConstantRate())
    sparsify.mask(3, LAYOUT, CODING).fill_(True)
    assert int(sparsify.mask(3, LAYOUT, CODING).sum()) == 500


def test_coordinates_are_zeroed_before_the_clip() -> None:
    sparsify = RandomSparsify(0.9, epochs=2, steps_per_epoch=1, schedule=ConstantRate())
    codec = sparsify.codec(sparsify.init(LAYOUT), 0, CODING)
    total = so.ClipByNorm(1.0)(codec.encode(Dense(100 * torch.ones(1, 1000), LAYOUT))).value
    assert float(total.norm()) == pytest.approx(SCALED_TO, rel=1e-5)  # sqrt(0.1) if the mask came after the clip
    assert torch.equal(total != 0, sparsify.mask(0, LAYOUT, CODING))


def test_noise_is_zero_on_masked_coordinates_and_of_its_scale_on_others() -> None:
    """Batches are empty, so the release is noise only. The false alarm rate is one in a million."""
    sparsify = RandomSparsify(0.5, epochs=9, steps_per_epoch=4, schedule=ConstantRate())
    plan = make_plan(sparsify, rate=1e-12, steps=36, noise=2.5)
    run = so.PrivateRun(plan, make_model(), (INPUTS, LABELS), seed=0)
    coding = Key.from_seed(0).of_release(0).stream("coding")
    values = torch.stack([private.value for private in run])
    masks = torch.stack([sparsify.mask(step, run.layout, coding) for step in range(36)])
    assert bool((values[~masks] == 0).all())
    squares = float((values[masks] / 2.5).square().sum())
    assert 1e-6 < stats.chi2.cdf(squares, int(masks.sum())) < 1 - 1e-6


def test_at_rate_zero_nothing_changes_bit_for_bit() -> None:
    sparsify = RandomSparsify(0.0, epochs=2, steps_per_epoch=3)
    assert torch.equal(released(lambda model: sparsify), released(lambda model: Unchanged()))


@pytest.mark.parametrize(("momentum", "moves"), [(0.0, False), (0.9, True)])
def test_a_masked_coordinate_moves_by_its_velocity_only(momentum: float, moves: bool) -> None:
    model = nn.Linear(6, 3)
    sparsify = RandomSparsify(0.5, epochs=2, steps_per_epoch=1)
    gradient, clip = so.LossGradient(nn.functional.cross_entropy), so.ClipByNorm(1.0)
    plan = so.Plan(so.Poisson(rate=0.5, steps=2), gradient, clip, so.Gaussian(1.0), sparsify)
    run = so.PrivateRun(plan, model, (torch.ones(20, 6), torch.zeros(20, dtype=torch.int64)), seed=0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=momentum)
    for private in run:
        before = torch.cat([parameter.detach().flatten().clone() for parameter in model.parameters()])
        private.divide(10).write_to(model)
        optimizer.step()
    after = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
    masked = ~sparsify.mask(1, run.layout, Key.from_seed(0).of_release(0).stream("coding"))
    assert bool((after != before)[masked].all()) is moves
    assert bool((after != before)[~masked].all())


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"final_rate": 1.0}, r"final_rate must be in \[0, 1\), got 1.0"),
        ({"final_rate": float("nan")}, "final_rate must be in"),
        ({"epochs": 0}, "epochs must be a whole number"),
        ({"steps_per_epoch": 2.5}, "steps_per_epoch must be a whole number"),
        ({"refresh": 7}, "refresh must be a whole number from 1 to 6, got 7"),
        ({"schedule": "cooling"}, "schedule must be a RateSchedule"),
    ],
)
def test_settings_that_mean_nothing_are_refused(settings, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        RandomSparsify(**({"final_rate": 0.9, "epochs": 3, "steps_per_epoch": 6} | settings))
