"""Global settings of torch and attributes of a model, held fixed during a pass and restored after it.

* `attributes_kept`: a pass leaves the attributes of a model unchanged, at any depth. If a model could store what it saw
  in a dictionary or a queue, one row could change what others contribute later. So everything that its modules hold is
  restored after each pass. A tensor that is kept elsewhere is refused when it is used (`one_pass`).
* `pinned`, `in_full_precision`: gradients do not depend on autocast, default dtype, inference mode, fused kernels or
  TF32 settings of the caller, nor on those that `transformers_settings` lists.
"""

from __future__ import annotations

import sys
import threading
import warnings
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any, Protocol, TypeVar, cast
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.attention import SDPBackend, sdpa_kernel

from sordino.errors import UsageError
from sordino.gradients.transformers_settings import transformers_settings

# The largest number of objects and containers to restore, beside those of the modules. For a model that refers to more,
# such as one with a reference to its training program, the nearest ones are restored. It could not use what it kept in
# the others, because `one_pass` refuses that.
_MOST = 2000
_MOST_MODELS = 8

_one_thread = threading.RLock()  # settings of torch are those of the process

_ATOMS = (
    *(type(None), bool, int, float, complex, str, bytes, range, slice, type, torch.dtype, torch.device, torch.Size),
    *(Tensor, nn.Parameter, torch.Generator, ModuleType, FunctionType, BuiltinFunctionType),
)
_TENSORS_AND_MODULES = ("_parameters", "_buffers", "_modules")
_HOOKS = ("_forward_hooks", "_forward_pre_hooks")
OF_EVERY_MODULE = frozenset(vars(nn.Module()))


@contextmanager
def attributes_kept(model: nn.Module) -> Iterator[None]:
    """Restores the attributes of all modules of a model on exit, and what they hold at any depth."""
    held = _known.get(model)
    if held is None or not all(one.is_unchanged() for one in held):
        if len(_known) >= _MOST_MODELS:  # the held objects may refer to the model, and would keep it alive
            _known.clear()
        held = _known[model] = list(_all_held(model))
    try:
        yield
    finally:
        for one in held:
            if not one.is_unchanged():
                one.restore()


class _Held(Protocol):
    """A container or attribute, and its contents when it was recorded. It is written to only if these have changed."""

    def is_unchanged(self) -> bool: ...

    def restore(self) -> None: ...


_known: WeakKeyDictionary[nn.Module, list[_Held]] = WeakKeyDictionary()


class _Collection:
    """A dictionary, list, queue or set. Comparison is cheap, because it tests identity first."""

    __slots__ = ("_before", "_refill", "_values")

    def __init__(self, values: Any, before: Any, refill: Callable[[Any], Any]) -> None:
        self._values, self._before, self._refill = values, before, refill

    def is_unchanged(self) -> bool:
        try:
            return bool(self._values == self._before)
        except Exception:  # two different tensors cannot be compared by ==
            return False

    def restore(self) -> None:
        self._values.clear()
        self._refill(self._before)


class _Array:
    """A NumPy array, compared and restored by its values."""

    __slots__ = ("_before", "_values")

    def __init__(self, values: np.ndarray[Any, Any]) -> None:
        self._values, self._before = values, values.copy()

    def is_unchanged(self) -> bool:
        return self._values.tobytes() == self._before.tobytes()

    def restore(self) -> None:
        if self._values.shape != self._before.shape:
            self._values.resize(self._before.shape, refcheck=False)
        self._values[...] = self._before


class _Slot:
    """An attribute of an object without a dictionary."""

    __slots__ = ("_before", "_name", "_owner")

    def __init__(self, owner: Any, name: str) -> None:
        self._owner, self._name, self._before = owner, name, getattr(owner, name, _ABSENT)

    def is_unchanged(self) -> bool:
        return getattr(self._owner, self._name, _ABSENT) is self._before

    def restore(self) -> None:
        if self._before is _ABSENT:
            object.__delattr__(self._owner, self._name)
        else:
            object.__setattr__(self._owner, self._name, self._before)  # frozen dataclasses have slots too


_ABSENT = object()


def _all_held(model: nn.Module) -> Iterator[_Held]:
    """All modules, and all containers and objects that their attributes refer to, nearest first."""
    modules = list(model.modules())
    seen = {id(module) for module in modules}
    waiting: deque[Any] = deque()
    for module in modules:
        attributes = vars(module)
        yield _collection(attributes)
        for name in attributes.keys() - OF_EVERY_MODULE:
            waiting.append(attributes[name])
        yield from (_collection(attributes[name]) for name in _TENSORS_AND_MODULES if attributes[name])
        yield from (_collection(attributes[name]) for name in _HOOKS)
    most = len(seen) + _MOST
    while waiting and len(seen) < most:
        value = waiting.popleft()
        if id(value) not in seen and not isinstance(value, _ATOMS):
            seen.add(id(value))
            held, inside = _taken_apart(value)
            yield from held
            waiting.extend(inside)


def _taken_apart(value: Any) -> tuple[list[_Held], list[Any]]:
    """The parts of a container or object to restore, and the objects that it holds."""
    if isinstance(value, MethodType):
        return [], [value.__self__]
    if isinstance(value, tuple | frozenset):
        return [], list(value)
    held: list[_Held] = []
    inside: list[Any] = []
    if isinstance(value, np.ndarray) and value.dtype != object and value.flags.writeable:
        return [_Array(value)], []
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
def pinned(model: nn.Module, autocast: torch.dtype | None = None, *, in_rows: bool = True) -> Iterator[torch.dtype]:
    """Runs a block in the model's own precision, with plain kernels, and restores the model's attributes.

    With `autocast`, torch uses that lower precision for the operations of its autocast list, as in plain training.
    `in_rows` is False for a pass of a single row, outside of `vmap`, where branches on values are possible.
    The settings are those of the whole process, so one thread at a time is inside: two would restore each other's.
    """
    with _one_thread:
        with _pinned(model, autocast, in_rows) as own:
            yield own


@contextmanager
def _pinned(model: nn.Module, autocast: torch.dtype | None, in_rows: bool) -> Iterator[torch.dtype]:
    around, own = torch.get_default_dtype(), working_dtype(model)
    torch.set_default_dtype(own)
    try:
        with (
            torch.inference_mode(False),
            torch.autocast(device_of(model).type, dtype=autocast, enabled=autocast is not None),
            sdpa_kernel(SDPBackend.MATH),
            warnings.catch_warnings(),
            attributes_kept(model),
            transformers_settings(model, in_rows=in_rows),
            not_compiled(),
        ):
            warnings.filterwarnings("ignore", message="There is a performance drop")  # results are correct
            yield own
    finally:
        torch.set_default_dtype(around)


@contextmanager
def not_compiled() -> Iterator[None]:
    """Runs modules that were compiled in place, or compiled parts of a model, as they were before.

    A compiled graph can neither be taken apart into rows nor traced inside `vmap`.
    """
    if "torch._dynamo" not in sys.modules:  # nothing is compiled, and importing it takes seconds
        yield
        return
    with torch.compiler.set_stance("force_eager"):
        yield


Method = TypeVar("Method", bound=Callable[..., Any])


def in_full_precision(method: Method) -> Method:
    """Decorates a method so that its float32 matrix products are never rounded: no autocast, no TF32, no bfloat16.

    Norms and sums must be of the same values. If factors of a sum were rounded to ten bits, the default of GPUs for
    convolutions, the sum could be longer by 1/2000 than the clip that was computed for it allows.
    """

    @wraps(method)
    def precise(*args: Any) -> Any:
        with torch.autocast("cpu", enabled=False), torch.autocast("cuda", enabled=False), _unrounded_products():
            return method(*args)

    return cast(Method, precise)


def call(model: nn.Module, values: dict[str, Tensor], inputs: tuple[Tensor, ...], names: tuple[str, ...] = ()) -> Any:
    """The outputs of the model with `values` as its parameters and buffers.

    `names` are those of the arguments of `forward` that get the `inputs`. Without names, inputs go by position.
    """
    if not names:
        return functional_call(model, values, inputs)
    return functional_call(model, values, (), dict(zip(names, inputs, strict=True)))


def original(model: nn.Module) -> nn.Module:
    """The module inside a `torch.compile` wrapper: a compiled graph cannot be taken apart into rows."""
    inner = getattr(model, "_orig_mod", model)
    return inner if isinstance(inner, nn.Module) else model


def working_dtype(model: nn.Module) -> torch.dtype:
    """The one dtype of the trainable parameters, float32 or float64."""
    dtypes = {p.dtype for p in model.parameters() if p.requires_grad}
    if not dtypes:
        raise UsageError("the model has no trainable parameter: set requires_grad on the parameters to train.")
    if dtypes & {torch.float16, torch.bfloat16}:
        raise UsageError(
            "trainable parameters are in half precision, which loses small gradients: use model.float(), or .float() "
            "on the trained layers of a frozen model in half precision."
        )
    if len(dtypes) > 1 or not dtypes <= {torch.float32, torch.float64}:
        names = ", ".join(sorted(str(dtype) for dtype in dtypes))
        raise UsageError(f"trainable parameters must all be float32 or all float64, got {names}.")
    return dtypes.pop()


def frozen_half_precision(model: nn.Module) -> torch.dtype | None:
    """torch.bfloat16 if the model has frozen parameters in this precision, for an evaluation by autocast, else None."""
    is_half = any(p.dtype == torch.bfloat16 and not p.requires_grad for p in model.parameters())
    return torch.bfloat16 if is_half else None


def device_of(model: nn.Module) -> torch.device:
    """The device of the first parameter."""
    return next(model.parameters()).device


def rounded_products() -> dict[str, str]:
    """The products for which torch rounds float32 factors, and the precision. By default there are none on a CPU.

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
    in_use = ("cpu", "cuda") if cuda.is_initialized() else ("cpu",)  # settings of unused devices are left alone
    rounded = {name: how for name, how in rounded_products().items() if name.endswith(in_use)}
    try:
        for name in rounded:
            _MULTIPLYING[name].fp32_precision = "ieee"
        yield
    finally:
        for name, how in rounded.items():
            _set_back(_MULTIPLYING[name], how)


def _set_back(backend: Any, how: str) -> None:
    """Restores a setting: to "none", its parent's, if that is equal, otherwise to the value itself."""
    backend.fp32_precision = "none"
    if backend.fp32_precision != how:
        backend.fp32_precision = how
