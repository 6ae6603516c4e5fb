"""Files and folders as datasets whose rows are read when they are drawn, for data that may be larger than memory."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from torch.utils.data import Dataset

from sordino._input import validate
from sordino.data.arrow_rows import ARROW, PARQUET, arrow_rows
from sordino.data.image_folder import ImageRows, is_image_folder
from sordino.errors import DataError, UsageError


def open_rows(source: str | os.PathLike[str], *, cache: str | os.PathLike[str] | None = None) -> Dataset[Any]:
    """The rows of a Parquet, Arrow or Feather file, of a folder of such files, or of a folder of images.

    Rows of tables are dictionaries of their columns; choose some by `so.as_records(rows, inputs=..., target=...)`. Rows
    of a folder of images are (image, label), as `sordino.data.load` reads them. Nothing is held in memory.

    The rows of Parquet and of compressed files are written once to `cache`, by default SOURCE.rows.arrow beside the
    source: an uncompressed file that only its owner may read.

    >>> import tempfile
    >>> import pyarrow, pyarrow.parquet
    >>> import sordino as so
    >>> path = Path(tempfile.mkdtemp()) / "people.parquet"
    >>> pyarrow.parquet.write_table(pyarrow.table({"x": [[0.5, 1.5]] * 10, "age": [30] * 10}), path)
    >>> so.as_records(open_rows(path), inputs=("x",), target="age").num_units
    10
    """
    validate.instance((str, os.PathLike), source=source)
    path = Path(source)
    if not path.exists():
        raise DataError(f"{str(path)!r:.200} cannot be read: no such file or folder.")
    kinds = PARQUET + ARROW
    if path.is_file() and path.suffix.lower() in kinds:
        return arrow_rows(path, [path], cache=None if cache is None else Path(cache))
    if path.is_dir():
        found = sorted(
            each for each in path.iterdir() if each.suffix.lower() in kinds and not each.name.startswith(".")
        )
        if found:
            return arrow_rows(path, found, cache=None if cache is None else Path(cache))
        if is_image_folder(path):
            if cache is not None:
                raise UsageError("cache= is for Parquet and compressed Arrow files: leave it out for images.")
            return ImageRows.of(path)
    raise DataError(
        f"{str(path)!r} has no rows to open: give a {', '.join(kinds)} file, a folder of such files, or a folder with "
        "one subfolder of images per class."
    )
