"""Tiny transformers with random weights and a tokenizer of seventeen words, saved in folders, and texts for them."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import (
    BertConfig,
    BertForMaskedLM,
    BertForSequenceClassification,
    BertForTokenClassification,
    GPT2Config,
    GPT2LMHeadModel,
    PreTrainedTokenizerFast,
    ViTConfig,
    ViTForImageClassification,
)

WORDS = "[PAD] [UNK] [CLS] [SEP] [MASK] <|e|> good bad film was the a very great poor plot actor".split()
SIZES: dict[str, Any] = {
    "vocab_size": len(WORDS),
    "hidden_size": 8,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 16,
    "max_position_embeddings": 32,
}


def tokenizer(kind: str) -> Any:
    """That of a BERT, with marks around a text, or that of a GPT, without padding."""
    words = Tokenizer(models.WordLevel({word: place for place, word in enumerate(WORDS)}, unk_token="[UNK]"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    if kind == "gpt":
        return PreTrainedTokenizerFast(tokenizer_object=words, unk_token="[UNK]", eos_token="<|e|>")
    marks = [("[CLS]", 2), ("[SEP]", 3)]
    words.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=marks
    )
    named = {"unk_token": "[UNK]", "pad_token": "[PAD]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    return PreTrainedTokenizerFast(tokenizer_object=words, mask_token="[MASK]", model_max_length=32, **named)


def made(name: str) -> Any:
    """An untrained model: bert, classifier, tagger, number, gpt or vit. Weights are far enough from 0 to matter."""
    torch.manual_seed(0)
    model: Any = {
        "bert": lambda: BertForMaskedLM(BertConfig(**SIZES)),
        "classifier": lambda: BertForSequenceClassification(BertConfig(**SIZES, id2label={0: "neg", 1: "pos"})),
        "tagger": lambda: BertForTokenClassification(BertConfig(**SIZES, id2label={0: "other", 1: "thing", 2: "view"})),
        "number": lambda: BertForSequenceClassification(BertConfig(**SIZES, num_labels=1)),
        "gpt": lambda: GPT2LMHeadModel(
            GPT2Config(vocab_size=len(WORDS), n_embd=8, n_layer=1, n_head=2, n_positions=32, eos_token_id=5)
        ),
        "vit": lambda: ViTForImageClassification(ViTConfig(image_size=8, patch_size=4, num_channels=1, **_OF_IMAGES)),
    }[name]()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(5.0)
    return model


_OF_IMAGES: dict[str, Any] = {name: SIZES[name] for name in SIZES if name.startswith(("hidden", "num", "inter"))}


def saved(name: str, folder: Path, *, with_tokenizer: bool = True) -> Path:
    """The model in a folder of its name, as `save_pretrained` writes it."""
    made(name).save_pretrained(folder / name)
    if with_tokenizer and name != "vit":
        tokenizer(name).save_pretrained(folder / name)
    return folder / name


def reviews(number: int, seed: int = 0) -> list[dict[str, str]]:
    """Texts that are neg or pos, which some of their words say."""
    drawn = random.Random(seed)

    def text(words: list[str]) -> str:
        return " ".join(
            drawn.choice(words if drawn.random() < 0.7 else WORDS[8:13]) for _ in range(drawn.randint(3, 9))
        )

    labels = [drawn.choice(("neg", "pos")) for _ in range(number)]
    return [{"text": text(["good", "great"] if each == "pos" else ["bad", "poor"]), "label": each} for each in labels]


def write_lines(path: Path, rows: list[Any]) -> Path:
    """Rows as JSON lines; a string is a line as it is."""
    path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
    return path
