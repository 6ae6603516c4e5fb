"""`DataSet`: private training rows, public test rows, and the public facts about them."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor


@dataclass(frozen=True)
class Facts:
    """Public facts about a dataset. They are never computed from private rows.

    `input_range` = (low, high) bounds every input. `mean` and `std` are public constants per channel, for inputs scaled
    to [0, 1]: the model sees ((x - low) / (high - low) - mean) / std. `num_classes` is None for a regression target;
    targets are then scaled so that -1 and 1 are the ends of `target_range`.
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
    """Rows of a dataset: inputs (float32, or uint8 images 0..255, channels first), target, and owner of each row.

    A row that could not be read is marked as absent: its inputs are not finite, or its label is -1. Inputs that are
    mapped from a file have its dtype, and must not be written to.
    """

    inputs: Tensor = field(repr=False)
    target: Tensor = field(repr=False)
    owners: Tensor | None = field(default=None, repr=False)
    groups: dict[str, Tensor] = field(default_factory=dict, repr=False)
    is_mapped: bool = False


@dataclass(frozen=True)
class DataSet:
    """Private rows for training and, if there are any, test rows that are declared public."""

    facts: Facts
    train: Split
    test: Split | None = None
    rows_per_user: int | None = None
