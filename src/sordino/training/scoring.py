"""What share of its rows each unit has right, one row at a time.

Guarantee: a unit's score is in [0, 1] and depends on that unit's records and the model only. A row that is not finite,
or that the model fails on, counts as wrong without a message.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from sordino._input import validate
from sordino.errors import UsageError
from sordino.gradients.one_pass import Noting, one_pass
from sordino.gradients.recurrent import OwnInitialState
from sordino.gradients.surroundings import device_of, original, pinned, working_dtype
from sordino.gradients.vmapped import fixed_values, trained_values
from sordino.gradients.watching import one_line
from sordino.kernel.records import Batch, Records
from sordino.training.metrics import correctness

_FINEST = 2.0**-20  # sums of multiples of it are exact, so that no rounding adds to what a unit moves


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """The model in eval mode. Each of its modules gets its own mode back, whatever that was.

    >>> model = nn.Dropout()
    >>> with evaluating(model):
    ...     model.training
    False
    >>> model.training
    True
    """
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training


def check_scorable(model: nn.Module, records: Records) -> None:
    """Refuses a model that fails on synthetic rows."""
    validate.instance(nn.Module, model=model)
    working_dtype(model)
    try:
        _scores(model, records.template(2).to(device_of(model)))
    except (RuntimeError, IndexError) as error:
        raise UsageError(f"the model cannot be evaluated row by row: {one_line(error)}") from error


def scores_of_units(model: nn.Module, batch: Batch) -> Tensor:
    """The share of each unit's rows that is right, rounded down to a multiple of 2**-20, float64.

    >>> from sordino.kernel.records import as_records
    >>> batch = as_records((torch.eye(2), torch.zeros(2, dtype=torch.int64))).gather(torch.arange(2))
    >>> model = nn.Linear(2, 2)
    >>> _ = model.load_state_dict({"weight": torch.eye(2), "bias": torch.zeros(2)})
    >>> scores_of_units(model, batch)
    tensor([1., 0.], dtype=torch.float64)
    """
    batch = batch.to(device_of(model))
    sums = torch.zeros(batch.num_units, dtype=torch.float64, device=batch.units.device)
    sums.index_add_(0, batch.units, _scores_where_possible(model, batch))
    rows = torch.bincount(batch.units, minlength=batch.num_units)
    return (sums / rows / _FINEST).floor() * _FINEST


def _scores_where_possible(model: nn.Module, batch: Batch) -> Tensor:
    """All rows at once; if that fails, in halves, down to one."""
    rows = len(batch.target)
    try:
        return torch.where(batch.valid, _scores(model, batch), 0.0)
    except (RuntimeError, IndexError):
        if rows == 1:
            return torch.zeros(1, dtype=torch.float64, device=batch.units.device)
    halves = slice(0, rows // 2), slice(rows // 2, rows)
    return torch.cat([_scores_where_possible(model, batch.take(half)) for half in halves])


def _scores(model: nn.Module, batch: Batch) -> Tensor:
    """Inside `vmap` over a batch of one: a score is a function of its own row, whatever the model does."""
    model = original(model)
    values, dtype = {**fixed_values(model), **trained_values(model)}, working_dtype(model)

    def score_of_one(row: tuple[Tensor, ...], label: Tensor, zero: Tensor) -> Tensor:
        with Noting(of_this_pass), OwnInitialState(zero):
            return correctness(functional_call(model, values, tuple(x[None] for x in row)), label[None])[0]

    rows = tuple(x.to(dtype) if x.is_floating_point() else x for x in batch.inputs)
    with evaluating(model), pinned(model), torch.no_grad(), one_pass() as of_this_pass:
        scores: Tensor = vmap(score_of_one)(rows, batch.target, torch.zeros(len(batch.target), device=rows[0].device))
    return scores
