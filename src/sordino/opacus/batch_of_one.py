"""Code that was written for batches of many rows, when it runs on each row as a batch of one.

Without an axis, `squeeze` removes every axis of length one. For a batch of many rows that leaves the axis of rows. For
a single row it would remove it, so here the first axis stays. Outputs that are not tensors, such as the cache of a
language model, cannot be put together from single rows, and are left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map

SQUEEZES = (torch.squeeze, Tensor.squeeze)


def squeezed(input: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    """`torch.squeeze`, which keeps the first axis if no axis is named.

    >>> squeezed(torch.zeros(1, 3, 1)).shape, squeezed(torch.zeros(1, 3, 1), 0).shape
    (torch.Size([1, 3]), torch.Size([3, 1]))
    """
    if args or kwargs or input.ndim == 0:
        return torch.squeeze(input, *args, **kwargs)
    return torch.squeeze(input, tuple(range(1, input.ndim)))


@dataclass(frozen=True)
class Habits:
    """What a model does that a pass over single rows has to treat: `squeeze()` of rows, and other outputs than tensors.

    >>> habits = Habits(squeezes=True, has_other_outputs=False)
    >>> with habits.treated(torch.nn.Linear(2, 1)):
    ...     torch.zeros(1, 3, 1).squeeze().shape
    torch.Size([1, 3])
    """

    squeezes: bool
    has_other_outputs: bool

    @classmethod
    def of(cls, model: nn.Module, run: Callable[[], Any]) -> Habits:
        """Those that `run` shows, which runs the model on a batch of one."""
        with _RowsKept() as kept:
            outputs = tree_leaves(run())
        return cls(kept.was_used, not all(isinstance(x, Tensor) for x in outputs))

    @contextmanager
    def treated(self, model: nn.Module) -> Iterator[None]:
        """Runs a block in which the model treats a batch of one like a batch of many, and returns tensors only."""
        handle = model.register_forward_hook(_tensors_only) if self.has_other_outputs else None
        try:
            with _RowsKept() if self.squeezes else nullcontext():
                yield
        finally:
            if handle is not None:
                handle.remove()


def _tensors_only(model: nn.Module, args: Any, outputs: Any) -> Any:
    return tree_map(lambda x: x if isinstance(x, Tensor) else (), outputs)


class _RowsKept(TorchFunctionMode):
    """Replaces `squeeze()` without an axis by `squeezed`. `was_used` tells whether this made a difference."""

    def __init__(self) -> None:
        super().__init__()
        self.was_used = False

    def __torch_function__(
        self, function: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if function not in SQUEEZES or len(args) != 1 or kwargs:
            return function(*args, **(kwargs or {}))
        self.was_used |= args[0].ndim > 0 and args[0].shape[0] == 1
        return squeezed(args[0])
