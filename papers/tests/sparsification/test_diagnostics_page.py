"""The example of the page about raw gradients runs, and promises nothing."""

from pages import run_examples


def test_the_page_about_raw_gradients_runs_and_says_that_nothing_is_private(capsys) -> None:
    names = run_examples("papers/sordino_papers/sparsification/RAW_GRADIENTS.md")
    assert capsys.readouterr().out.count("not private") == 2
    assert [ratio.rate for ratio in names["ratios"]] == [0.0, 0.5, 0.9]
