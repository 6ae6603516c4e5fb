"""Audit of the last iterate by many runs on neighboring datasets in one or two dimensions: no bound is exceeded.

A threshold is chosen on one half of the runs. On the other half, Clopper-Pearson intervals bound the true and false
positive rates with a joint confidence of 99.9 %, which bounds mu and epsilon from below. Two pairs come near the bound:

* steady: all other rows have zero gradients, the ridge contracts, one row has the same gradient each time it is used;
* resetting: all other rows pull the iterate back to its start, so that only the last gradient of the row remains.

The runs are a direct simulation of the update; a test checks that `fit_hidden_state` agrees with it on the same noise.
"""

import math
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from scipy.stats import beta, norm

import sordino as so
from sordino.accounting.hidden_state import Steps, mu_of_cycle
from sordino.convex import Linear, NoisyCGD, fit_hidden_state
from sordino.kernel.clipping import SCALED_TO
from sordino.kernel.randomness import Key

ERROR = 0.001
FAR = 1e3  # a label so large that its gradient is always clipped
BATCH = 8
DELTA = 1e-3
ADJACENCIES = (so.Adjacency.ZERO_OUT, so.Adjacency.REPLACE_ONE)


@dataclass(frozen=True)
class Pair:
    """A plan, and two neighboring datasets that differ in one row of batch `place`."""

    plan: NoisyCGD
    place: int
    rows: np.ndarray
    labels: np.ndarray
    other_rows: np.ndarray
    other_labels: np.ndarray

    @property
    def sensitivity(self):
        return 2.0 if self.plan.adjacency is so.Adjacency.REPLACE_ONE else 1.0

    @property
    def proved_mu(self):
        return self.sensitivity / self.plan.event.noise_multiplier

    def mu_at(self, place, sensitivity=None):
        """The proved mu of a unit in batch `place`."""
        plan, contraction = self.plan, 1 - self.plan.learning_rate * self.plan.strength
        steps = Steps.constant(plan.steps, contraction=contraction, noise_multiplier=plan.noise_multiplier)
        cycle = {"batches": plan.sampler.batches_per_epoch, "epochs": plan.sampler.epochs}
        return (sensitivity or self.sensitivity) * mu_of_cycle(steps, **cycle, position=place)


def pair(plan, place, silent, size):
    """A row with the largest gradient; in the neighboring dataset it is zero or has the opposite gradient."""
    examples = BATCH * plan.sampler.batches_per_epoch
    rows = np.zeros((examples, size)) if silent else np.tile(np.eye(size)[0], (examples, 1))
    labels, changed = np.zeros(examples), BATCH * place
    rows[changed], labels[changed] = np.eye(size)[0], FAR
    other_rows, other_labels = rows.copy(), labels.copy()
    if plan.adjacency is so.Adjacency.REPLACE_ONE:
        other_labels[changed] = -FAR
    else:
        other_rows[changed], other_labels[changed] = 0.0, 0.0
    return Pair(plan, place, rows, labels, other_rows, other_labels)


def steady(adjacency, size=1, place=2, trailing=2):
    """The last of three batches, with just enough trailing steps that the bound is reached."""
    settings = {"clip": 0.5, "noise_multiplier": 2.0, "learning_rate": 0.5, "strength": 0.02}
    plan = NoisyCGD(so.Cyclic(3, 8, adjacency), Linear(), trailing_steps=trailing, **settings)
    return pair(plan, place, True, size)


def resetting(adjacency, size=1, place=7):
    plan = NoisyCGD(so.Cyclic(8, 2, adjacency), Linear(), clip=1.0, noise_multiplier=1.0, learning_rate=1.0)
    return pair(plan, place, False, size)


def last_iterates(plan, rows, labels, noise):
    """The update for many runs at once; `noise` is (runs, steps, d), standard normal."""
    runs, steps, size = noise.shape
    batches = np.array_split(np.arange(len(rows)), plan.sampler.batches_per_epoch)
    batch_size, iterates = plan.batch_size(len(rows)), np.zeros((runs, size))
    lengths = np.linalg.norm(rows, axis=1)
    for step in range(steps):
        total = plan.noise_multiplier_at(step) * plan.clip * noise[:, step]
        if step < plan.sampler.steps:
            batch = batches[step % len(batches)]
            batch = batch[lengths[batch] > 0]  # a row of zeros has no gradient
            largest = plan.clip * SCALED_TO / lengths[batch]
            total = total + np.clip(iterates @ rows[batch].T - labels[batch], -largest, largest) @ rows[batch]
        iterates = iterates - plan.learning_rate_at(step) * (total / batch_size + plan.strength * iterates)
    return iterates


def simulated(pair, runs, seed):
    """The last iterates of both datasets along the axis in which they differ, with independent noise."""
    rng, size = np.random.default_rng(seed), pair.rows.shape[1]
    draw = lambda: rng.standard_normal((runs, pair.plan.steps, size))  # noqa: E731
    with_row = last_iterates(pair.plan, pair.rows, pair.labels, draw())[:, 0]
    without = last_iterates(pair.plan, pair.other_rows, pair.other_labels, draw())[:, 0]
    return with_row, without


def audited(with_row, without, lower_bound):
    """The lower bound at the best of 200 thresholds, chosen on the first half of the runs and judged on the second."""
    half = len(with_row) // 2
    thresholds = np.quantile(np.concatenate([with_row[:half], without[:half]]), np.linspace(0.002, 0.998, 200))

    def at(threshold, part):
        hits, alarms = (int((values[part] > threshold).sum()) for values in (with_row, without))
        return lower_bound(*rates(hits, alarms, half))

    chosen = max(thresholds, key=lambda threshold: at(threshold, slice(0, half)))
    return at(chosen, slice(half, 2 * half))


def rates(hits, alarms, runs):
    """A lower bound of the true positive rate and an upper bound of the false one, at confidence 1 - ERROR."""
    least = beta.ppf(ERROR / 2, hits, runs - hits + 1) if hits else 0.0
    most = beta.ppf(1 - ERROR / 2, alarms + 1, runs - alarms) if alarms < runs else 1.0
    return least, most


def mu_bound(least, most):
    return norm.ppf(least) - norm.ppf(most) if 0 < least and most < 1 else 0.0


def epsilon_bound(least, most):
    return math.log((least - DELTA) / most) if least > DELTA else 0.0


CASES = [(make, adjacency, size) for make in (steady, resetting) for adjacency in ADJACENCIES for size in (1, 2)]


@pytest.mark.parametrize(("make", "adjacency", "size"), CASES)
def test_no_more_is_seen_than_is_proved_and_nearly_as_much(make, adjacency, size):
    audit = make(adjacency, size)
    found = simulated(audit, runs=40_000, seed=1)
    mu = audited(*found, mu_bound)
    assert 0.85 * audit.proved_mu < mu <= audit.proved_mu
    epsilon = audit.plan.guarantee(delta=DELTA).epsilon
    assert 0.4 * epsilon < audited(*found, epsilon_bound) <= epsilon


@pytest.mark.parametrize("adjacency", ADJACENCIES)
@pytest.mark.parametrize("make", [steady, resetting])
def test_an_accountant_with_half_the_sensitivity_is_refuted(make, adjacency):
    audit = make(adjacency)
    mu = audited(*simulated(audit, runs=40_000, seed=2), mu_bound)
    assert mu > audit.mu_at(audit.place, sensitivity=audit.sensitivity / 2)


def test_an_accountant_that_forgets_the_last_batch_is_refuted():
    audit = resetting(so.Adjacency.ZERO_OUT)
    mu = audited(*simulated(audit, runs=40_000, seed=3), mu_bound)
    last = audit.plan.sampler.batches_per_epoch - 1
    assert mu > max(audit.mu_at(place) for place in range(last))
    assert audit.mu_at(last) == pytest.approx(audit.proved_mu)


def test_an_accountant_that_counts_one_epoch_less_is_refuted():
    audit = steady(so.Adjacency.REPLACE_ONE)
    short = replace(audit.plan, sampler=so.Cyclic(3, 6, audit.plan.adjacency))
    mu = audited(*simulated(audit, runs=40_000, seed=4), mu_bound)
    assert mu > replace(audit, plan=short).proved_mu


@pytest.mark.parametrize("adjacency", ADJACENCIES)
@pytest.mark.parametrize("make", [steady, resetting])
def test_production_runs_end_where_the_simulation_ends_on_the_same_noise(make, adjacency):
    audit = make(adjacency, size=2)
    for rows, labels in ((audit.rows, audit.labels), (audit.other_rows, audit.other_labels)):
        data = (torch.from_numpy(rows).float(), torch.from_numpy(labels).float())
        ended = fit_hidden_state(audit.plan, data, outputs=1, delta=DELTA, seed=7, progress=False).model
        weights = torch.cat([x.detach().flatten() for x in ended.parameters()]).numpy()
        stream = Key.from_seed(7).of_release(0).of_release(0).stream("noise")
        noise = np.stack([stream.normals(2, step=step) for step in range(audit.plan.steps)])[None]
        simulated_end = last_iterates(audit.plan, rows, labels, noise)[0]
        assert np.allclose(weights, simulated_end, rtol=1e-4, atol=1e-5 * np.abs(simulated_end).max())


@pytest.mark.slow
@pytest.mark.parametrize("adjacency", ADJACENCIES)
def test_no_place_in_the_cycle_shows_more_than_is_proved_for_it(adjacency):
    """Half a million runs on each side, for each place of each pair; the tightest comes within 5 % of its bound."""
    places = [steady(adjacency, place=place, trailing=trailing) for place in range(3) for trailing in (0, 2, 6)]
    places += [resetting(adjacency, place=place) for place in range(8)]
    closest = 0.0
    for seed, audit in enumerate(places):
        mu = audited(*simulated(audit, runs=500_000, seed=seed), mu_bound)
        bound = audit.mu_at(audit.place)
        assert mu <= bound <= audit.proved_mu * (1 + 1e-12)
        closest = max(closest, mu / bound)
    assert closest > 0.95
