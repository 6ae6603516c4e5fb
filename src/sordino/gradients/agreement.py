"""Whether the tape gives the gradients that autograd gives: compared for every model, before the tape is used for it.

A rule is right for the operation that its author thought of. A model may use the operation in another way, and would
train on wrong gradients without a word: norms and sums would agree with each other, and privacy would hold. So a few
synthetic rows go through both ways, the tape and `vmap`. It is a function of the model and of public shapes: nothing
private is looked at, nothing is charged, and no generator that others use is moved.

Double precision comes first, on a copy of the model: there neither rounding in deep networks nor a kink that rounding
crosses can be taken for a wrong rule. A model that cannot be copied, or has constants in single precision, is compared
as it is; then two other pairs of rows are asked before the tape is given up.
"""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from sordino.errors import UsageError
from sordino.gradients.tape import Survey, TapeUnavailable, record, survey
from sordino.gradients.taped import TapedGradients
from sordino.gradients.torch_state import original, working_dtype
from sordino.gradients.vmapped import Objective, gradients_of_rows
from sordino.kernel.records import Batch
from sordino.kernel.states import Layout

ROWS = 6  # three pairs
TOLERANCE = 1e-3  # in single precision; a wrong rule is wrong by much more
_TOLERANCE_IN_DOUBLE = 1e-5
_SHARE_OF_ROW = 1e-4  # a parameter's gradient smaller than this share of the whole may be nothing but rounding
_SEED = 20_252

_compared: WeakKeyDictionary[nn.Module, Survey] = WeakKeyDictionary()


@dataclass(frozen=True)
class Agreement:
    """The largest relative difference of the two ways, over parameters, and the parameter that has it."""

    error: float
    parameter: str
    tolerance: float

    @property
    def holds(self) -> bool:
        """False for NaN, too."""
        return self.error <= self.tolerance


def is_compared(model: nn.Module, plan: Survey) -> bool:
    """Whether the tape was compared for what the model does now: `plan` is made anew where it does something else."""
    return _compared.get(original(model)) is plan


def note_compared(model: nn.Module, plan: Survey) -> None:
    """From here on `is_compared`."""
    _compared[original(model)] = plan


def agreement(model: nn.Module, objective: Objective, rows: Batch) -> Agreement | None:
    """How well the two ways agree on synthetic `rows`, or None where the tape does not follow the model.

    They agree if they do so in one precision for one pair of rows: a rule that is wrong is wrong for all of them.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what torch has to say of the model, it says when a run uses it
        return _agreement(original(model), objective, rows)


def _agreement(model: nn.Module, objective: Objective, rows: Batch) -> Agreement | None:
    found: Agreement | None = None
    for probe, tolerance in _probes(model):
        for start in range(0, len(rows.units) - 1, 2):
            try:
                pair = _of_pair(probe, objective, rows.take(slice(start, start + 2)), tolerance)
            except UsageError:
                raise
            except (TapeUnavailable, RuntimeError, IndexError, TypeError, ValueError):
                break  # not in this precision
            if pair.holds:
                return pair
            found = found or pair
    return found


def _probes(model: nn.Module) -> Iterator[tuple[nn.Module, float]]:
    if working_dtype(model) != torch.float64:
        try:
            in_double = copy.deepcopy(model).double()
        except Exception:  # a model need not be one that can be copied, and may say so in any way
            in_double = None
        if in_double is not None:
            yield in_double, _TOLERANCE_IN_DOUBLE
        yield model, TOLERANCE
    else:
        yield model, _TOLERANCE_IN_DOUBLE


def _of_pair(model: nn.Module, objective: Objective, rows: Batch, tolerance: float) -> Agreement:
    """At the weights of the model, and where a gradient vanishes there, as below a layer of zeros, at others too."""
    errors = _errors(model, objective, rows)
    if any(math.isnan(error) for error in errors.values()):
        with at_synthetic_weights(model):
            others = _errors(model, objective, rows)
        known = {name: error for name, error in errors.items() if not math.isnan(error)}
        errors = {name: max(known.get(name, 0.0), 0.0 if math.isnan(x) else x) for name, x in others.items()}
    name, error = max(errors.items(), key=lambda item: item[1])
    return Agreement(error, name, tolerance)


def _errors(model: nn.Module, objective: Objective, rows: Batch) -> dict[str, float]:
    """The relative difference by parameter. NaN says that nothing can be seen: the gradients vanish or overflow."""
    seeds, layout = rows.units, Layout.of(model)
    plan = survey(model, tuple(x[:1] for x in rows.inputs))
    tape = record(model, objective, rows.inputs, rows.target, seeds, plan)
    taped = TapedGradients.of(tape, tape.usable, [1] * len(seeds), layout)
    gradients, usable = gradients_of_rows(model, objective, rows.inputs, rows.target, seeds)
    expected = torch.cat([gradient.detach().flatten(1) for gradient in gradients], dim=1).double()
    seen = usable & expected.isfinite().all(dim=1)
    expected, found = expected[seen], torch.cat(list(taped.rows(len(seeds))))[seen].double()
    smallest = _SHARE_OF_ROW * expected.norm()
    ours, theirs = layout.split(found), layout.split(expected)
    return {name: _error(ours[name], theirs[name], smallest) for name in layout.names}


def _error(found: Tensor, expected: Tensor, smallest: Tensor) -> float:
    size = expected.norm()
    difference = float((found - expected).norm() / torch.maximum(size, smallest).clamp(min=1e-300))
    if not math.isfinite(difference):
        return math.inf
    return math.nan if size <= smallest and difference <= _TOLERANCE_IN_DOUBLE else difference


@contextmanager
def at_synthetic_weights(model: nn.Module) -> Iterator[None]:
    """All that a checkpoint restores is made up for a while. The model is left as it was, bit for bit."""
    restored, generator = _restored(model), torch.Generator().manual_seed(_SEED)
    kept = [tensor.clone() for tensor in restored]
    try:
        for tensor in restored:
            tensor.copy_(_made_up(tensor, generator))
        yield
    finally:
        for tensor, before in zip(restored, kept, strict=True):
            tensor.copy_(before)


def _restored(model: nn.Module) -> list[Tensor]:
    """Without gradients, and each tensor once, however many names it has."""
    saved = model.state_dict().keys()
    buffers = [buffer for name, buffer in model.named_buffers() if name in saved]
    return [tensor.detach() for tensor in (*model.parameters(), *buffers) if tensor.is_floating_point()]


def _made_up(like: Tensor, generator: torch.Generator) -> Tensor:
    """Made-up weights that neither vanish nor overflow in a deep network. Vectors may be variances: positive."""
    if like.ndim < 2:
        return 0.5 + torch.rand(like.shape, generator=generator)
    inputs = math.prod(like.shape[1:])
    return torch.randn(like.shape, generator=generator) / math.sqrt(max(1, inputs))
