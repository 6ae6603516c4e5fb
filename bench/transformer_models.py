"""The transformers whose steps are timed, unmodified from the library, with synthetic rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F
from peft import LoraConfig, get_peft_model
from torch import Tensor, nn
from transformers import BertConfig, BertForSequenceClassification, GPT2Config, GPT2LMHeadModel

Rows = dict[str, Tensor]


@dataclass(frozen=True)
class Transformer:
    """A model with random weights, the length of its rows, and the loss of each row from the logits.

    Dropout is off, because Opake cannot train with it.
    """

    make: Callable[[], nn.Module]
    tokens: int
    vocabulary: int
    row_losses: Callable[[Tensor, Tensor], Tensor]
    batch_size: int
    adapters: LoraConfig
    classes: int | None = None

    def rows(self, number: int) -> Rows:
        """Rows of tokens without padding."""
        generator = torch.Generator().manual_seed(0)
        ids = torch.randint(self.vocabulary, (number, self.tokens), generator=generator)
        labels = ids if self.classes is None else torch.randint(self.classes, (number,), generator=generator)
        return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": labels}


@dataclass(frozen=True)
class Workload:
    """A transformer that is trained as a whole or by adapters, in single or mixed precision."""

    name: str
    transformer: Transformer
    trains_adapters: bool
    autocast: torch.dtype | None

    def make(self) -> nn.Module:
        torch.manual_seed(0)
        model = self.transformer.make()
        return get_peft_model(model, self.transformer.adapters) if self.trains_adapters else model

    def row_losses(self, outputs: object, labels: Tensor) -> Tensor:
        return self.transformer.row_losses(logits_of(outputs), labels)

    def loss(self, outputs: object, labels: Tensor) -> Tensor:
        """The sum of the losses of rows."""
        return self.row_losses(outputs, labels).sum()

    def precision(self) -> torch.autocast:
        return torch.autocast("cpu", dtype=self.autocast, enabled=self.autocast is not None)


class Task(Protocol):
    """A model to train, and the losses of its rows."""

    def make(self) -> nn.Module: ...

    def row_losses(self, outputs: object, labels: Tensor) -> Tensor: ...

    def loss(self, outputs: object, labels: Tensor) -> Tensor: ...

    def precision(self) -> torch.autocast: ...


def logits_of(outputs: object) -> Tensor:
    logits = outputs if isinstance(outputs, Tensor) else outputs.logits  # type: ignore[attr-defined]
    return logits.float()


def trained(model: nn.Module) -> list[nn.Parameter]:
    return [p for p in model.parameters() if p.requires_grad]


def split(rows: Rows, physical: int) -> list[tuple[Rows, Tensor]]:
    """Micro-batches of inputs by name, with their labels."""
    parts = zip(*(torch.split(x, physical) for x in rows.values()), strict=True)
    named = [dict(zip(rows, part, strict=True)) for part in parts]
    return [({name: x for name, x in part.items() if name != "labels"}, part["labels"]) for part in named]


def bert() -> nn.Module:
    """BERT-mini with two classes: 11.2 million parameters, of which 7.8 million are embeddings."""
    config = BertConfig(
        hidden_size=256, num_hidden_layers=4, num_attention_heads=4, intermediate_size=1024,
        hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    return BertForSequenceClassification(config)


def gpt2() -> nn.Module:
    """GPT-2 with six blocks of width 384: 30.3 million parameters, of which 19.3 million are the tied embedding."""
    config = GPT2Config(
        n_embd=384, n_layer=6, n_head=6, n_positions=256, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0
    )
    return GPT2LMHeadModel(config)


def class_losses(logits: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(logits, labels, reduction="none")


def next_token_losses(logits: Tensor, labels: Tensor) -> Tensor:
    """The mean over the tokens of each row."""
    return F.cross_entropy(logits[:, :-1].transpose(1, 2), labels[:, 1:], reduction="none").mean(dim=1)


_ON_BERT = LoraConfig(r=8, target_modules=["query", "value"], modules_to_save=["classifier"], lora_dropout=0.0)
_ON_GPT2 = LoraConfig(r=8, target_modules=["c_attn"], fan_in_fan_out=True, lora_dropout=0.0)
TRANSFORMERS = {
    "bert-mini": Transformer(bert, 128, 30522, class_losses, 64, _ON_BERT, classes=2),
    "gpt2-like": Transformer(gpt2, 256, 50257, next_token_losses, 16, _ON_GPT2),
}
WORKLOADS = {
    each.name: each
    for name, transformer in TRANSFORMERS.items()
    for trained_part, trains_adapters in (("full", False), ("lora", True))
    for precision, autocast in (("float32", None), ("bfloat16", torch.bfloat16))
    for each in [Workload(f"{name}-{trained_part}-{precision}", transformer, trains_adapters, autocast)]
}
