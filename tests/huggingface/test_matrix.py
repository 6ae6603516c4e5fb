"""Clipped sums of twelve architectures are those of a loop over single examples, with the model's own loss."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench.transformers_matrix import CELLS, cell

RESULT = Path(__file__).parents[2] / "results" / "transformers_matrix.json"
IN_THE_FAST_TIER = (
    ("bert", "full", "sdpa"),
    ("gpt2", "full", "eager"),
    ("llama", "lora", "sdpa"),
    ("t5", "full", "sdpa"),
)


@pytest.mark.parametrize(
    "place", [pytest.param(each, marks=() if each in IN_THE_FAST_TIER else pytest.mark.slow) for each in CELLS]
)
def test_a_clipped_sum_is_that_of_the_loop(place: tuple[str, str, str]) -> None:
    found = cell(*place, seed=1)
    assert found["error"] < 1e-5  # type: ignore[operator]
    assert found["taped"] and found["taped_share"] > 0.9  # type: ignore[operator]


def test_the_kept_matrix_has_each_cell_and_no_error_above_the_tolerance() -> None:
    kept = json.loads(RESULT.read_text())
    assert [(c["architecture"], c["trained"], c["attention"]) for c in kept["cells"]] == list(CELLS)
    assert len(CELLS) == 48 and max(c["error"] for c in kept["cells"]) < 1e-5
    assert {"command", "commit", "machine", "seeds", "transformers", "peft"} <= kept.keys()
