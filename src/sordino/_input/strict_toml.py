"""Strict TOML parser: refuses unknown keys, NaN, deep nesting and input that is slow to parse."""

from __future__ import annotations

import difflib
import math
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date, datetime
from typing import Any, TypeVar

from sordino.errors import UsageError

Kind = TypeVar("Kind")

LARGEST_TEXT = 1 << 18
DEEPEST = 16

_STRING_OR_COMMENT = re.compile(r""""(?:[^"\\\n]|\\.)*"|'[^'\n]*'|#[^\n]*""")
_LONG_KEY = re.compile(rf"(?:\.[^.,=\[\]{{}}\n]*){{{DEEPEST}}}")


def parse(text: str | bytes, *, what: str) -> dict[str, object]:
    """Parses a TOML document. `what` names it in messages.

    >>> parse("steps = 10", what="the recipe")
    {'steps': 10}
    >>> parse("rate = nan", what="the recipe")
    Traceback (most recent call last):
        ...
    sordino.errors.UsageError: the recipe has the number nan: only finite numbers are allowed.
    """
    if len(text) > LARGEST_TEXT:
        raise UsageError(f"{what} is longer than {LARGEST_TEXT} bytes, which is the most allowed here.")
    try:
        text = text.decode() if isinstance(text, bytes) else text
    except UnicodeDecodeError as error:
        raise UsageError(f"{what} must be UTF-8, got another byte at offset {error.start}.") from None
    _refuse_slow(text, what)
    try:
        value = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"{what} is not TOML: {' '.join(str(error).split())[:200]}.") from None
    except RecursionError:
        raise _too_deep(what) from None
    except ValueError:  # Python refuses integers of thousands of digits, which take quadratic time to parse
        raise UsageError(f"{what} has a number or a date that cannot be parsed.") from None
    _check(value, what)
    return value


@dataclass(frozen=True)
class Table:
    """A TOML table whose values are read key by key, with a check of their type. `what` names it in messages.

    >>> table = Table({"stpes": 10}, what="the recipe")
    >>> table.allow("steps", "rate")
    Traceback (most recent call last):
        ...
    sordino.errors.UsageError: the recipe has an unknown key 'stpes': did you mean 'steps'?
    """

    entries: Mapping[str, object]
    what: str

    @classmethod
    def parse(cls, text: str | bytes, *, what: str) -> Table:
        """Parses a document and returns its outermost table."""
        return cls(parse(text, what=what), what)

    def __contains__(self, key: str) -> bool:
        return key in self.entries

    def allow(self, *keys: str) -> None:
        """Refuses unknown keys, and suggests the closest known one."""
        for key in self.entries:
            if key not in keys:
                close = difflib.get_close_matches(key[:80], keys, n=1)
                hint = f"did you mean {close[0]!r}?" if close else f"allowed are {', '.join(keys)}."
                raise UsageError(f"{self.what} has an unknown key {key[:80]!r}: {hint}")

    def table(self, key: str) -> Table:
        return Table(self._typed(key, dict, "a table"), f"{self.what}, {key[:80]!r}")

    def text(self, key: str) -> str:
        return self._typed(key, str, "a string")

    def truth(self, key: str) -> bool:
        return self._typed(key, bool, "true or false")

    def whole(self, key: str, *, at_least: int = 1, at_most: int = 10**9) -> int:
        number = self._typed(key, int, "a whole number")
        if not at_least <= number <= at_most:
            raise UsageError(f"{self.what}: {key} must be from {at_least} to {at_most}, got {number}.")
        return number

    def numbers(self, key: str) -> tuple[float, ...]:
        return self._list(key, (int, float), "a list of numbers")

    def texts(self, key: str) -> tuple[str, ...]:
        return self._list(key, (str,), "a list of strings")

    def dates(self, key: str) -> tuple[str, ...]:
        """Dates in ISO 8601, written with or without quotes."""
        return tuple(map(str, self._list(key, (date, datetime, str), "a list of dates as 2020-12-31")))

    @contextmanager
    def named(self) -> Iterator[None]:
        """Puts the name of the table before the message of a `UsageError` raised in the block."""
        try:
            yield
        except UsageError as error:
            raise UsageError(f"{self.what}: {error}") from None

    def _typed(self, key: str, kind: type[Kind], description: str) -> Kind:
        if key not in self.entries:
            raise UsageError(f"{self.what}: {key} is missing; it must be {description}.")
        value = self.entries[key]
        if type(value) is not kind:  # not isinstance: True is not a whole number here
            raise self._wrong(key, description)
        return value

    def _list(self, key: str, kinds: tuple[type, ...], description: str) -> tuple[Any, ...]:
        values = self._typed(key, list, description)
        if not all(type(value) in kinds for value in values):
            raise self._wrong(key, description)
        return tuple(values)

    def _wrong(self, key: str, description: str) -> UsageError:
        return UsageError(f"{self.what}: {key} must be {description}, got {self.entries[key]!r:.80}.")


def _refuse_slow(text: str, what: str) -> None:
    """Refuses long dotted keys, which take quadratic time to parse, and multi-line strings, which could hide them."""
    if '"""' in text or "'''" in text:
        raise UsageError(f"{what} has a multi-line string: only strings within one line are allowed.")
    if _LONG_KEY.search(_STRING_OR_COMMENT.sub("s", text)):
        raise _too_deep(what)


def _check(value: dict[str, object], what: str) -> None:
    level: list[object] = [value]
    for _ in range(DEEPEST):
        for number in level:
            if isinstance(number, float) and not math.isfinite(number):
                raise UsageError(f"{what} has the number {number}: only finite numbers are allowed.")
        level = [inner for item in level for inner in _inside(item)]
        if not level:
            return
    raise _too_deep(what)


def _inside(item: object) -> Iterable[object]:
    if isinstance(item, dict):
        return item.values()
    return item if isinstance(item, list) else []


def _too_deep(what: str) -> UsageError:
    return UsageError(f"{what} is nested deeper than {DEEPEST} levels, which is the most allowed.")
