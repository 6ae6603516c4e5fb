"""Training without a clip, without noise, or with noise weights that are not paid for. None of it is private.

Zhu and Blaschko (2023): Algorithm 2 adds noise without clipping, Algorithm 3 clips without noise. Random sparsification
gains accuracy when both are present; these two show that it does not gain from either alone. For optimized noise, the
part that is left out is the privacy cost of its weights.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sordino._input import validate
from sordino.encodings.freeze import rest_of, step_at_rest
from sordino.errors import UsageError
from sordino.gradients.row_loss import Loss
from sordino.kernel.budget import Budget
from sordino.kernel.clipping import Clip
from sordino.kernel.contribution import LossGradient
from sordino.kernel.encoding import Codec, Encoding, Unchanged
from sordino.kernel.noise import NoiseAt
from sordino.kernel.randomness import Key
from sordino.kernel.records import Data, Records, as_records
from sordino.kernel.sampling import Sampler
from sordino.kernel.states import BoundedSum, Layout, PerExample, Private
from sordino.kernel.step import row_seeds
from sordino.optimized_noise.noise import OptimizedNoise
from sordino.optimized_noise.sources import Fixed
from sordino.training.not_private import NotPrivate

_UNITS_AT_A_TIME = 256


@dataclass(frozen=True)
class AblationSettings:
    """Settings that an ablation shares with the private run it is compared with. `divisor` is the batch size."""

    sampler: Sampler
    divisor: float
    loss: Loss = field(default=F.cross_entropy)
    encoding: Encoding = field(default_factory=Unchanged)
    seed: int = 0

    def __post_init__(self) -> None:
        validate.instance(Sampler, sampler=self.sampler)
        validate.instance(Encoding, encoding=self.encoding)
        validate.positive(divisor=self.divisor)

    @property
    def key(self) -> Key:
        """The key of a private run with this seed, so that both draw the same batches and masks."""
        return Key.from_seed(self.seed).of_release(0)


def noisy_sgd(
    model: nn.Module, data: Data, optimizer: torch.optim.Optimizer, comparison: AblationSettings, *, noise_std: float
) -> NotPrivate:
    """Algorithm 2: sums unclipped gradients, and adds noise of this standard deviation to the kept coordinates.

    >>> rows = torch.zeros(8, 2), torch.zeros(8, dtype=torch.int64)
    >>> from sordino.kernel.sampling import Poisson
    >>> model = nn.Linear(2, 2)
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> settings = AblationSettings(Poisson(rate=0.5, steps=2), divisor=4.0)
    >>> print(noisy_sgd(model, rows, optimizer, settings, noise_std=1.0))
    noisy SGD without a clip: not private, for comparison only
    """
    validate.positive(noise_std=noise_std)
    noise = comparison.key.stream("noise")

    def with_noise(total: Tensor, step: int, codec: Codec) -> Tensor:
        return total + noise_std * torch.from_numpy(noise.normals(total.numel(), step=step)).to(total)

    _train(model, data, optimizer, comparison, _sum, with_noise)
    return NotPrivate(model, "noisy SGD without a clip")


def clipped_sgd(
    model: nn.Module, data: Data, optimizer: torch.optim.Optimizer, comparison: AblationSettings, *, clip: Clip
) -> NotPrivate:
    """Algorithm 3: sums clipped gradients, and adds no noise."""
    validate.instance(Clip, clip=clip)
    _train(model, data, optimizer, comparison, lambda each: clip(each).value.double(), lambda total, step, codec: total)
    return NotPrivate(model, "clipped SGD without noise")


def unpaid_weights_sgd(
    model: nn.Module,
    data: Data,
    optimizer: torch.optim.Optimizer,
    comparison: AblationSettings,
    *,
    clip: Clip,
    noise: OptimizedNoise,
) -> NotPrivate:
    """Optimized noise as first proposed: in every step its weights are |mean gradient| of all private rows.

    Xiang, Yang and Li (INFOCOM 2019). No epsilon accounts for what the weights reveal about a row. The weights of
    `noise` itself are not used.
    """
    validate.instance(Clip, clip=clip)
    validate.instance(OptimizedNoise, noise=noise)
    records, stream = _rows(data), comparison.key.stream("noise")
    everybody = torch.arange(records.num_units)

    def with_noise(total: Tensor, step: int, codec: Codec) -> Tensor:
        mean = _encoded_sum(model, records, comparison, step, codec, everybody, _sum)
        unpaid = replace(noise, weights=Fixed(mean.value.abs()))
        return unpaid.add(BoundedSum(total, clip.bound, mean.layout), NoiseAt(stream, step)).value

    _train(model, data, optimizer, comparison, lambda each: clip(each).value.double(), with_noise)
    return NotPrivate(model, "optimised noise with weights that nobody paid for")


def _train(
    model: nn.Module,
    data: Data,
    optimizer: torch.optim.Optimizer,
    comparison: AblationSettings,
    sum_of: Callable[[PerExample], Tensor],
    changed: Callable[[Tensor, int, Codec], Tensor],
) -> None:
    records, key, encoding = _rows(data), comparison.key, comparison.encoding
    comparison.sampler.check(records.num_units)
    state = encoding.init(Layout.of(model))
    for step, indices in enumerate(comparison.sampler.batches(records.num_units, key.stream("sampling"))):
        codec = encoding.codec(state, step, key.stream("coding"))
        total = _encoded_sum(model, records, comparison, step, codec, torch.from_numpy(indices), sum_of)
        # Private in name only: a codec decodes this type, and only weights leave this function.
        private, state = codec.decode(replace(total, undivided=changed(total.value, step, codec)))
        private.divide(comparison.divisor).write_to(model)
        step_at_rest(optimizer, model, rest_of(encoding, state))


def _rows(data: Data) -> Records:
    if isinstance(data, Budget):
        raise UsageError("data must be rows, got a Budget: its guarantee does not hold after an ablation.")
    return as_records(data)


def _encoded_sum(
    model: nn.Module,
    records: Records,
    comparison: AblationSettings,
    step: int,
    codec: Codec,
    indices: Tensor,
    sum_of: Callable[[PerExample], Tensor],
) -> Private:
    totals, layout = [], Layout.of(model)
    gradient, dropout = LossGradient(comparison.loss), comparison.key.stream("dropout")
    for units in torch.split(indices, _UNITS_AT_A_TIME):
        batch = records.gather(units)
        each = codec.encode(gradient.of(model, batch, row_seeds(dropout, step, records, units, batch)))
        totals.append(sum_of(each))
        layout = each.layout
    return Private(torch.stack(totals).sum(dim=0), layout)


def _sum(each: PerExample) -> Tensor:
    total, _ = each.sum_weighted_by(lambda squares: torch.ones_like(squares[:, 0]))
    return total.double()
