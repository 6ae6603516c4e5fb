"""Forward and backward passes of single rows, by plain autograd, and the gradient of each row.

Guarantee: nothing that a pass leaves behind reaches a later one. Attributes of modules are restored after each row. A
model that can read values gets parameters and buffers of its own for each row. A tensor that was computed from a row
and is kept elsewhere is refused when it is used, and values are written only into new tensors (`one_row`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._C._functorch import is_functorch_wrapped_tensor
from torch.func import functional_call
from torch.nn.attention import SDPBackend, sdpa_kernel

from sordino.errors import UsageError
from sordino.gradients.one_row import PassOfOneRow, RowTracker, one_row
from sordino.gradients.row_randomness import RowRandomness, draws_are_equal
from sordino.gradients.torch_state import attributes_kept, original, pinned
from sordino.gradients.vmapped import Objective
from sordino.kernel.records import Batch

try:  # private to torch; if a version has renamed it, operations within a backward pass are not followed
    from torch.autograd.graph import _engine_run_backward

    _engine: Callable[..., object] | None = _engine_run_backward
except ImportError:
    _engine = None


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


class RowPasses:
    """Forward and backward passes of single rows. A row on which the model fails contributes zeros.

    An error that one row causes would reveal that it was drawn. It is raised only if a synthetic row fails too.
    """

    def __init__(
        self,
        model: nn.Module,
        objective: Objective,
        batch: Batch,
        seeds: Tensor,
        autocast: torch.dtype | None,
        runs_together: bool,
    ) -> None:
        self._model, self._objective, self._batch, self._seeds = original(model), objective, batch, seeds
        self._autocast, self._runs_together = autocast, runs_together
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
        model = self._model
        cuda = sorted({p.device.index or 0 for p in model.parameters() if p.is_cuda})
        with ExitStack() as stack:
            self._dtype = stack.enter_context(pinned(model, self._autocast, in_rows=self._runs_together))
            stack.enter_context(torch.random.fork_rng(devices=cuda))
            if self._runs_together:
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
        chosen, seed = self._batch.take(slice(row, row + 1)), int(self._seeds[row])
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
        model, leaves = self._model, tuple(trained.values())
        versions = {name: x._version for name, x in (*trained.items(), *others.items())}
        for leaf in leaves:
            leaf.grad = None  # that of a pass that failed
        torch.default_generator.manual_seed(seed)
        for device in {p.device for p in leaves if p.is_cuda}:
            torch.cuda.default_generators[device.index or 0].manual_seed(seed)
        public = (*leaves, *others.values(), *(self._frozen.values() if self._runs_together else ()))
        with attributes_kept(model), one_row(public) as tensors:
            inputs, target = tuple(_in(x, self._dtype) for x in row.inputs), _in(row.target, self._dtype)
            tensors.own((*inputs, target))
            equal = RowRandomness(self._seeds[:1], refuses=False) if draws_are_equal() else nullcontext()
            lookups = _Lookups(tensors, trained, may_read=not self._runs_together)
            by_name = dict(zip(row.names, inputs, strict=True)) if row.names else {}
            with equal, torch.enable_grad(), lookups:
                loss, usable = self._objective(model(**by_name) if by_name else model(*inputs), target)
            if bool(usable) and loss.requires_grad:
                inside = (*leaves, *lookups.vectors) if self._runs_together else None
                with _gradients_put_back(model, tensors, leaves), equal, torch.enable_grad(), lookups:
                    _run_backward(loss, inside)
            gradients = [_gradient(leaf, lookups.of(name)) for name, leaf in trained.items()]
            del inputs, target, loss, usable, by_name
        if self._runs_together:
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


def formed(gradient: Gradient, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """The gradient as a flat tensor."""
    if isinstance(gradient, Tensor):
        return gradient.detach().flatten()
    dense = torch.zeros(shape, dtype=dtype)
    if gradient is not None:
        dense = dense.to(gradient.vectors.device)
        gradient.added_to(dense, 1.0)
    return dense.flatten()


def _table_gradient(tokens: Tensor, vectors: Tensor) -> TableGradient:
    """One vector per token that occurs: equal tokens add up before they are measured."""
    occurring, places = torch.unique(tokens, return_inverse=True)
    return TableGradient(occurring, vectors.new_zeros(len(occurring), vectors.shape[1]).index_add_(0, places, vectors))


def added(one: Gradient, other: Gradient) -> Gradient:
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
