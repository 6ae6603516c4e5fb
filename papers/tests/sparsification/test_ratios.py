"""Ratios of norms with and without sparsification: those of the definition, between the bounds that theory gives."""

from __future__ import annotations

import math

import pytest
from exposed_runs import make_exposed, make_model, make_plan, rows_one_by_one

import sordino as so
from sordino.encodings import ConstantRate, RandomSparsify
from sordino.errors import UsageError
from sordino.kernel.randomness import Key
from sordino.kernel.states import Dense, Layout
from sordino_papers.sparsification.diagnostics import gradient_ratios, noise_ratio

RATES, CLIPS = (0.0, 0.3, 0.9), (0.05, 100.0)


@pytest.fixture(scope="module")
def found():
    exposed = make_exposed(make_plan(rate=1.0))
    ratios = [gradient_ratios(shown, rates=RATES, clip_norms=CLIPS, seed=3) for shown in exposed]
    return {(ratio.clip_norm, ratio.rate): ratio for ratio in ratios[0]}


@pytest.mark.parametrize(
    ("change", "said"),
    [({"clip_norms": [1.0, 0.0]}, r"clip_norms\[1\] must be"), ({"clip_norms": [math.nan]}, r"clip_norms\[0\] must be"),
     ({"units": 0}, "units must be"), ({"units": -5}, "units must be"), ({"rates": [1.5]}, "final_rate must be")],
)  # fmt: skip
def test_settings_of_no_ratio_are_refused(change, said) -> None:
    step = next(iter(make_exposed(make_plan(rate=1.0))))
    with pytest.raises(UsageError, match=said):
        gradient_ratios(step, **({"rates": [0.5], "clip_norms": [1.0]} | change))


# The squared ratio is 1 - r with standard deviation sqrt(2 r (1 - r) / size): six of them.
@pytest.mark.parametrize("rate", [0.0, 0.25, 0.5, 0.95])
def test_noise_shrinks_like_the_root_of_the_share_that_is_kept(rate) -> None:
    size = 50_000
    tolerance = 6 * math.sqrt(2 * rate * (1 - rate) / size) + 1e-6
    assert noise_ratio(rate, size) ** 2 == pytest.approx(1 - rate, abs=tolerance)


def test_ratios_of_sums_are_those_of_the_clip_that_trains(found) -> None:
    model = make_model()
    layout, rows = Layout.of(model), rows_one_by_one(model)
    for (norm, rate), ratio in found.items():
        sparsify = RandomSparsify(rate, epochs=1, steps_per_epoch=1, schedule=ConstantRate())
        keep = sparsify.mask(0, layout, Key.from_seed(3).stream("coding"))
        clip = so.ClipByNorm(norm)
        with_mask, without = clip(Dense(rows, layout).masked(keep)).value, clip(Dense(rows, layout)).value * keep
        assert ratio.of_sum == pytest.approx(float(with_mask.norm() / without.norm()), rel=1e-4)


def test_where_every_gradient_is_clipped_the_ratio_of_each_is_its_norm_before_over_after(found) -> None:
    rows = rows_one_by_one(make_model())
    sparsify = RandomSparsify(0.3, epochs=1, steps_per_epoch=1, schedule=ConstantRate())
    keep = sparsify.mask(0, Layout.of(make_model()), Key.from_seed(3).stream("coding"))
    expected = (rows.norm(dim=1) / (rows * keep).norm(dim=1)).mean()
    ratio = found[0.05, 0.3]
    assert ratio.clipped == 1.0 and ratio.mean_norm == pytest.approx(float(rows.norm(dim=1).mean()), rel=1e-5)
    assert ratio.of_each == pytest.approx(float(expected), rel=1e-4)


def test_nothing_changes_where_nothing_is_masked_or_nothing_is_clipped(found) -> None:
    for place in [(0.05, 0.0), (100.0, 0.0), (100.0, 0.9)]:
        assert found[place].of_each == pytest.approx(1.0, abs=1e-6)
        assert found[place].of_sum == pytest.approx(1.0, abs=1e-6)


def test_kept_coordinates_gain_more_the_fewer_they_are(found) -> None:
    assert 1.0 < found[0.05, 0.3].of_each < found[0.05, 0.9].of_each
    assert all("not private" in repr(ratio) for ratio in found.values())
