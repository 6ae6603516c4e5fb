"""Rows that worker processes read ahead are those that the training thread would read, bit for bit."""

from __future__ import annotations

import logging
import os
import random
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, default_collate

import sordino as so
from sordino.errors import DataError, SordinoError, UsageError
from sordino.kernel.loading import Loading
from sordino.kernel.randomness import Key
from sordino.kernel.records import as_records, by_user
from sordino.kernel.rows import ReadAt

GENERATOR = torch.Generator().manual_seed(0)
X, Y = torch.randn(60, 4, generator=GENERATOR), torch.randint(0, 3, (60,), generator=GENERATOR)
STREAM = Key.from_seed(3).stream("rows")


class Drawing(Dataset[Any]):
    """Rows that draw from all three global generators. Some cannot be read, if `damaged`. Notes who reads which."""

    def __init__(self, *, damaged: bool = False, notes: Path | None = None) -> None:
        self.damaged, self.notes = damaged, notes

    def __len__(self) -> int:
        return len(X)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        if self.notes is not None:
            with self.notes.open("a") as file:
                file.write(f"{os.getpid()} {index}\n")
        if self.damaged and index % 7 == 1:
            raise OSError(5, "cannot read", "ALICE.png")
        return X[index] + torch.rand(4) + float(np.random.random()) + random.random(), int(Y[index])


class Deadly(Drawing):
    """A dataset of which one row ends the process that reads it."""

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        if index == 31 and torch.utils.data.get_worker_info() is not None:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__getitem__(index)


def run_of(data: Any, *, rate: float = 0.4, steps: int = 5, **settings: Any) -> so.PrivateRun:
    torch.manual_seed(0)
    gradient = so.LossGradient(nn.functional.cross_entropy)
    plan = so.Plan(so.Poisson(rate=rate, steps=steps), gradient, so.ClipByNorm(1.0), so.Gaussian(9.0))
    return so.PrivateRun(plan, nn.Linear(4, 3), data, seed=5, **settings)


def released(data: Any, **settings: Any) -> Tensor:
    return torch.stack([private.value for private in run_of(data, **settings)])


def test_workers_change_no_bit_of_a_release_and_leave_the_generators_of_the_script(tmp_path: Path) -> None:
    """Rows that draw, rows that cannot be read, several micro-batches a step, and empty ones."""
    alone = released(Drawing(damaged=True), physical_batch_size=9)
    notes = tmp_path / "readers"
    torch.manual_seed(5), np.random.seed(5), random.seed(5)
    states = torch.get_rng_state(), np.random.get_state()[1], random.getstate()
    run = run_of(as_records(Drawing(damaged=True, notes=notes), loading=Loading(num_workers=2)), physical_batch_size=9)
    torch.manual_seed(5)
    ahead = torch.stack([private.value for private in run])
    assert torch.equal(alone, ahead)
    readers = {line.split()[0] for line in notes.read_text().splitlines()[9:]}  # nine rows are inspected first
    assert len(readers) == 2 and str(os.getpid()) not in readers
    assert torch.equal(torch.get_rng_state(), states[0]) and random.getstate() == states[2]
    assert np.array_equal(np.random.get_state()[1], states[1])


def test_rows_of_users_are_read_ahead_too() -> None:
    users = [by_user(Drawing(), torch.arange(60) // 3, rows_per_user=2, loading=Loading(n)) for n in (0, 1)]
    alone, ahead = (released(data, rate=0.2, steps=3) for data in users)
    assert torch.equal(alone, ahead)


def test_two_batches_are_read_while_a_step_computes(tmp_path: Path) -> None:
    notes = tmp_path / "readers"
    batches = list(so.Poisson(0.4, 9).batches(60, run_of(Drawing(), steps=9)._streams.sampling))
    run = run_of(as_records(Drawing(notes=notes), loading=Loading(num_workers=1)), steps=9)
    next(run)
    expected, found = 9 + sum(map(len, batches[:3])), 0
    for _ in range(200):
        if (found := len(notes.read_text().splitlines())) >= expected:
            break
        signal.sigtimedwait([], 0.02)
    assert found == expected


@pytest.mark.slow  # torch looks every five seconds
def test_a_worker_that_dies_is_an_error_that_names_no_row() -> None:
    run = run_of(as_records(Deadly(), loading=Loading(num_workers=1)), rate=1.0)
    before = signal.getsignal(signal.SIGCHLD)
    with pytest.raises(SordinoError, match="a worker process that reads rows has ended") as died:
        next(run)
    assert "31" not in str(died.value) and "\n" not in str(died.value) and died.value.__cause__ is None
    assert signal.getsignal(signal.SIGCHLD) == before  # torch's handler would raise in the middle of a step


def test_rows_that_were_not_announced_are_read_in_this_process() -> None:
    run, other = run_of(as_records(Drawing(), loading=Loading(num_workers=1))), run_of(Drawing())
    begun, alone = run.begin(), other.begin()
    for part in (begun.indices[3:5], begun.indices[:2]):
        (found, _), (expected, _) = run.drawn(begun, part), other.drawn(alone, part)
        assert torch.equal(found.inputs[0], expected.inputs[0])


def test_a_loader_is_taken_apart_and_says_so_once(caplog: pytest.LogCaptureFixture) -> None:
    loader = DataLoader(Drawing(), batch_size=7, shuffle=True, num_workers=1, worker_init_fn=torch.manual_seed)
    with caplog.at_level(logging.WARNING, "sordino"):
        ahead = released(loader)
    assert torch.equal(ahead, released(Drawing()))
    assert [record.name for record in caplog.records] == ["sordino"] and "sampler of the plan" in caplog.text


def shifted(rows: list[Any]) -> dict[str, Tensor]:
    """A collate function that draws, as one that masks words, and shows how many rows it sees."""
    inputs, labels = default_collate(rows)
    return {"x": inputs + torch.rand(()), "labels": labels + 10 * (len(rows) - 1)}


@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_collate_function_sees_one_row_at_a_time_and_draws_from_its_seed(num_workers: int) -> None:
    records = as_records(Drawing(), loading=Loading(num_workers, shifted))
    some = records.read_ahead(iter([(torch.tensor([3, 8]), ReadAt(STREAM, 4))]), requests_per_step=1)
    together, alone = (records.gather(torch.tensor(each), ReadAt(STREAM, 4)) for each in ([3, 8], [8]))
    assert together.names == ("x",) and torch.equal(together.target, Y[[3, 8]])
    assert torch.equal(together.inputs[0][1], alone.inputs[0][0])
    assert torch.equal(some.gather(torch.tensor([3, 8]), ReadAt(STREAM, 4)).inputs[0], together.inputs[0])


def test_an_evaluation_reads_its_rows_by_workers_too() -> None:
    model = nn.Linear(4, 3)

    def measured(data: Any) -> float:
        return so.Charged(so.Budget(data), 1.0, 1, key=Key.from_seed(2)).accuracy(model, batch_size=16)

    assert measured(as_records(Drawing(), loading=Loading(1))) == measured(Drawing())


@pytest.mark.parametrize(
    ("make", "error", "says"),
    [
        (lambda: Loading(num_workers=-1), UsageError, "num_workers must be"),
        (lambda: Loading(collate_fn=3), UsageError, "collate_fn must be a function, got"),
        (lambda: as_records(Drawing(), loading=Loading(0, lambda rows: X[:3])), DataError, "a tuple or a dictionary"),
        (lambda: as_records(Drawing(), loading=Loading(0, lambda rows: (X, Y))), DataError, "one entry for one row"),
        (lambda: as_records((X, Y), loading=Loading(0, shifted)), UsageError, "is for a map-style Dataset, got tuple"),
        (lambda: as_records(as_records((X, Y)), loading=Loading(1)), UsageError, "got Records"),
    ],
)
def test_loading_that_cannot_be_is_refused_in_one_line(make: Any, error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says) as refused:
        make()
    assert "\n" not in str(refused.value)
