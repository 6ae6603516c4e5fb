"""A comparison shows accuracy against epsilon, and warns if two epsilons cannot be compared."""

import json
import re

import pytest

from sordino.accounting.guarantee import rounded_up
from sordino.cli.runs import report
from sordino.errors import StateError
from sordino.report import write_comparison


def written(paths, out):
    page = write_comparison(paths, out).read_text()
    return page, json.loads((out / "report.json").read_text())


@pytest.fixture(scope="module")
def alike(make_run, run, tmp_path_factory):
    """A comparison of two runs that differ in noise and learning rate only."""
    return written([run, make_run(noise_multiplier=4.0, learning_rate=0.25)], tmp_path_factory.mktemp("comparison"))


def test_each_run_stands_with_its_epsilon_adjacency_and_accuracy(alike, evidence):
    page, facts = alike
    assert len(facts["results"]["runs"]) == 2
    for number, run in enumerate(facts["results"]["runs"], start=1):
        accuracy = run["test"]["accuracy"]
        epsilon = rounded_up(run["epsilon"])
        row = f"<td>{number}</td><td>{run['run']}</td><td>{epsilon}</td><td>0.0001</td><td>zero-out</td>"
        assert row in page
        assert f"run {number}: {100 * accuracy:.1f} %" in page
    assert facts["results"]["runs"][0]["epsilon"] == evidence.guarantee.epsilon


def test_only_settings_that_differ_are_shown(alike):
    page, facts = alike
    assert facts["differences"] == {"lr": [0.5, 0.25], "noise_multiplier": [5.0, 4.0]}
    assert "<td>momentum</td>" not in page
    assert facts["not_comparable"] == {} and "not comparable" not in page


def test_runs_under_different_adjacencies_are_said_not_to_be_comparable(make_run, run, tmp_path):
    page, facts = written([run, make_run(adjacency="replace-one")], tmp_path)
    assert facts["not_comparable"] == {"adjacency": ["zero-out", "replace-one"]}
    assert "These runs are not comparable: they differ in adjacency (zero-out, replace-one)." in page
    assert "zero-out adjacency" in page and "replace-one adjacency" in page  # markers of their own


def test_equal_runs_have_no_differences(run, tmp_path):
    page, facts = written([run, run], tmp_path)
    assert facts["differences"] == {} and "All settings are equal." in page


def test_a_run_without_test_rows_is_in_the_table_and_not_in_the_picture(make_run, run, tmp_path):
    page, facts = written([make_run(data="<gone>.npz"), run], tmp_path)
    assert "absent" in facts["results"]["runs"][0] and "run 1:" not in page
    assert "<gone>" not in page and "&lt;gone&gt;" in page
    assert facts["not_comparable"] == {}


def test_one_damaged_run_stops_the_comparison(make_run, run, tmp_path):
    with pytest.raises(StateError):
        write_comparison([run, make_run(privacy={"epsilon": 0.01})], tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_the_command_compares_into_a_folder_of_its_own(run, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    report([run, run])
    assert capsys.readouterr().out == "comparison/report.html\n"
    assert re.search("<h1>2 private runs</h1>", (tmp_path / "comparison" / "report.html").read_text())
