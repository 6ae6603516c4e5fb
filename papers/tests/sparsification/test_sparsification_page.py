"""The examples of the page about sparsification run, and promise what they say."""

from pages import run_examples


def test_the_page_about_sparsification_runs_and_its_guarantees_hold() -> None:
    assert 2.9 < run_examples("docs/sparsification.md")["fitted"].guarantee.epsilon <= 3.0
