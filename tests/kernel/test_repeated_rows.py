"""Rows that are changed at random while they are read are equal when their step is repeated."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import repeated_steps
import torch
from repeated_steps import STEPS, Augmented, trained

import sordino as so
from sordino.convex import GatedReLU, NoisyCGD, fit_hidden_state
from sordino.errors import UsageError
from sordino.kernel import lazy_rows as rows_module
from sordino.kernel.randomness import Key
from sordino.kernel.records import as_records
from sordino.kernel.rows import ReadAt

STREAM = Key.from_seed(3).stream("rows")
SOME = torch.tensor([4, 5, 150])


def test_a_run_that_is_killed_and_resumed_releases_the_same_steps_from_rows_that_augment(tmp_path: Path) -> None:
    command = [sys.executable, repeated_steps.__file__, str(tmp_path / "killed"), "9"]
    assert subprocess.run(command, check=False).returncode == -signal.SIGKILL
    before = torch.load(f"{tmp_path / 'killed'}.released")
    resumed = trained(tmp_path / "killed", resume=True)
    undisturbed = trained(tmp_path / "whole")
    assert (set(before), set(resumed)) == (set(range(9)), set(range(6, STEPS)))  # steps 6 to 8 are taken again
    for released in (before, resumed):
        assert all(torch.equal(value, undisturbed[step]) for step, value in released.items())


def test_rows_that_draw_from_a_generator_of_their_own_are_refused_before_anything_is_charged(tmp_path: Path) -> None:
    budget = so.Budget(Augmented(np.random.default_rng()))
    with pytest.raises(UsageError, match=r"differ when they are read twice.*Views"):
        trained(tmp_path / "run", data=budget)
    assert budget.releases == () and not list(tmp_path.iterdir())


def test_a_training_in_hiding_refuses_such_rows_too(tmp_path: Path) -> None:
    budget = so.Budget(Augmented(np.random.default_rng()))
    plan = NoisyCGD(so.Cyclic(2, 1), GatedReLU(4), clip=1.5, noise_multiplier=5.0, learning_rate=0.1)
    with pytest.raises(UsageError, match="read twice"):
        fit_hidden_state(plan, budget, outputs=3, delta=1e-3, out=tmp_path / "run", progress=False)
    assert budget.releases == () and not list(tmp_path.iterdir())


def test_rows_that_depend_on_which_were_read_before_are_refused(tmp_path: Path) -> None:
    class Remembers(Augmented):
        last = 0

        def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
            before, self.last = self.last, index
            return self.inputs[index] + before, self.labels[index]

    with pytest.raises(UsageError, match="read twice"):
        trained(tmp_path / "run", data=Remembers())


def test_without_a_folder_rows_may_draw_from_wherever_they_like() -> None:
    so.fit(
        torch.nn.Linear(6, 3),
        Augmented(np.random.default_rng()),
        epsilon=3.0,
        delta=1e-3,
        batch_size=40,
        steps=2,
        progress=False,
    )


def rows_are_read_as_they_should() -> bool:
    """Each row of each step has its own draws, whichever other rows are read, and in any order."""
    records = as_records(Augmented())
    first, again, later = (records.gather(SOME, ReadAt(STREAM, step)).inputs[0] for step in (0, 0, 1))
    alone = records.gather(SOME[1:2], ReadAt(STREAM, 0)).inputs[0]
    repeated = torch.equal(first, again) and torch.equal(alone[0], first[1])
    changes = torch.cat([rows - Augmented().inputs[SOME] for rows in (first, later)])
    return repeated and not any(torch.isclose(one, other).any() for one, other in combinations(changes, 2))


def test_each_row_of_each_step_draws_its_own_whoever_else_is_read() -> None:
    assert rows_are_read_as_they_should()


@contextmanager
def seeding_nothing() -> Iterator[Any]:
    yield lambda number: None


@contextmanager
def seeding_torch_alone() -> Iterator[Any]:
    yield torch.manual_seed


@pytest.mark.parametrize(
    ("owner", "name", "planted"),
    [
        (rows_module, "restored_generators", seeding_nothing),
        (rows_module, "restored_generators", seeding_torch_alone),
        (ReadAt, "seed", lambda at, row: at.step),
        (ReadAt, "seed", lambda at, row: row),
        (ReadAt, "seed", lambda at, row: at.step + row),
    ],
)
def test_bugs_in_the_seeding_are_noticed(owner, name: str, planted, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(owner, name, planted)
    assert not rows_are_read_as_they_should()


@pytest.mark.parametrize("read", [so.as_records, lambda data: as_records(data).gather(SOME, ReadAt(STREAM, 0))])
def test_reading_rows_leaves_the_generators_of_the_script_where_they_were(read) -> None:
    data = Augmented()

    def next_draws() -> tuple[float, float, float]:
        return float(torch.rand(())), float(np.random.random()), random.random()

    torch.manual_seed(5), np.random.seed(5), random.seed(5)
    expected = next_draws()
    torch.manual_seed(5), np.random.seed(5), random.seed(5)
    read(data)
    assert next_draws() == expected


def test_a_charged_evaluation_that_is_repeated_looks_at_the_same_rows() -> None:
    model = torch.nn.Linear(6, 3)

    def measured() -> float:
        budget = so.Budget(Augmented(scale=10.0))
        return so.Charged(budget, 1.0, 1, key=Key.from_seed(2)).accuracy(model)

    assert measured() == measured()


def test_a_fingerprint_knows_data_that_augment_again() -> None:
    one, other = as_records(Augmented()), as_records(Augmented(scale=2.0))
    assert one.fingerprint(b"secret") == one.fingerprint(b"secret") != other.fingerprint(b"secret")
