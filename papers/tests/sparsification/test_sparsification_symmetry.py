"""The experiment on symmetry: a picture and a test for every look, none of which claims to be private."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from sordino.encodings import RandomSparsify
from sordino.kernel.encoding import Unchanged
from sordino.training.not_private import NOT_PRIVATE
from sordino_papers.harness.entry import RunScale
from sordino_papers.harness.reproduce import reproduce
from sordino_papers.sparsification import symmetry
from sordino_papers.sparsification.symmetry import LOOKS, METHODS, SYMMETRY


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """The quick table with fewer units and signs: the same files, in a second."""
    (looks,) = LOOKS[RunScale.QUICK]
    folder = tmp_path_factory.mktemp("symmetry")
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(symmetry.LOOKS, RunScale.QUICK, (replace(looks, epochs=(0, 2), units=20),))
        patch.setattr(symmetry, "FLIPS", 19)
        return folder, reproduce(SYMMETRY, folder, scale=RunScale.QUICK, seeds=1, progress=False)


def test_each_method_has_a_line_without_an_epsilon_and_a_table_by_epoch(found) -> None:
    _, table = found
    assert [row.method for row in table.rows] == list(METHODS)
    assert all(row.epsilon is None and row.adjacency is None and row.seeds == 1 for row in table.rows)
    for side in table.sides:
        assert [line[0] for line in side.lines] == ["epoch", "0", "2"]
        assert "not private" in side.title


def test_both_methods_start_alike_and_only_one_is_sparse() -> None:
    (looks,) = LOOKS[RunScale.QUICK]
    encodings = [replace(looks.training.trial, sparsity=sparsity).encoding(1437) for sparsity in METHODS.values()]
    assert [type(encoding) for encoding in encodings] == [Unchanged, RandomSparsify]
    assert encodings[1].zeroed(0, 1000) == 0


def test_all_that_is_written_says_what_it_is_and_where_it_comes_from(found) -> None:
    folder, table = found
    for side in table.sides:
        picture, numbers = side.files
        assert NOT_PRIVATE in picture.read_text() and "epoch 2, p " in picture.read_text()
        written = json.loads(numbers.read_text())
        assert {"command", "commit", "machine", "seeds"} <= written.keys()
        assert all(run["warning"] == NOT_PRIVATE for run in written["runs"])
    runs = [json.loads(line) for line in (folder / "runs.jsonl").read_text().splitlines()]
    assert all(run["more"]["warning"] == NOT_PRIVATE and run["epsilon"] is None for run in runs)


def test_pictures_count_the_points_that_were_looked_at(found) -> None:
    folder, _ = found
    for line in (folder / "runs.jsonl").read_text().splitlines():
        for look in json.loads(line)["more"]["looks"]:
            for plane in look["planes"]:
                assert 18 <= sum(map(sum, plane["counts"])) <= 20 == plane["points"]


@pytest.mark.parametrize("scale", list(RunScale))
def test_every_look_lies_within_its_training(scale) -> None:
    for looks in LOOKS[scale]:
        assert max(looks.epochs) < looks.training.trial.epochs
        assert looks.units <= looks.training.trial.batch_size
