"""Randomness inside a model, one stream per row: dropout draws from the seed of its example and from nothing else.

A draw is a hash of (seed of the row, number of the draw, position in the row). So an example has the same dropout mask
whatever else is in the micro-batch, and a repeated step draws the same values. The global generator is neither read nor
changed. These draws are not the noise of a release: no guarantee relies on them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from sordino.errors import UsageError
from sordino.gradients.one_pass import OneRowAtATimeOnly

aten = torch.ops.aten

# SplitMix64 (Steele, Lea and Flood 2014), as signed 64-bit integers: torch wraps around on overflow.
_GOLDEN = 0x9E3779B97F4A7C15 - (1 << 64)
_FIRST = 0xBF58476D1CE4E5B9 - (1 << 64)
_SECOND = 0x94D049BB133111EB - (1 << 64)


_one_number: ContextVar[bool] = ContextVar("one_number", default=False)
_THREE_TENTHS = 0x4CCCCCCCCCCCCCCC  # the word of the uniform 0.3: dropout keeps everything if its rate is below 0.7


@contextmanager
def equal_draws() -> Iterator[None]:
    """While active, all uniforms of `RowRandomness` are 0.3.

    So passes can be compared that draw in different order, or numbers of different shapes.
    """
    token = _one_number.set(True)
    try:
        yield
    finally:
        _one_number.reset(token)


def draws_are_equal() -> bool:
    """Whether `equal_draws` is active."""
    return _one_number.get()


class RowRandomness(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch leaves this class untyped
    """While active, random operations whose first axis is the rows draw row `r` from `seeds[r]`; others are refused.

    With `refuses=False`, others draw from the generator of torch. That is for passes outside of `vmap`.

    It acts below `vmap`, which puts its axis first in each random operation. So one rule per operation covers all
    layers that use it (dropout of any kind, attention, Gumbel softmax, stochastic depth).

    >>> with RowRandomness(torch.tensor([7, 8])):
    ...     both = torch.rand(2, 3)
    >>> with RowRandomness(torch.tensor([8])):
    ...     print(torch.equal(torch.rand(1, 3)[0], both[1]))
    True
    """

    def __init__(self, seeds: Tensor, *, refuses: bool = True) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._streams, self._refuses = _mix(seeds), refuses
        self._draws = 0

    def __torch_dispatch__(
        self, operation: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if torch.Tag.nondeterministic_seeded not in operation.tags or operation in _DRAWS_NOTHING:
            return operation(*args, **(kwargs or {}))
        if operation not in _DRAW:
            if not self._refuses:
                return operation(*args, **(kwargs or {}))
            raise OneRowAtATimeOnly(
                f"the random operation {operation.overloadpacket} cannot be drawn separately for each example: "
                "use dropout, torch.rand_like, torch.randn_like or torch.bernoulli, or draw it before training."
            )
        return _DRAW[operation](self, *args, **(kwargs or {}))

    def uniform(self, shape: Sequence[int]) -> Tensor:
        """Uniforms on [0, 1) with 53 bits, float64."""
        return _top_bits(self._words(shape), 53)

    def normal(self, shape: Sequence[int]) -> Tensor:
        """Standard normals by Box and Muller, float64."""
        radius = (-2 * torch.log1p(-self.uniform(shape))).sqrt()
        return radius * (2 * math.pi * self.uniform(shape)).cos()

    def uniform_as(self, shape: Sequence[int], dtype: torch.dtype | None) -> Tensor:
        """Uniforms on [0, 1) in `dtype`, with no more bits than `dtype` has, so that rounding never gives 1."""
        dtype = dtype or torch.get_default_dtype()
        return _top_bits(self._words(shape), min(53, round(-math.log2(torch.finfo(dtype).eps)) + 1)).to(dtype)

    def _words(self, shape: Sequence[int]) -> Tensor:
        if draws_are_equal():
            return torch.full(tuple(shape), _THREE_TENTHS, dtype=torch.int64, device=self._streams.device)
        rows = len(self._streams)
        if len(shape) == 0 or shape[0] != rows:
            raise UsageError(f"a random draw must have the {rows} rows as its first axis, got shape {tuple(shape)}.")
        self._draws += 1
        streams = _mix(self._streams + _wrapped(self._draws * _GOLDEN))
        places = torch.arange(math.prod(shape[1:]), device=streams.device)
        return _mix(streams[:, None] + places * _GOLDEN).reshape(tuple(shape))


def _mix(words: Tensor) -> Tensor:
    """The finaliser of SplitMix64: a bijection of 64-bit words in which every input bit changes half of the output."""
    words = (words ^ _shifted(words, 30)) * _FIRST
    words = (words ^ _shifted(words, 27)) * _SECOND
    return words ^ _shifted(words, 31)


def _shifted(words: Tensor, by: int) -> Tensor:
    return (words >> by) & ((1 << (64 - by)) - 1)  # a right shift of signed integers copies the sign bit


def _wrapped(number: int) -> int:
    return (number + (1 << 63)) % (1 << 64) - (1 << 63)


def _top_bits(words: Tensor, bits: int) -> Tensor:
    return _shifted(words, 64 - bits).to(torch.float64) * 2.0**-bits


def _bernoulli(rows: RowRandomness, like: Tensor, probability: float | Tensor | None = None, **_: object) -> Tensor:
    threshold = like if probability is None else probability
    return (rows.uniform(like.shape) < threshold).to(like.dtype)


def _bernoulli_into(rows: RowRandomness, out: Tensor, probability: float | Tensor = 0.5, **_: object) -> Tensor:
    return out.copy_(rows.uniform(out.shape) < probability)


def _native_dropout(rows: RowRandomness, x: Tensor, p: float, train: bool | None) -> tuple[Tensor, Tensor]:
    if train is False:
        return x.clone(), torch.ones_like(x, dtype=torch.bool)
    keep = rows.uniform(x.shape) < 1 - p
    return torch.where(keep, x / (1 - p) if p < 1 else x, 0.0), keep


def _rand(rows: RowRandomness, size: Sequence[int], dtype: torch.dtype | None = None, **_: object) -> Tensor:
    return rows.uniform_as(size, dtype)


def _randn(rows: RowRandomness, size: Sequence[int], dtype: torch.dtype | None = None, **_: object) -> Tensor:
    return rows.normal(size).to(dtype or torch.get_default_dtype())


def _rand_like(rows: RowRandomness, like: Tensor, dtype: torch.dtype | None = None, **_: object) -> Tensor:
    return rows.uniform_as(like.shape, dtype or like.dtype)


def _randn_like(rows: RowRandomness, like: Tensor, dtype: torch.dtype | None = None, **_: object) -> Tensor:
    return rows.normal(like.shape).to(dtype or like.dtype)


def _uniform_into(rows: RowRandomness, out: Tensor, low: float = 0.0, high: float = 1.0, **_: object) -> Tensor:
    return out.copy_(low + (high - low) * rows.uniform_as(out.shape, out.dtype))


def _normal_into(rows: RowRandomness, out: Tensor, mean: float = 0.0, std: float = 1.0, **_: object) -> Tensor:
    return out.copy_(mean + std * rows.normal(out.shape))


def _exponential_into(rows: RowRandomness, out: Tensor, rate: float = 1.0, **_: object) -> Tensor:
    return out.copy_(-torch.log1p(-rows.uniform(out.shape)) / rate)


_DRAW: dict[Any, Callable[..., Any]] = {
    aten.bernoulli.default: _bernoulli,
    aten.bernoulli.p: _bernoulli,
    aten.bernoulli_.float: _bernoulli_into,
    aten.bernoulli_.Tensor: _bernoulli_into,
    aten.native_dropout.default: _native_dropout,
    aten.rand.default: _rand,
    aten.randn.default: _randn,
    aten.rand_like.default: _rand_like,
    aten.randn_like.default: _randn_like,
    aten.uniform_.default: _uniform_into,
    aten.normal_.default: _normal_into,
    aten.exponential_.default: _exponential_into,
}

_DRAWS_NOTHING = {  # they have a dropout argument, and are called without dropout
    aten._scaled_dot_product_flash_attention.default,
    aten._scaled_dot_product_flash_attention_for_cpu.default,
    aten._scaled_dot_product_efficient_attention.default,
}
