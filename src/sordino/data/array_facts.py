"""The public facts of arrays: a small TOML file beside a .npz file, because a maximum over private labels is private.

confirmed_public = true            # a person has made sure that nothing here was read off private rows
units = 1000                       # optional: how many users there are, or rows where nobody owns several
rows_per_user = 10                 # where there is an array of owners

[inputs]
shape = [3, 32, 32]                # of one row
range = [0, 255]                   # optional: inputs are clamped to it
mean = [0.49, 0.48, 0.45]          # optional, per channel, for inputs scaled from range to [0, 1]
std = [0.25, 0.24, 0.26]

[target]
classes = 10                       # or a list of names; or bounds = [0, 100] where the target is a number
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from sordino._input import validate
from sordino._input.files import read_bytes
from sordino._input.strict_toml import LARGEST_TEXT, Table
from sordino.data.dataset import Facts
from sordino.errors import UsageError

_LARGEST_NUMBER = 1e30
_MOST_CLASSES = 1_000_000
_MOST_AXES = 8


@dataclass(frozen=True)
class ArrayFacts:
    """What is public about arrays, and how many units and rows per unit there may be."""

    facts: Facts
    units: int | None = None
    rows_per_user: int | None = None

    @classmethod
    def read(cls, path: Path) -> ArrayFacts:
        """The facts in a TOML file. The set is named like the file."""
        return cls.parse(read_bytes(path, at_most=LARGEST_TEXT), shown=repr(str(path)), name=path.stem)

    @classmethod
    def parse(cls, text: str | bytes, *, shown: str, name: str) -> ArrayFacts:
        """The facts in a TOML text. `shown` names it in messages.

        >>> text = "confirmed_public = true\\n[inputs]\\nshape = [4]\\n[target]\\nclasses = 3"
        >>> ArrayFacts.parse(text, shown="'a.toml'", name="a").facts.num_classes
        3
        """
        top = Table.parse(text, what=shown)
        top.allow("confirmed_public", "units", "rows_per_user", "inputs", "target")
        if not ("confirmed_public" in top and top.truth("confirmed_public")):
            raise UsageError(f"{shown} must say confirmed_public = true, once a person has made sure that it is so.")
        inputs, target = top.table("inputs"), top.table("target")
        shape, (num_classes, class_names, bounds) = _shape(inputs), _target(target)
        input_range, mean, std = _normalisation(inputs, channels=shape[0])
        facts = Facts(name, shape, num_classes, input_range, mean, std, class_names, bounds)
        units, rows_per_user = (top.whole(key) if key in top else None for key in ("units", "rows_per_user"))
        return cls(facts, units, rows_per_user)


def _shape(inputs: Table) -> tuple[int, ...]:
    inputs.allow("shape", "range", "mean", "std")
    lengths = inputs.numbers("shape")
    with inputs.named():
        validate.count(at_most=_MOST_AXES, **{"the number of axes in shape": len(lengths)})
        for length in lengths:
            validate.count(shape=length)
    return tuple(int(length) for length in lengths)


def _target(target: Table) -> tuple[int | None, tuple[str, ...], tuple[float, float] | None]:
    """The number of classes and their names, or the bounds of a number."""
    target.allow("classes", "bounds")
    if ("classes" in target) == ("bounds" in target):
        raise UsageError(f"{target.what} must have either classes or bounds: they are never read off the data.")
    if "bounds" in target:
        return None, (), _low_high(target, "bounds")
    if not isinstance(target.entries["classes"], list):
        return target.whole("classes", at_least=2, at_most=_MOST_CLASSES), (), None
    names = target.texts("classes")
    if not 2 <= len(set(names)) == len(names):
        raise UsageError(f"{target.what}: classes must be at least two distinct names, got {len(names)}.")
    return len(names), names, None


def _normalisation(
    inputs: Table, *, channels: int
) -> tuple[tuple[float, float] | None, tuple[float, ...] | None, tuple[float, ...] | None]:
    """The public range, and the public constants per channel of inputs that are scaled from it to [0, 1]."""
    input_range = _low_high(inputs, "range") if "range" in inputs else None
    if "mean" not in inputs and "std" not in inputs:
        return input_range, None, None
    if input_range is None:
        raise UsageError(f"{inputs.what}: mean and std need range, from which inputs are scaled to [0, 1].")
    mean, std = inputs.numbers("mean"), inputs.numbers("std")
    if not len(mean) == len(std) == channels:
        found = f"{len(mean)} and {len(std)}"
        raise UsageError(f"{inputs.what}: mean and std must have {channels} numbers, one per channel, got {found}.")
    with inputs.named():
        for one_mean, one_std in zip(mean, std, strict=True):
            validate.between(0.0, 1.0, mean=one_mean)
            validate.positive(std=one_std)
    return input_range, mean, std


def _low_high(table: Table, key: str) -> tuple[float, float]:
    numbers = table.numbers(key)
    if len(numbers) != 2 or not -_LARGEST_NUMBER <= numbers[0] < numbers[1] <= _LARGEST_NUMBER:
        raise UsageError(f"{table.what}: {key} must be [low, high] with low < high, got {list(numbers)!r:.80}.")
    return float(numbers[0]), float(numbers[1])
