"""The scikit-learn page runs, and gives the guarantee that it states."""

from pages import run_examples

from sordino.accounting import Unit


def test_the_page_runs_and_its_guarantees_hold(capsys):
    names = run_examples("docs/scikit-learn.md")
    assert names["model"][-1].privacy_.epsilon <= 1.0
    assert names["model"].score(names["X"], names["y"]) > 0.9
    assert len(names["budget"].releases) == 10 and 1.0 < names["total"].epsilon <= 4.0
    assert names["by_user"].privacy_.unit is Unit.USER
    assert names["hidden"][-1].privacy_.view == "final-model" and names["hidden"].score(names["X"], names["y"]) > 0.9
    assert names["regressor"].score(names["X"], names["amount"]) > 0.5
    assert "in 10 releases" in capsys.readouterr().out
