"""Checks of single arguments, passed by keyword so that each message can name its argument.

If a caller swaps two arguments, any of them may be private data. So a message shows a value only if it is a plain
Python number, as most settings are. Anything else is described by its type, shape and dtype.

>>> positive(clip_norm=1.0)
>>> positive(clip_norm=-1.0)
Traceback (most recent call last):
    ...
sordino.errors.UsageError: clip_norm must be a finite number above 0, got -1.0.
"""

from __future__ import annotations

import enum
import inspect
import sys
from numbers import Integral, Real

from sordino.errors import UsageError

_LONGEST_SHOWN = 10**30


def positive(**arguments: object) -> None:
    """Checks that each argument is a finite number above zero."""
    for name, value in arguments.items():
        if not _is_finite(value) or not float(value) > 0:  # type: ignore[arg-type]
            raise UsageError(f"{name} must be a finite number above 0, got {_given(name, value)}.")


def between(low: float, high: float, *, low_open: bool = False, high_open: bool = False, **arguments: object) -> None:
    """Checks that each argument is a finite number in the interval from `low` to `high`."""
    interval = f"{'(' if low_open else '['}{low:g}, {high:g}{')' if high_open else ']'}"
    for name, value in arguments.items():
        inside = _is_finite(value) and low <= float(value) <= high  # type: ignore[arg-type]
        if not inside or (low_open and value == low) or (high_open and value == high):
            raise UsageError(f"{name} must be in {interval}, got {_given(name, value)}.")


def count(*, at_least: int = 1, at_most: int = 10**9, **arguments: object) -> None:
    """Checks that each argument is a whole number. A float is refused even if it is whole: it is probably a mistake."""
    for name, value in arguments.items():
        if isinstance(value, bool) or not isinstance(value, Integral) or not at_least <= int(value) <= at_most:
            raise UsageError(f"{name} must be a whole number from {at_least} to {at_most}, got {_given(name, value)}.")


def instance(expected: type | tuple[type, ...], **arguments: object) -> None:
    """Checks that each argument is an instance of `expected`, not a class, even if that has the protocol's methods.

    For a protocol, the message lists the methods and attributes that are missing.

    >>> from typing import Protocol, runtime_checkable
    >>> @runtime_checkable
    ... class Noise(Protocol):
    ...     def add(self, total, at): ...
    >>> instance(Noise, noise=1.0)
    Traceback (most recent call last):
        ...
    sordino.errors.UsageError: noise must be a Noise, got float, which lacks the method `add(total, at)`.
    """
    types = expected if isinstance(expected, tuple) else (expected,)
    names = " or ".join(kind.__name__ for kind in types)
    article = "an" if names[0] in "AEIO" else "a"
    for name, value in arguments.items():
        if not isinstance(value, types) or (isinstance(value, type) and type not in types):
            raise UsageError(f"{name} must be {article} {names}, got {described(value)}{_hint(types[0], value)}.")


def interval(low: float, high: float, **arguments: object) -> None:
    """Checks that each argument is a pair of rising numbers, both from `low` to `high`.

    >>> interval(0, 10, bounds=(2, 1))
    Traceback (most recent call last):
        ...
    sordino.errors.UsageError: bounds must be (low, high) with low < high, got tuple of length 2.
    """
    for name, value in arguments.items():
        if not isinstance(value, (tuple, list)) or len(value) != 2:
            raise UsageError(f"{name} must be (low, high), got {shown(value)}.")
        between(low, high, **{f"{name}[0]": value[0], f"{name}[1]": value[1]})
        if not value[0] < value[1]:
            raise UsageError(f"{name} must be (low, high) with low < high, got {shown(value)}.")


def axes(number: int, **arguments: object) -> None:
    """Checks that each argument is the shape of an array with `number` axes, none of them empty."""
    for name, value in arguments.items():
        if not isinstance(value, (tuple, list)) or len(value) != number:
            raise UsageError(f"{name} must be {number} whole numbers, got {shown(value)}.")
        count(**{f"{name}[{place}]": size for place, size in enumerate(value)})


def shown(value: object) -> str:
    """A value for a message: a plain number as it is, anything else as `described`.

    >>> shown(-1.0), shown([424242, 0.5]), shown("ALICE")
    ('-1.0', 'list of length 2', 'str of length 5')
    """
    if type(value) is int and abs(value) >= _LONGEST_SHOWN:
        return f"a whole number of {value.bit_length()} bits"
    return repr(value) if value is None or type(value) in (bool, int, float) else described(value)


def option(value: object) -> str:
    """A setting that should be one of a few words, for a message: a string as given, anything else as `shown`.

    >>> option("adm"), option(["ALICE"])
    ("'adm'", 'list of length 1')
    """
    return f"{value!r:.80}" if type(value) is str else shown(value)


def described(value: object) -> str:
    """The type of a value, with the shape and dtype of an array and the length of a container; never its content.

    >>> described((1, 2)), described(range), described(None)
    ('tuple of length 2', 'type range', 'NoneType')
    """
    kind = type(value).__name__
    if isinstance(value, type):
        return f"type {value.__name__}"
    if isinstance(value, enum.Enum):  # the names of its members are written in source code
        return f"{kind}.{value.name}"
    if (type(value).__module__, kind) == ("torch", "dtype"):
        return str(value)
    shape, dtype = getattr(value, "shape", None), getattr(value, "dtype", None)
    if isinstance(shape, tuple) and all(type(size) is int for size in shape):
        return f"{kind} of shape {tuple(shape)}" + (f" and dtype {_name_of(dtype)}" if dtype is not None else "")
    if isinstance(value, (str, bytes, bytearray, tuple, list, set, frozenset, dict)):
        return f"{kind} of length {len(value)}"
    return kind


def _hint(expected: type, value: object) -> str:
    """Advice for a class given in place of its instance, or the members of a protocol that a value lacks."""
    if isinstance(value, type):
        return f": make an instance, as {value.__name__}(...)"
    lacking = [shown for name, shown in _members(expected).items() if not hasattr(value, name)]
    return f", which lacks {' and '.join(lacking)}" if lacking else ""


def _members(protocol: type) -> dict[str, str]:
    """Descriptions of the methods and attributes of a protocol, by name. Empty for any other type."""
    found = {}
    for base in protocol.__mro__:
        if getattr(base, "_is_protocol", False) and base.__module__ != "typing":
            for name in getattr(base, "__annotations__", {}):
                found[name] = f"the attribute `{name}`"
            for name, member in vars(base).items():
                if inspect.isfunction(member) and name not in ("__init__", "__subclasshook__"):
                    arguments = ", ".join(list(inspect.signature(member).parameters)[1:])
                    found[name] = f"the method `{name}({arguments})`"
                elif isinstance(member, property):
                    found[name] = f"the attribute `{name}`"
    return {name: found[name] for name in sorted(found)}


def _given(name: str, value: object) -> str:
    """A value for a message. An element such as `rates[0]` may come from a column of data, so it is not shown."""
    return described(value) if name.endswith("]") else shown(value)


def _name_of(dtype: object) -> str:
    """The name of a dtype, or its type if the name could hold data: a categorical dtype lists its categories."""
    name = str(dtype)
    return name if name.replace(".", "").replace("_", "").isalnum() else type(dtype).__name__


def _is_finite(value: object) -> bool:
    # An integer of hundreds of digits is finite, but does not fit into a float.
    return isinstance(value, Real) and not isinstance(value, bool) and abs(value) <= sys.float_info.max  # type: ignore
