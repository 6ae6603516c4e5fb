"""The symmetry of deviations: found where it is, missed where it is not, at the rate that is announced."""

from __future__ import annotations

import pytest
import torch
from contracts import stream
from exposed_runs import make_exposed, make_model, make_plan, rows_one_by_one

from sordino.encodings import ConstantRate, RandomSparsify
from sordino.errors import UsageError
from sordino_papers.sparsification.diagnostics import deviations, symmetry


def normals(number: int, dimensions: int, step: int) -> torch.Tensor:
    return torch.from_numpy(stream().normals(number * dimensions, step=step)).reshape(number, dimensions)


def test_points_and_their_reflections_together_are_as_symmetric_as_can_be() -> None:
    points = normals(40, 3, step=0)
    found = symmetry(torch.cat([points, -points]), randomness=stream())
    assert found.energy < found.by_chance and found.asymmetry < 0 and found.p_value == 1.0


# Of 120 symmetric samples 6 are expected at 0.05, more than 18 with chance 2e-5; the mean p-value is 0.525 with a
# standard deviation of 0.026: both ends are more than four of them away.
@pytest.mark.parametrize("dimensions", [2, 30])
def test_symmetric_samples_are_rejected_as_often_as_announced(dimensions) -> None:
    samples = [(normals(25, dimensions, step), stream(seed=step)) for step in range(120)]
    found = [symmetry(points, flips=19, randomness=signs) for points, signs in samples]
    values = [one.p_value for one in found]
    assert sum(value <= 0.05 for value in values) <= 18
    assert 0.4 < sum(values) / len(values) < 0.65
    assert abs(sum(one.asymmetry for one in found)) / len(found) < 0.01


def test_the_place_and_the_scale_of_points_change_nothing() -> None:
    points = normals(30, 2, step=1).double()
    one, other = (symmetry(p, flips=19, randomness=stream()) for p in (points, 1000 * points + 7.0))
    assert one.asymmetry == pytest.approx(other.asymmetry, abs=1e-9) and one.p_value == other.p_value


def test_the_energy_is_the_energy_distance_to_the_reflection_by_a_loop_over_pairs() -> None:
    points = normals(12, 2, step=2).double().exp()
    centred = points - points.mean(dim=0)
    pairs = [(a, b) for i, a in enumerate(centred) for j, b in enumerate(centred) if i != j]
    apart, reflected = (sum(float((a + sign * b).norm()) for a, b in pairs) for sign in (-1, 1))
    assert symmetry(points, flips=1, randomness=stream()).energy == pytest.approx(1 - apart / reflected)


def test_skewed_points_are_found() -> None:
    found = symmetry(normals(100, 2, step=3).exp(), randomness=stream())
    assert found.p_value == 1 / 200 and found.asymmetry > 0.05


def test_points_that_are_not_finite_are_refused_and_not_called_symmetric() -> None:
    points = torch.randn(30, 2, generator=torch.Generator().manual_seed(0))
    for value in (torch.nan, torch.inf):
        points[3, 1] = value
        with pytest.raises(UsageError, match="points must be finite"):
            symmetry(points, randomness=stream())


def test_too_few_points_are_refused() -> None:
    with pytest.raises(UsageError, match=r"points must be of shape \(at least 3, dimensions\), got \(2, 5\)"):
        symmetry(torch.zeros(2, 5), randomness=stream())


def test_deviations_are_masked_gradients_less_their_mean_seen_in_linear_planes() -> None:
    half = RandomSparsify(0.5, epochs=6, steps_per_epoch=1, schedule=ConstantRate())
    model = make_model()
    for shown in make_exposed(make_plan(half, rate=1.0), at=(0, 3), model=model):
        found = deviations(shown, units=60, flips=9)
        rows = (rows_one_by_one(model) * shown.codec.keep).double()
        rows = rows - rows.mean(dim=0)
        assert found.step == shown.step and found.planes.shape == (2, 60, 2)
        for plane in found.planes.double():  # 60 points of rank 28 at most: a linear map of them is no accident
            fitted = torch.linalg.lstsq(rows, plane, driver="gelsd").solution
            torch.testing.assert_close(rows @ fitted, plane, atol=1e-5, rtol=1e-3)
        in_full = symmetry(rows, flips=1, randomness=stream())
        assert found.in_full.energy == pytest.approx(in_full.energy, abs=1e-5)


def test_planes_are_decided_by_the_seed_and_are_not_the_same_plane() -> None:
    for shown in make_exposed(make_plan()):
        one, same, other = (deviations(shown, units=9, flips=1, seed=seed).planes for seed in (0, 0, 1))
        assert torch.equal(one, same) and not torch.allclose(one, other) and not torch.allclose(one[0], one[1])
