"""Evaluation of transformers on public rows: accuracy, errors of a regression, or loss and perplexity per token."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import nn

from sordino.errors import DataError
from sordino.gradients.row_loss import logits_of
from sordino.gradients.torch_state import device_of, frozen_half_precision
from sordino.gradients.transformers_settings import transformers_settings
from sordino.huggingface.losses import IGNORED, RowClassLoss, SquaredErrorLoss, TokenLoss
from sordino.huggingface.rows import as_records
from sordino.huggingface.tasks import loss_for
from sordino.kernel.records import Records
from sordino.training.evaluation import Public, accuracy, evaluating, outputs_on, regression
from sordino.training.metrics import metrics_of

_VALUES_AT_A_TIME = 1 << 24  # logits of a few rows: 64 MiB
_LARGEST_EXPONENT = 700.0


def measured(model: nn.Module, public: Public) -> dict[str, float]:
    """The measurements that fit the task of `model`, on rows as `so.fit` takes them.

    Classes of rows have an accuracy, and numbers the errors of a regression. Tokens have the mean loss of a token and
    its accuracy, and those of language models a perplexity, the exponential of that loss.
    """
    records = as_records(model, public.data, allow_single=True)
    loss, prepared = loss_for(model, records), Public(records)
    if isinstance(loss, TokenLoss):
        return _of_tokens(model, records, loss)
    if isinstance(loss, SquaredErrorLoss):
        errors = regression(model, prepared)
        return {name: value for name, value in vars(errors).items() if math.isfinite(value)}
    return {"accuracy": accuracy(model, prepared)}


def measured_at_end(model: nn.Module, public: Public) -> dict[str, float]:
    """As `measured`, with further metrics if each row has one class."""
    prepared = Public(as_records(model, public.data, allow_single=True))
    if isinstance(loss_for(model, prepared.records), RowClassLoss):
        return metrics_of(*outputs_on(model, prepared))
    return measured(model, prepared)


def _of_tokens(model: nn.Module, records: Records, loss: TokenLoss) -> dict[str, float]:
    """Means over all tokens of all rows. Logits are large: a few rows are in memory at a time."""
    losses, right, tokens, rows_at_a_time = 0.0, 0, 0, 1
    units, half, device = torch.arange(records.num_units), frozen_half_precision(model), device_of(model)
    with (
        evaluating(model),
        transformers_settings(model),
        torch.autocast(device.type, dtype=half, enabled=half is not None),
        torch.inference_mode(),
    ):
        while len(units):
            batch, units = records.gather(units[:rows_at_a_time]).to(device), units[rows_at_a_time:]
            if not bool(batch.valid.all()):
                raise DataError(f"{int((~batch.valid).sum())} of the public rows are not finite or cannot be read.")
            outputs = model(**dict(zip(batch.names, batch.inputs, strict=True)))
            logits, labels = loss.aligned(logits_of(outputs).float(), batch.target)
            rows_at_a_time = max(1, _VALUES_AT_A_TIME // max(1, logits[0].numel()))
            counted = labels != IGNORED
            losses += float(F.cross_entropy(logits[counted], labels[counted], reduction="sum"))
            right += int((logits[counted].argmax(dim=-1) == labels[counted]).sum())
            tokens += int(counted.sum())
    if not tokens:
        raise DataError("the public rows have no token with a label.")
    found = {"loss": losses / tokens, "accuracy": right / tokens}
    if loss.is_of_language and math.isfinite(losses) and losses / tokens < _LARGEST_EXPONENT:
        found["perplexity"] = math.exp(losses / tokens)
    return found
