"""Global state of torch and attributes of a model, held fixed during a pass and restored after it.

A pass leaves no trace in the attributes of a model, however deep they are.

A model that remembers what it saw, in a dictionary or a queue, would let one row change what others contribute later.
What its modules hold is put back after each pass. What is kept elsewhere is refused when it is used (`one_pass`).

The same gradient whatever is set around it: autocast, default dtype, inference mode, fused kernels.
"""

from __future__ import annotations

import warnings
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any, Protocol, TypeVar, cast
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from sordino.errors import UsageError

# Objects and containers looked into, beside the modules' own. A model that leads to more, as one that knows the program
# it is trained by, has the nearest ones put back, and could not use what it kept in the others.
_MOST = 2000
_MOST_MODELS = 8

_ATOMS = (
    *(type(None), bool, int, float, complex, str, bytes, range, slice, type, torch.dtype, torch.device, torch.Size),
    *(Tensor, nn.Parameter, torch.Generator, ModuleType, FunctionType, BuiltinFunctionType),
)
_TENSORS_AND_MODULES = ("_parameters", "_buffers", "_modules")
OF_EVERY_MODULE = frozenset(vars(nn.Module()))


@contextmanager
def attributes_kept(model: nn.Module) -> Iterator[None]:
    """Gives the modules of a model their attributes back, and what these hold to any depth."""
    held = _known.get(model)
    if held is None or not all(one.is_unchanged() for one in held):
        if len(_known) >= _MOST_MODELS:  # what a model holds may hold the model, and would keep it alive
            _known.clear()
        held = _known[model] = list(_all_held(model))
    try:
        yield
    finally:
        for one in held:
            if not one.is_unchanged():
                one.restore()


class _Held(Protocol):
    """Something that holds other things, and what it held. It is only written to if that has changed."""

    def is_unchanged(self) -> bool: ...

    def restore(self) -> None: ...


_known: WeakKeyDictionary[nn.Module, list[_Held]] = WeakKeyDictionary()


class _Collection:
    """A dictionary, a list, a queue or a set. Comparing it asks for identity first, and costs little."""

    __slots__ = ("_before", "_refill", "_values")

    def __init__(self, values: Any, before: Any, refill: Callable[[Any], Any]) -> None:
        self._values, self._before, self._refill = values, before, refill

    def is_unchanged(self) -> bool:
        try:
            return bool(self._values == self._before)
        except Exception:  # two tensors that are not the same cannot be compared like this
            return False

    def restore(self) -> None:
        self._values.clear()
        self._refill(self._before)


class _Slot:
    """An attribute of an object without a dictionary."""

    __slots__ = ("_before", "_name", "_owner")

    def __init__(self, owner: Any, name: str) -> None:
        self._owner, self._name, self._before = owner, name, getattr(owner, name, _NOTHING)

    def is_unchanged(self) -> bool:
        return getattr(self._owner, self._name, _NOTHING) is self._before

    def restore(self) -> None:
        if self._before is _NOTHING:
            object.__delattr__(self._owner, self._name)
        else:
            object.__setattr__(self._owner, self._name, self._before)  # frozen dataclasses have slots too


_NOTHING = object()


def _all_held(model: nn.Module) -> Iterator[_Held]:
    """Every module, and every container and object that their attributes lead to, nearest first."""
    modules = list(model.modules())
    seen = {id(module) for module in modules}
    waiting: deque[Any] = deque()
    for module in modules:
        attributes = vars(module)
        yield _collection(attributes)
        for name in attributes.keys() - OF_EVERY_MODULE:
            waiting.append(attributes[name])
        yield from (_collection(attributes[name]) for name in _TENSORS_AND_MODULES if attributes[name])
    most = len(seen) + _MOST
    while waiting and len(seen) < most:
        value = waiting.popleft()
        if id(value) not in seen and not isinstance(value, _ATOMS):
            seen.add(id(value))
            held, inside = _taken_apart(value)
            yield from held
            waiting.extend(inside)


def _taken_apart(value: Any) -> tuple[list[_Held], list[Any]]:
    """What has to be put back of a container or an object, and what it holds."""
    if isinstance(value, MethodType):
        return [], [value.__self__]
    if isinstance(value, tuple | frozenset):
        return [], list(value)
    held: list[_Held] = []
    inside: list[Any] = []
    attributes = getattr(value, "__dict__", None)
    if isinstance(attributes, dict):
        held.append(_collection(attributes))
        inside += attributes.values()
    for name in _slots(type(value)):
        held.append(_Slot(value, name))
        inside.append(getattr(value, name, None))
    if isinstance(value, dict | list | deque | set):
        held.append(_collection(value))
        inside += value.values() if isinstance(value, dict) else value
    return held, inside


def _collection(values: Any) -> _Held:
    if isinstance(values, dict):
        return _Collection(values, dict(values), values.update)
    if isinstance(values, set):
        return _Collection(values, set(values), values.update)
    before = deque(values, values.maxlen) if isinstance(values, deque) else list(values)
    return _Collection(values, before, values.extend)


def _slots(kind: type) -> Iterator[str]:
    for base in kind.__mro__:
        slots = vars(base).get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if name not in ("__dict__", "__weakref__"):
                is_private = name.startswith("__") and not name.endswith("__")
                yield f"_{base.__name__.lstrip('_')}{name}" if is_private else name


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
