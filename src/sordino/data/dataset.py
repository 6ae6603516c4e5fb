"""A data set: rows that are private, rows that are declared public, and facts that anybody may know."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor


@dataclass(frozen=True)
class Facts:
    """What is public about a data set. Nothing here is ever computed from private rows.

    `input_range` = (low, high) bounds every input. `mean` and `std` are public constants per channel, for inputs scaled
    to [0, 1]: a model is to see ((x - low) / (high - low) - mean) / std. `num_classes` is None where the target is a
    number; targets of -1 and 1 then stand for the ends of `target_range`.
    """

    name: str
    input_shape: tuple[int, ...]
    num_classes: int | None
    input_range: tuple[float, float] | None = None
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    class_names: tuple[str, ...] = ()
    target_range: tuple[float, float] | None = None


@dataclass(frozen=True)
class Split:
    """Rows: inputs (float32, or uint8 pictures with 0..255, channels first), target, and who owns each row.

    A row that could not be read is absent: its inputs are not finite, or its label, -1, is of no class.
    """

    inputs: Tensor = field(repr=False)
    target: Tensor = field(repr=False)
    owners: Tensor | None = field(default=None, repr=False)
    groups: dict[str, Tensor] = field(default_factory=dict, repr=False)


@dataclass(frozen=True)
class DataSet:
    """Private rows for training, and rows that are declared public for testing, where there are any."""

    facts: Facts
    train: Split
    test: Split | None = None
    rows_per_user: int | None = None
