"""Losses of single examples are those that transformers returns for a batch of one, and never fail on a label."""

from __future__ import annotations

from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import BertConfig, BertForMaskedLM, BertForSequenceClassification, BertForTokenClassification

import sordino as so
from bench.tiny_transformers import ARCHITECTURES, texts
from sordino.huggingface import (
    LabelSetLoss,
    NextTokenLoss,
    RowClassLoss,
    SquaredErrorLoss,
    TargetTokenLoss,
    as_records,
    loss_for,
)
from sordino.huggingface.losses import TokenLoss

SIZES = {"vocab_size": 50, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}


def bert(kind: type, **settings: object) -> nn.Module:
    torch.manual_seed(0)
    return kind(BertConfig(**SIZES, **settings)).eval()


def with_labels(labels: Tensor) -> dict[str, Tensor]:
    return {**texts(6), "labels": labels}


CASES = {
    "regression": (
        partial(bert, BertForSequenceClassification, num_labels=1),
        with_labels(torch.randn(6)),
        SquaredErrorLoss,
    ),
    "several numbers": (
        partial(bert, BertForSequenceClassification, num_labels=3, problem_type="regression"),
        with_labels(torch.randn(6, 3)),
        SquaredErrorLoss,
    ),
    "label sets": (
        partial(bert, BertForSequenceClassification, num_labels=3),
        with_labels(torch.randint(2, (6, 3)).float()),
        LabelSetLoss,
    ),
    "classes": (
        partial(bert, BertForSequenceClassification, num_labels=3),
        with_labels(torch.randint(3, (6,))),
        RowClassLoss,
    ),
    "token classes": (partial(bert, BertForTokenClassification, num_labels=50), texts(6), TokenLoss),
    "masked tokens": (partial(bert, BertForMaskedLM), texts(6), TokenLoss),
    "next tokens": (ARCHITECTURES["gpt-neox"].make, texts(6), NextTokenLoss),
    "answers": (ARCHITECTURES["t5"].make, ARCHITECTURES["t5"].rows(6), TargetTokenLoss),
}


@pytest.mark.parametrize("case", CASES)
def test_a_loss_is_that_of_the_model_for_a_batch_of_one(case: str) -> None:
    make, rows, kind = CASES[case]
    model = make()
    records = as_records(model, rows)
    loss, batch = loss_for(model, records), records.gather(torch.arange(6))
    assert isinstance(loss, kind)
    for row in range(6):
        one = {name: column[row : row + 1] for name, column in rows.items()}
        inputs = {name: x[row : row + 1] for name, x in zip(batch.names, batch.inputs, strict=True)}
        assert torch.allclose(loss(model(**inputs), batch.target[row : row + 1]), model(**one).loss, rtol=1e-5)


def test_a_sum_over_tokens_is_the_mean_times_their_number() -> None:
    logits, labels = torch.randn(1, 9, 5), torch.randint(5, (1, 9))
    labels[0, 6:] = -100
    mean, total = (NextTokenLoss(over)(logits, labels) for over in ("mean", "sum"))
    assert torch.allclose(total, 5 * mean)
    assert repr(NextTokenLoss("sum")) == "NextTokenLoss(over_tokens='sum')"  # a plan prints it


@pytest.mark.parametrize("over_tokens", ["mean", "sum"])
@pytest.mark.parametrize("labels", [[-100] * 12, [1] * 11 + [50], [1] * 11 + [-7]])
def test_a_row_without_usable_labels_contributes_zero(over_tokens: str, labels: list[int]) -> None:
    model, rows = ARCHITECTURES["gpt2"].make(), texts(3)
    rows["labels"][1] = torch.tensor(labels)
    batch = as_records(model, rows).gather(torch.arange(3))
    each = so.LossGradient(NextTokenLoss(over_tokens)).of(model, batch, torch.arange(3))
    lengths = each.squared_norms().sum(dim=1)
    assert lengths[1] == 0 and lengths[0] > 0 and lengths[2] > 0


def test_a_class_out_of_range_contributes_zero() -> None:
    model = ARCHITECTURES["bert"].make()
    rows = ARCHITECTURES["bert"].rows(3)
    rows["labels"][1] = 7
    batch = as_records(model, rows).gather(torch.arange(3))
    lengths = so.LossGradient(RowClassLoss()).of(model, batch, torch.arange(3)).squared_norms().sum(dim=1)
    assert lengths[1] == 0 and lengths[0] > 0


def test_a_mode_that_does_not_exist_is_refused() -> None:
    with pytest.raises(so.SordinoError, match="over_tokens must be 'mean' or 'sum', got 'median'"):
        NextTokenLoss("median")  # type: ignore[arg-type]


def test_a_model_without_a_task_needs_a_loss() -> None:
    from transformers import BertModel

    model, rows = bert(BertModel), {**texts(6), "labels": torch.randint(2, (6,))}
    with pytest.raises(so.SordinoError, match="BertModel has no task with a known loss: give loss="):
        so.fit(model, rows, epsilon=3.0, delta=1e-2, batch_size=3, epochs=1)
    fitted = so.fit(
        model,
        rows,
        epsilon=3.0,
        delta=1e-2,
        batch_size=3,
        epochs=1,
        progress=False,
        loss=lambda outputs, labels: F.cross_entropy(outputs.last_hidden_state[:, 0, :2], labels),
    )
    assert fitted.guarantee.epsilon <= 3.0


def test_the_last_virtual_token_of_a_prompt_predicts_the_first_label():
    logits, labels = torch.randn(1, 5, 4), torch.tensor([[2, 0, 3]])
    expected = F.cross_entropy(logits[0, 1:4], labels[0], reduction="sum")
    assert torch.isclose(NextTokenLoss("sum")(logits, labels), expected)
