"""A training on a memory map of many gigabytes.

python mapped_training.py FILE GIBIBYTES OUT
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from torch import nn

import sordino as so

_NUMBERS = 4096


def main(file: Path, gibibytes: int, out: Path) -> None:
    rows = (gibibytes << 30) // (4 * _NUMBERS)
    with file.open("wb") as made:
        made.truncate(rows * 4 * _NUMBERS)  # a file of zeros, which takes no space on the disk
    inputs = np.memmap(file, dtype=np.float32, mode="r", shape=(rows, _NUMBERS))
    data = (inputs, np.zeros(rows, dtype=np.int64))
    model = nn.Linear(_NUMBERS, 3)
    so.fit(model, data, epsilon=3.0, delta=1e-8, batch_size=64, steps=4, out=out, progress=False)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
