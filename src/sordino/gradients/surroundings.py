"""The same gradient whatever is set around it: autocast, default dtype, inference mode, fused kernels."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any, TypeVar, cast

import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from sordino.errors import UsageError
from sordino.gradients.attributes import attributes_kept


@contextmanager
def pinned(model: nn.Module, autocast: torch.dtype | None = None) -> Iterator[torch.dtype]:
    """Runs a block in the model's own precision, with plain kernels, and gives the model its attributes back.

    `autocast` lets torch choose that lower precision for the products it knows to bear it, as in plain training.
    """
    around, own = torch.get_default_dtype(), working_dtype(model)
    torch.set_default_dtype(own)
    try:
        with (
            torch.inference_mode(False),
            torch.autocast(device_of(model).type, dtype=autocast, enabled=autocast is not None),
            sdpa_kernel(SDPBackend.MATH),
            warnings.catch_warnings(),
            attributes_kept(model),
        ):
            warnings.filterwarnings("ignore", message="There is a performance drop")  # right, only slower
            yield own
    finally:
        torch.set_default_dtype(around)


Method = TypeVar("Method", bound=Callable[..., Any])


def in_full_precision(method: Method) -> Method:
    """A method whose products of float32 matrices nothing around it may round: no autocast, no TF32, no bfloat16.

    Norms and sums must be of the same numbers. A sum whose factors were rounded to ten bits, as graphics cards do with
    convolutions unless told not to, could be a two-thousandth longer than the clip that was computed for it.
    """

    @wraps(method)
    def precise(*args: Any) -> Any:
        with torch.autocast("cpu", enabled=False), torch.autocast("cuda", enabled=False), _unrounded_products():
            return method(*args)

    return cast(Method, precise)


def original(model: nn.Module) -> nn.Module:
    """The module inside a `torch.compile` wrapper: a compiled graph cannot be taken apart into rows."""
    inner = getattr(model, "_orig_mod", model)
    return inner if isinstance(inner, nn.Module) else model


def working_dtype(model: nn.Module) -> torch.dtype:
    """The one dtype of the trainable parameters, float32 or float64."""
    dtypes = {p.dtype for p in model.parameters() if p.requires_grad}
    if not dtypes:
        raise UsageError("the model has no trainable parameter: set requires_grad on what is to be trained.")
    if dtypes & {torch.float16, torch.bfloat16}:
        raise UsageError("trainable parameters are in half precision, which loses small gradients: use model.float().")
    if len(dtypes) > 1 or not dtypes <= {torch.float32, torch.float64}:
        found = ", ".join(sorted(str(dtype) for dtype in dtypes))
        raise UsageError(f"trainable parameters must all be float32 or all float64, got {found}.")
    return dtypes.pop()


def device_of(model: nn.Module) -> torch.device:
    """The device of the first parameter."""
    return next(model.parameters()).device


def rounded_products() -> dict[str, str]:
    """Which products of float32 torch rounds the factors of, and to what. On a CPU only those it was told to.

    >>> torch.set_float32_matmul_precision("medium")
    >>> rounded_products()["matrices on cpu"]
    'bf16'
    >>> torch.set_float32_matmul_precision("highest")
    """
    settings = {name: backend.fp32_precision for name, backend in _MULTIPLYING.items()}
    return {name: how for name, how in settings.items() if how not in ("none", "ieee")}


_BACKENDS: Any = torch.backends
_MULTIPLYING: dict[str, Any] = {
    "matrices on cpu": _BACKENDS.mkldnn.matmul,
    "convolutions on cpu": _BACKENDS.mkldnn.conv,
    "recurrences on cpu": _BACKENDS.mkldnn.rnn,
}
if _BACKENDS.cuda.is_built():
    _MULTIPLYING |= {
        "matrices on cuda": _BACKENDS.cuda.matmul,
        "convolutions on cuda": _BACKENDS.cudnn.conv,
        "recurrences on cuda": _BACKENDS.cudnn.rnn,
    }


@contextmanager
def _unrounded_products() -> Iterator[None]:
    cuda: Any = torch.cuda
    in_use = ("cpu", "cuda") if cuda.is_initialized() else ("cpu",)  # what nobody uses is left alone
    rounded = {name: how for name, how in rounded_products().items() if name.endswith(in_use)}
    try:
        for name in rounded:
            _MULTIPLYING[name].fp32_precision = "ieee"
        yield
    finally:
        for name, how in rounded.items():
            _set_back(_MULTIPLYING[name], how)


def _set_back(backend: Any, how: str) -> None:
    """To what it follows, if that gives the same."""
    backend.fp32_precision = "none"
    if backend.fp32_precision != how:
        backend.fp32_precision = how
