"""An experiment keeps each run as it ends, runs nothing twice, and averages what it kept."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field

import pytest

from sordino.cli import main
from sordino.errors import StateError, UsageError
from sordino_papers.experiments import EXPERIMENTS
from sordino_papers.harness.entry import Entry, Measurement, RunScale, SideTable
from sordino_papers.harness.reproduce import reproduce
from sordino_papers.harness.results_file import ResultsFile
from sordino_papers.harness.table import rows

FIELDS = {"method", "data", "epsilon", "adjacency", "paper", "ours", "sem", "seeds", "seconds"}


@dataclass
class Coins:
    """Two entries whose values are 10 times the seed, and 10 times the seed plus 1. Counts what it measures."""

    name: str = "coins"
    about: str = "Coins."
    lr: float = 1.0
    measured: list[tuple[str, int]] = field(default_factory=list)
    fails_at: tuple[str, int] | None = None

    def entries(self, scale):
        return [self._entry("first", 0.0), self._entry("second", 1.0)]

    def ablation(self, scale):
        return [self._entry("varied", 2.0)]

    def sides(self, scale, seeds, folder):
        return [SideTable("Beside.", (("a", "b"),), ())]

    def _entry(self, method, more):
        def measure(seed):
            if (method, seed) == self.fails_at:
                raise KeyboardInterrupt
            self.measured.append((method, seed))
            return Measurement(10.0 * seed + more, {"seen": seed})

        return Entry(method, "none", 1.0, "zero-out", {"lr": self.lr}, measure, paper=50.0, chosen="by chance")


def run(coins, folder, **options):
    return reproduce(coins, folder, **({"scale": RunScale.QUICK, "seeds": 2, "progress": False} | options))


def test_what_is_there_can_be_shown_without_running_more(tmp_path):
    run(Coins(), tmp_path, seeds=1)
    coins = Coins()
    found = run(coins, tmp_path, seeds=3, train=False)
    assert coins.measured == []
    assert [(row.ours, row.seeds) for row in found.rows] == [(0.0, 1), (1.0, 1)]


def test_every_entry_of_a_seed_comes_before_the_next_seed(tmp_path):
    coins = Coins()
    run(coins, tmp_path)
    assert coins.measured == [("first", 0), ("second", 0), ("first", 1), ("second", 1)]


def test_rows_are_means_of_seeds_with_their_standard_error(tmp_path):
    first, second = run(Coins(), tmp_path, seeds=3).rows
    assert (first.ours, second.ours, first.seeds) == (10.0, 11.0, 3)
    assert first.sem == pytest.approx(10 / math.sqrt(3))
    assert first.shown == "10.0 ± 11.3"


def test_one_seed_has_no_standard_error(tmp_path):
    row = run(Coins(), tmp_path, seeds=1).rows[0]
    assert row.sem is None and row.shown == "0.0"


def test_what_was_stopped_goes_on_without_running_anything_twice(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        run(Coins(fails_at=("second", 1)), tmp_path)
    coins = Coins()
    found = run(coins, tmp_path)
    assert coins.measured == [("second", 1)]
    assert [row.ours for row in found.rows] == [5.0, 6.0]


def test_another_setting_is_another_entry(tmp_path):
    run(Coins(), tmp_path)
    changed = Coins(lr=2.0)
    run(changed, tmp_path)
    assert len(changed.measured) == 4


def test_more_seeds_add_to_those_that_are_there(tmp_path):
    run(Coins(), tmp_path, seeds=1)
    coins = Coins()
    assert run(coins, tmp_path, seeds=2).rows[0].seeds == 2
    assert coins.measured == [("first", 1), ("second", 1)]


def test_fewer_seeds_show_fewer_of_those_that_are_there(tmp_path):
    run(Coins(), tmp_path, seeds=3)
    assert run(Coins(), tmp_path, seeds=1).rows[0].ours == 0.0


def test_an_ablation_is_run_only_if_asked_for(tmp_path):
    assert len(run(Coins(), tmp_path).rows) == 2
    assert [row.method for row in run(Coins(), tmp_path, ablate=True).rows] == ["first", "second", "varied"]


def test_every_run_names_command_commit_and_machine(tmp_path):
    run(Coins(), tmp_path)
    lines = [json.loads(line) for line in (tmp_path / "runs.jsonl").read_text().splitlines()]
    assert len(lines) == 4
    assert all({"command", "commit", "machine", "seed", "seconds", "settings"} <= set(line) for line in lines)
    assert lines[0]["command"] == "sordino reproduce coins --scale quick --seeds 2"


def test_the_table_is_kept_beside_the_runs(tmp_path):
    run(Coins(), tmp_path)
    table = json.loads((tmp_path / "table-quick.json").read_text())
    assert set(table["rows"][0]) >= FIELDS and table["rows"][0]["chosen"] == "by chance"


def test_a_page_shows_the_table_how_it_was_chosen_and_what_goes_with_it(tmp_path):
    run(Coins(), tmp_path)
    page = (tmp_path / "table-quick.md").read_text()
    assert "| first | none | 1 | zero-out | - | quick: not comparable with the paper | 5.0 ± 9.8 | 2 | 0 |" in page
    assert page.startswith("# coins\n\nScale quick: ")
    assert "How settings were chosen, none: by chance" in page and "| a | b |" in page
    assert "`sordino reproduce coins --scale quick --seeds 2`" in page


def test_a_line_that_was_cut_off_is_run_again_and_the_file_is_whole_afterwards(tmp_path):
    run(Coins(), tmp_path)
    path = tmp_path / "runs.jsonl"
    path.write_bytes(path.read_bytes()[:-7])
    coins = Coins()
    run(coins, tmp_path)
    assert coins.measured == [("second", 1)]
    assert all(json.loads(line) for line in path.read_text().splitlines())


@pytest.mark.parametrize("line", ["{}", "[1]", "not json", '{"seed": 1, "seed": 2}', '{"seed": 0, "value": 1}'])
def test_a_line_that_is_no_run_is_refused_by_its_number(tmp_path, line):
    run(Coins(), tmp_path)
    path = tmp_path / "runs.jsonl"
    path.write_text(path.read_text() + line + "\n")
    with pytest.raises(StateError, match=r"line 5 of .* is not a run: remove it, and it is run again"):
        run(Coins(), tmp_path)


def test_an_entry_that_was_never_run_has_an_empty_row(tmp_path):
    (row, _) = rows(Coins().entries(RunScale.QUICK), ResultsFile(tmp_path / "runs.jsonl"), seeds=2)
    assert (row.ours, row.sem, row.seeds, row.seconds, row.shown) == (None, None, 0, None, "-")


def test_no_seeds_are_refused(tmp_path):
    with pytest.raises(UsageError, match="seeds must be"):
        run(Coins(), tmp_path, seeds=0)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nothing"], "sordino: experiment must be one of hidden-state"),
        (["hidden-state", "--scale", "huge"], "sordino: --scale must be one of quick, cpu, paper, got 'huge'."),
        (["hidden-state", "--seeds", "0"], "sordino: --seeds must be"),
    ],
)
def test_the_command_line_refuses_in_one_line(arguments, message, capsys, tmp_path):
    with pytest.raises(SystemExit) as ended:
        main(["reproduce", *arguments, "--out", str(tmp_path)])
    shown = capsys.readouterr().err
    assert ended.value.code == 2 and shown.startswith(message) and shown.count("\n") == 1


def test_the_command_line_prints_rows_as_json(monkeypatch, capsys, tmp_path):
    monkeypatch.setitem(EXPERIMENTS, "coins", Coins())
    with pytest.raises(SystemExit) as ended:
        main(["reproduce", "coins", "--seeds", "2", "--json", "--out", str(tmp_path)])
    printed = json.loads(capsys.readouterr().out)
    assert ended.value.code == 0 and set(printed["rows"][0]) >= FIELDS
    assert (tmp_path / "coins" / "runs.jsonl").exists()


def test_to_show_a_table_writes_nothing_and_has_every_seed_that_is_there(monkeypatch, capsys, tmp_path):
    monkeypatch.setitem(EXPERIMENTS, "coins", Coins())
    with pytest.raises(SystemExit):
        main(["reproduce", "coins", "--seeds", "4", "--json", "--out", str(tmp_path)])
    whole = json.loads(capsys.readouterr().out)
    before = {path.name: (path.read_bytes(), path.stat().st_mtime_ns) for path in (tmp_path / "coins").iterdir()}
    with pytest.raises(SystemExit):
        main(["reproduce", "coins", "--show", "--json", "--out", str(tmp_path)])
    assert json.loads(capsys.readouterr().out) == whole
    after = {path.name: (path.read_bytes(), path.stat().st_mtime_ns) for path in (tmp_path / "coins").iterdir()}
    assert after == before
    with pytest.raises(SystemExit) as ended:
        main(["reproduce", "coins", "--show", "--out", str(tmp_path / "nowhere")])
    assert ended.value.code == 0 and not (tmp_path / "nowhere").exists()


def test_a_place_where_nothing_can_be_kept_is_refused_before_anything_is_run(monkeypatch, capsys, tmp_path):
    monkeypatch.setitem(EXPERIMENTS, "coins", Coins())
    monkeypatch.setattr("sordino_papers.harness.reproduce._run", lambda *_: pytest.fail("something was run"))
    (tmp_path / "file").write_text("")
    with pytest.raises(SystemExit) as ended:
        main(["reproduce", "coins", "--out", str(tmp_path / "file")])
    said = capsys.readouterr().err
    assert ended.value.code == 3 and "cannot be written: Not a directory" in said and said.count("\n") == 1


def test_the_command_line_prints_a_table_and_what_goes_with_it(monkeypatch, capsys, tmp_path):
    monkeypatch.setitem(EXPERIMENTS, "coins", Coins())
    with pytest.raises(SystemExit):
        main(["reproduce", "coins", "--seeds", "2", "--out", str(tmp_path), "--quiet"])
    shown = capsys.readouterr().out
    assert "Coins." in shown and "5.0 ± 9.8" in shown and "Beside." in shown
