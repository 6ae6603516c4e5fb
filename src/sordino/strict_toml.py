"""TOML as a person writes it, read strictly: unknown keys, NaN, deep nesting and whatever takes long are refused."""

from __future__ import annotations

import difflib
import math
import re
import tomllib
from collections.abc import Iterable, Mapping

from sordino.errors import UsageError

LARGEST_TEXT = 1 << 18
DEEPEST = 16

_STRING_OR_COMMENT = re.compile(r""""(?:[^"\\\n]|\\.)*"|'[^'\n]*'|#[^\n]*""")
_LONG_KEY = re.compile(rf"(?:\.[^.,=\[\]{{}}\n]*){{{DEEPEST}}}")


def parse(text: str | bytes, *, what: str) -> dict[str, object]:
    """The tables of a TOML text. `what` names it in messages.

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
    except ValueError:  # Python refuses whole numbers of thousands of digits, which take quadratic time
        raise UsageError(f"{what} has a number or a date that cannot be read.") from None
    _check(value, what)
    return value


def refuse_unknown(table: Mapping[str, object], allowed: Iterable[str], *, what: str) -> None:
    """Refuses a key that nobody would read, and suggests the one that was probably meant.

    >>> refuse_unknown({"stpes": 10}, ["steps", "rate"], what="the recipe")
    Traceback (most recent call last):
        ...
    sordino.errors.UsageError: the recipe has an unknown key 'stpes': did you mean 'steps'?
    """
    allowed = list(allowed)
    for key in table:
        if key not in allowed:
            close = difflib.get_close_matches(key[:80], allowed, n=1)
            hint = f"did you mean {close[0]!r}?" if close else f"allowed are {', '.join(allowed)}."
            raise UsageError(f"{what} has an unknown key {key[:80]!r}: {hint}")


def _refuse_slow(text: str, what: str) -> None:
    """Long dotted keys are legal, and take quadratic time to read. Strings over several lines could hide them."""
    if '"""' in text or "'''" in text:
        raise UsageError(f"{what} has a string over several lines: only strings within a line are allowed.")
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
