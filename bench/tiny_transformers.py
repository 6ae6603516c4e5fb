"""Twelve architectures of Hugging Face transformers with tiny random configurations, and rows for them.

Weights are larger than those of an untrained model, so that no layer is nearly linear and no gradient nearly zero.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import peft
import torch
import transformers
from torch import Tensor, nn

TOKENS, VOCABULARY = 12, 50
_SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
}
_GROUPED = {**_SIZES, "num_key_value_heads": 1}
_WHISPER = {
    "d_model": 16, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 2,
    "decoder_attention_heads": 2, "encoder_ffn_dim": 32, "decoder_ffn_dim": 32, "num_mel_bins": 8,
    "max_source_positions": 8, "max_target_positions": 32,
}  # fmt: skip

Rows = dict[str, Tensor]


@dataclass(frozen=True)
class Architecture:
    """A class of transformers, its configuration, its rows, and the layers that get adapters."""

    model: str
    config: str
    settings: dict[str, Any]
    rows: Callable[[int], Rows]
    adapted: tuple[str, ...]

    def make(self, *, attention: str = "sdpa", lora: bool = False, seed: int = 0) -> nn.Module:
        """The model in eval mode: with all parameters trained, or with adapters of rank 2."""
        torch.manual_seed(seed)
        library: Any = transformers
        config = getattr(library, self.config)(**self.settings)
        model: nn.Module = getattr(library, self.model)._from_config(config, attn_implementation=attention)
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.ndim > 1:
                    parameter.mul_(4.0)
                else:
                    parameter.add_(0.1 * torch.randn_like(parameter))
        if lora:
            settings = peft.LoraConfig(r=2, target_modules=list(self.adapted), init_lora_weights=False)
            model = with_adapters(model, settings)
        return model.eval()


def with_adapters(model: nn.Module, settings: Any) -> nn.Module:
    """The model with adapters of PEFT, without PEFT's warnings about transformers and about layers that it adapts."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        adapted: nn.Module = peft.get_peft_model(model, settings)
    return adapted


def classified_texts(number: int) -> Rows:
    """Texts of several lengths with one label each."""
    tokens, mask = _texts(number)
    return {"input_ids": tokens, "attention_mask": mask, "labels": torch.randint(0, 2, (number,))}


def texts(number: int) -> Rows:
    """Texts whose labels are their own tokens."""
    tokens, mask = _texts(number)
    return {"input_ids": tokens, "attention_mask": mask, "labels": torch.where(mask == 1, tokens, -100)}


def pairs_of_texts(number: int) -> Rows:
    """Texts with shorter texts as labels, without inputs of a decoder."""
    tokens, mask = _texts(number)
    return {"input_ids": tokens, "attention_mask": mask, "labels": _answers(number)}


def pictures(number: int) -> Rows:
    return {"pixel_values": torch.rand(number, 3, 16, 16), "labels": torch.randint(0, 2, (number,))}


def spoken(number: int) -> Rows:
    """Spectra of speech, with texts as labels."""
    return {"input_features": torch.randn(number, 8, 16), "labels": _answers(number)}


def _texts(number: int) -> tuple[Tensor, Tensor]:
    lengths = torch.randint(TOKENS // 3, TOKENS + 1, (number, 1))
    mask = (torch.arange(TOKENS) < lengths).to(torch.int64)
    return torch.randint(5, VOCABULARY, (number, TOKENS)) * mask, mask


def _answers(number: int) -> Tensor:
    lengths = torch.randint(2, 7, (number, 1))
    return torch.where(torch.arange(6) < lengths, torch.randint(5, VOCABULARY, (number, 6)), -100)


ARCHITECTURES = {
    "bert": Architecture(
        "BertForSequenceClassification", "BertConfig", _SIZES, classified_texts, ("query", "value", "dense")
    ),
    "roberta": Architecture(
        "RobertaForSequenceClassification", "RobertaConfig", _SIZES, classified_texts, ("query", "value")
    ),
    "distilbert": Architecture(
        "DistilBertForSequenceClassification",
        "DistilBertConfig",
        {"vocab_size": VOCABULARY, "dim": 16, "n_layers": 2, "n_heads": 2, "hidden_dim": 32},
        classified_texts,
        ("q_lin", "v_lin"),
    ),
    "modernbert": Architecture(
        "ModernBertForSequenceClassification",
        "ModernBertConfig",
        {**_SIZES, "bos_token_id": 1, "eos_token_id": 2, "cls_token_id": 3, "sep_token_id": 4},
        classified_texts,
        ("Wqkv", "Wo"),
    ),
    "gpt2": Architecture(
        "GPT2LMHeadModel",
        "GPT2Config",
        {"vocab_size": VOCABULARY, "n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 64}
        | {"bos_token_id": 1, "eos_token_id": 2},
        texts,
        ("c_attn", "c_proj"),
    ),
    "llama": Architecture("LlamaForCausalLM", "LlamaConfig", _GROUPED, texts, ("q_proj", "v_proj")),
    "qwen3": Architecture("Qwen3ForCausalLM", "Qwen3Config", {**_GROUPED, "head_dim": 8}, texts, ("q_proj", "v_proj")),
    "gemma3": Architecture(
        "Gemma3ForCausalLM",
        "Gemma3TextConfig",
        {**_GROUPED, "head_dim": 8, "sliding_window": 4},
        texts,
        ("q_proj", "v_proj"),
    ),
    "gpt-neox": Architecture("GPTNeoXForCausalLM", "GPTNeoXConfig", _SIZES, texts, ("query_key_value", "dense")),
    "t5": Architecture(
        "T5ForConditionalGeneration",
        "T5Config",
        {"vocab_size": VOCABULARY, "d_model": 16, "d_kv": 8, "d_ff": 32, "num_layers": 2, "num_heads": 2}
        | {"decoder_start_token_id": 0, "pad_token_id": 0},
        pairs_of_texts,
        ("q", "v"),
    ),
    "vit": Architecture(
        "ViTForImageClassification",
        "ViTConfig",
        {"image_size": 16, "patch_size": 4, "hidden_size": 16, "num_hidden_layers": 2}
        | {"num_attention_heads": 2, "intermediate_size": 32},
        pictures,
        ("q_proj", "v_proj"),
    ),
    "whisper-tiny": Architecture(
        "WhisperForConditionalGeneration",
        "WhisperConfig",
        {"vocab_size": VOCABULARY, **_WHISPER, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
        | {"decoder_start_token_id": 3},
        spoken,
        ("q_proj", "v_proj"),
    ),
}
