"""The examples of the page about transfer run, and promise what they say."""

from pages import run_examples


def test_the_page_about_transfer_runs_and_its_guarantees_hold(capsys) -> None:
    names = run_examples("docs/transfer.md")
    assert 2.9 < names["fitted"].guarantee.epsilon <= 3.0
    assert 7.9 < names["embedded"].guarantee.epsilon <= 8.0
    assert 2.9 < names["normalized"].guarantee.epsilon <= 3.0
    assert names["normalized"].guarantee.epsilon < names["budget"].guarantee(delta=1e-3).epsilon
