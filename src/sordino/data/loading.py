"""Loading a dataset by name or path, and inputs of new rows for prediction.

One way to every data set: by its name, or by the path of what holds it.

Inputs of new rows, for a model that is trained: the same formats as for training, without a target.
"""

from __future__ import annotations

import difflib
import os
from pathlib import Path

import numpy as np
from torch import Tensor

from sordino._input import validate
from sordino.data.dataset import DataSet, Facts
from sordino.data.image_folder import load_pictures
from sordino.data.npz import read_arrays
from sordino.data.schema import Schema
from sordino.data.standard import NAMES, load_standard
from sordino.data.standard import root as standard_root
from sordino.data.table import load_features
from sordino.errors import DataError, UsageError
from sordino.kernel.rows import as_tensor

_TABLES = (".csv", ".parquet")
_FORMATS = "a folder of pictures, .csv, .parquet or .npz"


def load(
    source: str | os.PathLike[str],
    *,
    schema: str | os.PathLike[str] | None = None,
    root: str | os.PathLike[str] | None = None,
) -> DataSet:
    """A data set by name (`digits`, `mnist`, ...) or by path: a folder of pictures, a table, or arrays in .npz.

    A table and a .npz file come with a `schema`, a TOML file of public facts. `root` is where named sets are looked for
    instead of `sordino.data.root()`. A folder that is named like a set is meant by its path, as in `./mnist`.

    >>> load("digits").facts.num_classes
    10
    >>> load("fashion_mnist")
    Traceback (most recent call last):
        ...
    sordino.errors.UsageError: no data set is named 'fashion_mnist': did you mean 'fashion-mnist'?
    """
    validate.instance((str, os.PathLike), source=source)
    if "\0" in os.fspath(source):
        raise UsageError(f"source must be a name or a path, got {os.fspath(source)!r:.200}, which no file can have.")
    if isinstance(source, str) and source in NAMES:
        if schema is not None:
            raise UsageError(f"{source} has its own public facts: leave schema out.")
        return load_standard(source, Path(root) if root is not None else standard_root())
    path = Path(source)
    kind = path.suffix.lower()
    if kind in _TABLES:
        if schema is None:
            raise UsageError(f"{str(path)!r} is a table and needs schema=, a TOML file of its public facts.")
        from sordino.data.table import load_table

        return load_table(path, Path(schema))
    if kind == ".npz":
        from sordino.data.npz import load_npz

        return load_npz(path, Path(schema) if schema is not None else path.with_suffix(".toml"))
    if os.path.isdir(path):  # which answers for any text, where Path raises
        if schema is not None:
            raise UsageError(f"{str(path)!r} is a folder of pictures, whose facts are its own: leave schema out.")
        from sordino.data.image_folder import load_folder

        return load_folder(path)
    raise _unknown(source, path)


def _unknown(source: str | os.PathLike[str], path: Path) -> Exception:
    shown = repr(str(path))
    if os.path.exists(path):
        return DataError(f"{shown} is of no known format: allowed are {_FORMATS}.")
    if not isinstance(source, str) or os.sep in source:
        return DataError(f"{shown:.200} cannot be read: no such file or folder.")
    similar = difflib.get_close_matches(source.lower(), NAMES, n=1)
    hint = f"did you mean {similar[0]!r}?" if similar else f"the names are {', '.join(NAMES)}, or give a path."
    return UsageError(f"no data set is named {source!r:.200}: {hint}")


def load_inputs(source: str, facts: Facts, *, schema: Path | None = None) -> Tensor:
    """The rows of a table, an array `inputs` in .npz, a folder of pictures, or the public test rows of a standard set.

    >>> load_inputs("digits", Facts("digits", (1, 8, 8), 10)).shape[1:]
    torch.Size([1, 8, 8])
    """
    inputs = _read(source, facts, schema)
    if inputs.shape[1:] != facts.input_shape:
        raise DataError(f"{source!r} has rows of shape {tuple(inputs.shape[1:])}, the model takes {facts.input_shape}.")
    if len(inputs) == 0:
        raise DataError(f"{source!r} has no rows.")
    return inputs


def _read(source: str, facts: Facts, schema: Path | None) -> Tensor:
    if source in NAMES:
        test = load_standard(source, standard_root()).test
        if test is None:
            raise UsageError(f"{source} has no public test rows: give a file.")
        return test.inputs
    path = Path(source)
    if path.suffix.lower() in (".csv", ".parquet"):
        if schema is None:
            raise UsageError(f"{source!r} is a table, and the model was not trained on one.")
        return load_features(path, Schema.read(schema))
    if path.suffix.lower() == ".npz":
        return _array(path)
    if os.path.isdir(path):
        return load_pictures(path, facts.input_shape)
    raise DataError(f"{source!r:.200} is no data set and no readable .csv, .parquet, .npz or folder of pictures.")


def _array(path: Path) -> Tensor:
    arrays = read_arrays(path)
    if "inputs" not in arrays:
        raise DataError(f"{str(path)!r} must hold an array named inputs.")
    inputs = arrays["inputs"]
    return as_tensor(inputs if inputs.dtype == np.uint8 else inputs.astype(np.float32), "inputs")
