"""The rows of a batch that a script has at a time, in groups of equal shapes, and their forward passes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from sordino.kernel.records import Batch
from sordino.opacus.collated import Form
from sordino.opacus.nodes import Column, IssuedBatch, Output, Untraceable
from sordino.opacus.passes import ForwardPass
from sordino.opacus.row_program import RowProgram
from sordino.opacus.traced import Trace, TracedTensor


def columns_of(batch: Batch) -> tuple[Tensor, ...]:
    """The tensors of a batch as the script gets them: inputs, then target."""
    return (*batch.inputs, batch.target)


def with_columns(batch: Batch, columns: tuple[Tensor, ...]) -> Batch:
    """The batch with other tensors in place of its inputs and target."""
    return replace(batch, inputs=columns[:-1], target=columns[-1])


@dataclass(frozen=True, repr=False)
class ShapeGroup:
    """Rows of one shape, which pass through the model together. `places` are their places in the part."""

    batch: Batch
    seeds: Tensor
    places: Tensor


@dataclass(frozen=True, repr=False)
class Passed:
    """A forward pass of the script: by group, or None for a group of a shape on which the model fails."""

    groups: list[tuple[ShapeGroup, ForwardPass | None]]
    inputs: list[RowProgram]
    names: tuple[str, ...]
    model_constants: Any


class Part:
    """The rows of the current part of a batch. The script gets copies, so it cannot change what the kernel uses."""

    def __init__(self, batch: Batch, seeds: Tensor, form: Form) -> None:
        self.groups = list(_groups(batch, seeds, form))
        self.batch, self.seeds, self._form = without_sizes(batch, form), seeds, form
        self.passes: dict[object, Passed] = {}
        self.is_added = False
        self.issued = IssuedBatch()

    def issue(self, trace: Trace) -> Any:
        """The batch in the form in which the script's loader would give it."""
        own_sizes = zip(columns_of(self.batch), self._form.own_sizes, strict=True)
        leaves = [
            (x, Column(self.issued, place, x.to("meta"), frozenset(axis + 1 for axis in own)))
            for place, (x, own) in enumerate(own_sizes)
        ]
        return self._form.batch_of([TracedTensor.of(x.clone(), leaf, trace) for x, leaf in leaves])

    def add(self, passed: Passed, public: ForwardPass, trace: Trace) -> Any:
        """Keeps a forward pass, and returns the outputs of all rows, in their order. `public` is a pass of no rows."""
        origin = object()
        self.passes[origin] = passed
        outputs = []
        for place, like in enumerate(public.outputs):
            values = like.new_zeros((len(self.seeds), *like.shape[1:]))
            for group, one in passed.groups:
                if one is not None:
                    values[group.places] = one.outputs[place]
            is_number = place in public.numbers
            shown = values.mean(0) if is_number else values
            leaf = Output(self.issued, place, shown.to("meta"), origin, is_number)
            outputs.append(TracedTensor.of(shown, leaf, trace))
        return public.spec.unflatten(outputs)

    def made(self, traced: TracedTensor) -> bool:
        """Whether a tensor was computed from these rows and from no others."""
        return not isinstance(traced.node, Untraceable) and traced.node.batch is self.issued


def without_sizes(batch: Batch, form: Form) -> Batch:
    """The batch without the column of sizes, which a script does not see."""
    return replace(batch, inputs=batch.inputs[:-1]) if form.is_ragged else batch


def _groups(batch: Batch, seeds: Tensor, form: Form) -> Iterator[ShapeGroup]:
    rows = torch.arange(len(seeds), device=seeds.device)
    if not form.is_ragged or len(rows) == 0:
        yield ShapeGroup(without_sizes(batch, form), seeds, rows)
        return
    public = torch.tensor(form.public_sizes, device=seeds.device)
    sizes = torch.where(batch.valid[:, None], batch.inputs[-1], public)  # a row that is not usable has no sizes
    columns = columns_of(without_sizes(batch, form))
    kinds, kind_of_row = torch.unique(sizes, dim=0, return_inverse=True)
    for kind, own in enumerate(kinds.tolist()):
        places = (kind_of_row == kind).nonzero()[:, 0]
        cut = [x[places] for x in columns]
        for (column, axis), size in zip(form.ragged_axes, own, strict=True):
            cut[column] = cut[column].narrow(axis + 1, 0, size)
        group = replace(batch, valid=batch.valid[places], units=torch.arange(len(places)), num_units=len(places))
        yield ShapeGroup(with_columns(group, tuple(x.contiguous() for x in cut)), seeds[places], places)
