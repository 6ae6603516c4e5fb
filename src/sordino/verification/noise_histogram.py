"""The noise of a plan as data for a plot: histogram, quantiles up to the tail, and scale on each parameter.

The noise is that of releases minus sums, on synthetic records, in units of the standard deviation that the event
assumes.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import stats
from torch import nn

from sordino._input import validate
from sordino.errors import UsageError
from sordino.kernel.noise import NormalNoise
from sordino.kernel.records import Data, as_records
from sordino.kernel.states import Layout
from sordino.kernel.step import Plan
from sordino.verification.noise_checks import generator_end, noise_sample

Numbers = NDArray[np.float64]

CONFIDENCE = 0.95
_WIDEST, _BINS, _QUANTILES = 5.0, 50, 60


@dataclass(frozen=True)
class Quantile:
    """An ordered draw, the normal quantile of its rank, and the interval that contains it with probability 95 %."""

    normal: float
    drawn: float
    low: float
    high: float


@dataclass(frozen=True)
class ParameterScale:
    """The noise on one parameter: the ratio of its standard deviation to the assumed one, with a 95 % interval."""

    name: str
    draws: int
    scale: float
    low: float
    high: float


@dataclass(frozen=True)
class NoisePicture:
    """A sample of noise. `edges` and `densities` are a histogram, `end` is the largest value of the generator."""

    draws: int
    steps: int
    edges: tuple[float, ...]
    densities: tuple[float, ...]
    quantiles: tuple[Quantile, ...]
    scales: tuple[ParameterScale, ...]
    end: float


def noise_picture(plan: Plan, model: nn.Module, data: Data, *, seed: int = 0) -> NoisePicture:
    """Draws the plan's noise for `model` as `verify` does, on synthetic records of the shape of `data`.

    >>> import torch.nn.functional as F
    >>> import sordino as so
    >>> gradient, clip, noise = so.LossGradient(F.cross_entropy), so.ClipByNorm(2.0), so.Gaussian(1.0)
    >>> plan = so.Plan(so.Poisson(rate=0.1, steps=50), gradient, clip, noise)
    >>> rows = torch.zeros(100, 99), torch.zeros(100, dtype=torch.int64)
    >>> [(each.name, round(each.scale, 1)) for each in noise_picture(plan, nn.Linear(99, 9), rows).scales]
    [('weight', 1.0), ('bias', 1.0)]
    """
    validate.instance(Plan, plan=plan)
    if not isinstance(plan.noise, NormalNoise):
        raise UsageError(
            f"noise must be normal to be compared with a normal distribution, got {type(plan.noise).__name__}."
        )
    sample, noise_std = noise_sample(plan, model, as_records(data), seed=seed), plan.noise.std(plan.clip.bound)
    standard: Numbers = torch.stack([each.noise for each in sample.drawn]).double().numpy() / noise_std
    everything = np.sort(standard.ravel())
    densities, edges = np.histogram(everything, _BINS, (-_WIDEST, _WIDEST))
    width = edges[1] - edges[0]
    return NoisePicture(
        draws=len(everything),
        steps=len(standard),
        edges=tuple(edges.tolist()),
        densities=tuple((densities / (width * len(everything))).tolist()),
        quantiles=_quantiles(everything),
        scales=_scales(standard, sample.layout),
        end=generator_end(plan, noise_std),
    )


def _quantiles(ordered: Numbers) -> tuple[Quantile, ...]:
    """Quantiles at ranks that are dense in both tails. The k-th of n sorted uniforms is Beta(k, n + 1 - k)."""
    number = len(ordered)
    widest = stats.norm.isf(1 / (number + 1))
    probabilities = stats.norm.cdf(np.linspace(-widest, widest, _QUANTILES))
    ranks = np.unique(np.clip(np.rint(probabilities * (number + 1)), 1, number).astype(np.int64))
    ends = ((1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2)
    low, high = (stats.norm.ppf(stats.beta.ppf(end, ranks, number + 1 - ranks)) for end in ends)
    normal = stats.norm.ppf(ranks / (number + 1))
    columns = np.stack([normal, ordered[ranks - 1], low, high], axis=1)
    return tuple(Quantile(*row) for row in columns.tolist())


def _scales(standard: Numbers, layout: Layout) -> tuple[ParameterScale, ...]:
    """The scale on each parameter. A sum of n squares is chi-square distributed with n degrees of freedom."""
    starts, scales = np.cumsum((0, *layout.sizes)), []
    for name, start, stop in zip(layout.names, starts[:-1], starts[1:], strict=True):
        square, draws = float((standard[:, start:stop] ** 2).sum()), standard[:, start:stop].size
        if draws:
            ends = (stats.chi2.ppf(level, draws) for level in ((1 + CONFIDENCE) / 2, (1 - CONFIDENCE) / 2))
            low, high = (sqrt(square / end) for end in ends)
            scales.append(ParameterScale(name, draws, sqrt(square / draws), low, high))
    return tuple(scales)
