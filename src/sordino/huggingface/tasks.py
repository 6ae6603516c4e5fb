"""The task of a transformer, from the name of its class: which loss it is trained with, and what its labels are.

Transformers names its classes after their heads, and chooses its own losses by these names too.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Any

from torch import nn

from sordino.errors import UsageError
from sordino.gradients.transformers_settings import transformers_model
from sordino.huggingface.losses import (
    LabelSetLoss,
    MaskedTokenLoss,
    NextTokenLoss,
    OverTokens,
    RowClassLoss,
    SquaredErrorLoss,
    TargetTokenLoss,
    TokenClassLoss,
    TransformerLoss,
)
from sordino.kernel.records import Records

_HEADS_OF_ROWS = ("ForSequenceClassification", "ForImageClassification", "ForAudioClassification")
_HEADS_OF_TOKENS: dict[str, type[TokenClassLoss | MaskedTokenLoss | NextTokenLoss]] = {
    "ForTokenClassification": TokenClassLoss,
    "ForMaskedLM": MaskedTokenLoss,
    "ForCausalLM": NextTokenLoss,
    "LMHeadModel": NextTokenLoss,
}
_GENERATION = ("ForConditionalGeneration", "ForSpeechSeq2Seq")


@dataclass(frozen=True)
class Transformer:
    """A model of Hugging Face transformers, with or without adapters of PEFT, and what its class says of its task."""

    model: nn.Module
    base: Any

    @classmethod
    def of(cls, model: nn.Module) -> Transformer:
        """Refuses any other model."""
        base = transformers_model(model)
        if base is None:
            raise UsageError(
                f"the model must be one of transformers, with or without adapters of peft, got {type(model).__name__}."
            )
        return cls(model, base)

    @property
    def arguments(self) -> tuple[str, ...]:
        """The names of the arguments that `forward` takes, without the labels, which it does not get."""
        names = inspect.signature(self.base.forward).parameters.values()
        return tuple(each.name for each in names if each.kind is not each.VAR_KEYWORD and each.name != "labels")

    @property
    def is_encoder_decoder(self) -> bool:
        return bool(getattr(self.base.config, "is_encoder_decoder", False))

    @property
    def predicts_next_token(self) -> bool:
        """Whether this is a causal language model, whose labels are its inputs."""
        return self.token_loss is NextTokenLoss

    @property
    def needs_decoder_inputs(self) -> bool:
        """Whether this is a model from sequence to sequence, whose decoder reads the labels before each place."""
        return self.token_loss is TargetTokenLoss

    @property
    def token_loss(self) -> type[TokenClassLoss | MaskedTokenLoss | NextTokenLoss | TargetTokenLoss] | None:
        """The loss of a model with labels for tokens, or None for any other model."""
        for kind in self._class_names:
            for head, loss in _HEADS_OF_TOKENS.items():
                if kind.endswith(head):
                    return loss
            if kind.endswith(_GENERATION):
                return TargetTokenLoss if self.is_encoder_decoder else NextTokenLoss
        return None

    @property
    def _class_names(self) -> tuple[str, ...]:
        """The names of the model's class and of those that it is derived from."""
        return tuple(kind.__name__ for kind in type(self.base).__mro__)

    def loss(self, records: Records, over_tokens: OverTokens = "mean") -> TransformerLoss:
        """The loss for rows of this structure. Values of rows are not read."""
        of_tokens, target = self.token_loss, records.template(1).target
        if of_tokens is None and any(kind.endswith(_HEADS_OF_ROWS) for kind in self._class_names):
            return self._loss_of_rows(records)
        if of_tokens is None:
            raise UsageError(
                f"{type(self.base).__name__} has no task with a known loss: give loss=, a function of its outputs and "
                "the labels of one example, to fit or dp_sgd."
            )
        if target.is_floating_point() or target.ndim != 2:
            raise UsageError(
                f"labels of tokens must be one integer per token, got {target.dtype} of shape "
                f"{tuple(target.shape[1:])} per row."
            )
        return of_tokens(over_tokens)

    def _loss_of_rows(self, records: Records) -> TransformerLoss:
        """As transformers chooses it: by `config.problem_type`, or by number of outputs and type of labels."""
        config, target = self.base.config, records.template(1).target
        kind = getattr(config, "problem_type", None)
        if kind is None and config.num_labels == 1:
            kind = "regression"
        elif kind is None:
            kind = "multi_label_classification" if target.is_floating_point() else "single_label_classification"
        if kind == "single_label_classification":
            if target.is_floating_point() or target.ndim != 1:
                raise UsageError(
                    f"labels of one class must be one integer per row, got {target.dtype} of shape "
                    f"{tuple(target.shape[1:])} per row: cast them to int64, or set config.problem_type."
                )
            return RowClassLoss()
        expected = (config.num_labels,)
        if tuple(target.shape[1:]) != expected and not (config.num_labels == 1 and target.ndim == 1):
            raise UsageError(
                f"labels for {kind} must be {config.num_labels} numbers per row (config.num_labels), got shape "
                f"{tuple(target.shape[1:])} per row."
            )
        return SquaredErrorLoss() if kind == "regression" else LabelSetLoss()


def loss_for(model: nn.Module, records: Records, over_tokens: OverTokens = "mean") -> TransformerLoss:
    """The loss of one example for the task of `model`, computed from its logits.

    `over_tokens` says whether the losses of an example's own tokens are averaged or added. It has no effect on a model
    with one label per row. `records` are those of `as_records(model, data)`.

    >>> import torch
    >>> from transformers import BertConfig, BertForTokenClassification
    >>> config = BertConfig(vocab_size=9, hidden_size=4, num_hidden_layers=1, num_attention_heads=1)
    >>> model = BertForTokenClassification(config)
    >>> from sordino.huggingface import as_records
    >>> data = {"input_ids": torch.ones(8, 3, dtype=torch.int64), "labels": torch.ones(8, 3, dtype=torch.int64)}
    >>> loss_for(model, as_records(model, data), over_tokens="sum")
    TokenClassLoss(over_tokens='sum')
    """
    return Transformer.of(model).loss(records, over_tokens)
