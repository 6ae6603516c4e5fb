"""The loss of one row, as the script computed it for a batch, or by the criterion that it declared."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.func import vmap
from torch.utils._pytree import TreeSpec, tree_flatten

from sordino.errors import UsageError
from sordino.gradients.one_pass import Noting, one_pass
from sordino.gradients.row_loss import Loss, RowLoss
from sordino.gradients.watching import one_line
from sordino.opacus.row_program import RowProgram
from sordino.opacus.traced import Column, Output


@dataclass(frozen=True, repr=False)
class ScriptLoss:
    """A loss of (outputs, the column of the batch that it uses), for a batch of one.

    A `criterion` is summed over the row, as everywhere in the kernel. Without one, the script's own operations are run
    on the row as a batch of one, so that a mean over the batch is the row's own loss, whatever the batch drawn.
    """

    program: RowProgram
    column: int
    criterion: Loss | None

    @classmethod
    def of(cls, program: RowProgram, criterion: Loss | None, target: int) -> ScriptLoss:
        used = {leaf.place for leaf in program.leaves if isinstance(leaf, Column)}
        if len(used) > 1:
            raise UsageError(f"a loss uses one tensor of the batch beside the outputs, got {len(used)}.")
        return cls(program, used.pop() if used else target, criterion)

    def __call__(self, outputs: Any, target: Tensor) -> Tensor:
        """The loss of a batch of one; NaN where its label is unusable, and such a row counts as absent."""
        if self.criterion is None:
            return self.program.of_batch(self._leaves(tree_flatten(outputs)[0], target)).reshape(())
        loss, usable = RowLoss.of(self.criterion)(outputs, target)
        return torch.where(usable, loss, torch.nan)

    def of_rows(self, outputs: list[Tensor], spec: TreeSpec, column: Tensor) -> Tensor:
        """The loss of each row, inside `vmap`."""

        def of_one(outputs: list[Tensor], target: Tensor) -> Tensor:
            with Noting(of_this_pass):
                return self(spec.unflatten([x.unsqueeze(0) for x in outputs]), target.unsqueeze(0))

        with one_pass() as of_this_pass:
            return vmap(of_one)(outputs, column)

    def check(self, outputs: list[Tensor], spec: TreeSpec, column: Tensor, loss_reduction: str) -> None:
        """Refuses a loss that mixes rows, or is another than was declared. All values are synthetic."""
        values = self._leaves(outputs, column)
        if self.criterion is not None:
            self._check_criterion(values, spec.unflatten(outputs), column)
            return
        found = self.program.reduction(values)
        if found != loss_reduction:
            raise UsageError(f"the loss is the {found} over the batch, but loss_reduction says {loss_reduction!r}.")

    def _check_criterion(self, values: list[Tensor], outputs: Any, column: Tensor) -> None:
        try:
            found, declared = self.program.of_batch(values), self.criterion(outputs, column)  # type: ignore[misc]
        except (RuntimeError, IndexError, TypeError, ValueError) as error:
            raise UsageError(f"the criterion fails on synthetic outputs: {one_line(error)}") from None
        if not torch.allclose(found.sum(), declared.sum(), rtol=1e-3, atol=1e-5):
            raise UsageError("the loss is not criterion(outputs, target) of the criterion given to make_private.")

    def _leaves(self, outputs: list[Tensor], column: Tensor) -> list[Tensor]:
        return [outputs[leaf.place] if isinstance(leaf, Output) else column for leaf in self.program.leaves]
