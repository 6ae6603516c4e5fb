"""The experiment `audit`: what its entries measure, and what is drawn from the runs that are there."""

import pytest

from sordino_papers.attacks import audit as table
from sordino_papers.attacks.audit import AUDIT, EPSILONS
from sordino_papers.harness.entry import Measurement, RunScale, SideTable
from sordino_papers.harness.reproduce import reproduce
from sordino_papers.harness.results_file import ResultsFile


@pytest.mark.parametrize("scale", list(RunScale))
def test_every_attack_but_the_black_box_is_made_at_every_epsilon(scale):
    entries = AUDIT.entries(scale)
    by_attack = {entry.method: [] for entry in entries}
    for entry in entries:
        by_attack[entry.method].append(entry.epsilon)
    for attack, epsilons in by_attack.items():
        assert tuple(epsilons) == EPSILONS or attack.startswith("black box")
    assert len({entry.name for entry in entries}) == len(entries)


def test_entries_measure_every_method_and_stay_below_theory():
    entries = AUDIT.entries(RunScale.QUICK)
    chosen = [entry for entry in entries if entry.epsilon == 8.0 and not entry.method.startswith("black box")]
    assert len(chosen) == 3
    for entry in chosen:
        found = entry.measure(0)
        assert found.value == found.more["one-run"]
        assert {"f-dp", "gaussian", "clopper-pearson", "f-dp at fixed guesses"} <= found.more.keys()
        assert all(0 <= found.more[method] <= found.more["theory"] for method in ("one-run", "f-dp", "gaussian"))


def test_the_side_says_how_often_a_bound_was_above_theory(tmp_path, monkeypatch):
    monkeypatch.setattr(table, "MUTANT_TABLE", _NoMutants())
    entry = next(entry for entry in AUDIT.entries(RunScale.QUICK) if entry.epsilon == 2.0)
    results = ResultsFile(tmp_path / "runs.jsonl")
    for seed, shown in enumerate((1.0, 2.5)):
        measured = Measurement(shown, {"one-run": shown, "f-dp": 0.0, "theory": 2.0})
        results.add(entry, seed=seed, measured=measured, seconds=1.0, origin={})
    found = reproduce(AUDIT, tmp_path, scale=RunScale.QUICK, seeds=2, train=False, progress=False)
    head, line = found.sides[0].lines
    assert dict(zip(head, line, strict=True))["one-run"] == "1.75 ± 1.47 (1 above)"
    assert dict(zip(head, line, strict=True))["gaussian"] == "-"
    assert (tmp_path / "bounds-quick.svg").exists()


class _NoMutants:
    def side(self, scale, folder):
        return SideTable("none", (("bug",),), ())
