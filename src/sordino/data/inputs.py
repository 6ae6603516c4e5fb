"""Inputs of new rows, for a model that is trained: the same formats as for training, without a target."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
from torch import Tensor

from sordino.data.dataset import Facts
from sordino.data.folder import load_pictures
from sordino.data.npz import read_arrays
from sordino.data.schema import Schema
from sordino.data.standard import NAMES, load_standard
from sordino.data.standard import root as standard_root
from sordino.data.table import load_features
from sordino.errors import DataError, UsageError
from sordino.kernel.rows import as_tensor


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
