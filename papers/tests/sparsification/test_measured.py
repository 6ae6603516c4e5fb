"""What is measured on raw gradients is what the theorems are about, and does not look private."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from symmetric import DEVIATIONS, DIMENSION, all_masks, clipped, draw, kappa, reached
from torch import nn

import sordino as so
from sordino.errors import UsageError
from sordino.kernel.randomness import Key
from sordino.training.not_private import NOT_PRIVATE, ExposedResult
from sordino_papers.harness.raw_gradients import ExposedRun
from sordino_papers.sparsification.convergence import BoundMeasurement, measure, random_masks, secant_smoothness

MASKS = all_masks(2)
SEEDS = st.integers(min_value=0, max_value=10**6)
LENGTHS = st.floats(min_value=0.05, max_value=3.0)


def skewed(seed: int, length: float) -> torch.Tensor:
    """Gradients with deviations that have no opposites."""
    generator = torch.Generator().manual_seed(seed)
    rows = torch.rand(30, DIMENSION, generator=generator, dtype=torch.float64) ** 3
    return length * (rows - 0.1)


def expected_progress(gradient: torch.Tensor, deviations: torch.Tensor) -> float:
    """By definition, for each mask and example."""
    return float((clipped(MASKS[:, None] * (gradient + deviations), 1.0) @ gradient).mean())


@given(SEEDS, LENGTHS)
def test_every_measure_is_what_its_definition_says(seed: int, length: float) -> None:
    rows = skewed(seed, length)
    gradient, deviations = rows.mean(dim=0), rows - rows.mean(dim=0)
    measured = measure(rows, MASKS, clip_norm=1.0)
    assert measured.rate == pytest.approx(2 / DIMENSION)
    assert measured.gradient_norm == pytest.approx(float(gradient.norm()))
    assert measured.reached == pytest.approx(float(reached(gradient, deviations, 1.0)))
    progress, mirrored = expected_progress(gradient, deviations), expected_progress(gradient, -deviations)
    assert measured.progress == pytest.approx(progress)
    assert measured.asymmetry == pytest.approx(progress - (progress + mirrored) / 2, abs=1e-12)
    if measured.kappa is not None:
        assert measured.kappa == pytest.approx(kappa(gradient, deviations, 1.0, MASKS))


@given(st.sampled_from(sorted(DEVIATIONS)), SEEDS, LENGTHS)
def test_symmetric_deviations_have_no_asymmetry(name: str, seed: int, length: float) -> None:
    measured = measure(0.3 + draw(name, length, seed), MASKS, clip_norm=1.0)
    assert measured.asymmetry == pytest.approx(0.0, abs=1e-12)


@given(SEEDS, LENGTHS)
def test_progress_is_at_least_what_the_theorems_take_from_it(seed: int, length: float) -> None:
    measured = measure(skewed(seed, length), MASKS, clip_norm=1.0)
    if measured.kappa is not None:
        left = measured.progress - measured.asymmetry
        assert left >= measured.kappa * measured.reached * (1 - 1e-9)


def test_few_masks_leave_kappa_within_what_is_proved() -> None:
    rows = 0.01 * skewed(0, 1.0)  # nothing is clipped
    for seed in range(20):
        masks = random_masks(0.5, DIMENSION, 1, Key.from_seed(seed).stream("coding"))
        assert measure(rows, masks, clip_norm=1.0).kappa == pytest.approx(0.5, abs=1e-12)


def test_kappa_is_undefined_where_no_deviation_is_short() -> None:
    measured = measure(draw("sphere", 5.0, 0) + 0.1, MASKS, clip_norm=1.0)
    assert measured.kappa is None and "kappa undefined" in str(measured)


def test_the_gradients_of_a_run_can_be_measured_at_every_step() -> None:
    model = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 3))
    data, optimizer = (torch.randn(64, 5), torch.randint(0, 3, (64,))), torch.optim.SGD(model.parameters(), 0.1)
    plan = so.Plan(so.Poisson(1.0, 3), so.LossGradient(F.cross_entropy), so.ClipByNorm(1.0), so.Gaussian(1.0))
    for shown in ExposedRun(plan, model, data, optimizer, divisor=64, at=[0, 2]):
        rows = torch.cat([row for each in shown.raw() for row in each.rows(16)])
        masks = random_masks(0.5, rows.shape[1], 50, Key.from_seed(0).stream("coding"))
        loose, tight = (measure(rows, masks, clip_norm=norm) for norm in (100.0, float(rows.norm(dim=1).median())))
        assert loose.kappa == pytest.approx(1 - loose.rate)  # nothing is clipped
        assert tight.kappa is not None and tight.kappa > 1 - tight.rate + 0.05
        assert loose.progress == pytest.approx((1 - loose.rate) * loose.gradient_norm**2, rel=0.1)


def test_a_secant_finds_the_curvature_of_a_parabola() -> None:
    curvature, point = torch.diag(torch.tensor([1.0, 2.0, 5.0])), torch.randn(3)
    moved, examples = torch.tensor([0.0, 0.0, 0.3]), torch.randn(7, 3)
    before = curvature @ point + examples
    assert secant_smoothness(before, before + curvature @ moved, moved) == pytest.approx(5.0, rel=1e-5)
    with pytest.raises(UsageError, match="distance must be a finite number above 0"):
        secant_smoothness(before, before, torch.zeros(3))


@pytest.mark.parametrize("shapes", [((4, 3), (5, 3), (3,)), ((4, 3), (4, 3), (2,)), ((3,), (3,), (3,))])
def test_a_secant_needs_gradients_of_the_same_examples(shapes) -> None:
    with pytest.raises(UsageError, match="before and after must have shape"):
        secant_smoothness(*(torch.ones(shape) for shape in shapes))


def test_nothing_measured_looks_private() -> None:
    measured = measure(skewed(0, 1.0), MASKS, clip_norm=1.0)
    assert isinstance(measured, ExposedResult) and NOT_PRIVATE in repr(measured)
    assert not any("epsilon" in name or "guarantee" in name for name in dir(measured))
    assert math.isfinite(measured.progress) and isinstance(measured, BoundMeasurement)


@pytest.mark.parametrize(
    "gradients, masks, message",
    [
        (torch.zeros(4), MASKS, "gradients must have shape"),
        (torch.zeros(0, DIMENSION), MASKS, "gradients must have shape"),
        (torch.full((4, DIMENSION), torch.nan), MASKS, "gradients must be finite"),
        (torch.zeros(4, DIMENSION), MASKS.double(), "masks must be bool"),
        (torch.zeros(4, DIMENSION + 1), MASKS, "masks must be bool of shape \\(masks, 7\\)"),
    ],
)
def test_tensors_of_another_kind_are_refused(gradients, masks, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        measure(gradients, masks, clip_norm=1.0)
