"""Comparison of the gradients of rows run together with those of rows run alone, for each model before a run.

A rule may be right for the operation as its author knew it, and wrong for the way in which a model uses it. The model
would then train on wrong gradients without a warning: norms and sums would agree with each other, and privacy would
hold. So can a rule of torch's `vmap`, by which all rows run together. So the gradients of a few synthetic rows are also
computed by plain autograd, one row at a time (`loop`), and compared. The result is a function of the model and of
public shapes: no private data is used, nothing is charged, and no global generator changes.

The first comparison of the tape is in double precision, on a copy of the model, where neither rounding in deep networks
nor a kink that rounding crosses looks like a wrong rule. A model that cannot be copied, or has constants in single
precision, is compared in its own precision, and two more pairs of rows are tried before the tape is given up.
"""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from sordino.errors import UsageError
from sordino.gradients.blocks import Block
from sordino.gradients.loop import LoopedGradients
from sordino.gradients.row_passes import Gradient, formed
from sordino.gradients.row_randomness import equal_draws
from sordino.gradients.tape import Survey, TapeUnavailable, record, survey
from sordino.gradients.taped import TapedGradients
from sordino.gradients.torch_state import original, working_dtype
from sordino.gradients.vmapped import Objective, gradients_of_rows
from sordino.kernel.records import Batch
from sordino.kernel.states import Layout

ROWS = 6  # three pairs
TOLERANCE = 1e-3  # in single precision; a wrong rule is wrong by much more
_TOLERANCE_IN_DOUBLE = 1e-5
_ROUNDING_FRACTION = 1e-4  # a parameter's gradient below this fraction of the whole may be rounding error only
_SEED = 20_252

_compared: WeakKeyDictionary[nn.Module, list[Survey]] = WeakKeyDictionary()
_MOST_COMPARED = 64  # surveys of one model; rows of several lengths have one each


@dataclass(frozen=True)
class Agreement:
    """The largest relative difference of the two methods over all parameters, and the parameter that has it."""

    error: float
    parameter: str
    tolerance: float

    @property
    def holds(self) -> bool:
        """Whether the difference is within the tolerance. False for NaN."""
        return self.error <= self.tolerance


def is_compared(model: nn.Module, plan: Survey) -> bool:
    """Whether the tape was compared for this survey. A model that changes what it does gets a new survey."""
    return any(survey is plan for survey in _compared.get(original(model), ()))


def note_compared(model: nn.Module, plan: Survey) -> None:
    """Records that the tape was compared for this survey."""
    surveys = _compared.setdefault(original(model), [])
    del surveys[: 1 - _MOST_COMPARED]
    surveys.append(plan)


def agreement(model: nn.Module, objective: Objective, rows: Batch) -> Agreement | None:
    """Compares the tape with autograd on synthetic `rows`. None if the tape cannot record the model.

    They agree if they do so in one precision for one pair of rows, because a wrong rule is wrong for all of them.
    """
    return _agreement(original(model), objective, rows, _by_tape)


def agreement_of_vmap(model: nn.Module, objective: Objective, rows: Batch) -> Agreement | None:
    """Compares gradients by `vmap` with autograd on synthetic `rows`. None if `vmap` cannot run the model."""
    return _agreement(original(model), objective, rows, _by_vmap)


def _agreement(model: nn.Module, objective: Objective, rows: Batch, method: Method) -> Agreement | None:
    first: Agreement | None = None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns about the model again when a run uses it
        for probe, tolerance in _probes(model, method):
            for start in range(0, len(rows.units) - 1, 2):
                pair_of_rows = replace(rows.take(slice(start, start + 2)), units=torch.arange(2), num_units=2)
                try:
                    pair = _of_pair(probe, objective, pair_of_rows, method, tolerance)
                except UsageError:
                    raise
                except (TapeUnavailable, RuntimeError, IndexError, TypeError, ValueError):
                    break  # the method cannot run the model in this precision
                if pair.holds:
                    return pair
                first = first or pair
    return first


def _probes(model: nn.Module, method: Method) -> Iterator[tuple[nn.Module, float]]:
    """Models to compare, with the tolerance of each: the model itself, and a copy of it in double precision.

    The tape has rules of its own, so it is compared in double precision first. `vmap` has those of torch.
    """
    if working_dtype(model) == torch.float64:
        yield model, _TOLERANCE_IN_DOUBLE
        return
    if method is _by_vmap:
        yield model, TOLERANCE
    try:
        in_double = copy.deepcopy(model).double()
    except Exception:  # a model that cannot be copied may raise any error
        in_double = None
    if in_double is not None:
        yield in_double, _TOLERANCE_IN_DOUBLE
    if method is not _by_vmap:
        yield model, TOLERANCE


def _of_pair(model: nn.Module, objective: Objective, rows: Batch, method: Method, tolerance: float) -> Agreement:
    """Compares a pair of rows at the model's weights, and at synthetic ones if a gradient vanishes at these."""
    errors = _errors(model, objective, rows, method)
    unknown = {name for name, error in errors.items() if math.isnan(error)}
    if unknown:
        with at_synthetic_weights(model):
            others = _errors(model, objective, rows, method)
        errors = {
            name: max(0.0 if name in unknown else error, 0.0 if math.isnan(others[name]) else others[name])
            for name, error in errors.items()
        }
    name, error = max(errors.items(), key=lambda item: item[1])
    return Agreement(error, name, tolerance)


def _errors(model: nn.Module, objective: Objective, rows: Batch, method: Method) -> dict[str, float]:
    """The relative difference by parameter. NaN if it cannot be known, because the gradients vanish or overflow.

    One parameter after the other is compared, because a table of tokens has large gradients.
    """
    seeds, layout = rows.units, Layout.of(model)
    lengths, distances = (torch.zeros(len(seeds), len(layout.names), dtype=torch.float64) for _ in range(2))
    units = iter(range(len(seeds)))

    def compare(each: list[Gradient]) -> None:
        unit = next(units)
        for p, (gradient, found, shape) in enumerate(zip(each, gradients, layout.shapes, strict=True)):
            expected = formed(gradient, shape, found.dtype)
            lengths[unit, p] = expected.norm(dtype=torch.float64)
            distances[unit, p] = (found.of_unit(unit) - expected).norm(dtype=torch.float64)

    with equal_draws():
        gradients, usable = method(model, objective, rows, seeds)
        LoopedGradients(model, objective, rows, seeds, layout).for_each_unit(compare)
    compared = usable.cpu() & lengths.isfinite().all(dim=1)
    sizes, apart = lengths[compared].norm(dim=0), distances[compared].norm(dim=0)
    smallest = _ROUNDING_FRACTION * sizes.norm()
    return {
        name: _error(distance, size, smallest) for name, distance, size in zip(layout.names, apart, sizes, strict=True)
    }


@dataclass(frozen=True, repr=False)
class Formed:
    """The gradients of all rows by one parameter. `of_unit(r)` forms that of row `r`, flattened."""

    dtype: torch.dtype
    of_unit: Callable[[int], Tensor]


Method = Callable[[nn.Module, Objective, Batch, Tensor], tuple[list[Formed], Tensor]]


def _by_tape(model: nn.Module, objective: Objective, rows: Batch, seeds: Tensor) -> tuple[list[Formed], Tensor]:
    plan = survey(model, tuple(x[:1] for x in rows.inputs), names=rows.names)
    tape = record(model, objective, rows.inputs, rows.target, seeds, plan)
    taped = TapedGradients.of(tape, tape.usable, [1] * len(seeds), Layout.of(model))

    def of_unit(block: Block, unit: int) -> Tensor:
        return block.take(slice(unit, unit + 1)).dense()[0]

    return [Formed(tape.dtype, partial(of_unit, block)) for block in taped.blocks], tape.usable


def _by_vmap(model: nn.Module, objective: Objective, rows: Batch, seeds: Tensor) -> tuple[list[Formed], Tensor]:
    gradients, usable = gradients_of_rows(model, objective, rows.inputs, rows.target, seeds, names=rows.names)

    def of_unit(gradient: Tensor, unit: int) -> Tensor:
        return gradient.detach()[unit].flatten()

    return [Formed(gradient.dtype, partial(of_unit, gradient)) for gradient in gradients], usable


def _error(distance: Tensor, size: Tensor, smallest: Tensor) -> float:
    difference = float(distance / torch.maximum(size, smallest).clamp(min=1e-300))
    if not math.isfinite(difference):
        return math.inf
    return math.nan if size <= smallest and difference <= _TOLERANCE_IN_DOUBLE else difference


@contextmanager
def at_synthetic_weights(model: nn.Module) -> Iterator[None]:
    """Replaces all weights and saved buffers by synthetic values for a while. Restores the model bit for bit."""
    tensors, generator = _saved_tensors(model), torch.Generator().manual_seed(_SEED)
    originals = [tensor.clone() for tensor in tensors]
    try:
        for tensor in tensors:
            tensor.copy_(_synthetic_weights(tensor, generator))
        yield
    finally:
        for tensor, before in zip(tensors, originals, strict=True):
            tensor.copy_(before)


def _saved_tensors(model: nn.Module) -> list[Tensor]:
    """The floating-point parameters and saved buffers, detached, each tensor once even if it has several names."""
    saved = model.state_dict().keys()
    buffers = [buffer for name, buffer in model.named_buffers() if name in saved]
    return [tensor.detach() for tensor in (*model.parameters(), *buffers) if _can_be_replaced(tensor)]


def _can_be_replaced(tensor: Tensor) -> bool:
    return tensor.is_floating_point() and tensor.layout == torch.strided


def _synthetic_weights(like: Tensor, generator: torch.Generator) -> Tensor:
    """Weights with which activations neither vanish nor overflow. Vectors are positive, as they may be variances."""
    if like.ndim < 2:
        return 0.5 + torch.rand(like.shape, generator=generator)
    inputs = math.prod(like.shape[1:])
    return torch.randn(like.shape, generator=generator) / math.sqrt(max(1, inputs))
