"""The public facts of a data set, read back from the folder of a run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields

from sordino._input.strict_toml import Table
from sordino.data import Facts
from sordino.errors import StateError, UsageError


def parse_facts(saved: Mapping[str, object], *, what: str) -> Facts:
    """The facts in a JSON object. A file that a run cannot have written is damaged.

    >>> parse_facts({"name": "digits", "input_shape": [1, 8, 8], "num_classes": 10}, what="facts.json").input_shape
    (1, 8, 8)
    >>> parse_facts({"name": "digits", "input_shape": "8 by 8"}, what="facts.json")
    Traceback (most recent call last):
        ...
    sordino.errors.StateError: facts.json: input_shape must be a list of numbers, got '8 by 8'.
    """
    known = Table({name: value for name, value in saved.items() if value is not None}, what)
    try:
        known.allow(*(field.name for field in fields(Facts)))
        facts = Facts(
            name=known.text("name"),
            input_shape=tuple(_whole(length, what) for length in known.numbers("input_shape")),
            num_classes=known.whole("num_classes", at_least=2) if "num_classes" in known else None,
            input_range=_pair(known, "input_range"),
            mean=known.numbers("mean") if "mean" in known else None,
            std=known.numbers("std") if "std" in known else None,
            class_names=known.texts("class_names") if "class_names" in known else (),
            target_range=_pair(known, "target_range"),
        )
    except UsageError as error:
        raise StateError(str(error)) from None
    if not facts.input_shape or len(facts.class_names) not in (0, facts.num_classes):
        raise StateError(f"{what}: the facts do not go together.")
    return facts


def _whole(length: float, what: str) -> int:
    if not isinstance(length, int) or not 1 <= length <= 1 << 24:
        raise UsageError(f"{what}: input_shape must be whole numbers above 0, got {length!r}.")
    return length


def _pair(known: Table, key: str) -> tuple[float, float] | None:
    if key not in known:
        return None
    numbers = known.numbers(key)
    if len(numbers) != 2 or not numbers[0] < numbers[1]:
        raise UsageError(f"{known.what}: {key} must be [low, high] with low < high, got {numbers!r:.80}.")
    return numbers[0], numbers[1]
