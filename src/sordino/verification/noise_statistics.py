"""Is the noise what the event says: its scale on every parameter, its shape, its independence, its last bits, its end?

A release minus the sum it was made from is the noise, so the production path is looked at and nothing else. Each test
has a false-alarm rate of one in a million.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from math import ceil

from torch import nn

from sordino.errors import UsageError
from sordino.kernel.noise import NormalNoise
from sordino.kernel.records import Records
from sordino.kernel.states import Layout
from sordino.kernel.step import Plan
from sordino.optimized_noise.noise import OptimizedNoise
from sordino.verification import block_statistics, normal_statistics
from sordino.verification.synthetic import Drawn, SyntheticRun, ordinary, undecoded, with_poisson
from sordino.verification.verdict import Finding

_UNITS, _RATE = 12, 0.15  # batches of nobody to about five, so that a scale that follows the batch is seen
_DRAWS, _FEWEST_STEPS, _MOST_STEPS = 40_000, 8, 400


@dataclass(frozen=True, repr=False)
class Watched:
    """The noise of several steps, and the coordinates that it falls on."""

    drawn: list[Drawn] = field(repr=False)
    layout: Layout


def watch(plan: Plan, model: nn.Module, records: Records, *, seed: int) -> Watched:
    """The noise of many steps over batches of different sizes, the empty one included."""
    steps = min(_MOST_STEPS, max(_FEWEST_STEPS, ceil(_DRAWS / Layout.of(model).size)))
    watched = undecoded(with_poisson(plan, rate=_RATE, steps=steps))
    run = SyntheticRun.fresh(watched, model, ordinary(records, _UNITS), seed=seed)
    return Watched(list(run.noise()), run.encoded_layout)


def examine(plan: Plan, model: nn.Module, records: Records, *, seed: int, delta: float) -> Iterator[Finding]:
    """What was drawn, against the law that the event claims."""
    watched = watch(plan, model, records, seed=seed)
    drawn, layout = watched.drawn, watched.layout
    match plan.noise:
        case OptimizedNoise() as noise:
            yield from block_statistics.examine(plan, noise, drawn, layout, delta=delta)
        case NormalNoise() as noise:
            yield from normal_statistics.examine(plan, noise, drawn, layout, delta=delta)
        case noise:
            raise UsageError(f"noise must be of a law that can be checked, got {type(noise).__name__}.")
