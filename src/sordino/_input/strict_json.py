"""Strict JSON parser: refuses duplicate keys, NaN, deep nesting and whatever else parsers disagree on."""

from __future__ import annotations

import json
import math
from typing import NoReturn

from sordino.errors import UsageError

LARGEST_TEXT = 1 << 26
DEEPEST = 32


def parse(text: str | bytes, *, what: str = "the JSON text", at_most: int = LARGEST_TEXT) -> object:
    """Parses a JSON document of at most `at_most` bytes or characters. `what` names it in messages.

    >>> parse('{"steps": 10, "rate": 0.5}')
    {'steps': 10, 'rate': 0.5}
    >>> parse('{"steps": 10, "steps": 1}')
    Traceback (most recent call last):
        ...
    sordino.errors.UsageError: the JSON text has the key 'steps' twice.
    """
    if len(text) > at_most:
        raise UsageError(f"{what} is longer than {at_most} bytes, which is the most allowed here.")

    def unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
        table = dict(pairs)
        if len(table) < len(pairs):
            names = [name for name, _ in pairs]
            twice = next(name for position, name in enumerate(names) if name in names[:position])
            raise UsageError(f"{what} has the key {twice!r:.80} twice.")
        return table

    def finite(digits: str) -> float:
        if not math.isfinite(number := float(digits)):
            refuse_constant(digits)
        return number

    def refuse_constant(digits: str) -> NoReturn:
        raise UsageError(f"{what} has the number {digits:.80}: only finite numbers are allowed.")

    try:
        text = text.decode() if isinstance(text, bytes) else text
        value: object = json.loads(text, object_pairs_hook=unique, parse_float=finite, parse_constant=refuse_constant)
    except RecursionError:
        raise _too_deep(what) from None
    except json.JSONDecodeError as error:
        raise UsageError(f"{what} is not JSON: {error.msg} in line {error.lineno}, column {error.colno}.") from None
    except UnicodeDecodeError as error:
        raise UsageError(f"{what} must be UTF-8, got another byte at offset {error.start}.") from None
    except UsageError:
        raise
    except ValueError:  # Python refuses integers of thousands of digits, which take quadratic time to parse
        raise UsageError(f"{what} has a whole number with too many digits.") from None
    _check(value, what)
    return value


def _check(value: object, what: str) -> None:
    level = [value]
    for _ in range(DEEPEST):
        for text in level:
            if isinstance(text, str) and not _is_unicode(text):
                raise UsageError(f"{what} has half a surrogate pair in a string: strings must be valid Unicode.")
        level = [inner for item in level for inner in _inside(item)]
        if not level:
            return
    raise _too_deep(what)


def _inside(item: object) -> list[object]:
    if isinstance(item, dict):
        return [*item.keys(), *item.values()]
    return item if isinstance(item, list) else []


def _is_unicode(text: str) -> bool:
    return text.isascii() or not any("\ud800" <= character <= "\udfff" for character in text)


def _too_deep(what: str) -> UsageError:
    return UsageError(f"{what} is nested deeper than {DEEPEST} levels, which is the most allowed.")
