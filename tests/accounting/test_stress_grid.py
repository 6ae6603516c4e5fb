"""Four hundred settings from usual to extreme: each has a tight answer within a second and 500 MB."""

import itertools
import math
import resource
import subprocess
import sys
import time
from pathlib import Path
from random import Random

import pytest
from dp_accounting.dp_event import (
    GaussianDpEvent,
    LaplaceDpEvent,
    PoissonSampledDpEvent,
    SampledWithoutReplacementDpEvent,
    SelfComposedDpEvent,
    TruncatedSubsampledGaussianDpEvent,
)

from sordino.accounting import Adjacency, Guarantee, all_answers, privacy_of
from sordino.accounting.accountant_views import views_of
from sordino.accounting.pld import PldCurve

RATES = (1e-5, 1e-3, 0.05, 0.5, 1.0)
MULTIPLIERS = (100.0, 8.0, 1.5, 0.7, 0.3)
STEPS = (1, 100, 10**4, 10**6)
DELTAS = (1e-3, 1e-6, 1e-10, 1e-15)
GRID = list(itertools.product(RATES, MULTIPLIERS, STEPS, DELTAS))


def answered(points):
    """Computes each point, and returns the time of the slowest in seconds and the fraction that is tight."""
    slowest, tight = 0.0, 0
    for rate, multiplier, steps, delta in points:
        event = SelfComposedDpEvent(PoissonSampledDpEvent(rate, GaussianDpEvent(multiplier)), steps)
        start = time.process_time()
        said = all_answers(event, Adjacency.ZERO_OUT, delta)
        slowest = max(slowest, time.process_time() - start)
        best = said[0]
        assert 0 <= best.epsilon < math.inf, (rate, multiplier, steps, delta, said)
        assert all(each.epsilon >= 0 for each in said)
        rdp = next(each.epsilon for each in said if each.accountant == "rdp")
        tight += best.accountant in ("exact-gaussian", "pld") or best.epsilon == 0
        assert best.epsilon <= rdp
    return slowest, tight / len(points)


def test_forty_points_of_the_grid():
    slowest, tight = answered(GRID[3::10])
    assert slowest < 2.5
    assert tight >= 0.95


@pytest.mark.slow
def test_all_four_hundred_points():
    start = time.perf_counter()
    slowest, tight = answered(GRID)
    megabytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    seconds = time.perf_counter() - start
    print(f"\n400 points in {seconds:.0f} s, slowest {slowest:.2f} s, {tight:.1%} tight, {megabytes:.0f} MB")
    assert slowest < 2.5
    assert tight >= 0.95


@pytest.mark.slow
def test_epsilon_is_monotone_along_every_axis_of_the_grid():
    axes = (RATES, MULTIPLIERS, STEPS, DELTAS)

    def epsilon(point):
        rate, multiplier, steps, delta = point
        event = SelfComposedDpEvent(PoissonSampledDpEvent(rate, GaussianDpEvent(multiplier)), steps)
        return all_answers(event, Adjacency.ZERO_OUT, delta)[0].epsilon

    known = {point: epsilon(point) for point in itertools.product(*axes)}
    for point, value in known.items():
        for axis, values in enumerate(axes):
            following = values.index(point[axis]) + 1
            if following < len(values):
                worse = (*point[:axis], values[following], *point[axis + 1 :])
                assert value <= known[worse] * (1 + 1e-3) + 1e-12


def of_odd_parameters(number):
    """Curves of unusual settings, each with a delta and an epsilon. Equal at every call."""
    random = Random(28)
    for _ in range(number):
        rate, multiplier = 10 ** random.uniform(-9, 0), 10 ** random.uniform(-1.3, 4)
        cap = max(1, math.ceil(1.5 * rate * 100_000))
        event = random.choice(
            [
                PoissonSampledDpEvent(rate, GaussianDpEvent(multiplier)),
                PoissonSampledDpEvent(rate, LaplaceDpEvent(multiplier)),
                TruncatedSubsampledGaussianDpEvent(100_000, rate, min(100_000, cap), multiplier),
                SampledWithoutReplacementDpEvent(10**9, max(1, round(rate * 10**9)), GaussianDpEvent(multiplier)),
            ]
        )
        seen = views_of(event, Adjacency.REPLACE_ONE)
        curve = PldCurve.of([(seen.pld or seen.plain, int(10 ** random.uniform(0, 7)))])
        yield curve, 10 ** random.uniform(-100, -0.5), 10 ** random.uniform(-8, 3)


def answer_all_that_is_odd(number):
    """Runs in a process with at most 3 GiB of address space."""
    resource.setrlimit(resource.RLIMIT_AS, (3 * 2**30, 3 * 2**30))
    # Adding a unit to the second step reveals at most 0.0003, so that a strong tilt leaves a sliver of the losses.
    weak = SelfComposedDpEvent(PoissonSampledDpEvent(30 / 100_000, GaussianDpEvent(0.5)), 2)
    curve = privacy_of(weak, Adjacency.ZERO_OUT)
    for epsilon in (0.0, 3e-4, 6.001e-4, 0.1, 0.3554, 0.5, 5.0, 50.0):
        assert 0 <= curve.delta(epsilon) < 1, epsilon
    assert Guarantee.of(weak, Adjacency.ZERO_OUT, delta=1e-6).statement
    for curve, delta, epsilon in of_odd_parameters(number):
        assert curve.epsilon(delta) >= 0, (curve, delta)
        assert 0 <= curve.delta(epsilon) <= 1, (curve, epsilon)


@pytest.mark.parametrize("number", [12, pytest.param(400, marks=pytest.mark.slow)])
def test_no_setting_is_so_odd_that_its_answer_needs_more_memory_or_is_no_number(number):
    script = f"import test_stress_grid as grid; grid.answer_all_that_is_odd({number})"
    done = subprocess.run([sys.executable, "-W", "error", "-c", script], cwd=Path(__file__).parent, capture_output=True)
    assert done.returncode == 0, done.stderr.decode()[-2000:]
