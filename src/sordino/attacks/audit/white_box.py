"""White-box audit: canaries contribute vectors in gradient space, and the attacker sees the release of every step.

The run with its plan, batches, encoding, clip and noise is the production one. A canary is a unit like any other: the
sampler draws it, the codec encodes it and the clip bounds it. A canary that is left out keeps its place and adds zeros.

The attacker knows all records and which of them each step draws, so their sum is subtracted before canaries are scored.
The theorems allow this: whoever guesses a coin may know everything that is independent of it, and the guarantee holds
for arbitrary other records. The weights at which gradients are taken follow from earlier releases.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn

from sordino._input import validate
from sordino.attacks.audit.canaries import GradientCanaries, coins, with_empty_places
from sordino.attacks.audit.scores import Ratios, Scores, law_of
from sordino.kernel.encoding import decoded_without_noise
from sordino.kernel.randomness import Key
from sordino.kernel.records import Data, as_records
from sordino.kernel.run import PrivateRun
from sordino.kernel.states import BoundedSum, Private
from sordino.kernel.step import BegunStep, Plan
from sordino.training.loop import Training, take_steps
from sordino.training.schedules import AnySchedule, Constant

_TIMES_THE_CLIP = 1e3  # norm of a canary in units of the clip, so that any mask leaves more than the clip


def white_box_scores(
    plan: Plan,
    model: nn.Module,
    data: Data,
    optimizer: torch.optim.Optimizer,
    *,
    divisor: float,
    canaries: int,
    key: Key,
    schedule: AnySchedule | None = None,
    on_step: Callable[[int, int], None] = lambda taken, planned: None,
) -> Scores:
    """Trains `model` by `plan` on `data` with canaries, and scores the canaries by all releases.

    A sampler that declares a number of examples must count the canaries too. The scores are not private, because the
    sum of the other records is subtracted without noise.

    >>> import torch.nn.functional as F
    >>> import sordino as so
    >>> model, data = nn.Linear(40, 3), (torch.zeros(20, 40), torch.zeros(20, dtype=torch.int64))
    >>> plan = so.Plan(so.Poisson(1.0, 9), so.LossGradient(F.cross_entropy), so.ClipByNorm(1.0), so.Gaussian(1.0))
    >>> optimizer = torch.optim.SGD(model.parameters(), 0.1)
    >>> scores = white_box_scores(plan, model, data, optimizer, divisor=20, canaries=60, key=Key.from_seed(0))
    >>> bool(scores.values[scores.included].mean() > 0 > scores.values[~scores.included].mean())
    True
    """
    validate.count(canaries=canaries)
    records = with_empty_places(as_records(data), canaries)
    run = PrivateRun(plan, model, records, key=key)
    training = Training(model, optimizer, run, divisor=divisor, schedule=schedule or Constant(), averaging=None)
    return _CanaryTraining(training, records.num_units, canaries, key).scores(on_step)


class _CanaryTraining:
    """A training whose last `canaries` units are canaries, each included or left out by its coin."""

    def __init__(self, training: Training, units: int, canaries: int, key: Key) -> None:
        self._training, self._units, self._first = training, units, units - canaries
        run, length = training.run, _TIMES_THE_CLIP * training.run.plan.clip.bound
        self._canaries = GradientCanaries.drawn(run.layout, canaries, length, key.stream("canaries"))
        self._included = coins(canaries, key)

    def scores(self, on_step: Callable[[int, int], None]) -> Scores:
        """Trains to the end, and scores each canary by all releases."""
        run, ratios = self._training.run, list[Ratios]()
        take_steps(
            self._training,
            take=lambda: ratios.append(self._step(run)),
            after_step=lambda: on_step(run.steps, len(run)),
        )
        return Scores(law_of(run.plan.sampler, self._units).score(np.stack(ratios)), self._included)

    def _step(self, run: PrivateRun) -> Ratios:
        """Takes one step, which the included canaries join, and returns the ratio of each canary."""
        begun = run.begin()
        others = self._sum_of_others(run, begun, begun.indices[begun.indices < self._first])
        joined = begun.indices[begun.indices >= self._first] - self._first
        joined = joined[torch.from_numpy(self._included)[joined]]
        private = run.finish(begun, others + run.bounded(begun, self._canaries.of(joined)))
        ratios = self._ratios(run, begun, private, others)
        self._training.descend(private, begun.step)
        return ratios

    def _sum_of_others(self, run: PrivateRun, begun: BegunStep, indices: Tensor) -> BoundedSum:
        sums = (
            run.bounded(begun, run.plan.contribution.of(self._training.model, *run.drawn(begun, part)))
            for part in torch.split(indices, run.physical_batch_size)
        )
        return sum(sums, next(sums))

    def _ratios(self, run: PrivateRun, begun: BegunStep, private: Private, others: BoundedSum) -> Ratios:
        """The log-likelihood ratio l of each canary, from the release minus the known sum of the others."""
        signal, known = (
            decoded_without_noise(begun.codec, total)
            for total in (run.bounded(begun, self._canaries.everybody), others)
        )
        variance = torch.as_tensor(private.noise_square, dtype=torch.float64).expand_as(signal)
        weight = torch.where(variance > 0, signal / variance.where(variance > 0, 1.0), 0.0)
        correlation = self._canaries.by_canary(weight * (private.value - known))
        ratios: Ratios = (correlation - self._canaries.by_canary(weight * signal) / 2).numpy()
        return ratios
