"""A contribution that a script's own loop makes: the plan says so, and computes none by itself."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

from sordino.errors import UsageError
from sordino.kernel.model_checks import check_model
from sordino.kernel.records import Batch, Records
from sordino.kernel.states import Dense
from sordino.opacus.passes import of_nobody


@dataclass(frozen=True)
class ScriptedGradient:
    """The gradient of the loss that a script computes from each issued batch, row by row (see `Session`)."""

    def check(self, model: nn.Module, records: Records) -> None:
        """What can be seen without running the model. The rest is checked when the script first runs it."""
        check_model(model)

    def of(self, model: nn.Module, batch: Batch, seeds: Tensor) -> Dense:
        if batch.num_units:
            raise UsageError("the gradients of this run are computed by the script that drives it.")
        return of_nobody(model)

    def bytes_per_row(self, model: nn.Module, records: Records) -> int:
        """Nothing is computed here."""
        return 1
