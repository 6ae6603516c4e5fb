"""Rows for transformers: the columns that forward takes, and labels and decoder inputs that follow from others."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import torch
from torch.utils.data import Dataset

import sordino as so
from bench.tiny_transformers import ARCHITECTURES, classified_texts, texts
from sordino.huggingface import as_records
from sordino.kernel.budget import Budget

BERT, GPT2, T5 = (ARCHITECTURES[name].make() for name in ("bert", "gpt2", "t5"))


class Sentences(Dataset[dict[str, Any]]):
    """Rows with lists of tokens and with text, as a tokenizer leaves them."""

    def __init__(self, rows: dict[str, torch.Tensor]) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows["input_ids"])

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"text": "some words", **{name: column[index].tolist() for name, column in self.rows.items()}}


def test_columns_that_forward_does_not_take_are_left_out(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "sordino"):
        records = as_records(BERT, {"text": ["words"] * 8, **classified_texts(8)})
    assert records.names == ("input_ids", "attention_mask")
    assert caplog.messages == ["columns that BertForSequenceClassification does not take are left out: 'text'"]


def test_a_dataset_of_dictionaries_gives_the_same_rows() -> None:
    rows, chosen = classified_texts(8), torch.tensor([3, 1])
    of_dataset, of_arrays = (as_records(BERT, data).gather(chosen) for data in (Sentences(rows), rows))
    assert of_dataset.names == of_arrays.names
    assert all(torch.equal(a, b) for a, b in zip(of_dataset.inputs, of_arrays.inputs, strict=True))
    assert torch.equal(of_dataset.target, of_arrays.target)


def test_a_decoder_reads_the_labels_before_each_place() -> None:
    labels = torch.tensor([[7, 8, 9, -100], [6, -100, -100, -100]])
    batch = as_records(T5, {"input_ids": torch.ones(2, 3, dtype=torch.int64), "labels": labels}).gather(torch.arange(2))
    assert batch.names == ("input_ids", "decoder_input_ids")
    assert batch.inputs[1].tolist() == [[0, 7, 8, 9], [0, 6, 0, 0]] and torch.equal(batch.target, labels)


def test_without_a_mask_the_padding_token_has_no_label() -> None:
    tokens = torch.tensor([[5, 6, 0], [7, 8, 9]])
    model = ARCHITECTURES["llama"].make()
    batch = as_records(model, {"input_ids": tokens}).gather(torch.arange(2))
    assert batch.target.tolist() == [[5, 6, -100], [7, 8, 9]]


REFUSED = {
    "no column has the labels, got 'input_ids'": (BERT, {"input_ids": torch.ones(4, 3)}),
    "takes input_ids, attention_mask, .* got columns 'tokens', 'labels'": (
        BERT,
        {"tokens": torch.ones(4, 3), "labels": torch.zeros(4)},
    ),
    "must be dictionaries, got tuple": (BERT, (torch.ones(4, 3), torch.zeros(4))),
    "most rows are not": (BERT, torch.utils.data.TensorDataset(torch.ones(4, 3), torch.zeros(4))),
    "must be dictionaries, as a tuple does not say": (BERT, so.as_records((torch.ones(4, 3), torch.zeros(4)))),
    "one integer per row, got torch.int64 of shape \\(3,\\)": (
        BERT,
        {"input_ids": torch.ones(4, 3, dtype=torch.int64), "labels": torch.ones(4, 3, dtype=torch.int64)},
    ),
    "one integer per token, got torch.int64 of shape \\(\\)": (
        GPT2,
        {"input_ids": torch.ones(4, 3, dtype=torch.int64), "labels": torch.ones(4, dtype=torch.int64)},
    ),
    "takes no argument 'tokens'": (BERT, so.as_records({"tokens": torch.ones(4, 3), "labels": torch.zeros(4)})),
}


@pytest.mark.parametrize("message", REFUSED)
def test_rows_that_do_not_fit_are_refused_in_one_line(message: str) -> None:
    model, data = REFUSED[message]
    with pytest.raises(so.SordinoError, match=message) as refused:
        so.fit(model, data, epsilon=3.0, delta=1e-2, batch_size=2, epochs=1)
    assert "\n" not in str(refused.value)


def test_a_budget_needs_rows_that_are_complete() -> None:
    rows, settings = texts(20), {"batch_size": 5, "epochs": 1, "progress": False}
    incomplete = Budget({**rows, "labels": rows["labels"][:, :6]}, epsilon=3.0, delta=1e-2)
    with pytest.raises(so.SordinoError, match=r"Budget\(sordino.huggingface.as_records\(model, data\)\)"):
        so.fit(T5, incomplete, epsilon=1.0, **settings)
    budget = Budget(as_records(GPT2, rows), epsilon=3.0, delta=1e-2)
    assert so.fit(GPT2, budget, epsilon=1.0, **settings).guarantee.epsilon <= 1.0
    assert len(budget.releases) == 1
