"""The page about mitigations runs, and its guarantees hold."""

from __future__ import annotations

from pages import run_examples


def test_the_examples_run_and_keep_what_they_promise() -> None:
    names = run_examples("docs/fairness.md")
    assert 2.9 < names["fitted"].guarantee.epsilon <= 3.0
    assert names["run"].steps == 40
    share = float((~names["run"].coding_state["keep"]).double().mean())
    assert abs(share - 0.77) < 1 / len(names["run"].coding_state["keep"])
