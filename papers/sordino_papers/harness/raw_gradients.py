"""Runs that show raw gradients of single examples, for diagnosis. They are not private, and say so.

A `PrivateRun` never gives access to the gradients of single units; an `ExposedRun` shows them at chosen steps. No
epsilon covers what they reveal. So there is no guarantee, no budget, no run folder and no checkpoint.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import NoReturn

import torch
from torch import Tensor, nn

from sordino._input import validate
from sordino.errors import UsageError
from sordino.kernel.budget import Budget
from sordino.kernel.records import Data
from sordino.kernel.run import PrivateRun
from sordino.kernel.states import BoundedSum, PerExample
from sordino.kernel.step import BegunStep, Plan
from sordino.training.loop import Training, steps_left
from sordino.training.not_private import NOT_PRIVATE, NotPrivate
from sordino.training.schedules import Constant, Schedule


class ExposedStep:
    """Raw gradients of one step, at the parameters before the step. Not private."""

    def __init__(self, run: PrivateRun, model: nn.Module, begun: BegunStep) -> None:
        self.step, self.codec, self.layout = begun.step, begun.codec, run.layout
        self._run, self._model, self._begun, self._over = run, model, begun, False

    @property
    def units(self) -> int:
        """Number of units in the batch."""
        return len(self._begun.indices)

    @property
    def indices(self) -> Tensor:
        """Indices of the units in the batch, in the order of `raw`."""
        return self._begun.indices

    def raw(self, units: int | None = None) -> Iterator[PerExample]:
        """Gradients of the first `units` units, or of all, before encoding and clipping, in micro-batches."""
        for part in torch.split(self._begun.indices[:units], self._run.physical_batch_size):
            if self._over:
                raise UsageError(f"step {self.step} is over: read its gradients before the run continues.")
            yield self._run.plan.contribution.of(self._model, *self._run.drawn(self._begun, part))

    def encoded(self, units: int | None = None) -> Iterator[PerExample]:
        """Gradients after encoding, as the clip of this step receives them."""
        return (self.codec.encode(each) for each in self.raw(units))

    def __repr__(self) -> str:
        return f"ExposedStep({self.step}, {NOT_PRIVATE})"

    def __reduce__(self) -> NoReturn:
        raise UsageError(f"raw gradients cannot be copied, saved or sent: they are {NOT_PRIVATE}.")

    def _finished(self) -> BoundedSum:
        """Sums the clipped gradients. After this the gradients of the step can no longer be read."""
        first, *others = (self._run.plan.clip(each) for each in self.encoded())
        self._over = True
        return sum(others, first)


class ExposedRun:
    """Runs `plan` like a private run, and gives access to raw gradients before the steps `at`. Not private.

    Iterating yields an `ExposedStep` for each of these steps; the steps between them are taken on the way. `data` must
    be rows: a `Budget` is refused, because its guarantee would no longer hold.

    >>> import torch.nn.functional as F
    >>> import sordino as so
    >>> model, data = nn.Linear(4, 3), (torch.zeros(20, 4), torch.zeros(20, dtype=torch.int64))
    >>> plan = so.Plan(so.Poisson(1.0, 5), so.LossGradient(F.cross_entropy), so.ClipByNorm(1.0), so.Gaussian(1.0))
    >>> exposed = ExposedRun(plan, model, data, torch.optim.SGD(model.parameters(), 0.1), divisor=20, at=[0, 4])
    >>> [(shown.step, next(shown.raw()).squared_norms().shape) for shown in exposed]
    [(0, torch.Size([20, 2])), (4, torch.Size([20, 2]))]
    >>> print(exposed.trained)
    training with raw gradients on view: not private, for comparison only
    """

    def __init__(
        self,
        plan: Plan,
        model: nn.Module,
        data: Data,
        optimizer: torch.optim.Optimizer,
        *,
        divisor: float,
        at: Collection[int],
        schedule: Schedule | None = None,
        seed: int = 0,
    ) -> None:
        if isinstance(data, Budget):
            raise UsageError(
                "data must be rows, got a Budget: its guarantee does not hold once raw gradients are seen."
            )
        validate.instance(Plan, plan=plan)
        validate.positive(divisor=divisor)
        validate.instance(Collection, at=at)
        validate.count(at_least=0, at_most=plan.steps - 1, **{f"at[{place}]": step for place, step in enumerate(at)})
        self.plan, self.at, self._model = plan, frozenset(at), model
        run = PrivateRun(plan, model, data, seed=seed)
        self.layout = run.layout
        self._training = Training(
            model, optimizer, run, divisor=divisor, schedule=schedule or Constant(), averaging=None
        )

    @property
    def trained(self) -> NotPrivate:
        """The current model, without a guarantee."""
        return NotPrivate(self._model, "training with raw gradients on view")

    def __iter__(self) -> Iterator[ExposedStep]:
        run = self._training.run
        for step in steps_left(run):
            if step not in self.at:
                self._training.step()
                continue
            begun = run.begin()
            shown = ExposedStep(run, self._model, begun)
            yield shown
            self._training.descend(run.finish(begun, shown._finished()), begun.step)

    def __repr__(self) -> str:
        return f"ExposedRun(steps={self.plan.steps}, at={sorted(self.at)}, {NOT_PRIVATE})"

    def __reduce__(self) -> NoReturn:
        raise UsageError(f"an exposed run cannot be copied, saved or sent: it is {NOT_PRIVATE}.")
