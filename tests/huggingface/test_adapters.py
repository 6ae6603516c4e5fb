"""Adapters of PEFT, frozen factors, biases alone, tied tables and backbones in half precision."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import peft
import pytest
import torch
from torch import Tensor, nn

import sordino as so
from bench.tiny_transformers import ARCHITECTURES, with_adapters
from bench.transformers_matrix import gradients_of_loop
from sordino.gradients.taped import TapedGradients
from sordino.huggingface import as_records, loss_for

BERT = ARCHITECTURES["bert"]
LAYERS: dict[str, Any] = {"target_modules": ["query", "value"], "task_type": "SEQ_CLS"}


def adapted(settings: Any) -> nn.Module:
    torch.manual_seed(0)
    return with_adapters(BERT.make(), settings).eval()


def without_trained_first_factor() -> nn.Module:
    """FFA-LoRA (Sun et al. 2024): the first factor of each adapter is frozen."""
    model = adapted(peft.LoraConfig(r=2, init_lora_weights=False, **LAYERS))
    for name, parameter in model.named_parameters():
        if "lora_A" in name:
            parameter.requires_grad_(False)
    return model


def biases_alone() -> nn.Module:
    model = BERT.make()
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name.endswith("bias") or name.startswith("classifier"))
    return model


FAST: dict[str, Callable[[], nn.Module]] = {
    "lora with a trained head": lambda: adapted(peft.LoraConfig(r=2, init_lora_weights=False, **LAYERS)),
    "frozen first factor": without_trained_first_factor,
    "biases": biases_alone,
}
SLOW: dict[str, Callable[[], nn.Module]] = {
    "dora": lambda: adapted(peft.LoraConfig(r=2, use_dora=True, init_lora_weights=False, **LAYERS)),
    "rank-stabilized": lambda: adapted(peft.LoraConfig(r=2, use_rslora=True, init_lora_weights=False, **LAYERS)),
    "ia3": lambda: adapted(peft.IA3Config(feedforward_modules=[], init_ia3_weights=False, **LAYERS)),
    "vera": lambda: adapted(peft.VeraConfig(r=2, init_weights=False, **LAYERS)),
    "prompt": lambda: adapted(peft.PromptTuningConfig(task_type="SEQ_CLS", num_virtual_tokens=3)),
    "prefix": lambda: adapted(peft.PrefixTuningConfig(task_type="SEQ_CLS", num_virtual_tokens=3)),
}


def gradients(model: nn.Module, rows: dict[str, Tensor], autocast: torch.dtype | None = None) -> Tensor:
    records = as_records(model, rows)
    contribution = so.LossGradient(loss_for(model, records), autocast)
    contribution.check(model, records)
    each = contribution.of(model, records.gather(torch.arange(6)), torch.arange(6))
    assert isinstance(each, TapedGradients)
    return torch.cat(list(each.rows(6))).double()


@pytest.mark.parametrize("name", [*FAST, *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW)])
def test_gradients_are_those_of_a_loop(name: str) -> None:
    model, rows = (FAST | SLOW)[name](), BERT.rows(6)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # PEFT calls a deprecated property of transformers
        found, looped = gradients(model, rows), gradients_of_loop(model, rows)
    assert float((found - looped).norm() / looped.norm()) < 1e-5


@pytest.mark.parametrize("name", ["llama", pytest.param("gpt2", marks=pytest.mark.slow)])
def test_adapters_of_a_backbone_in_half_precision_are_as_exact_as_a_loop(name: str) -> None:
    """The exact gradient is that of the same weights in float64. The loop in half precision rounds too."""
    chosen = ARCHITECTURES[name]
    rows, settings = chosen.rows(6), peft.LoraConfig(r=2, target_modules=list(chosen.adapted), init_lora_weights=False)
    torch.manual_seed(1)
    model = with_adapters(chosen.make().bfloat16(), settings).eval()
    assert {p.dtype for p in model.parameters() if p.requires_grad} == {torch.float32}
    found, looped = gradients(model, rows), gradients_of_loop(model, rows)
    exact = gradients_of_loop(model.double(), rows)
    error, of_loop = (float((x - exact).norm() / exact.norm()) for x in (found, looped))
    assert of_loop < 0.1 and error < 3 * of_loop


def test_a_trained_head_in_half_precision_needs_a_conversion_and_autocast() -> None:
    torch.manual_seed(0)
    model, rows = with_adapters(BERT.make().bfloat16(), peft.LoraConfig(r=2, **LAYERS)).eval(), BERT.rows(6)
    settings = {"epsilon": 8.0, "delta": 1e-2, "batch_size": 3, "epochs": 1, "progress": False}
    with pytest.raises(so.SordinoError, match=r"use model.float\(\), or .float\(\) on the trained layers"):
        so.fit(model, rows, **settings)
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.data = parameter.data.float()
    fitted = so.fit(model, rows, autocast=torch.bfloat16, evaluation=so.Public(rows), **settings)
    assert 0.0 <= fitted.metrics[-1]["test_accuracy"] <= 1.0


def test_only_adapters_change_and_names_stay() -> None:
    model, rows = adapted(peft.LoraConfig(r=2, **LAYERS)), BERT.rows(20)
    before = {name: x.clone() for name, x in model.state_dict().items()}
    so.fit(model, rows, epsilon=8.0, delta=1e-2, batch_size=5, epochs=1, progress=False)
    changed = {name for name, x in model.state_dict().items() if not torch.equal(x, before[name])}
    trained = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    assert before.keys() == model.state_dict().keys() and changed and changed <= trained


def test_a_tied_table_of_tokens_is_one_parameter() -> None:
    model = ARCHITECTURES["gpt2"].make()
    assert model.lm_head.weight is model.transformer.wte.weight
    rows = ARCHITECTURES["gpt2"].rows(20)
    so.fit(model, rows, epsilon=8.0, delta=1e-2, batch_size=5, epochs=1, progress=False)
    assert model.lm_head.weight is model.transformer.wte.weight
