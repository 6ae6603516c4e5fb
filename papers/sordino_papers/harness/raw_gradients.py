"""A run with its raw gradients on view, to see what a private run is made of. It is not private, and says so.

What a `PrivateRun` never hands out, the gradients of single units, an `ExposedRun` shows at the steps that it is asked
for. Whoever sees them knows more than any epsilon covers. So there is no guarantee here, no budget, no folder of the
run and no checkpoint, and the report, which lies below this package, cannot know of it.
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
from sordino.training.loop import Training
from sordino.training.not_private import NOT_PRIVATE, NotPrivate
from sordino.training.schedules import Constant, Schedule


class ExposedStep:
    """The raw gradients of one step, at the parameters that it starts from. Not private."""

    def __init__(self, run: PrivateRun, model: nn.Module, begun: BegunStep) -> None:
        self.step, self.codec, self.layout = begun.step, begun.codec, run.layout
        self._run, self._model, self._begun, self._over = run, model, begun, False

    @property
    def units(self) -> int:
        """How many units were drawn."""
        return len(self._begun.indices)

    @property
    def indices(self) -> Tensor:
        """Which units were drawn, in the order of `raw`."""
        return self._begun.indices

    def raw(self, units: int | None = None) -> Iterator[PerExample]:
        """What each of the first `units` units adds, or each of all, before the encoding and the clip, in parts."""
        for part in torch.split(self._begun.indices[:units], self._run.physical_batch_size):
            if self._over:
                raise UsageError(f"step {self.step} is over: look at its gradients before the run goes on.")
            yield self._run.plan.contribution.of(self._model, *self._run.drawn(self._begun, part))

    def encoded(self, units: int | None = None) -> Iterator[PerExample]:
        """The same after the encoding: what the clip of this step is given."""
        return (self.codec.encode(each) for each in self.raw(units))

    def __repr__(self) -> str:
        return f"ExposedStep({self.step}, {NOT_PRIVATE})"

    def __reduce__(self) -> NoReturn:
        raise UsageError(f"raw gradients cannot be copied, saved or sent: they are {NOT_PRIVATE}.")

    def _finished(self) -> BoundedSum:
        """The sum of the step, with which the look at it ends."""
        first, *others = (self._run.plan.clip(each) for each in self.encoded())
        self._over = True
        return sum(others, first)


class ExposedRun:
    """Carries out `plan` like a private run, and shows the steps `at` before they are taken. Not private.

    Iterate over it for an `ExposedStep` at each of these steps; all others are taken on the way. There is no guarantee,
    and `data` must be rows: a `Budget` is refused, because what it promises would not hold any more.

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
            raise UsageError("data must be rows, got a Budget: its promise would not hold once gradients are seen.")
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
        """The model as it is now, which has no guarantee."""
        return NotPrivate(self._model, "training with raw gradients on view")

    def __iter__(self) -> Iterator[ExposedStep]:
        run = self._training.run
        while run.steps < len(run):
            if run.steps not in self.at:
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
