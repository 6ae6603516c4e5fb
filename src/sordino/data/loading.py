"""One way to every data set: by its name, or by the path of what holds it."""

from __future__ import annotations

import difflib
import os
from pathlib import Path

from sordino._input import validate
from sordino.data.dataset import DataSet
from sordino.data.standard import NAMES, load_standard
from sordino.data.standard import root as standard_root
from sordino.errors import DataError, UsageError

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
        from sordino.data.folder import load_folder

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
