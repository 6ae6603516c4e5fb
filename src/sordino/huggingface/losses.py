"""Losses of one example, computed from the logits of a transformer.

A transformer that is given labels returns a mean over its batch, with the tokens of all rows in one denominator. That
is no sum over examples. So labels are not given to the model, and these functions compute the loss from its logits.

Theorem that the clip needs: each loss is a function of one row. Labels that are out of range are no error, which would
reveal that the row was drawn: all labels of the row are then ignored, and its gradient is zero.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor

from sordino.errors import UsageError
from sordino.gradients.row_loss import logits_of

IGNORED = -100  # the label of a token without a loss, as in torch and transformers

OverTokens = Literal["mean", "sum"]


@dataclass(frozen=True)
class RowClassLoss:
    """Cross-entropy of the class of a row: sequence, image and audio classification.

    >>> float(RowClassLoss()(torch.zeros(1, 2), torch.tensor([1])))  # doctest: +ELLIPSIS
    0.693...
    """

    def __call__(self, outputs: Any, labels: Tensor) -> Tensor:
        logits = _logits(outputs)
        return F.cross_entropy(logits, _usable(labels, logits.shape[-1]), ignore_index=IGNORED, reduction="sum")


@dataclass(frozen=True)
class LabelSetLoss:
    """Binary cross-entropy of each label of a row, averaged over the labels: multi-label classification.

    >>> float(LabelSetLoss()(torch.zeros(1, 4), torch.tensor([[1.0, 0.0, 0.0, 1.0]])))  # doctest: +ELLIPSIS
    0.693...
    """

    def __call__(self, outputs: Any, labels: Tensor) -> Tensor:
        logits = _logits(outputs)
        return F.binary_cross_entropy_with_logits(logits, labels.reshape(logits.shape).to(logits.dtype))


@dataclass(frozen=True)
class SquaredErrorLoss:
    """Squared error, averaged over the numbers of a row: regression.

    >>> float(SquaredErrorLoss()(torch.zeros(1, 1), torch.tensor([3.0])))
    9.0
    """

    def __call__(self, outputs: Any, labels: Tensor) -> Tensor:
        logits = _logits(outputs)
        return F.mse_loss(logits, labels.reshape(logits.shape).to(logits.dtype))


@dataclass(frozen=True)
class TokenLoss:
    """Cross-entropy of the labels of an example's tokens, without those that are -100.

    `over_tokens` decides what the clip does. With "mean", the length of a text does not change the size of its
    gradient. With "sum", the gradient of a long text is longer, and is clipped more. An example whose labels are all
    -100 contributes zero.

    >>> logits, labels = torch.zeros(1, 3, 2), torch.tensor([[0, 1, -100]])
    >>> [round(float(TokenLoss(over_tokens)(logits, labels)), 3) for over_tokens in ("mean", "sum")]
    [0.693, 1.386]
    """

    over_tokens: OverTokens = "mean"
    is_of_language: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.over_tokens not in get_args(OverTokens):
            raise UsageError(f"over_tokens must be 'mean' or 'sum', got {self.over_tokens!r:.40}.")

    def __call__(self, outputs: Any, labels: Tensor) -> Tensor:
        logits, labels = self.aligned(_logits(outputs), labels)
        usable = _usable(labels, logits.shape[-1])
        total = F.cross_entropy(logits.transpose(1, 2), usable, ignore_index=IGNORED, reduction="sum")
        return total if self.over_tokens == "sum" else total / (usable != IGNORED).sum().clamp(min=1)

    def aligned(self, logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """The logits, and the label of each of them."""
        return logits, labels


class TokenClassLoss(TokenLoss):
    """The loss of token classification, such as the recognition of names."""

    is_of_language: ClassVar[bool] = False


class MaskedTokenLoss(TokenLoss):
    """The loss of a masked language model: labels are -100 where nothing was masked."""


class TargetTokenLoss(TokenLoss):
    """The loss of a model from sequence to sequence, whose decoder gets the labels before each place."""


class NextTokenLoss(TokenLoss):
    """The loss of a causal language model: the logits at each place predict the label at the next one.

    Logits before those of the labels belong to the virtual tokens of a prompt (PEFT). The last of them predicts the
    first label, which nothing predicts without a prompt.

    >>> logits = torch.zeros(1, 3, 2)
    >>> round(float(NextTokenLoss("sum")(logits, torch.tensor([[0, 1, 1]]))), 3)  # of two tokens
    1.386
    """

    def aligned(self, logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        virtual = logits.shape[1] - labels.shape[1]
        return (logits[:, virtual - 1 : -1], labels) if virtual > 0 else (logits[:, :-1], labels[:, 1:])


TransformerLoss = RowClassLoss | LabelSetLoss | SquaredErrorLoss | TokenLoss
LOSSES: tuple[type, ...] = (RowClassLoss, LabelSetLoss, SquaredErrorLoss)
LOSSES += (TokenClassLoss, MaskedTokenLoss, TargetTokenLoss, NextTokenLoss)


def _logits(outputs: Any) -> Tensor:
    """The logits in single precision at least. A backbone in half precision has logits in half precision."""
    logits = logits_of(outputs)
    if not isinstance(logits, Tensor):
        raise UsageError(f"a model must return an object with logits, or a tensor, got {type(logits).__name__}.")
    return logits.float() if logits.dtype in (torch.bfloat16, torch.float16) else logits


def _usable(labels: Tensor, classes: int) -> Tensor:
    """The labels of one row; all are ignored if one of them is neither ignored nor a class."""
    known = ((labels >= 0) & (labels < classes)) | (labels == IGNORED)
    return torch.where(known.all(), labels, IGNORED)
