"""Peers and Sordino clip the gradients of a transformer to the same sum (make peers-test)."""

from __future__ import annotations

import pytest

pytest.importorskip("opacus", reason="Opacus and Opake are in the environment of the peers: make peers-test")

from bench.large_models import LARGE_MODELS
from bench.large_steps import SIDES, Worker
from bench.transformer_models import WORKLOADS
from bench.transformers import error_of

SUMS = [
    ("bert-mini-full-float32", "sordino", "taped"),
    ("bert-mini-full-float32", "opacus", "ghost"),
    ("bert-mini-lora-float32", "opacus", "hooks"),
    ("bert-mini-lora-float32", "opake", "no mask"),
    ("gpt2-like-lora-float32", "sordino", "taped"),
    ("gpt2-like-lora-float32", "opake", "patched"),
]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # those of the peers
@pytest.mark.parametrize(("name", "side", "mode"), SUMS)
def test_the_clipped_sum_is_that_of_single_rows(name: str, side: str, mode: str) -> None:
    workload = WORKLOADS[name]
    assert error_of(workload, workload.transformer.rows(3), side, mode, 3) < 1e-4


LARGE_SUMS = [
    ("u-net", "sordino", "taped"),
    ("u-net", "opacus-ghost", "ghost"),
    ("u-net", "opake", "functional"),
    ("recommender", "sordino", "taped"),
    ("recommender", "opacus-ghost", "ghost"),
    ("recommender-bag", "sordino", "taped"),
]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # those of the peers
@pytest.mark.parametrize(("name", "side", "mode"), LARGE_SUMS)
def test_the_clipped_sum_of_a_large_model_is_that_of_single_rows(name: str, side: str, mode: str) -> None:
    assert Worker(LARGE_MODELS[name], SIDES[side], 2).error(mode, 2) < 1e-4
