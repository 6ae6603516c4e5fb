"""Feature-to-noise ratio of groups, measured on raw gradients of a run with any network. Not private.

The signal of a group is the sum of its clipped gradients over the batch size. Noise has standard deviation sigma_n in
any direction, so |signal| / sigma_n is the ratio in one step. In the two-patch world it is about sqrt(2) (1 - p) times
the effective ratio of `feature_to_noise`, whose margin counts the filters of both classes.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from sordino.errors import UsageError
from sordino.kernel.clipping import ClipByNorm
from sordino.kernel.noise import NormalNoise
from sordino.training.not_private import ExposedResult
from sordino_papers.harness.raw_gradients import ExposedRun, ExposedStep
from sordino_papers.side_effects.two_patch_world import PatchDescent, PatchNetwork, PatchRows
from sordino_papers.side_effects.two_patch_world.descent import optimizer_of


@dataclass(frozen=True)
class MeasuredRatio(ExposedResult):
    """One group in one step: its fraction of the batch, the mean of min(1, C / norm), and |signal| / sigma_n."""

    step: int
    group: int
    share: float
    clipping_factor: float
    effective: float


def measure_ratios(exposed: ExposedRun, group: Tensor, *, divisor: float) -> tuple[MeasuredRatio, ...]:
    """Runs the training, and measures each group at every exposed step. Groups are numbered from 0.

    `group` has one number per unit of the data; `divisor` is the batch size that sums are divided by.

    >>> from sordino_papers.side_effects.two_patch_world import TwoPatches
    >>> from sordino.kernel.randomness import Key
    >>> rows = TwoPatches(dimension=8).draw(100, Key.from_seed(0).stream("rows"))
    >>> run = exposed_descent(PatchNetwork(8, 4, seed=0), rows, PatchDescent(0.05, steps=1), at=(0,), seed=0)
    >>> found = measure_ratios(run, rows.group, divisor=50.0)
    >>> len(found), found[0].warning.startswith("not private")
    (4, True)
    """
    clip, noise = exposed.plan.clip, exposed.plan.noise
    if not isinstance(clip, ClipByNorm) or not isinstance(noise, NormalNoise):
        got = f"{type(clip).__name__} and {type(noise).__name__}"
        raise UsageError(f"the run must clip by norm and add normal noise, got {got}.")
    std = noise.std(clip.bound) / divisor
    return tuple(ratio for step in exposed for ratio in _of_step(step, group, clip.norm, divisor, std))


def exposed_descent(
    network: PatchNetwork, rows: PatchRows, descent: PatchDescent, *, at: tuple[int, ...], seed: int
) -> ExposedRun:
    """A run like `two_patch_world.train` that exposes the raw gradients of the steps `at`. Not private."""
    batch_size = descent.batch_size(len(rows))
    optimizer = optimizer_of(network, descent)
    return ExposedRun(descent.plan(len(rows)), network, rows.data, optimizer, divisor=batch_size, at=at, seed=seed)


def _of_step(step: ExposedStep, group: Tensor, clip_norm: float, divisor: float, std: float) -> list[MeasuredRatio]:
    drawn, groups = group[step.indices], int(group.max()) + 1
    factors, pushes, begin = [], torch.zeros(groups, step.layout.size, dtype=torch.float64), 0
    for each in step.encoded():
        factor = (clip_norm / each.squared_norms().sum(dim=1).sqrt().clamp(min=1e-30)).clamp(max=1.0)
        members = drawn[begin : begin + len(factor)]
        for one in range(groups):
            pushes[one] += each.weighted_sum(factor * (members == one))
        factors.append(factor)
        begin += len(factor)
    every = torch.cat(factors)
    return [
        MeasuredRatio(
            step.step,
            one,
            share=float((drawn == one).double().mean()),
            clipping_factor=float(every[drawn == one].mean()) if bool((drawn == one).any()) else 1.0,
            effective=float(pushes[one].norm()) / divisor / std,
        )
        for one in range(groups)
    ]
