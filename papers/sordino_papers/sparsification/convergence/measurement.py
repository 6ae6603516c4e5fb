"""What the bound is made of, measured on raw gradients of single examples. Not private: it has no epsilon.

Index letters: `n` an example, `d` a coordinate, `k` a mask. Lengths of masked gradients are products of squares and
masks, so no masked gradient is formed.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from sordino._input import validate
from sordino.encodings import ConstantRate, RandomSparsify
from sordino.errors import UsageError
from sordino.kernel.randomness import Stream
from sordino.kernel.states import Layout
from sordino.training.not_private import ExposedResult


@dataclass(frozen=True)
class BoundMeasurement(ExposedResult):
    """Means over examples and masks at one step. For comparison only: whoever sees them sees private rows.

    `short_deviations` is P(|xi| < 3C/4), the share of gradients that lie so close to their mean. `progress` is
    E <grad, g>, where g is masked and clipped. `asymmetry` is E b', what `progress` would lack if each deviation from
    the mean had an opposite. `kappa` is None where no deviation is short: it would be a ratio to 0.

    >>> measured = BoundMeasurement(0.5, 1.0, 0.2, short_deviations=0.9, kappa=0.55, progress=0.03, asymmetry=0.0)
    >>> print(measured)  # doctest: +ELLIPSIS
    rate 0.5: 90 % of deviations below 3C/4, kappa 0.55; not private: computed from raw gradients, to be looked at ...
    """

    rate: float
    clip_norm: float
    gradient_norm: float
    short_deviations: float
    kappa: float | None
    progress: float
    asymmetry: float

    @property
    def reached(self) -> float:
        """P(|xi| < 3C/4) min(|grad|, C/4) |grad|, of which the theorems bound the mean over steps."""
        return self.short_deviations * _length_or_quarter(self.gradient_norm, self.clip_norm) * self.gradient_norm

    def __str__(self) -> str:
        kappa = "undefined" if self.kappa is None else f"{self.kappa:.3g}"
        short = f"{self.short_deviations:.0%}".replace("%", " %")
        return f"rate {self.rate:g}: {short} of deviations below 3C/4, kappa {kappa}; {self.warning}"


def measure(gradients: Tensor, masks: Tensor, *, clip_norm: float) -> BoundMeasurement:
    """Measures gradients of examples, shape (n, d), under masks that are True where a coordinate is kept, (k, d).

    >>> gradients = torch.tensor([[0.1, 0.1], [0.1, -0.1]])  # short: nothing is clipped, so kappa is 1 - rate
    >>> measure(gradients, torch.tensor([[True, False], [False, True]]), clip_norm=1.0).kappa
    0.5
    """
    validate.positive(clip_norm=clip_norm)
    _check_shapes(gradients, masks)
    each, keep = gradients.double(), masks.double()
    mean = each.mean(dim=0)
    deviations = each - mean
    means = (keep @ mean.square()).sqrt()  # (k,) |m * grad|
    squares = each.square() @ keep.T  # (n, k) |m * g|^2
    products = (each * mean) @ keep.T  # (n, k) <m * grad, m * g>
    # The mirror image of g is 2 grad - g. Rounding may leave a square below 0.
    mirrored = (squares - 4 * products + 4 * means.square()).clamp(min=0.0)
    progress = (products * _shrink(squares, clip_norm)).mean(dim=0)
    progress_mirrored = ((2 * means.square() - products) * _shrink(mirrored, clip_norm)).mean(dim=0)
    norm, short = float(mean.norm()), _short(deviations.norm(dim=1), clip_norm)
    lengths = (deviations.square() @ keep.T).sqrt()
    rate = float(1 - keep.mean())
    return BoundMeasurement(
        rate=rate,
        clip_norm=clip_norm,
        gradient_norm=norm,
        short_deviations=float(short),
        kappa=_kappa(rate, norm, short, means, _short(lengths, clip_norm), clip_norm),
        progress=float(progress.mean()),
        asymmetry=float((progress - progress_mirrored).mean() / 2),
    )


def random_masks(rate: float, dimension: int, count: int, randomness: Stream) -> Tensor:
    """Masks (k, d) as random sparsification draws them, all at the same rate.

    >>> from sordino.kernel.randomness import Key
    >>> random_masks(0.75, 8, 3, Key.from_seed(0).stream("coding")).sum(dim=1)
    tensor([2, 2, 2])
    """
    sparsify = RandomSparsify(rate, epochs=count, steps_per_epoch=1, schedule=ConstantRate())
    layout = Layout(("all",), ((dimension,),))
    return torch.stack([sparsify.mask(step, layout, randomness) for step in range(count)])


def secant_smoothness(before: Tensor, after: Tensor, moved: Tensor) -> float:
    """How far the mean gradient moved per distance: G is at least this. Gradients (n, d) of the same examples.

    >>> secant_smoothness(torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 0.0]]), torch.tensor([0.5, 0.0]))
    2.0
    """
    if before.ndim != 2 or before.shape != after.shape or moved.shape != before.shape[1:]:
        shapes = f"{tuple(before.shape)}, {tuple(after.shape)} and {tuple(moved.shape)}"
        raise UsageError(f"before and after must have shape (n, d) and moved (d,), got {shapes}.")
    distance = float(moved.double().norm())
    validate.positive(distance=distance)
    return float((after.double().mean(dim=0) - before.double().mean(dim=0)).norm()) / distance


def _kappa(rate: float, norm: float, short: Tensor, means: Tensor, shorts: Tensor, clip_norm: float) -> float | None:
    """E[P' h(|m grad|) |m grad|] / (P h(|grad|) |grad|), shapes of `means` and `shorts` (k,).

    No mask has less in it than P h(|grad|) / |grad| |m grad|^2, of which the mean over all masks is known. Only the
    rest is averaged over these masks, so kappa is at least 1 - rate however few they are.
    """
    ratio = short * _length_or_quarter(norm, clip_norm)
    if not ratio > 0:
        return None
    rest = shorts * means.clamp(max=clip_norm / 4) * means - ratio / norm * means.square()
    return 1 - rate + max(0.0, float(rest.mean() / (ratio * norm)))


def _short(lengths: Tensor, clip_norm: float) -> Tensor:
    """The share of deviations below 3C/4, over examples (n, ...)."""
    return (lengths < 0.75 * clip_norm).double().mean(dim=0)


def _length_or_quarter(norm: float, clip_norm: float) -> float:
    return min(norm, clip_norm / 4)


def _shrink(squares: Tensor, clip_norm: float) -> Tensor:
    """min(1, C / |g|), and 1 where g is zero."""
    return (clip_norm / squares.sqrt()).clamp(max=1.0)


def _check_shapes(gradients: Tensor, masks: Tensor) -> None:
    if gradients.ndim != 2 or not len(gradients):
        raise UsageError(f"gradients must have shape (examples, coordinates), got {tuple(gradients.shape)}.")
    if not bool(gradients.isfinite().all()):
        raise UsageError("gradients must be finite, got some that are not: of a training that diverged.")
    if masks.dtype != torch.bool or masks.ndim != 2 or not len(masks) or masks.shape[1] != gradients.shape[1]:
        raise UsageError(
            f"masks must be bool of shape (masks, {gradients.shape[1]}), got {masks.dtype}, {tuple(masks.shape)}."
        )
