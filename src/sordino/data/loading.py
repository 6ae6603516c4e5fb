"""Loading of datasets by name or path, and of inputs of new rows for prediction (the same formats without a target)."""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np
from torch import Tensor

from sordino._input import validate
from sordino.data.dataset import DataSet, Facts
from sordino.data.image_folder import load_pictures, picture_names
from sordino.data.npz import read_arrays
from sordino.data.schema import Schema
from sordino.data.standard import NAMES, load_standard
from sordino.data.standard import root as standard_root
from sordino.data.table import load_features
from sordino.data.table_readers import TABLES, is_table
from sordino.errors import DataError, UsageError
from sordino.kernel.row_structure import as_tensor

_FORMATS = f"a folder of images, {', '.join(TABLES)} or .npz"


def load(
    source: str | os.PathLike[str],
    *,
    schema: str | os.PathLike[str] | None = None,
    root: str | os.PathLike[str] | None = None,
    map_large: bool = False,
) -> DataSet:
    """Loads a dataset by name (`digits`, `mnist`, ...) or by path: a folder of images, a table, or arrays in .npz.

    A table and a .npz file need a `schema`, a TOML file of public facts. `root` is the folder of named datasets, by
    default `sordino.data.root()`. For a folder that is named like a standard dataset, give a path such as `./mnist`.
    With `map_large`, large uncompressed inputs of a .npz file stay in the file: tensors that nothing may write to.

    >>> load("digits").facts.num_classes
    10
    >>> load("fashion_mnist")
    Traceback (most recent call last):
        ...
    sordino.errors.UsageError: no dataset is named 'fashion_mnist': did you mean 'fashion-mnist'?
    """
    validate.instance((str, os.PathLike), source=source)
    if "\0" in os.fspath(source):
        raise UsageError(f"source must be a name or a path, got {os.fspath(source)!r:.200}, which has a NUL byte.")
    if isinstance(source, str) and source in NAMES:
        if schema is not None:
            raise UsageError(f"{source} has its own public facts: leave schema out.")
        return load_standard(source, Path(root) if root is not None else standard_root())
    path = Path(source)
    kind = path.suffix.lower()
    if is_table(path):
        if schema is None:
            raise UsageError(f"{str(path)!r} is a table and needs schema=, a TOML file of its public facts.")
        from sordino.data.table import load_table

        return load_table(path, Path(schema))
    if kind == ".npz":
        from sordino.data.npz import load_npz

        facts = Path(schema) if schema is not None else path.with_suffix(".toml")
        return load_npz(path, facts, map_large=map_large)
    if os.path.isdir(path):  # Path.is_dir raises for some strings
        if schema is not None:
            raise UsageError(f"{str(path)!r} is a folder of images, which needs no schema: leave schema out.")
        from sordino.data.image_folder import load_folder

        return load_folder(path)
    raise _unknown(source, path)


def _unknown(source: str | os.PathLike[str], path: Path) -> Exception:
    shown = repr(str(path))
    if os.path.exists(path):
        return DataError(f"{shown} has an unknown format: allowed are {_FORMATS}.")
    if not isinstance(source, str) or os.sep in source:
        return DataError(f"{shown:.200} cannot be read: no such file or folder.")
    similar = difflib.get_close_matches(source.lower(), NAMES, n=1)
    hint = f"did you mean {similar[0]!r}?" if similar else f"the names are {', '.join(NAMES)}, or give a path."
    return UsageError(f"no dataset is named {source!r:.200}: {hint}")


def load_inputs(source: str, facts: Facts, *, schema: Path | None = None) -> Tensor:
    """Loads inputs for prediction: a table, the array `inputs` of a .npz file, a folder of images, or public test rows.

    The name of a standard dataset stands for its test rows.

    >>> load_inputs("digits", Facts("digits", (1, 8, 8), 10)).shape[1:]
    torch.Size([1, 8, 8])
    """
    inputs = _read(source, facts, schema)
    if inputs.shape[1:] != facts.input_shape:
        raise DataError(f"{source!r} has rows of shape {tuple(inputs.shape[1:])}, the model takes {facts.input_shape}.")
    if len(inputs) == 0:
        raise DataError(f"{source!r} has no rows.")
    return inputs


def row_names(source: str) -> list[str] | None:
    """Names of the files that `load_inputs` loads as rows, or None if the rows have no names.

    >>> row_names("digits") is None
    True
    """
    return picture_names(Path(source)) if source not in NAMES and os.path.isdir(source) else None


def named_rows(source: str, answers: Iterable[Mapping[str, object]]) -> list[dict[str, object]]:
    """Answers for the rows of a source, with their numbers, and the names of their files if they have any."""
    names = row_names(source)
    if names is None:
        return [{"row": row, **answer} for row, answer in enumerate(answers)]
    return [{"row": row, "file": names[row], **answer} for row, answer in enumerate(answers)]


def _read(source: str, facts: Facts, schema: Path | None) -> Tensor:
    if source in NAMES:
        test = load_standard(source, standard_root()).test
        if test is None:
            raise UsageError(f"{source} has no public test rows: give a file.")
        return test.inputs
    path = Path(source)
    if is_table(path):
        if schema is None:
            raise UsageError(f"{source!r} is a table, but the model was not trained on a table.")
        return load_features(path, Schema.read(schema))
    if path.suffix.lower() == ".npz":
        return _array(path)
    if os.path.isdir(path):
        return load_pictures(path, facts.input_shape)
    raise DataError(f"{source!r:.200} is neither the name of a dataset nor readable: allowed are {_FORMATS}.")


def _array(path: Path) -> Tensor:
    arrays = read_arrays(path)
    if "inputs" not in arrays:
        raise DataError(f"{str(path)!r} must contain an array named inputs.")
    inputs = arrays["inputs"]
    return as_tensor(inputs if inputs.dtype == np.uint8 else inputs.astype(np.float32), "inputs")
