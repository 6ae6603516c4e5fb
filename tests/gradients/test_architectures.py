"""Clipped sums of many kinds of models are those of a loop over single examples, and others are refused in one line."""

from __future__ import annotations

import time
from itertools import count
from pathlib import Path

import pytest
import torch
from torch import nn

from bench.architecture_models import KINDS, Kind
from bench.architecture_models.kinds import vectors
from bench.architectures import in_process, is_clear, kept, measure

RESULT = Path(__file__).parents[2] / "results" / "architectures.json"
IN_THE_FAST_TIER = (
    "batch-norm-in-eval",
    "bert-with-dropout",
    "conditional-random-field",
    "diffusion",
    "early-exit",
    "experts-by-gather",
    "frames-before-the-batch",
    "loss-over-the-batch",
    "message-passing-in-one-graph",
    "modulated-convolution",
    "packed-sequences",
    "physics-informed",
    "rolled-number",
    "running-mean",
    "selective-scan",
    "translation-with-attention",
    "weight-norm-by-hook",
)


def expected(kind):
    return "refused" if kind.refused else "exact"


@pytest.mark.parametrize("name", IN_THE_FAST_TIER)
def test_a_clipped_sum_is_that_of_the_loop_or_the_model_is_refused(name):
    row = measure(KINDS[name], rows=6, seed=1, timed=False)
    assert row["outcome"] == expected(KINDS[name]), row


@pytest.mark.slow
@pytest.mark.parametrize("name", KINDS)
def test_a_clipped_sum_of_any_kind_is_that_of_the_loop_or_the_model_is_refused(name):
    row = in_process(KINDS[name], rows=6, seed=1, timed=False)
    assert row["outcome"] == expected(KINDS[name]), row


@pytest.mark.slow
def test_the_kept_survey_has_each_kind_with_its_expected_outcome():
    rows = kept(RESULT)
    assert set(rows) == set(KINDS)
    assert {name: row["outcome"] for name, row in rows.items()} == {n: expected(kind) for n, kind in KINDS.items()}
    assert all({"command", "commit", "machine"} <= row.keys() for row in rows.values())


def test_a_model_that_is_another_one_each_time_counts_as_wrong():
    number = count()

    def make(rows):
        case = vectors(nn.Linear(4, 3), rows, 4)
        nn.init.constant_(case.model.bias, float(next(number)))
        case.model.bias.data[0] = 0.0
        return case

    assert measure(Kind("another", "test", make), rows=4, timed=False)["outcome"] == "wrong"


def test_a_model_that_is_expected_to_be_refused_and_is_not_counts_as_accepted():
    kind = Kind("mild", "test", lambda rows: vectors(nn.Linear(4, 3), rows, 4), refused="mixes")
    assert measure(kind, rows=4, timed=False)["outcome"] == "accepted"


def test_a_kind_that_hangs_ends_after_its_limit_and_one_that_fails_has_its_message():
    def hang(rows):
        time.sleep(60)

    def fail(rows):
        raise RuntimeError("no such layer")

    assert in_process(Kind("hanging", "test", hang), limit=0.5)["outcome"] == "no end"
    row = in_process(Kind("failing", "test", fail), limit=20.0)
    assert row["outcome"] == "the loop fails" and "no such layer" in row["message"]


def test_a_refusal_in_the_words_of_torch_or_of_several_lines_is_not_clear():
    kind = KINDS["lstm"]
    assert is_clear("layer '0' (Foo) draws from a generator of its own: draw by torch.rand.", kind)
    assert not is_clear("layer '0' (Foo) fails: vmap: It looks like you're calling .item() on a Tensor", kind)
    assert not is_clear("layer '0' (Foo) fails\nin two lines", kind)
    assert not is_clear("something fails", kind)
    assert is_clear("layer '1' (BatchNorm1d) mixes the examples of a batch", KINDS["batch-norm"])
    assert not is_clear("layer '1' (Dropout) mixes the examples of a batch", KINDS["batch-norm"])


def test_the_names_of_the_fast_tier_are_kinds_of_several_families():
    assert len({KINDS[name].family for name in IN_THE_FAST_TIER}) >= 8
    assert torch.get_default_dtype() == torch.float32
