"""Attacks on a finished run stay below the bound of its guarantee, and are never written into its folder."""

import json
from pathlib import Path

import pytest

from sordino.attacks.membership.attack import attack_run, write_internal
from sordino.cli.attacks import AttackName, members
from sordino.errors import DataError, Interrupted, StateError, UsageError
from sordino.recipes import Recipe, carry_out
from sordino.recipes.methods import DpSgd


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    recipe = Recipe("digits", "linear", epsilon=4.0, delta=1e-4, batch_size=256, steps=12, seed=0)
    return carry_out(recipe, tmp_path_factory.mktemp("runs") / "run", progress=False).path


@pytest.fixture(scope="module")
def found(folder):
    return attack_run(folder, rows=150, references=4, seed=0, progress=False)


def test_members_of_a_private_model_are_not_found_above_the_bound(found):
    assert (found.members, found.others, found.population) == (150, 150, 210)
    for each in found.attacks:
        assert all(at.low <= most for at, most in zip(each.detections, found.allowed.detections, strict=True))
        assert each.auc.low <= found.allowed.auc
    assert 0.5 < found.allowed.auc < 1
    assert found.rates == (0.001, 0.01) and list(found.allowed.detections) == sorted(found.allowed.detections)


def test_the_attack_says_that_it_is_not_private_and_stays_out_of_the_run(found, folder, tmp_path):
    before = sorted(path.name for path in folder.iterdir())
    assert found.warning.startswith("not private")
    with pytest.raises(UsageError, match="lies in a run folder"):
        write_internal(found, folder)
    with pytest.raises(UsageError, match="lies in a run folder"):
        write_internal(found, folder / "attack")
    page = write_internal(found, tmp_path / "run.internal")
    assert "This page is not private" in page.read_text() and "<script" not in page.read_text()
    assert page.stat().st_mode & 0o077 == 0
    numbers = json.loads((tmp_path / "run.internal" / "members.json").read_text())
    assert numbers["warning"] == found.warning and len(numbers["attacks"]) == 4
    assert [path for path in sorted(folder.rglob("*")) if path.is_file() and path.name not in before] == []


def test_the_command_writes_beside_the_run_and_shows_what_is_allowed_first(folder, capsys):
    members(folder, rows=40, references=2, attack=AttackName.RMIA, quiet=True)
    printed = capsys.readouterr().out.splitlines()
    assert printed[1].startswith("allowed at most")
    assert printed[2].startswith("RMIA, online") and printed[3].startswith("RMIA, offline")
    assert "not private" in printed[-2]
    assert Path(printed[-1]) == folder.with_name("run.internal") / "members.html"
    members(folder, rows=40, references=2, as_json=True)
    assert json.loads(capsys.readouterr().out)["references"] == 2


def test_references_may_take_fewer_epochs(folder):
    assert "1 epochs" in attack_run(folder, rows=40, references=2, epochs=1.0, progress=False).trained


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"rows": 3}, "rows must be"),
        ({"references": 3}, "references must be an even number"),
        ({"references": 0}, "references must be"),
        ({"rates": (0.0,)}, "false_alarm_rate"),
        ({"rates": (float("nan"),)}, "false_alarm_rate"),
        ({"epochs": -1.0}, "epochs"),
    ],
)
def test_bad_arguments_are_refused(folder, wrong, message):
    with pytest.raises(UsageError, match=message):
        attack_run(folder, progress=False, **wrong)


def test_a_folder_without_a_run_and_rows_of_another_shape_are_refused(folder, tmp_path):
    with pytest.raises(UsageError, match="there is no run"):
        attack_run(tmp_path, progress=False)
    with pytest.raises((DataError, UsageError, StateError)):
        attack_run(folder, data="nowhere.csv", progress=False)


def test_an_attack_that_is_stopped_says_so_and_writes_nothing(folder, monkeypatch):
    def stopped(self, prepared, kept, **options):
        raise Interrupted("stopped after step 3 of 12; nothing is lost, resume it.")

    monkeypatch.setattr(DpSgd, "train", stopped)
    with pytest.raises(Interrupted, match=r"stopped in reference model 1 of 4; nothing was written\."):
        attack_run(folder, rows=40, progress=False)
