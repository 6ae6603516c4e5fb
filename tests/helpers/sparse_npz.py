"""Writes a .npz file of many gigabytes of zeros that takes little space on the disk, with its public facts.

python sparse_npz.py FILE GIBIBYTES
"""

from __future__ import annotations

import io
import math
import sys
import zipfile
from pathlib import Path

import numpy as np
from numpy.lib import format as npy

NUMBERS = 4096
FACTS = f"confirmed_public = true\n[inputs]\nshape = [{NUMBERS}]\nrange = [-1, 1]\n[target]\nclasses = 3\n"


def write_sparse_npz(path: Path, rows: int, *, dtype: str = "<f4", order: str = "C") -> None:
    """An uncompressed .npz file with `rows` rows of zeros, and targets 0, 1, 2, 0, ... The inputs have a wrong CRC."""
    shape = (rows, NUMBERS)
    header = io.BytesIO()
    npy.write_array_header_1_0(header, {"descr": dtype, "fortran_order": order == "F", "shape": shape})
    hole = math.prod(shape) * np.dtype(dtype).itemsize
    with path.open("w+b") as file, zipfile.ZipFile(file, "w") as archive:
        with archive.open("inputs.npy", "w", force_zip64=True) as member:
            member.write(header.getvalue())
            file.seek(hole, io.SEEK_CUR)
            member._file_size += hole  # type: ignore[attr-defined]
        target = io.BytesIO()
        np.save(target, np.arange(rows) % 3)
        archive.writestr("target.npy", target.getvalue())
    path.with_suffix(".toml").write_text(FACTS)


if __name__ == "__main__":
    write_sparse_npz(Path(sys.argv[1]), (int(sys.argv[2]) << 30) // (4 * NUMBERS))
