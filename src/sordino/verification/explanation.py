"""`explain`: how the gradients of a model are computed, layer by layer, why, and what a step costs.

Rows are synthetic, with the public shape of the data. A result is a function of the model and of that shape, except for
the measured time.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum
from math import prod
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from sordino.gradients.loop import is_faster_alone, why_alone
from sordino.gradients.probes import one_line
from sordino.gradients.tape import Survey, TapeUnavailable, survey, why_given_up
from sordino.gradients.torch_state import call, device_of, original, pinned, working_dtype
from sordino.gradients.transformers_settings import transformers_model
from sordino.gradients.views import parameter_of
from sordino.kernel.clipping import ClipByNorm
from sordino.kernel.contribution import LossGradient
from sordino.kernel.micro_batches import MEMORY_MIB
from sordino.kernel.records import Batch, Data, Records
from sordino.training.fit import records_for

_MOST_ROWS_TIMED = 8
_REPEATS = 3


class GradientMethod(Enum):
    """How the gradients of a layer are computed.

    `TAPED`: from a pass of many rows. `DIRECT`: likewise, with a copy of the parameter for each row. `ROW_BY_ROW`: a
    matrix with one gradient per row. `LOOP`: by a pass of each row alone, whose gradient is added at once.
    """

    TAPED = "taped"
    DIRECT = "direct"
    ROW_BY_ROW = "row by row"
    LOOP = "loop"


@dataclass(frozen=True)
class ExplainedLayer:
    """The trained parameters of one layer, or of `layers` equal ones, and how their gradients are computed.

    `bytes_per_row` is the memory of what is recorded, or of the copies and gradients that each row has.
    """

    name: str
    kind: str
    method: GradientMethod
    why: str
    trained: int
    bytes_per_row: int
    layers: int = 1


@dataclass(frozen=True)
class Explanation:
    """How the gradients of a model are computed. Printed, it is a table with equal layers in one line.

    `bytes_per_row` is the memory that a micro-batch needs for each row. `relative_cost` is the time of clipped
    gradients of `rows_timed` rows, divided by that of a forward and backward pass of plain PyTorch.
    """

    layers: tuple[ExplainedLayer, ...]
    bytes_per_row: int
    relative_cost: float
    rows_timed: int

    @property
    def taped_share(self) -> float:
        """The share of trained numbers whose gradients are taped."""
        taped = sum(layer.trained for layer in self.layers if layer.method is GradientMethod.TAPED)
        return taped / max(1, sum(layer.trained for layer in self.layers))

    def __str__(self) -> str:
        header = ("layer", "class", "trained", "gradients", "KiB/row", "why")
        rows = [header, *map(_columns, _with_equal_layers_joined(self.layers))]
        widths = [max(len(row[place]) for row in rows) for place in range(len(header) - 1)]
        lines = [
            "  ".join([*(x.ljust(w) for x, w in zip(row, widths, strict=False)), row[-1]]).rstrip() for row in rows
        ]
        mib = self.bytes_per_row / 2**20
        return "\n".join(
            [
                *lines,
                f"{self.taped_share:.1%} of the trained numbers are taped. A row takes {mib:.1f} MiB of a micro-batch.",
                f"Clipped gradients of {self.rows_timed} rows take {self.relative_cost:.1f} times as long as plain "
                "training.",
            ]
        )


def explain(
    model: nn.Module, data: Data, loss: Callable[..., Tensor] | None = None, *, autocast: torch.dtype | None = None
) -> Explanation:
    """Explains how the gradients of `model` are computed for rows like `data`, and measures what they cost.

    `loss` is that of `fit`: by default the loss of the task of a transformer, or cross-entropy. A model that cannot be
    used is refused as in `fit`.

    >>> network = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))
    >>> found = explain(network, (torch.zeros(9, 4), torch.zeros(9, dtype=torch.int64)))
    >>> [(layer.name, str(layer.method.value), layer.trained) for layer in found.layers]
    [('0', 'taped', 40), ('2', 'taped', 27)]
    """
    records = records_for(model, data)
    contribution = LossGradient(_loss(model, records) if loss is None else loss, autocast)
    contribution.check(model, records)
    row = records.template(1).to(device_of(model))
    alone = why_alone(model)
    try:
        found, reason = survey(model, row.inputs, autocast, row.names), ""
    except TapeUnavailable:
        found, reason = None, why_given_up(model) or "the tape cannot record the model"
    except (RuntimeError, IndexError) as error:
        found, reason = None, one_line(error)
    if alone is None and found is not None and is_faster_alone(found, device_of(model)):
        alone = f"a row takes {found.bytes_per_row >> 20} MiB: it is run alone, in less memory"
    bytes_per_row = contribution.bytes_per_row(model, records)
    number = max(1, min(_MOST_ROWS_TIMED, (MEMORY_MIB << 20) // max(1, bytes_per_row)))
    rows = records.template(number).to(device_of(model))
    private = _seconds(lambda: ClipByNorm(1.0)(contribution.of(model, rows, rows.units)))
    plain = _seconds(lambda: _plain_pass(model, rows, autocast))
    layers = _layers(original(model), found, reason, alone)
    return Explanation(layers, bytes_per_row, private / plain, number)


def _loss(model: nn.Module, records: Records) -> Callable[..., Tensor]:
    if transformers_model(model) is None:
        return F.cross_entropy
    from sordino import huggingface

    return huggingface.loss_for(model, records)


def _layers(model: nn.Module, found: Survey | None, reason: str, alone: str | None) -> tuple[ExplainedLayer, ...]:
    """One entry for each layer with trained parameters, in the order of the model; two if its parameters differ.

    `reason` says why nothing was recorded (`found` is None), and `alone` why rows are run one at a time.
    """
    modules, itemsize = dict(model.named_modules()), working_dtype(model).itemsize
    layers: dict[tuple[str, GradientMethod, str], ExplainedLayer] = {}
    recorded = _bytes_of_uses(found if alone is None else None)
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue
        method, why = _method(name, found, reason) if alone is None else (GradientMethod.LOOP, alone)
        bytes_per_row = _COPIES[method] * parameter.numel() * itemsize + recorded.get(name, 0)
        layer = name.rpartition(".")[0]
        key = layer, method, why
        before = layers.get(key) or ExplainedLayer(layer or "(model)", type(modules[layer]).__name__, method, why, 0, 0)
        trained, bytes_per_row = before.trained + parameter.numel(), before.bytes_per_row + bytes_per_row
        layers[key] = replace(before, trained=trained, bytes_per_row=bytes_per_row)
    return tuple(layers.values())


def _method(name: str, found: Survey | None, reason: str) -> tuple[GradientMethod, str]:
    if found is None:
        return GradientMethod.ROW_BY_ROW, reason
    if name not in found.direct:
        return GradientMethod.TAPED, ""
    operation = dict(zip(found.direct, found.because, strict=True))[name]
    why = f"{operation!r} has no rule: each row has a copy" if operation else "no operation uses it"
    return GradientMethod.DIRECT, why


# Gradients of the size of a parameter that each row of a micro-batch holds.
_COPIES = {GradientMethod.TAPED: 0, GradientMethod.DIRECT: 1, GradientMethod.ROW_BY_ROW: 3, GradientMethod.LOOP: 0}


def _bytes_of_uses(found: Survey | None) -> dict[str, int]:
    """Bytes of the recorded output gradients, by the first trained parameter of each use."""
    sizes: dict[str, int] = {}
    for use in () if found is None else found.uses:
        name = parameter_of(next(name for name in use.rule.names if name))
        sizes[name] = sizes.get(name, 0) + prod(use.tagged_shape) * use.tagged_dtype.itemsize
    return sizes


def _plain_pass(model: nn.Module, rows: Batch, autocast: torch.dtype | None) -> None:
    """A forward and backward pass of all rows together. The loss is a sum of outputs, which costs next to nothing."""
    model = original(model)
    with pinned(model, autocast) as dtype, torch.enable_grad():
        inputs = tuple(x.to(dtype) if x.is_floating_point() else x for x in rows.inputs)
        leaves: list[Any] = tree_leaves(call(model, {}, inputs, rows.names))
        outputs = [x for x in leaves if isinstance(x, Tensor) and x.requires_grad]
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        before = [parameter.grad for parameter in trained]
        for parameter in trained:
            parameter.grad = None
        torch.autograd.backward(torch.stack([x.sum() for x in outputs]).sum())  # re-entrant checkpoints need it
        for parameter, gradient in zip(trained, before, strict=True):
            parameter.grad = gradient


def _seconds(run: Callable[[], object]) -> float:
    """The shortest time of a few runs, after one that does not count."""
    run()
    times = []
    for _ in range(_REPEATS):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return min(times)


def _with_equal_layers_joined(layers: tuple[ExplainedLayer, ...]) -> list[ExplainedLayer]:
    """Layers whose names differ in a number, and which are treated alike, as one entry."""
    joined: dict[tuple[object, ...], ExplainedLayer] = {}
    for layer in layers:
        name = re.sub(r"(?<=\.)\d+(?=\.)", "*", layer.name)
        key = name, layer.kind, layer.method, layer.why
        before = joined.get(key)
        joined[key] = replace(
            layer,
            name=layer.name if before is None else name,
            trained=layer.trained + (before.trained if before else 0),
            bytes_per_row=layer.bytes_per_row + (before.bytes_per_row if before else 0),
            layers=layer.layers + (before.layers if before else 0),
        )
    return list(joined.values())


def _columns(layer: ExplainedLayer) -> tuple[str, ...]:
    name = layer.name if layer.layers == 1 else f"{layer.name} ({layer.layers})"
    return name, layer.kind, f"{layer.trained:,}", layer.method.value, f"{layer.bytes_per_row / 1024:.1f}", layer.why
