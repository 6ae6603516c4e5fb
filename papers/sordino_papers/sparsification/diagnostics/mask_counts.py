"""How often each coordinate is zeroed by ranked masks, compared with random masks.

Zhu and Blaschko (2023), figure 12. If noise decides the ranks, ranked sparsification (Algorithm 4) zeroes a coordinate
as often as random sparsification does. A ranking of the same gradients without noise, which is not private, shows the
ranking that there would be without noise.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from sordino._input import validate
from sordino.encodings import RankedSparsify
from sordino.encodings.codecs import MaskCodec
from sordino.encodings.sparsify import random_mask
from sordino.errors import UsageError
from sordino.kernel.clipping import Clip
from sordino.kernel.randomness import Key
from sordino.kernel.states import Private
from sordino.training.not_private import ExposedResult
from sordino_papers.harness.raw_gradients import ExposedRun, ExposedStep


@dataclass(frozen=True)
class MaskCounts(ExposedResult):
    """Histograms: entry `n` is the number of coordinates that are zeroed by `n` of the masks.

    `ranked` uses the releases of the run, `random` random masks of the same rates, `expected` their expectation, and
    `noise_free` the clipped gradients of the same run without noise. Only `noise_free` is not private by itself.
    """

    ranked: tuple[int, ...]
    random: tuple[int, ...]
    expected: tuple[float, ...]
    noise_free: tuple[int, ...]

    def distance(self, counts: Sequence[float]) -> float:
        """Total variation distance from what random masks are expected to give: 0 if equal, 1 if disjoint."""
        apart = sum(abs(one - other) for one, other in zip(counts, self.expected, strict=True))
        return apart / (2 * sum(self.expected))


def count_masks(exposed: ExposedRun, *, seed: int = 0) -> MaskCounts:
    """Runs ranked sparsification with raw gradients exposed, and counts the masks of three rankings.

    The ranking without noise follows the same run. It sums what each step's clip would let through without a mask: with
    masked gradients, a coordinate that was zeroed once would stay zeroed.
    """
    ranked, layout = exposed.plan.encoding, exposed.layout
    if not isinstance(ranked, RankedSparsify):
        raise UsageError(f"encoding must be a RankedSparsify, got {type(ranked).__name__}.")
    validate.count(at_least=exposed.plan.steps, steps_on_view=len(exposed.at))
    ranks, ranks_without_noise = list[Tensor](), list[Tensor]()
    state, coding = ranked.init(layout), Key.from_seed(seed).stream("coding")
    for shown in exposed:
        if ranked.mask_number(shown.step) == len(ranks) and isinstance(shown.codec, MaskCodec):
            ranks.append(shown.codec.keep)
            ranks_without_noise.append(state["keep"])
        # Private in name only: a ranking learns from this type, and only counts leave this function, with a warning.
        clipped = Private(_sum_without_mask(shown, exposed.plan.clip), layout)
        _, state = ranked.codec(state, shown.step, coding).decode(clipped)
    # A ranking keeps all under its first mask, whatever its schedule: so do the others that it is compared with.
    zeroed = [int((~keep).sum()) for keep in ranks]
    return MaskCounts(
        ranked=times_zeroed(ranks),
        random=times_zeroed(random_mask(coding, number, layout.size, each) for number, each in enumerate(zeroed)),
        expected=expected_counts([each / layout.size for each in zeroed], layout.size),
        noise_free=times_zeroed(ranks_without_noise),
    )


def times_zeroed(masks: Iterable[Tensor]) -> tuple[int, ...]:
    """Histogram: entry `n` is the number of coordinates that `n` of these masks zero.

    >>> times_zeroed([torch.tensor([True, False, False]), torch.tensor([True, True, False])])
    (1, 1, 1)
    """
    zeroed = torch.stack([~keep for keep in masks])
    return tuple(torch.bincount(zeroed.sum(dim=0), minlength=len(zeroed) + 1).tolist())


def expected_counts(rates: Sequence[float], size: int) -> tuple[float, ...]:
    """Expected histogram of independent random masks with these rates.

    >>> expected_counts([0.0, 0.5], size=10)
    (5.0, 5.0, 0.0)
    """
    validate.instance(Sequence, rates=rates)
    named = {f"rates[{place}]": rate for place, rate in enumerate(rates)}
    validate.between(0, 1, low_open=False, high_open=False, **named)
    chances = np.ones(1)
    for rate in rates:
        chances = np.convolve(chances, [1 - rate, rate])
    return tuple((size * chances).tolist())


def _sum_without_mask(shown: ExposedStep, clip: Clip) -> Tensor:
    return torch.stack([clip(each).value.double() for each in shown.raw()]).sum(dim=0)
