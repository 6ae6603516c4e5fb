"""Models of Hugging Face transformers with tiny random configurations, and adapters of PEFT."""

from __future__ import annotations

from typing import Any

import peft
import torch
from torch import Tensor, nn

from bench.architecture_models.kinds import Case, kind
from bench.tiny_transformers import (
    ARCHITECTURES,
    Architecture,
    classified_texts,
    pairs_of_texts,
    pictures,
    texts,
    with_adapters,
)

_WORDS = {"vocab_size": 50, "pad_token_id": 0}
_SIZES = {
    **_WORDS, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32,
    "max_position_embeddings": 64,
}  # fmt: skip
_GROUPED = {**_SIZES, "num_key_value_heads": 1}
_STILL = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}


def own_loss(model: nn.Module, row: dict[str, Tensor]) -> Tensor:
    """The loss that the model itself computes for a batch of one."""
    loss: Tensor = model(**row).loss
    return loss


def case(model: nn.Module, rows: dict[str, Tensor]) -> Case:
    inputs = {name: column for name, column in rows.items() if name != "labels"}
    return Case(model, inputs, rows["labels"], loss_alone=own_loss)


def made(architecture: Architecture, rows: int, **settings: Any) -> Case:
    return case(architecture.make(seed=torch.initial_seed(), **settings), architecture.rows(rows))


def classifier(name: str, settings: dict[str, Any], rows: int, head: str = "ForSequenceClassification") -> Case:
    return made(Architecture(name + head, name + "Config", settings, classified_texts, ()), rows)


def language_model(name: str, settings: dict[str, Any], rows: int, head: str = "ForCausalLM") -> Case:
    return made(Architecture(name + head, name + "Config", settings, texts, ()), rows)


def of_pictures(name: str, settings: dict[str, Any], rows: int) -> Case:
    architecture = Architecture(name + "ForImageClassification", name + "Config", settings, pictures, ())
    return made(architecture, rows, attention="eager")


@kind()
def bert(rows: int) -> Case:
    return made(ARCHITECTURES["bert"], rows)


@kind()
def bert_checkpointed(rows: int) -> Case:
    return checkpointed_bert(rows, use_reentrant=False)


@kind()
def bert_checkpointed_reentrant(rows: int) -> Case:
    return checkpointed_bert(rows, use_reentrant=True)


def checkpointed_bert(rows: int, use_reentrant: bool) -> Case:
    made_ = classifier("Bert", {**_SIZES, **_STILL}, rows)
    model: Any = made_.model.train()
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": use_reentrant})
    return made_


@kind()
def bert_masked(rows: int) -> Case:
    return language_model("Bert", _SIZES, rows, "ForMaskedLM")


@kind()
def bert_of_tokens(rows: int) -> Case:
    columns = classified_texts(rows)
    labels = torch.where(columns["attention_mask"] == 1, columns["input_ids"] % 2, -100)
    architecture = Architecture("BertForTokenClassification", "BertConfig", _SIZES, classified_texts, ())
    return case(architecture.make(), {**columns, "labels": labels})


@kind(draws=True)
def bert_with_dropout(rows: int) -> Case:
    made_ = made(ARCHITECTURES["bert"], rows, attention="eager")
    made_.model.train()
    return made_


@kind()
def roberta(rows: int) -> Case:
    return made(ARCHITECTURES["roberta"], rows)


@kind()
def distilbert(rows: int) -> Case:
    return made(ARCHITECTURES["distilbert"], rows)


@kind()
def albert(rows: int) -> Case:
    return classifier("Albert", {**_SIZES, "embedding_size": 8, "num_hidden_groups": 1}, rows)


@kind()
def electra(rows: int) -> Case:
    return classifier("Electra", {**_SIZES, "embedding_size": 8}, rows)


@kind()
def deberta(rows: int) -> Case:
    settings = {**_SIZES, "relative_attention": True, "pos_att_type": ["p2c", "c2p"], "type_vocab_size": 0}
    return made(
        Architecture("DebertaV2ForSequenceClassification", "DebertaV2Config", settings, classified_texts, ()),
        rows,
        attention="eager",
    )


@kind()
def modernbert(rows: int) -> Case:
    return made(ARCHITECTURES["modernbert"], rows)


@kind()
def xlnet(rows: int) -> Case:
    settings = {**_WORDS, "d_model": 16, "n_layer": 2, "n_head": 2, "d_inner": 32}
    architecture = Architecture("XLNetForSequenceClassification", "XLNetConfig", settings, classified_texts, ())
    return made(architecture, rows, attention="eager")


@kind()
def longformer(rows: int) -> Case:
    architecture = Architecture(
        "LongformerForSequenceClassification",
        "LongformerConfig",
        {**_SIZES, "attention_window": 4},
        classified_texts,
        (),
    )
    return made(architecture, rows, attention="eager")


@kind()
def big_bird(rows: int) -> Case:
    architecture = Architecture(
        "BigBirdForSequenceClassification", "BigBirdConfig", {**_SIZES, "attention_type": "original_full"},
        classified_texts, (),
    )  # fmt: skip
    return made(architecture, rows, attention="eager")


@kind()
def reformer(rows: int) -> Case:
    settings = {
        **_WORDS, "hidden_size": 16, "num_attention_heads": 2, "attention_head_size": 8, "feed_forward_size": 32,
        "attn_layers": ["local", "local"], "local_attn_chunk_length": 4, "axial_pos_embds": False,
        "max_position_embeddings": 64, "is_decoder": False,
    }  # fmt: skip
    settings |= {"hidden_dropout_prob": 0.0, "local_attention_probs_dropout_prob": 0.0}
    architecture = Architecture("ReformerForSequenceClassification", "ReformerConfig", settings, classified_texts, ())
    made_ = made(architecture, rows, attention="eager")
    made_.model.train()  # it refuses to compute gradients otherwise
    return made_


@kind()
def f_net(rows: int) -> Case:
    columns = classified_texts(rows)
    columns.pop("attention_mask")
    architecture = Architecture("FNetForSequenceClassification", "FNetConfig", _SIZES, classified_texts, ())
    return case(architecture.make(attention="eager"), columns)


@kind()
def gpt2(rows: int) -> Case:
    return made(ARCHITECTURES["gpt2"], rows)


@kind()
def gpt_neox(rows: int) -> Case:
    return made(ARCHITECTURES["gpt-neox"], rows)


@kind()
def opt(rows: int) -> Case:
    return language_model("OPT", {**_SIZES, "ffn_dim": 32, "word_embed_proj_dim": 8}, rows)


@kind()
def bloom(rows: int) -> Case:
    architecture = Architecture(
        "BloomForCausalLM", "BloomConfig", {**_WORDS, "hidden_size": 16, "n_layer": 2, "n_head": 2}, texts, ()
    )
    return made(architecture, rows, attention="eager")


@kind()
def falcon(rows: int) -> Case:
    return language_model(
        "Falcon", {**_WORDS, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}, rows
    )


@kind()
def llama(rows: int) -> Case:
    return made(ARCHITECTURES["llama"], rows)


@kind()
def mistral(rows: int) -> Case:
    return language_model("Mistral", {**_GROUPED, "sliding_window": 4}, rows)


@kind()
def qwen3(rows: int) -> Case:
    return made(ARCHITECTURES["qwen3"], rows)


@kind()
def gemma3(rows: int) -> Case:
    return made(ARCHITECTURES["gemma3"], rows)


@kind()
def phi(rows: int) -> Case:
    return language_model("Phi", _GROUPED, rows)


@kind()
def mixtral(rows: int) -> Case:
    return language_model("Mixtral", {**_GROUPED, "num_local_experts": 4, "num_experts_per_tok": 2}, rows)


@kind()
def mamba(rows: int) -> Case:
    settings = {**_WORDS, "hidden_size": 16, "num_hidden_layers": 2, "state_size": 4, "time_step_rank": 2}
    return made(Architecture("MambaForCausalLM", "MambaConfig", settings, texts, ()), rows, attention="eager")


@kind()
def t5(rows: int) -> Case:
    return made(ARCHITECTURES["t5"], rows)


@kind()
def bart(rows: int) -> Case:
    settings = {
        **_WORDS, "d_model": 16, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 2,
        "decoder_attention_heads": 2, "encoder_ffn_dim": 32, "decoder_ffn_dim": 32, "max_position_embeddings": 64,
        "decoder_start_token_id": 2,
    }  # fmt: skip
    return made(Architecture("BartForConditionalGeneration", "BartConfig", settings, pairs_of_texts, ()), rows)


@kind()
def whisper(rows: int) -> Case:
    return made(ARCHITECTURES["whisper-tiny"], rows)


@kind()
def vit(rows: int) -> Case:
    return made(ARCHITECTURES["vit"], rows)


_PATCHES = {"image_size": 16, "patch_size": 4, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}


@kind()
def deit(rows: int) -> Case:
    return of_pictures("DeiT", {**_PATCHES, "intermediate_size": 32}, rows)


@kind()
def dinov2(rows: int) -> Case:
    return of_pictures("Dinov2", {**_PATCHES, "mlp_ratio": 2}, rows)


@kind()
def swin(rows: int) -> Case:
    settings = {
        "image_size": 16,
        "patch_size": 2,
        "embed_dim": 8,
        "depths": [2, 1],
        "num_heads": [1, 2],
        "window_size": 4,
    }
    return of_pictures("Swin", settings, rows)


@kind()
def segformer(rows: int) -> Case:
    settings = {
        "num_encoder_blocks": 2, "depths": [1, 1], "sr_ratios": [2, 1], "hidden_sizes": [8, 16], "patch_sizes": [3, 3],
        "strides": [2, 2], "num_attention_heads": [1, 2], "mlp_ratios": [2, 2],
    }  # fmt: skip
    return of_pictures("Segformer", settings, rows)


@kind()
def convnext_of_transformers(rows: int) -> Case:
    return of_pictures("ConvNext", {"num_stages": 2, "hidden_sizes": [8, 16], "depths": [1, 1], "patch_size": 2}, rows)


@kind()
def clip_of_pictures(rows: int) -> Case:
    vision = {**_PATCHES, "intermediate_size": 32, "projection_dim": 8}
    text = {**_SIZES, "projection_dim": 8, "bos_token_id": 1, "eos_token_id": 2}
    made_ = of_pictures("CLIP", {"vision_config": vision, "text_config": text, "projection_dim": 8}, rows)
    with torch.no_grad():
        for parameter in made_.model.parameters():
            parameter.mul_(0.5)  # with weights as large as those of the others, single precision has three digits
    return made_


@kind(refused="BatchNorm")
def resnet_of_transformers(rows: int) -> Case:
    settings = {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1], "layer_type": "basic"}
    made_ = of_pictures("ResNet", settings, rows)
    made_.model.train()
    return made_


def adapted(settings: Any, rows: int, architecture: str = "llama") -> Case:
    chosen = ARCHITECTURES[architecture]
    model = with_adapters(chosen.make(seed=torch.initial_seed()), settings)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.add_(0.1 * torch.randn_like(parameter))
    return case(model.eval(), chosen.rows(rows))


_TARGETS = ["q_proj", "v_proj"]


@kind()
def lora(rows: int) -> Case:
    return adapted(peft.LoraConfig(r=2, target_modules=_TARGETS), rows)


@kind()
def lora_of_embedding(rows: int) -> Case:
    return adapted(peft.LoraConfig(r=2, target_modules=[*_TARGETS, "embed_tokens"]), rows)


@kind()
def dora(rows: int) -> Case:
    return adapted(peft.LoraConfig(r=2, target_modules=_TARGETS, use_dora=True), rows)


@kind()
def ia3(rows: int) -> Case:
    return adapted(peft.IA3Config(target_modules=[*_TARGETS, "down_proj"], feedforward_modules=["down_proj"]), rows)


@kind()
def loha(rows: int) -> Case:
    return adapted(peft.LoHaConfig(r=2, target_modules=_TARGETS), rows)


@kind()
def lokr(rows: int) -> Case:
    return adapted(peft.LoKrConfig(r=2, target_modules=_TARGETS), rows)


@kind()
def oft(rows: int) -> Case:
    return adapted(peft.OFTConfig(oft_block_size=4, target_modules=_TARGETS), rows)


@kind()
def vera(rows: int) -> Case:
    return adapted(peft.VeraConfig(r=2, target_modules=["q_proj"]), rows)


@kind()
def prompt_tuning(rows: int) -> Case:
    return adapted(peft.PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=3), rows)


@kind()
def prefix_tuning(rows: int) -> Case:
    return adapted(peft.PrefixTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=3), rows)
