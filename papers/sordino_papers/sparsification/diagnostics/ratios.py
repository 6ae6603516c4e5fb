"""Effect of random sparsification on the norm of the noise and of the kept gradient: Zhu and Blaschko (2023), figure
1c-d.

Noise is added to a fraction 1 - r of the coordinates, so its norm is multiplied by about sqrt(1 - r). A gradient with
zeroed coordinates is clipped less: the norm of its kept coordinates grows by at most the norm before masking over the
norm after it, about 1 / sqrt(1 - r).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from sordino._input import validate
from sordino.encodings import ConstantRate, RandomSparsify
from sordino.kernel.randomness import Key
from sordino.kernel.states import Layout
from sordino.training.not_private import ExposedResult
from sordino_papers.harness.raw_gradients import ExposedStep

_ROWS_AT_A_TIME = 32


@dataclass(frozen=True)
class GradientRatio(ExposedResult):
    """Norm of the kept coordinates after clipping, with sparsification over without it.

    `of_each` is the mean of the ratios of single units, `of_sum` the ratio of the two sums over all units. Both are 1
    if nothing is clipped. `mean_norm` is the mean gradient norm before the clip, `clipped` the fraction of gradients
    that are longer than the clip norm.
    """

    rate: float
    clip_norm: float
    of_each: float
    of_sum: float
    mean_norm: float
    clipped: float


def noise_ratio(rate: float, size: int, *, seed: int = 0) -> float:
    """||m * noise|| / ||noise|| for a random mask m of this rate on `size` coordinates. Uses no data.

    >>> round(noise_ratio(0.75, 100_000), 2)
    0.5
    """
    validate.count(size=size)
    noise = torch.from_numpy(Key.from_seed(seed).stream("noise").normals(size, step=0)).float()
    kept = noise[_mask(rate, Layout(("all",), ((size,),)), seed)]
    return float(kept.norm() / noise.norm())


def gradient_ratios(
    step: ExposedStep,
    *,
    rates: Sequence[float],
    clip_norms: Sequence[float],
    units: int | None = None,
    seed: int = 0,
) -> tuple[GradientRatio, ...]:
    """One ratio per clip norm and rate, from the raw gradients of the first `units` units of a step.

    The clip is min(1, C / norm) of the whole gradient.
    """
    validate.instance(Sequence, rates=rates, clip_norms=clip_norms)
    validate.positive(**{f"clip_norms[{place}]": norm for place, norm in enumerate(clip_norms)})
    if units is not None:
        validate.count(units=units)
    masks = torch.stack([_mask(rate, step.layout, seed) for rate in rates]).float()
    norms, size = torch.tensor(clip_norms), step.layout.size
    whole_norms, kept_norms = [], []
    plain, sparse = torch.zeros(len(norms), size), torch.zeros(len(norms), len(rates), size)
    for each in step.raw(units):
        for rows in each.rows(_ROWS_AT_A_TIME):
            squares = rows.square()
            whole, kept = squares.sum(dim=1).sqrt(), (squares @ masks.T).sqrt()
            plain += torch.einsum("cb,bd->cd", _weights(norms[:, None], whole), rows)
            sparse += torch.einsum("cbr,bd->crd", _weights(norms[:, None, None], kept), rows)
            whole_norms.append(whole)
            kept_norms.append(kept)
    whole, kept = torch.cat(whole_norms), torch.cat(kept_norms)
    return tuple(
        GradientRatio(
            rate,
            norm,
            of_each=float((_weights(norms[c], kept[:, r]) / _weights(norms[c], whole)).mean()),
            of_sum=float((masks[r] * sparse[c, r]).norm() / (masks[r] * plain[c]).norm()),
            mean_norm=float(whole.mean()),
            clipped=float((whole > norm).float().mean()),
        )
        for c, norm in enumerate(clip_norms)
        for r, rate in enumerate(rates)
    )


def _weights(clip_norm: Tensor, norms: Tensor) -> Tensor:
    return (clip_norm / norms.clamp(min=1e-30)).clamp(max=1.0)


def _mask(rate: float, layout: Layout, seed: int) -> Tensor:
    sparsify = RandomSparsify(rate, epochs=1, steps_per_epoch=1, schedule=ConstantRate())
    return sparsify.mask(0, layout, Key.from_seed(seed).stream("coding"))
