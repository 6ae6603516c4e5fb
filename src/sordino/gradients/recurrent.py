"""Recurrent layers inside `vmap`: their kernels add into the initial state, which must therefore belong to the row."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor
from torch.overrides import TorchFunctionMode

_RECURRENT = frozenset(f"{kind}{cell}" for kind in ("lstm", "gru", "rnn_tanh", "rnn_relu") for cell in ("", "_cell"))


class OwnInitialState(TorchFunctionMode):
    """While active, the initial state of a recurrent operation is a copy per row. `zero` is a zero of each row.

    The default state is one tensor of zeros shared by all rows, and the kernels add the first step's values in place.
    """

    def __init__(self, zero: Tensor) -> None:
        super().__init__()
        self._zero = zero

    def __torch_function__(
        self, function: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if getattr(function, "__name__", "") not in _RECURRENT:
            return function(*args, **(kwargs or {}))
        return function(args[0], self._owned(args[1]), *args[2:], **(kwargs or {}))

    def _owned(self, state: Any) -> Any:
        if isinstance(state, (tuple, list)):
            return type(state)(self._owned(part) for part in state)
        return state + self._zero.to(state.dtype)
