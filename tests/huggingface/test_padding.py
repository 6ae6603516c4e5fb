"""Padding never enters a gradient, and which tokens are padded with does not matter."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import sordino as so
from bench.tiny_transformers import ARCHITECTURES, TOKENS, VOCABULARY
from sordino.huggingface import as_records, loss_for
from sordino.kernel.records import Batch

MODELS = {name: ARCHITECTURES[name].make() for name in ("bert", "llama", "t5")}


def gradients(name: str, rows: dict[str, torch.Tensor]) -> torch.Tensor:
    model = MODELS[name]
    records = as_records(model, rows)
    batch: Batch = records.gather(torch.arange(len(rows["labels"])))
    each = so.LossGradient(loss_for(model, records)).of(model, batch, batch.units)
    return torch.cat(list(each.rows(8)))


@pytest.mark.parametrize("name", MODELS)
@settings(max_examples=8, deadline=None)
@given(seed=st.integers(0, 2**32), lengths=st.lists(st.integers(2, TOKENS), min_size=3, max_size=3))
def test_tokens_under_the_mask_do_not_change_a_gradient(name: str, seed: int, lengths: list[int]) -> None:
    torch.manual_seed(seed)
    rows = ARCHITECTURES[name].rows(3)
    rows["attention_mask"] = (torch.arange(TOKENS) < torch.tensor(lengths)[:, None]).to(torch.int64)
    rows["input_ids"] = torch.randint(5, VOCABULARY, (3, TOKENS))
    if name == "llama":
        rows["labels"] = torch.where(rows["attention_mask"] == 1, rows["input_ids"], -100)
    other = torch.randint(5, VOCABULARY, (3, TOKENS))
    padded = {**rows, "input_ids": torch.where(rows["attention_mask"] == 1, rows["input_ids"], other)}
    before, after = gradients(name, rows), gradients(name, padded)
    assert torch.allclose(before, after, rtol=1e-4, atol=1e-6 * float(before.abs().max()))


def test_a_causal_model_without_labels_does_not_learn_padding() -> None:
    rows = ARCHITECTURES["llama"].rows(4)
    of_labels = gradients("llama", rows)
    tokens = {name: rows[name] for name in ("input_ids", "attention_mask")}
    model = MODELS["llama"]
    records = as_records(model, tokens)
    batch = records.gather(torch.arange(4))
    each = so.LossGradient(loss_for(model, records)).of(model, batch, batch.units)
    assert torch.equal(torch.cat(list(each.rows(8))), of_labels)
