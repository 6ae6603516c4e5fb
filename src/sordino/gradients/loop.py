"""Gradients of one example at a time: a plain forward and backward pass for each row, clipped and added at once.

Any model that runs on a batch of one has such gradients, whatever `vmap` and the tape can do with it: branches on
values, indices by `nonzero`, packed sequences, `torch.autograd.grad` inside `forward`. One gradient is in memory at a
time. The passes use the kernels of plain training, so a model whose rows are large enough is trained fastest this way.

Guarantee: a row's gradient is computed by a pass of that row alone (`row_passes`). A model that can run on many rows
together reads no values; here it is refused if it does. One that cannot may take a number from a row and keep it in a
global variable, which is not seen: `RUNS_ALONE` says so.

Terms of the sum are the values whose norm was computed, as float32 numbers, added up one after the other in groups of
`rounding.TOGETHER`. So the theorem in `rounding` holds with `ROWS_ERROR` and no `PLACES_ERROR`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice
from weakref import WeakKeyDictionary, WeakSet

import torch
from torch import Tensor, nn

from sordino.errors import UsageError
from sordino.gradients.norms import VALUES_AT_A_TIME
from sordino.gradients.one_pass import OneRowAtATimeOnly
from sordino.gradients.rounding import TOGETHER, groups
from sordino.gradients.row_passes import Gradient, RowPasses, TableGradient, added
from sordino.gradients.rules import RegisteredLayerUse
from sordino.gradients.tape import Survey
from sordino.gradients.torch_state import in_full_precision, original
from sordino.gradients.vmapped import Objective
from sordino.kernel.records import Batch
from sordino.kernel.states import Layout, WeightsOf, add_, by_block

RUNS_ALONE = (
    "the model, which runs on one example at a time, does not carry values of an example to later ones (its tensors, "
    "buffers and attributes are checked or restored; other ways, such as numbers in global variables, are not seen)"
)

# Bytes that one row takes on the tape: activations, output gradients and copies of parameters. Chosen by measurements
# of transformers and convolutional networks on a CPU (docs/gradients.md). Above the first, the loop saves memory;
# above the pair below, it saves time.
_LARGE_ROW = 64 << 20
_LARGE_ROW_OF_LARGE_TENSORS, _LARGE_TENSOR = 8 << 20, 448 << 10
_LARGE_COPIES = 1 << 20  # bytes of parameters of which each row would have a copy and a gradient in memory
_ORDER_TOLERANCE = 1e-4  # of gradients; some kernels round by the address of a tensor
_together: WeakSet[nn.Module] = WeakSet()
_reasons: WeakKeyDictionary[nn.Module, str] = WeakKeyDictionary()


def run_alone(model: nn.Module, reason: str) -> None:
    """Notes that the rows of this model can only be run one at a time."""
    _reasons[original(model)] = reason


def note_together(model: nn.Module) -> None:
    """Notes that rows of this model were run together on synthetic rows, as alone."""
    _together.add(original(model))


def is_known_together(model: nn.Module) -> bool:
    """Whether rows of this model were run together on synthetic rows."""
    return original(model) in _together


def why_alone(model: nn.Module) -> str | None:
    """The reason why the rows of this model can only be run one at a time, or None."""
    return _reasons.get(original(model))


_REASONS = {
    ".item() on a Tensor": "it branches on values, or takes a number from a tensor",
    "dynamic shape": "the shapes of its tensors depend on values",
    "inplace arithmetic": "it writes values of an example into a tensor that it made without them",
    "randomness on an unbatched tensor": "it draws into a tensor that all examples share",
    "setup_context": "it has an autograd.Function without setup_context",
    "vmap staticmethod": "it has an autograd.Function without a rule for many examples",
    "saved tensor hooks": "it uses checkpoints of activations",
    "requires_grad_()": "it differentiates in its forward pass",
    "torch.autograd.grad": "it differentiates in its forward pass",
    "does not require grad": "it differentiates in its forward pass",
    "Sparse": "it has sparse tensors",
}


def why_not_together(error: Exception) -> str:
    """The reason why rows cannot be run together, from the error of such a pass on synthetic rows."""
    if isinstance(error, OneRowAtATimeOnly):
        return str(error).partition(":")[0].partition(", which")[0]
    text = str(error)
    return next((why for part, why in _REASONS.items() if part in text), "an operation has no rule for many examples")


def is_faster_alone(plan: Survey, device: torch.device) -> bool:
    """Whether a pass of one row is so much work that plain kernels on it are as fast as a tape of many rows.

    It then takes less memory, too. The rule depends on shapes only, and not on a measurement: the path decides how a
    sum is rounded, and a run that is continued must round as before.
    """
    has_own_rule = any(isinstance(use.rule, RegisteredLayerUse) for use in plan.uses)
    large_tensors = plan.bytes_per_row >= max(_LARGE_ROW_OF_LARGE_TENSORS, _LARGE_TENSOR * plan.tensors_made)
    is_large = plan.bytes_per_row >= _LARGE_ROW or large_tensors or plan.bytes_of_copies >= _LARGE_COPIES
    return is_large and device.type == "cpu" and not has_own_rule


def rows_are_large(layout: Layout, dtype: torch.dtype, device: torch.device) -> bool:
    """Whether gradients are too large for a matrix with one row per example, for a model that has no tape."""
    return layout.size * dtype.itemsize >= _LARGE_COPIES and device.type == "cpu"


def check_alone(model: nn.Module, objective: Objective, rows: Batch, autocast: torch.dtype | None) -> None:
    """Refuses a model whose rows cannot be run one at a time either, or for which their order matters."""
    layout = Layout.of(model)

    def gradients_in(order: list[int]) -> Tensor:
        """The gradients of synthetic rows, computed in this order."""
        units, chosen = torch.arange(len(order)), torch.tensor(order)
        inputs = tuple(x[chosen] for x in rows.inputs)
        valid = torch.ones(len(order), dtype=torch.bool)
        ordered = Batch(inputs, rows.target[chosen], valid, units, len(order), rows.names)
        looped = LoopedGradients(model, objective, ordered, chosen, layout, autocast)
        return torch.cat(list(looped.rows(len(order)))).nan_to_num()

    one, other, again = gradients_in([0, 1, 0])
    expected, found = torch.stack([one, other, one]), torch.cat([again[None], gradients_in([1, 0])])
    if float((expected - found).norm()) > _ORDER_TOLERANCE * float(expected.norm()):
        raise UsageError(
            "the model gives other gradients if its examples come in another order: it keeps something of an example "
            "for later ones. Compute each output from its own example."
        )


@dataclass(frozen=True, repr=False)
class LoopedGradients:
    """The `PerExample` of a loop over rows: each method runs the model again on each row of each unit.

    Guarantee: row `b` of each result is a function of the rows of unit `b`, their seeds and the parameters.
    """

    model: nn.Module
    objective: Objective
    batch: Batch
    seeds: Tensor
    layout: Layout
    autocast: torch.dtype | None = None
    # Whether the model can be run on many rows as well. It may then use torch's fused kernels of attention, which
    # cannot be differentiated twice, and it may not read values of a row: on synthetic rows together it did not.
    runs_together: bool = False
    keep: Tensor | None = None

    def squared_norms(self) -> Tensor:
        squares: list[Tensor] = []
        self.for_each_unit(lambda each: squares.append(self._squares(each)))
        return torch.stack(squares) if squares else self._no_squares()

    def weighted_sum(self, weights: Tensor) -> Tensor:
        total, of_units = _Total.zeros(self.layout, self._like, torch.float64), iter(by_block(weights, self.layout))
        self.for_each_unit(lambda each: total.add_unit(each, next(of_units)))
        return total.flat

    def sum_weighted_by(self, weights_of: WeightsOf, bound: float = 0.0) -> tuple[Tensor, Tensor]:
        """The weighted sum for weights that are a function of squared norms, and the weights. See `PerExample`.

        Each gradient is measured, weighted and added before the next one is computed.
        """
        total, weights = _Total.zeros(self.layout, self._like), [by_block(weights_of(self._no_squares()), self.layout)]
        exact = torch.zeros(0, dtype=torch.float64)
        later = iter([group.start for group in groups(self.batch.num_units, TOGETHER)][1:])
        ends = next(later, -1)

        def add(each: Sequence[Gradient]) -> None:
            nonlocal exact, ends
            if len(weights) - 1 == ends:
                exact, ends = add_(exact, total.flat) if len(exact) else total.flat.double(), next(later, -1)
                total.flat.zero_()
            weights.append(by_block(weights_of(self._squares(each)[None]), self.layout))
            total.add_unit(each, weights[-1][0])

        self.for_each_unit(add)
        return add_(exact, total.flat) if len(exact) else total.flat, torch.cat(weights)

    def masked(self, keep: Tensor) -> LoopedGradients:
        return replace(self, keep=keep if self.keep is None else self.keep & keep)

    def rows(self, chunk: int) -> Iterator[Tensor]:
        matrix = torch.zeros(self.batch.num_units, self.layout.size, dtype=self._like.dtype, device=self._like.device)
        rows, ones = iter(matrix), torch.ones(len(self.layout.sizes))
        self.for_each_unit(lambda each: _Total.of(next(rows), self.layout).add_unit(each, ones))
        yield from torch.split(matrix, chunk)

    @property
    def _like(self) -> Tensor:
        return next(p for p in self.model.parameters() if p.requires_grad)

    def _squares(self, each: Sequence[Gradient]) -> Tensor:
        """Squared norms of the gradient of one unit, shape (p,)."""
        lengths = [_length(gradient) for gradient in each]
        return torch.stack([self._no_length if length is None else length for length in lengths]).double().square_()

    @cached_property
    def _no_length(self) -> Tensor:
        return torch.zeros((), dtype=torch.float64, device=self.seeds.device)

    def _no_squares(self) -> Tensor:
        return torch.zeros(0, len(self.layout.sizes), dtype=torch.float64, device=self.seeds.device)

    def for_each_unit(self, use: Callable[[list[Gradient]], None]) -> None:
        """Calls `use` with the gradient of each unit, one tensor per parameter, while only this one is in memory."""
        order = iter(self.batch.units.argsort(stable=True).tolist())
        rows_of_units = torch.bincount(self.batch.units, minlength=self.batch.num_units).tolist()
        valid = self.batch.valid.tolist()
        use = _in_plain_precision(use)

        def run_all(gradient_of: Callable[[int], list[Gradient]]) -> None:
            for rows in rows_of_units:
                found = [gradient_of(row) for row in islice(order, rows) if valid[row]]
                total: list[Gradient] = found[0] if found else [None] * len(self.layout.names)
                for other in found[1:]:
                    total = [added(a, b) for a, b in zip(total, other, strict=True)]
                use(total if self.keep is None else self._kept(total))

        RowPasses(self.model, self.objective, self.batch, self.seeds, self.autocast, self.runs_together).run(run_all)

    def _kept(self, each: list[Gradient]) -> list[Gradient]:
        """The gradients with zeros where `keep` is False."""
        assert self.keep is not None
        kept: list[Gradient] = []
        for part, shape, gradient in zip(
            torch.split(self.keep, list(self.layout.sizes)), self.layout.shapes, each, strict=True
        ):
            keep = part.view(shape)
            if isinstance(gradient, TableGradient):
                kept.append(replace(gradient, vectors=torch.where(keep[gradient.tokens], gradient.vectors, 0.0)))
            else:
                kept.append(None if gradient is None else torch.where(keep, gradient, 0.0))
        return kept


@dataclass(frozen=True, repr=False)
class _Total:
    """A flat sum, and its parts by parameter, which are views."""

    flat: Tensor
    parts: tuple[Tensor, ...]

    @classmethod
    def of(cls, flat: Tensor, layout: Layout) -> _Total:
        parts = torch.split(flat, list(layout.sizes))
        return cls(flat, tuple(part.view(shape) for part, shape in zip(parts, layout.shapes, strict=True)))

    @classmethod
    def zeros(cls, layout: Layout, like: Tensor, dtype: torch.dtype | None = None) -> _Total:
        return cls.of(torch.zeros(layout.size, dtype=dtype or like.dtype, device=like.device), layout)

    def add_unit(self, each: Sequence[Gradient], weights: Tensor) -> None:
        """Adds one unit. A unit of weight zero is absent: its gradient may not be finite, so it is left out."""
        for part, gradient, weight in zip(self.parts, each, weights.tolist(), strict=True):
            if gradient is None or weight == 0.0:
                continue
            if isinstance(gradient, TableGradient):
                gradient.added_to(part, weight)
            else:
                part.add_(gradient, alpha=weight)


def _in_plain_precision(use: Callable[[list[Gradient]], None]) -> Callable[[list[Gradient]], None]:
    """`use` without autocast and without a graph, for norms and sums between two passes."""

    @in_full_precision
    def used(each: list[Gradient]) -> None:
        with torch.no_grad():
            use(each)

    return used


def _length(gradient: Gradient) -> Tensor | None:
    """The norm of a gradient, a scalar, from float32 norms of short chunks (see `norms.squared_norms`)."""
    if gradient is None:
        return None
    values = (gradient.vectors if isinstance(gradient, TableGradient) else gradient).reshape(-1)
    whole = len(values) - len(values) % VALUES_AT_A_TIME
    if not whole:
        length: Tensor = torch.linalg.vector_norm(values)
        return length.double()
    chunks = torch.linalg.vector_norm(values[:whole].view(-1, VALUES_AT_A_TIME), dim=1)
    if whole < len(values):
        chunks = torch.cat([chunks, torch.linalg.vector_norm(values[whole:])[None]])
    length = torch.linalg.vector_norm(chunks, dtype=torch.float64)
    return length
