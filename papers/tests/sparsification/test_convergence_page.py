"""The examples of the page about convergence run."""

from pages import run_examples


def test_the_page_about_convergence_runs() -> None:
    assert run_examples("papers/sordino_papers/sparsification/CONVERGENCE.md")["measured"].short_deviations > 0
