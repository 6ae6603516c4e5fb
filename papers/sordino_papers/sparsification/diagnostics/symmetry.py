"""Symmetry test for the deviations of gradients from their mean.

Convergence of clipped SGD is proved for nearly symmetric gradient deviations (Chen, Wu and Hong 2020; Zhu and Blaschko
2023, appendix F, figures 6 to 9, by eye in random planes). This module computes a statistic: the energy distance
between the deviations and their reflection, with a permutation test by random signs.

A plane shows little: nearly all projections of long vectors to a few random directions are mixtures of centered
normals, symmetric or not (Diaconis and Freedman 1984). So the test is also made in all coordinates.

Index letters: `b` a unit, `k` a direction.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import sqrt

import torch
from torch import Tensor

from sordino._input import validate
from sordino.errors import UsageError
from sordino.kernel.randomness import Key, Stream
from sordino.training.not_private import ExposedResult
from sordino_papers.harness.raw_gradients import ExposedStep

_ROWS_AT_A_TIME = 32


@dataclass(frozen=True)
class Symmetry(ExposedResult):
    """Result of a symmetry test.

    `energy` is the energy distance between points and reflected points, as a fraction of the mean distance between
    them: at most 1. `by_chance` is its mean over random sign flips, slightly below 0 because the sample mean was
    subtracted. `p_value` is the fraction of flips that reach `energy`.
    """

    energy: float
    by_chance: float
    p_value: float
    points: int

    @property
    def asymmetry(self) -> float:
        """Energy above chance: about 0 for a sample of a symmetric distribution."""
        return self.energy - self.by_chance


@dataclass(frozen=True)
class Deviations(ExposedResult):
    """Gradients of a step minus their mean, projected to random planes, shape (planes, b, 2), with the tests."""

    step: int
    planes: Tensor = field(repr=False)
    in_planes: tuple[Symmetry, ...]
    in_full: Symmetry


def deviations(step: ExposedStep, *, units: int, planes: int = 2, flips: int = 199, seed: int = 0) -> Deviations:
    """Deviations of the first `units` gradients of a step after encoding. All are held in memory.

    Planes are spanned by normal vectors that depend on the seed only, so that all steps of a run use the same planes.
    """
    validate.count(at_least=3, units=units)
    validate.count(planes=planes)
    rows = torch.cat([chunk for each in step.encoded(units) for chunk in each.rows(_ROWS_AT_A_TIME)])
    rows = rows - rows.mean(dim=0)
    randomness = Key.from_seed(seed).stream("diagnosis")
    shown = torch.stack([rows @ _plane(rows.shape[1], randomness.named("planes"), n) for n in range(planes)])
    tests = [symmetry(points, flips=flips, randomness=randomness.named("flips")) for points in (*shown, rows)]
    return Deviations(step.step, shown, tuple(tests[:-1]), tests[-1])


def symmetry(points: Tensor, *, flips: int = 199, randomness: Stream) -> Symmetry:
    """Tests whether points, shape (b, k), come from a distribution that is symmetric about its mean, in any dimension.

    Flipped points are centered again, because the sample mean was subtracted from the points.

    >>> stream = Key.from_seed(0).stream("example")
    >>> skewed = torch.from_numpy(stream.uniforms(60, step=0)).log().reshape(30, 2)
    >>> symmetry(skewed, randomness=stream).p_value < 0.05
    True
    """
    validate.count(flips=flips)
    if points.ndim != 2 or len(points) < 3:
        raise UsageError(f"points must be of shape (at least 3, dimensions), got {tuple(points.shape)}.")
    if not bool(points.isfinite().all()):
        raise UsageError("points must be finite, got some that are not: a training that diverged has no symmetry.")
    products = _centred((points @ points.T).double())
    found = _energy(products)
    flipped = [_energy(_flipped(products, randomness, flip)) for flip in range(flips)]
    reached = sum(energy >= found for energy in flipped)
    return Symmetry(found, sum(flipped) / flips, (1 + reached) / (1 + flips), len(points))


def _energy(products: Tensor) -> float:
    """1 - mean |x - x'| / mean |x + x'| over pairs of points, from inner products (Szekely and Rizzo 2013)."""
    squares = products.diagonal()
    both = squares[:, None] + squares
    apart = (both - 2 * products).clamp(min=0).sqrt().sum()
    reflected = (both + 2 * products).clamp(min=0).sqrt().sum() - 2 * squares.sqrt().sum()
    return float(1 - apart / reflected) if reflected > 0 else 0.0


def _flipped(products: Tensor, randomness: Stream, flip: int) -> Tensor:
    signs = torch.from_numpy(randomness.uniforms(len(products), step=flip)).round().mul(2).sub(1)
    return _centred(signs[:, None] * products * signs)


def _centred(products: Tensor) -> Tensor:
    """Inner products of the points after subtracting their mean."""
    return products - products.mean(dim=0) - products.mean(dim=1, keepdim=True) + products.mean()


def _plane(size: int, randomness: Stream, number: int) -> Tensor:
    axes = [torch.from_numpy(randomness.normals(size, step=2 * number + axis)).float() for axis in (0, 1)]
    return torch.stack(axes, dim=1) / sqrt(size)
