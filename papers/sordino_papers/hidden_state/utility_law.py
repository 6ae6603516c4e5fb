"""How fast the training risk falls with n * epsilon, on random data at a fixed number of rows per dimension.

The published claim, for n rows in n / c dimensions and (n log n) / d gates, is a training risk of at most
O~(1 / sqrt(n epsilon)) where gradients are bounded by a constant L. `random_data` says what is drawn and trained here.

Two risks are measured after training, on the training rows themselves:

* `excess`: the mean of half the squared residual, less the smallest that the same model has on these rows;
* `bounded`: the mean of the loss that the claim is about. Where the gradient of the squared loss by the maps, with
  features as they are (not scaled to norm 1), would be longer than L = 1, it goes on straight.

At a fixed n / d neither method's excess falls with n: noise grows as fast as the data does, whatever the number of
steps. It falls with epsilon alone, so that its slope in n * epsilon is a matter of how the grid was laid. The bounded
risk has the claimed slope in n for another reason: a feature vector is about sqrt(n log n / 2) long, so a gradient of
length 1 means a loss of at most |residual| / sqrt(n log n / 2), even for a model that is 0. What training adds to it
is the slope in epsilon. Both slopes are therefore fitted apart too.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.stats import t as student
from torch import Tensor

from sordino._input import validate
from sordino_papers.harness.entry import RunScale
from sordino_papers.hidden_state.random_data import METHODS, RandomDataset

Question = tuple[str, int, float, int]  # method, examples, epsilon, seed
CLAIMED = -0.5
SIZES = {
    RunScale.QUICK: (100, 200, 400),
    RunScale.CPU: (250, 500, 1000, 2000, 4000),
    RunScale.PAPER: (250, 500, 1000, 2000, 4000, 8000),
}
EPSILONS = {
    RunScale.QUICK: (1.0, 4.0, 16.0),
    RunScale.CPU: (1.0, 4.0, 16.0),
    RunScale.PAPER: (1.0, 2.0, 4.0, 8.0, 16.0),
}


@dataclass(frozen=True)
class RiskPoint:
    """One training, and the two risks of its last iterate."""

    method: str
    examples: int
    epsilon: float
    seed: int
    excess: float
    bounded: float
    seconds: float

    @property
    def question(self) -> Question:
        """The settings of the training, which identify the point."""
        return self.method, self.examples, self.epsilon, self.seed


@dataclass(frozen=True)
class Slope:
    """A fitted exponent and its 95 % confidence interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class UtilityLaw:
    """Fits of log risk against log(n * epsilon), and against log n and log epsilon separately. `claimed` belongs to the
    first.
    """

    method: str
    risk: str
    in_both: Slope
    in_examples: Slope
    in_epsilon: Slope
    claimed: float = CLAIMED


def measure(
    scale: RunScale, seeds: int, on_point: Callable[[RiskPoint], None], *, known: Iterable[RiskPoint] = ()
) -> tuple[RiskPoint, ...]:
    """Trains at each point of the grid once per seed, except at points that are `known`."""
    validate.instance(RunScale, scale=scale)
    validate.count(seeds=seeds)
    kept = {point.question: point for point in known}
    points = []
    for question in _questions(scale, seeds):
        point = kept.get(question)
        if point is None:
            point = measure_risk(*question)
            on_point(point)
        points.append(point)
    return tuple(points)


def of_whole_seeds(scale: RunScale, seeds: int, known: Iterable[RiskPoint]) -> tuple[RiskPoint, ...]:
    """Known points of a scale, of those of the first `seeds` seeds that have all points."""
    kept = {point.question: point for point in known}
    questions = list(_questions(scale, seeds))
    missing = {seed for *place, seed in questions if (*place, seed) not in kept}
    return tuple(kept[question] for question in questions if question[-1] not in missing)


def _questions(scale: RunScale, seeds: int) -> Iterator[Question]:
    for examples in SIZES[scale]:
        for seed in range(seeds):
            for epsilon in EPSILONS[scale]:
                for method in METHODS:
                    yield method, examples, epsilon, seed


def measure_risk(method: str, examples: int, epsilon: float, seed: int) -> RiskPoint:
    """Trains once on one draw of the data model.

    >>> point = measure_risk("DP-SGD, linear", examples=60, epsilon=16.0, seed=0)
    >>> 0 < point.bounded and 0 < point.excess < 1
    True
    """
    begun = time.perf_counter()
    drawn = RandomDataset(examples, seed)
    trained = METHODS[method](drawn, epsilon)
    with torch.no_grad():
        residuals = (trained.model(drawn.rows)[:, 0] - drawn.labels).double()
    excess = float(residuals.square().mean()) / 2 - trained.least_risk
    bounded = _risk_with_bounded_gradients(residuals, trained.feature_norms)
    return RiskPoint(method, examples, epsilon, seed, excess, bounded, time.perf_counter() - begun)


def laws(points: Iterable[RiskPoint]) -> tuple[UtilityLaw, ...]:
    """Fitted exponents of each method and risk, by least squares on logarithms.

    >>> grid = [(n, e) for n in (100, 200, 400) for e in (1.0, 2.0, 8.0)]
    >>> exact = [RiskPoint("a", n, e, 0, e**-1.0, (n * e) ** -0.5, 0.0) for n, e in grid]
    >>> [(law.risk, round(law.in_examples.value, 3), round(law.in_epsilon.value, 3)) for law in laws(exact)]
    [('excess', 0.0, -1.0), ('bounded', -0.5, -0.5)]
    """
    every = list(points)
    return tuple(
        _law([point for point in every if point.method == method], method, risk)
        for method in dict.fromkeys(point.method for point in every)
        for risk in ("excess", "bounded")
    )


def _law(points: list[RiskPoint], method: str, risk: str) -> UtilityLaw:
    log_risk = np.log([getattr(point, risk) for point in points])
    examples = np.log([float(point.examples) for point in points])
    epsilon = np.log([point.epsilon for point in points])
    (in_both,) = _slopes(log_risk, examples + epsilon)
    in_examples, in_epsilon = _slopes(log_risk, examples, epsilon)
    return UtilityLaw(method, risk, in_both, in_examples, in_epsilon)


def _slopes(values: NDArray[np.float64], *columns: NDArray[np.float64]) -> list[Slope]:
    """Exponents of a linear fit with an intercept; intervals by Student's t, treating points as independent."""
    design = np.column_stack([*columns, np.ones(len(values))])
    coefficients = np.linalg.lstsq(design, values, rcond=None)[0]
    freedom = len(values) - design.shape[1]
    validate.count(points_beyond_those_of_a_line=freedom)
    variance = float(((values - design @ coefficients) ** 2).sum()) / freedom
    errors = student.ppf(0.975, freedom) * np.sqrt(variance * np.diag(np.linalg.inv(design.T @ design)))
    found = zip(coefficients[:-1].tolist(), errors[:-1].tolist(), strict=True)
    return [Slope(value, value - error, value + error) for value, error in found]


def _risk_with_bounded_gradients(residuals: Tensor, feature_norms: Tensor) -> float:
    """Huber loss that becomes linear where the gradient, residual times features, has norm 1."""
    turn, sizes = 1 / feature_norms.double(), residuals.abs()
    return float(torch.where(sizes <= turn, sizes.square() / 2, turn * sizes - turn.square() / 2).mean())
