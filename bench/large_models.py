"""Models of the sizes that are trained in practice, with synthetic rows: transformers, images and recommenders."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from peft import get_peft_model
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM, ViTConfig, ViTForImageClassification

from bench.transformer_models import TRANSFORMERS, Rows, class_losses, logits_of, next_token_losses
from sordino.huggingface import loss_for
from sordino.kernel.records import Records, as_records
from sordino.models import resnet18
from sordino.training.fit import records_for

_ITEMS, _ITEMS_PER_USER, _ITEM_WIDTH = 200_000, 20, 64
_LLAMA_WORDS, _LLAMA_TOKENS = 32_000, 256


@dataclass(frozen=True)
class LargeModel:
    """A model with its rows. `most_together` bounds micro-batches, because the logits of language models are large."""

    make_model: Callable[[], nn.Module]
    rows: Callable[[int], Rows]
    batch_size: int
    losses: Callable[[Tensor, Tensor], Tensor] = class_losses
    most_together: int = 256
    is_transformer: bool = False

    def make(self) -> nn.Module:
        torch.manual_seed(0)
        return self.make_model()

    def row_losses(self, outputs: object, labels: Tensor) -> Tensor:
        return self.losses(logits_of(outputs), labels)

    def loss(self, outputs: object, labels: Tensor) -> Tensor:
        """The sum of the losses of rows."""
        return self.row_losses(outputs, labels).sum()

    def precision(self) -> torch.autocast:
        return torch.autocast("cpu", enabled=False)

    def records(self, model: nn.Module, rows: Rows) -> Records:
        """Rows as Sordino takes them."""
        return records_for(model, rows) if self.is_transformer else as_records(tuple(rows.values()))

    def private_loss(self, model: nn.Module, records: Records) -> Callable[..., Tensor]:
        """The loss of one row as Sordino takes it."""
        return loss_for(model, records) if self.is_transformer else self.loss


class Recommender(nn.Module):
    """The mean of the vectors of a user's items, and two layers that say whether the user likes the next."""

    def __init__(self, items: nn.Module) -> None:
        super().__init__()
        self.items = items
        self.out = nn.Sequential(nn.Linear(_ITEM_WIDTH, 64), nn.ReLU(), nn.Linear(64, 2))

    def forward(self, x: Tensor) -> Tensor:
        vectors = self.items(x)
        outputs: Tensor = self.out(vectors if vectors.ndim == 2 else vectors.mean(dim=1))
        return outputs


class UNet(nn.Module):
    """Three halvings and doublings of the resolution, with GroupNorm: a class for each pixel."""

    def __init__(self, channels: int = 3, classes: int = 2, widths: tuple[int, ...] = (32, 64, 128, 256)) -> None:
        super().__init__()
        inputs = (channels, *widths)
        self.down = nn.ModuleList(map(_two_convolutions, inputs, widths))
        wide, narrow = widths[:0:-1], widths[-2::-1]
        self.enlarge = nn.ModuleList(nn.ConvTranspose2d(a, b, 2, stride=2) for a, b in zip(wide, narrow, strict=True))
        self.up = nn.ModuleList(map(_two_convolutions, wide, narrow))
        self.out = nn.Conv2d(widths[0], classes, 1)

    def forward(self, x: Tensor) -> Tensor:
        kept = list[Tensor]()
        for place, block in enumerate(self.down):
            x = block(x if place == 0 else F.max_pool2d(x, 2))
            kept.append(x)
        for enlarge, block, beside in zip(self.enlarge, self.up, kept[-2::-1], strict=True):
            x = block(torch.cat([enlarge(x), beside], dim=1))
        outputs: Tensor = self.out(x)
        return outputs


def _two_convolutions(inputs: int, width: int) -> nn.Module:
    first, second = nn.Conv2d(inputs, width, 3, padding=1), nn.Conv2d(width, width, 3, padding=1)
    return nn.Sequential(first, nn.GroupNorm(8, width), nn.ReLU(), second, nn.GroupNorm(8, width), nn.ReLU())


def wide_mlp() -> nn.Module:
    """MLP with two hidden layers of width 4096 on 784 inputs: 20.0 million parameters."""
    hidden = [nn.Linear(784, 4096), nn.ReLU(), nn.Linear(4096, 4096), nn.ReLU()]
    return nn.Sequential(*hidden, nn.Linear(4096, 10))


def llama() -> nn.Module:
    """Llama with six blocks of width 384, three queries to a key, and 32,000 words whose two tables are not tied."""
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=_LLAMA_WORDS, hidden_size=384, intermediate_size=1024, num_hidden_layers=6,
            num_attention_heads=6, num_key_value_heads=2, max_position_embeddings=_LLAMA_TOKENS,
        )
    )  # fmt: skip


def vit_tiny() -> nn.Module:
    """ViT-tiny: twelve blocks of width 192 with three heads, on 196 patches of 16x16 pixels, with 10 classes."""
    config = ViTConfig(
        hidden_size=192, num_hidden_layers=12, num_attention_heads=3, intermediate_size=768,
        hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    config.num_labels = 10
    return ViTForImageClassification(config)


def _bert_with_adapters() -> nn.Module:
    return get_peft_model(TRANSFORMERS["bert-mini"].make(), TRANSFORMERS["bert-mini"].adapters)


def _images(name: str, size: int) -> Callable[[int], Rows]:
    return lambda number: {name: _normal(number, 3, size, size), "labels": _integers(10, number)}


def _pixels(number: int) -> Rows:
    return {"x": _normal(number, 3, 64, 64), "labels": _integers(2, number, 64, 64)}


def _vectors(number: int) -> Rows:
    return {"input": _normal(number, 784), "labels": _integers(10, number)}


def _items(number: int) -> Rows:
    return {"x": _integers(_ITEMS, number, _ITEMS_PER_USER), "labels": _integers(2, number)}


def _sentences(number: int) -> Rows:
    ids = _integers(_LLAMA_WORDS, number, _LLAMA_TOKENS)
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids}


def _pixel_losses(logits: Tensor, labels: Tensor) -> Tensor:
    """The mean over the pixels of each row."""
    return F.cross_entropy(logits, labels, reduction="none").mean(dim=(1, 2))


def _normal(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


def _integers(below: int, *shape: int) -> Tensor:
    return torch.randint(below, shape, generator=torch.Generator().manual_seed(0))


_BERT, _GPT2 = TRANSFORMERS["bert-mini"], TRANSFORMERS["gpt2-like"]
# What is measured quickly comes first: the time that it leaves is for the other rows.
LARGE_MODELS = {
    "bert-lora": LargeModel(_bert_with_adapters, _BERT.rows, 16, is_transformer=True),
    "bert": LargeModel(_BERT.make, _BERT.rows, 16, is_transformer=True),
    "u-net": LargeModel(UNet, _pixels, 64, _pixel_losses),
    "resnet-18": LargeModel(resnet18, _images("input", 32), 64),
    "vit-tiny": LargeModel(vit_tiny, _images("pixel_values", 224), 16, is_transformer=True),
    "recommender": LargeModel(lambda: Recommender(nn.Embedding(_ITEMS, _ITEM_WIDTH)), _items, 256),
    "recommender-bag": LargeModel(lambda: Recommender(nn.EmbeddingBag(_ITEMS, _ITEM_WIDTH, mode="mean")), _items, 256),
    "mlp-4096": LargeModel(wide_mlp, _vectors, 256),
    "llama": LargeModel(llama, _sentences, 16, next_token_losses, most_together=4, is_transformer=True),
    "gpt2": LargeModel(_GPT2.make, _GPT2.rows, 16, next_token_losses, most_together=4, is_transformer=True),
}
