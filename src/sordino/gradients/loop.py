"""Gradients of one example at a time: a plain forward and backward pass for each row, clipped and added at once.

Any model that runs on a batch of one has such gradients, whatever `vmap` and the tape can do with it: branches on
values, indices by `nonzero`, packed sequences, `torch.autograd.grad` inside `forward`. One gradient is in memory at a
time. The passes use the kernels of plain training, so a model whose rows are large enough is trained fastest this way.

Guarantee: a row's gradient is computed by a forward pass of that row alone. Nothing that a pass leaves behind reaches a
later one: attributes of modules are restored after each row, buffers are copies that are restored if they were changed,
and a tensor that was computed from a row and is kept elsewhere is refused when it is used (`one_row`). A
model that can run on many rows together reads no values; here it is refused if it does. One that cannot may take a
number from a row and keep it in a global variable, which is not seen: `RUNS_ALONE` says so.

Terms of the sum are the values whose norm was computed, as float32 numbers, added up one after the other in groups of
`rounding.TOGETHER`. So the theorem in `rounding` holds with `ROWS_ERROR` and no `PLACES_ERROR`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import islice
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._C._functorch import is_functorch_wrapped_tensor
from torch.func import functional_call
from torch.nn.attention import SDPBackend, sdpa_kernel

from sordino.errors import UsageError
from sordino.gradients.norms import VALUES_AT_A_TIME
from sordino.gradients.one_pass import OneRowAtATimeOnly
from sordino.gradients.one_row import PassOfOneRow, RowTracker, one_row
from sordino.gradients.rounding import TOGETHER, groups
from sordino.gradients.row_randomness import RowRandomness, draws_are_equal
from sordino.gradients.rules import RegisteredLayerUse
from sordino.gradients.tape import Survey
from sordino.gradients.torch_state import attributes_kept, in_full_precision, original, pinned
from sordino.gradients.vmapped import Objective
from sordino.kernel.records import Batch
from sordino.kernel.states import Layout, WeightsOf, add_, by_block

try:  # private to torch; if a version has renamed it, operations within a backward pass are not followed
    from torch.autograd.graph import _engine_run_backward

    _engine: Callable[..., object] | None = _engine_run_backward
except ImportError:
    _engine = None

RUNS_ALONE = (
    "the model, which runs on one example at a time, does not carry values of an example to later ones (its tensors, "
    "buffers and attributes are checked or restored; other ways, such as numbers in global variables, are not seen)"
)

_LARGE_ROW = 64 << 20  # bytes of activations, output gradients and copies of parameters for one row on the tape
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
    is_large = plan.bytes_per_row >= _LARGE_ROW or plan.bytes_of_copies >= _LARGE_COPIES
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


@dataclass(frozen=True)
class Lookup:
    """Vectors that were looked up in an embedding table, with the tokens that they belong to."""

    tokens: Tensor
    vectors: Tensor
    padding: int | None


@dataclass(frozen=True)
class TableGradient:
    """The gradient by an embedding table: one vector for each token that occurs, and zeros elsewhere."""

    tokens: Tensor
    vectors: Tensor

    def added_to(self, total: Tensor, weight: float) -> None:
        total.index_add_(0, self.tokens, self.vectors.to(total.dtype), alpha=weight)


Gradient = Tensor | TableGradient | None  # of one parameter; None stands for zeros


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
        self._for_each_unit(lambda each: squares.append(self._squares(each)))
        return torch.stack(squares) if squares else self._no_squares()

    def weighted_sum(self, weights: Tensor) -> Tensor:
        total, of_units = _Total.zeros(self.layout, self._like, torch.float64), iter(by_block(weights, self.layout))
        self._for_each_unit(lambda each: total.add_unit(each, next(of_units)))
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

        self._for_each_unit(add)
        return add_(exact, total.flat) if len(exact) else total.flat, torch.cat(weights)

    def masked(self, keep: Tensor) -> LoopedGradients:
        return replace(self, keep=keep if self.keep is None else self.keep & keep)

    def rows(self, chunk: int) -> Iterator[Tensor]:
        matrix = torch.zeros(self.batch.num_units, self.layout.size, dtype=self._like.dtype, device=self._like.device)
        rows, ones = iter(matrix), torch.ones(len(self.layout.sizes))
        self._for_each_unit(lambda each: _Total.of(next(rows), self.layout).add_unit(each, ones))
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

    def _for_each_unit(self, use: Callable[[list[Gradient]], None]) -> None:
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
                    total = [_sum(a, b) for a, b in zip(total, other, strict=True)]
                use(total if self.keep is None else self._kept(total))

        RowPasses(self).run(run_all)

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


class RowPasses:
    """Forward and backward passes of single rows. A row on which the model fails contributes zeros.

    An error that one row causes would reveal that it was drawn. It is raised only if a synthetic row fails too.
    """

    def __init__(self, of: LoopedGradients) -> None:
        self._of, self._model = of, original(of.model)
        self._trained = {name: p for name, p in self._model.named_parameters() if p.requires_grad}
        self._frozen = {name: p for name, p in self._model.named_parameters() if not p.requires_grad}
        self._buffers = dict(self._model.named_buffers())
        self._dtype, self._synthetic_works = torch.float32, False

    def run(self, use: Callable[[Callable[[int], list[Gradient]]], None]) -> None:
        """Calls `use` with a function that returns the gradient of a row by each parameter.

        Meanwhile settings of torch are those of a pass. A model that can read values could write them into parameters
        and buffers, so each row has copies of its own. Otherwise one set of leaves, which share the memory of the
        parameters, serves all rows.
        """
        of, model = self._of, self._model
        cuda = sorted({p.device.index or 0 for p in model.parameters() if p.is_cuda})
        with ExitStack() as stack:
            self._dtype = stack.enter_context(pinned(model, of.autocast, in_rows=of.runs_together))
            stack.enter_context(torch.random.fork_rng(devices=cuda))
            if of.runs_together:
                stack.enter_context(sdpa_kernel([SDPBackend.FLASH_ATTENTION, SDPBackend.MATH]))
                trained, others = self._leaves(), self._copies_of_buffers()
                self._with(trained, others, lambda: use(partial(self._gradient_of, shared=(trained, others))))
            else:
                use(self._gradient_of)

    def _leaves(self) -> dict[str, Tensor]:
        return {name: p.detach().requires_grad_() for name, p in self._trained.items()}

    def _copies_of_buffers(self) -> dict[str, Tensor]:
        return {name: x.detach().clone() for name, x in self._buffers.items()}

    def _with(self, trained: dict[str, Tensor], others: dict[str, Tensor], run: Callable[[], None]) -> None:
        """Calls `run` while the model has these tensors. They stay through the backward pass, as checkpoints need."""
        values = {f"inner.{name}": x for name, x in (*trained.items(), *others.items())}
        functional_call(_Around(self._model, run), values)

    def _gradient_of(
        self, row: int, shared: tuple[dict[str, Tensor], dict[str, Tensor]] | None = None
    ) -> list[Gradient]:
        chosen, seed = self._of.batch.take(slice(row, row + 1)), int(self._of.seeds[row])
        try:
            return self._attempt(chosen, seed, shared)
        except Exception:  # code that reads the values of a row may raise anything
            pass
        if not self._synthetic_works:
            self._attempt(chosen.synthetic(), seed, shared)
            self._synthetic_works = True
        return [None] * len(self._trained)

    def _attempt(
        self, row: Batch, seed: int, shared: tuple[dict[str, Tensor], dict[str, Tensor]] | None
    ) -> list[Gradient]:
        if shared is not None:
            return self._passed(row, seed, *shared)
        trained = {name: p.detach().clone().requires_grad_() for name, p in self._trained.items()}
        others = self._copies_of_buffers() | {name: p.detach().clone() for name, p in self._frozen.items()}
        gradients: list[Gradient] = []
        self._with(trained, others, lambda: gradients.extend(self._passed(row, seed, trained, others)))
        return gradients

    def _passed(self, row: Batch, seed: int, trained: dict[str, Tensor], others: dict[str, Tensor]) -> list[Gradient]:
        """Runs one row. Random draws are from the seed of the row, for any operation of torch."""
        of, model, leaves = self._of, self._model, tuple(trained.values())
        versions = {name: x._version for name, x in (*trained.items(), *others.items())}
        for leaf in leaves:
            leaf.grad = None  # that of a pass that failed
        torch.default_generator.manual_seed(seed)
        for device in {p.device for p in leaves if p.is_cuda}:
            torch.cuda.default_generators[device.index or 0].manual_seed(seed)
        public = (*leaves, *others.values(), *(self._frozen.values() if of.runs_together else ()))
        with attributes_kept(model), one_row(public) as tensors:
            inputs, target = tuple(_in(x, self._dtype) for x in row.inputs), _in(row.target, self._dtype)
            tensors.own((*inputs, target))
            equal = RowRandomness(of.seeds[:1], refuses=False) if draws_are_equal() else nullcontext()
            lookups = _Lookups(tensors, trained, may_read=not of.runs_together)
            by_name = dict(zip(row.names, inputs, strict=True)) if row.names else {}
            with equal, torch.enable_grad(), lookups:
                loss, usable = of.objective(model(**by_name) if by_name else model(*inputs), target)
            if bool(usable) and loss.requires_grad:
                inside = (*leaves, *lookups.vectors) if of.runs_together else None
                with _gradients_put_back(model, tensors, leaves), equal, torch.enable_grad(), lookups:
                    _run_backward(loss, inside)
            gradients = [_gradient(leaf, lookups.of(name)) for name, leaf in trained.items()]
            del inputs, target, loss, usable, by_name
        if of.runs_together:
            self._check_versions(versions, trained, others)
        return gradients

    def _check_versions(self, before: dict[str, int], trained: dict[str, Tensor], others: dict[str, Tensor]) -> None:
        """Refuses a model that changed a parameter, and restores buffers that it changed."""
        for name, x in trained.items():
            if x._version != before[name]:
                raise UsageError(f"the model changes its parameter {name!r} in the forward pass: remove that.")
        for name, x in others.items():
            if x._version != before[name]:
                x.detach().copy_(self._buffers[name])


@contextmanager
def _gradients_put_back(model: nn.Module, tensors: PassOfOneRow, leaves: tuple[Tensor, ...]) -> Iterator[None]:
    """Restores the `grad` of all leaves but `leaves` after a backward pass, which may write to any of them."""
    others = [*model.parameters(), *tensors.foreign_leaves.values()]
    others = [x for x in others if not any(x is leaf for leaf in leaves)]
    before = [x.grad for x in others]
    for x in others:
        x.grad = None
    try:
        yield
    finally:
        for x, gradient in zip(others, before, strict=True):
            x.grad = gradient


class _Around(nn.Module):
    """A module that calls a function, so that parameters of the `inner` model can be replaced during the call."""

    def __init__(self, inner: nn.Module, function: Callable[[], None]) -> None:
        super().__init__()
        self.inner, self.function = inner, function

    def forward(self) -> None:
        self.function()


class _Lookups(RowTracker):
    """Takes lookups in trained embedding tables out of the graph: a dense gradient would be as large as the table."""

    def __init__(self, tensors: PassOfOneRow, leaves: dict[str, Tensor], *, may_read: bool) -> None:
        super().__init__(tensors, may_read=may_read)
        self._names, self._found = {id(leaf): name for name, leaf in leaves.items()}, dict[str, list[Lookup]]()

    def carried_out(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if function is F.embedding and torch.is_grad_enabled():
            given = dict(zip(("input", "weight", "padding_idx", "max_norm"), args, strict=False)) | kwargs
            name, tokens = self._names.get(id(given["weight"])), given["input"]
            plain = given.get("max_norm") is None and not given.get("sparse") and not given.get("scale_grad_by_freq")
            if name is not None and plain and not is_functorch_wrapped_tensor(tokens):
                vectors = F.embedding(tokens, given["weight"].detach()).requires_grad_()
                self._found.setdefault(name, []).append(Lookup(tokens, vectors, given.get("padding_idx")))
                return vectors.clone()  # no leaf, so that the model may change it in place
        return super().carried_out(function, args, kwargs)

    @property
    def vectors(self) -> list[Tensor]:
        return [lookup.vectors for lookups in self._found.values() for lookup in lookups]

    def of(self, name: str) -> list[Lookup]:
        return self._found.get(name, [])


def _gradient(leaf: Tensor, lookups: list[Lookup]) -> Gradient:
    """The gradient of one row by one parameter, without a table of zeros if it was only looked up in."""
    dense, leaf.grad = leaf.grad, None
    tokens, vectors = [], []
    for lookup in lookups:
        gradient = lookup.vectors.grad
        if gradient is not None:
            if lookup.padding is not None:
                is_padding = lookup.tokens == lookup.padding % len(leaf)
                gradient = torch.where(is_padding[..., None], 0.0, gradient)
            tokens.append(lookup.tokens.reshape(-1))
            vectors.append(gradient.reshape(-1, leaf.shape[1]).to(leaf.dtype))
    if not tokens:
        return dense
    if dense is not None:
        return dense.index_add_(0, torch.cat(tokens), torch.cat(vectors))
    return _table_gradient(torch.cat(tokens), torch.cat(vectors))


def _table_gradient(tokens: Tensor, vectors: Tensor) -> TableGradient:
    """One vector per token that occurs: equal tokens add up before they are measured."""
    occurring, places = torch.unique(tokens, return_inverse=True)
    return TableGradient(occurring, vectors.new_zeros(len(occurring), vectors.shape[1]).index_add_(0, places, vectors))


def _sum(one: Gradient, other: Gradient) -> Gradient:
    if one is None or other is None:
        return other if one is None else one
    if isinstance(one, TableGradient) and isinstance(other, TableGradient):
        return _table_gradient(torch.cat([one.tokens, other.tokens]), torch.cat([one.vectors, other.vectors]))
    if isinstance(one, TableGradient):
        one, other = other, one
    assert isinstance(one, Tensor)
    if isinstance(other, TableGradient):
        other.added_to(one, 1.0)
        return one
    return one + other


def _run_backward(loss: Tensor, inside: tuple[Tensor, ...] | None) -> None:
    """The backward pass, by the engine itself: within `torch.autograd.backward` no `RowTracker` is active.

    Checkpoints and functions with a backward pass in Python call operations there, which are to be followed, too. Only
    gradients by the tensors `inside` are computed. Without them, gradients are written to all leaves, which a
    re-entrant checkpoint needs: it has leaves that the graph does not show.
    """
    if _engine is None:
        torch.autograd.backward(loss, inputs=None if inside is None else list(inside))
    else:
        ones = torch.ones_like(loss)
        _engine((loss,), (ones,), False, False, inside or (), allow_unreachable=True, accumulate_grad=True)


def _in(x: Tensor, dtype: torch.dtype) -> Tensor:
    """A copy in the model's precision. The model may write to it, and an inference tensor cannot be differentiated."""
    return x.to(dtype, copy=True) if x.is_floating_point() else x.clone()


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
