"""The forms that data may have, and for each form that is refused, what to do instead."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias, cast

import numpy as np
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from sordino.errors import UsageError
from sordino.kernel.buckets import Buckets
from sordino.kernel.lazy_rows import Collate, IndexedRows, Lazy, Preparation, is_hugging_face, refuse_names_of_tuples
from sordino.kernel.row_structure import Keys
from sordino.kernel.rows import InMemory, Rows

Array: TypeAlias = Tensor | NDArray[Any]
RawData: TypeAlias = Dataset[Any] | DataLoader[Any] | IndexedRows | Sequence[Array] | Mapping[str, Array]

_EXPECTED = "(inputs..., target), a dictionary of arrays, or a map-style Dataset"


def as_rows(
    data: object,
    *,
    inputs: Sequence[str] | None = None,
    target: str | None = None,
    buckets: Buckets | None = None,
    collate: Collate | None = None,
) -> Rows:
    """Rows from tensors or arrays, in a tuple or a dictionary, or from a map-style dataset of such rows.

    `inputs` and `target` are the keys of dictionaries to use. `collate` gets each row of a dataset alone, and `buckets`
    pad it.
    """
    refuse_other_forms(data)
    if isinstance(data, TensorDataset) and collate is None and buckets is None:
        data = data.tensors
    if isinstance(data, Dataset) or is_hugging_face(data) or _is_list_of_rows(data):
        return Lazy.of(cast(IndexedRows, data), inputs=inputs, target=target, prepare=Preparation(collate, buckets))
    if collate is not None:
        raise UsageError(f"collate_fn is for a map-style Dataset, got {type(data).__name__}: leave it out.")
    if buckets is not None:
        buckets.check_padded(data)
    if isinstance(data, Mapping):
        keys = Keys.of(list(data), inputs, target)
        return InMemory.of(keys.parts_of(data), keys)
    if isinstance(data, (tuple, list)):
        refuse_names_of_tuples(inputs, target)
        return InMemory.of(data)
    raise UsageError(f"data must be {_EXPECTED}, got {type(data).__name__}{_way_out(data)}.")


def refuse_other_forms(data: object) -> None:
    """Refuses streams, and dictionaries of whole datasets."""
    streams = (IterableDataset, _of_hugging_face("IterableDataset"), _of_hugging_face("IterableDatasetDict"))
    if isinstance(data, streams):
        raise UsageError(
            f"data must be indexable to be sampled, got an IterableDataset ({type(data).__name__}): write the rows of "
            "the stream once, as an array, Arrow files or a file per row, and pass a map-style Dataset."
        )
    if isinstance(data, _of_hugging_face("DatasetDict")):
        raise UsageError("data must be one dataset, got a DatasetDict: choose a split, as in data['train'].")


def _of_hugging_face(name: str) -> type | tuple[()]:
    """A class of the library `datasets`, or no class if the library was not imported."""
    found = getattr(sys.modules.get("datasets"), name, None)
    return found if isinstance(found, type) else ()


def _is_list_of_rows(data: object) -> bool:
    """Whether `data` is a list of tuples or dictionaries, which are rows and not columns."""
    return isinstance(data, list) and bool(data) and isinstance(data[0], (tuple, Mapping))


def _way_out(data: object) -> str:
    """What to pass instead of data of this type."""
    if isinstance(data, (Tensor, np.ndarray)):
        return " without targets: pass (inputs, targets)"
    if isinstance(data, (str, os.PathLike)):
        return ": open a file or a folder by sordino.data.open_rows(path)"
    if hasattr(data, "to_numpy"):  # a frame of pandas or polars
        return ": pass {'x': frame[columns].to_numpy(), 'labels': frame[target].to_numpy()}"
    return ""
