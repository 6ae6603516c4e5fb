"""`dp_sgd`: the usual plan of DP-SGD, from a public number of examples and a target."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypedDict

import torch
import torch.nn.functional as F
from torch import Tensor

from sordino._input import validate
from sordino.errors import UsageError
from sordino.kernel.augmentation import Views
from sordino.kernel.calibration import calibrate, check_delta_for, check_target
from sordino.kernel.clipping import Clip, ClipByNorm
from sordino.kernel.contribution import LossGradient
from sordino.kernel.encoding import Encoding, Unchanged
from sordino.kernel.noise import Gaussian, Noise
from sordino.kernel.sampling import Poisson, Sampler, steps_for
from sordino.kernel.step import Plan


class PlanSettings(TypedDict, total=False):
    """Arguments of `dp_sgd` that `fit` accepts in place of a plan."""

    epsilon: float
    batch_size: int
    epochs: float | None
    steps: int | None
    sampler: Sampler | None
    loss: Callable[..., Tensor]
    clip: Clip | float
    noise: Noise | None
    encoding: Encoding | None
    views: Views | None
    autocast: torch.dtype | None
    allow_weak: bool
    allow_large_delta: bool


def dp_sgd(
    examples: int,
    *,
    epsilon: float,
    delta: float,
    batch_size: int,
    epochs: float | None = None,
    steps: int | None = None,
    sampler: Sampler | None = None,
    loss: Callable[..., Tensor] = F.cross_entropy,
    clip: Clip | float = 1.0,
    noise: Noise | None = None,
    encoding: Encoding | None = None,
    views: Views | None = None,
    autocast: torch.dtype | None = None,
    allow_weak: bool = False,
    allow_large_delta: bool = False,
) -> Plan:
    """Returns the usual plan of DP-SGD for a public number of examples, with noise calibrated to a target.

    Each step draws a Poisson batch of `batch_size` examples on average, for `steps` steps or `epochs` passes, unless a
    `sampler` is given. `clip` is a norm or a clipping stage. `noise` is a noise of any scale, which is calibrated
    (Gaussian by default; delta may be 0 if it is pure). No data is needed.

    >>> plan = dp_sgd(60_000, epsilon=3.0, delta=1e-5, batch_size=256, epochs=10)
    >>> plan.steps, plan.guarantee(delta=1e-5).epsilon <= 3.0
    (2344, True)
    """
    plan = uncalibrated_plan(
        examples,
        epsilon=epsilon,
        delta=delta,
        batch_size=batch_size,
        epochs=epochs,
        steps=steps,
        sampler=sampler,
        loss=loss,
        clip=clip,
        noise=noise,
        encoding=encoding,
        views=views,
        autocast=autocast,
        allow_weak=allow_weak,
        allow_large_delta=allow_large_delta,
    )
    return calibrate(plan, epsilon=epsilon, delta=delta, allow_weak=allow_weak)


def uncalibrated_plan(
    examples: int,
    *,
    epsilon: float,
    delta: float,
    batch_size: int,
    epochs: float | None = None,
    steps: int | None = None,
    sampler: Sampler | None = None,
    loss: Callable[..., Tensor] = F.cross_entropy,
    clip: Clip | float = 1.0,
    noise: Noise | None = None,
    encoding: Encoding | None = None,
    views: Views | None = None,
    autocast: torch.dtype | None = None,
    allow_weak: bool = False,
    allow_large_delta: bool = False,
) -> Plan:
    """The plan of `dp_sgd` before its noise is calibrated."""
    noise = noise_or_gaussian(noise)
    check_target(epsilon, delta, allow_weak=allow_weak, release=noise.event)
    validate.count(batch_size=batch_size)
    validate.count(examples=examples)
    if sampler is None:
        sampler = _poisson(batch_size, examples, epochs=epochs, steps=steps)
    elif epochs is not None or steps is not None:
        raise UsageError("epochs and steps belong to the sampler: leave them out if a sampler is given.")
    size = public_size(sampler, examples)
    validate.count(at_most=size, batch_size=batch_size)
    check_delta_for(size, delta, allow_large_delta=allow_large_delta)
    clip = ClipByNorm(clip) if isinstance(clip, (int, float)) else clip
    return Plan(sampler, LossGradient(loss, autocast, views or Views()), clip, noise, encoding or Unchanged())


def noise_or_gaussian(noise: Noise | None) -> Noise:
    noise = Gaussian(1.0) if noise is None else noise
    validate.instance(Noise, noise=noise)
    return noise


def public_size(sampler: Sampler, num_units: int) -> int:
    """The public number of examples: under add-or-remove, the number that the sampler declares."""
    return getattr(sampler, "expected_examples", None) or num_units


def _poisson(batch_size: int, num_units: int, *, epochs: float | None, steps: int | None) -> Poisson:
    if (epochs is None) == (steps is None):
        raise UsageError("give exactly one of epochs and steps.")
    validate.count(at_most=num_units, batch_size=batch_size)
    if epochs is not None:
        steps = steps_for(epochs, num_units, batch_size)
    return Poisson(rate=batch_size / num_units, steps=steps or 0)
