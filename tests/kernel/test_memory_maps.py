"""Memory maps are read where they are: equal to arrays in memory, never copied, and compared by some rows if large."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import limited_memory
import mapped_training
import numpy as np
import pytest
import torch
from torch import nn

import sordino as so
from sordino.kernel import rows as rows_module
from sordino.kernel.records import as_records
from sordino.kernel.rows import SOME_ROWS

VALUES = np.arange(1200).reshape(600, 2)
LABELS = torch.arange(600) % 3


def mapped(folder: Path, mode: Any, dtype: str, order: Any = "C") -> Any:
    """A map of a file that holds `VALUES`."""
    path = folder / "values"
    made = np.memmap(path, dtype=dtype, mode="w+", shape=VALUES.shape, order=order)
    made[:] = VALUES
    made.flush()
    return np.memmap(path, dtype=dtype, mode=mode, shape=VALUES.shape, order=order)


def of_torch(folder: Path, shared: bool, dtype: torch.dtype) -> torch.Tensor:
    mapped(folder, "r", str(dtype).removeprefix("torch."))
    flat = torch.from_file(str(folder / "values"), shared=shared, size=VALUES.size, dtype=dtype)
    return flat.reshape(VALUES.shape)


MAPS: dict[str, Callable[[Path], Any]] = {
    "read-only": lambda folder: mapped(folder, "r", "<f4"),
    "writable": lambda folder: mapped(folder, "r+", "<f4"),
    "copied on write": lambda folder: mapped(folder, "c", "<f8"),
    "of another machine": lambda folder: mapped(folder, "r", ">f4"),
    "by column": lambda folder: mapped(folder, "r", "<i4", "F"),
    "of tokens": lambda folder: mapped(folder, "r", "<u2"),
    "a view": lambda folder: np.asarray(mapped(folder, "r", "<i2"))[::2],
    "of torch": lambda folder: of_torch(folder, True, torch.int16),
    "of torch, not shared": lambda folder: of_torch(folder, False, torch.uint8),
    "of torch, of tokens": lambda folder: of_torch(folder, True, torch.uint16),
}


@pytest.mark.parametrize("make", MAPS.values(), ids=MAPS)
def test_a_map_gives_the_rows_and_the_fingerprint_of_a_copy_in_memory(make: Any, tmp_path: Path) -> None:
    values = make(tmp_path)
    copied = values.clone() if isinstance(values, torch.Tensor) else np.array(values)
    ours, other = (as_records((each, LABELS[: len(values)])) for each in (values, copied))
    some = torch.tensor([7, 0, 299])
    assert torch.equal(ours.gather(some).inputs[0], other.gather(some).inputs[0])
    assert ours.gather(some).inputs[0].dtype == other.gather(some).inputs[0].dtype
    assert ours.fingerprint(b"secret") == other.fingerprint(b"secret")
    assert ours.rows.hashed == "all rows" and ours.template(3).inputs[0].shape == (3, 2)


@pytest.mark.parametrize("dtype", ["<f4", "<u2"])
def test_a_large_map_is_compared_by_some_rows_and_the_rest_as_a_whole(
    dtype: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rows_module, "_LARGEST_HASHED", 1000)
    values = mapped(tmp_path, "r+", dtype)
    records = as_records((values, LABELS))
    before = records.fingerprint(b"secret")
    values[1] = 9  # every other row is compared
    assert records.fingerprint(b"secret") == before
    values[2] = 9
    assert records.fingerprint(b"secret") != before
    assert records.rows.hashed.startswith(SOME_ROWS)
    others = as_records((values, LABELS.flip(0)))
    assert others.fingerprint(b"secret") != records.fingerprint(b"secret")


def anonymous_mebibytes() -> int:
    """Resident memory of this process without the pages of files."""
    found = re.search(r"RssAnon:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found[1]) >> 10


def test_a_map_is_not_copied_to_train_on_it(tmp_path: Path) -> None:
    path, rows = tmp_path / "values", 1 << 18
    with path.open("wb") as file:
        file.truncate(rows * 1024)  # 256 MiB of zeros, which take no space on the disk
    values = np.memmap(path, dtype=np.float16, mode="r", shape=(rows, 512))
    before = anonymous_mebibytes()
    gradient, noise = so.LossGradient(nn.functional.cross_entropy), so.Gaussian(9.0)
    plan = so.Plan(so.Poisson(rate=16 / rows, steps=2), gradient, so.ClipByNorm(1.0), noise)
    run = so.PrivateRun(plan, nn.Linear(512, 3), (values, np.zeros(rows, dtype=np.int64)))
    next(run)
    assert anonymous_mebibytes() - before < 100


@pytest.mark.slow
def test_a_map_of_20_gib_trains_in_one_gib_and_says_what_a_resumed_run_compares(tmp_path: Path) -> None:
    script = [mapped_training.__file__, str(tmp_path / "values"), "20", str(tmp_path / "run")]
    subprocess.run([sys.executable, limited_memory.__file__, "1024", *script], check=True)
    said = json.loads((tmp_path / "run" / "training.json").read_text())
    assert said["data"]["compared_when_resumed"].startswith(SOME_ROWS)
