"""Adapters of PEFT, frozen factors, biases alone, tied tables and backbones in half precision."""

from __future__ import annotations

import copy
import re
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import peft
import pytest
import torch
from peft.tuners.loha import layer
from torch import Tensor, nn

import sordino as so
from bench.tiny_transformers import ARCHITECTURES, with_adapters
from bench.transformers_matrix import gradients_of_loop
from sordino.gradients.loop import LoopedGradients
from sordino.gradients.taped import TapedGradients
from sordino.gradients.transformers_settings import transformers_settings
from sordino.huggingface import as_records, loss_for
from sordino.kernel.states import Dense

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


def adaptive_rank(**settings: Any) -> nn.Module:
    """AdaLora without the penalty on its factors, which is no loss of an example."""
    usual = {"init_r": 3, "target_r": 1, "total_step": 100, "tinit": 10, "tfinal": 20, "orth_reg_weight": 1e-12}
    return adapted(peft.AdaLoraConfig(init_lora_weights=False, **LAYERS, **(usual | settings)))


def orthogonal(**settings: Any) -> nn.Module:
    return adapted(peft.OFTConfig(r=0, oft_block_size=4, init_weights=False, **LAYERS, **settings))


# By the names of the table in docs/fine-tuning.md
FAST: dict[str, Callable[[], nn.Module]] = {
    "LoRA": lambda: adapted(peft.LoraConfig(r=2, init_lora_weights=False, **LAYERS)),
    "FFA-LoRA": without_trained_first_factor,
    "biases": biases_alone,
    "LoHa": lambda: adapted(peft.LoHaConfig(r=2, alpha=2, init_weights=False, **LAYERS)),
    "OFT": orthogonal,
}
SLOW: dict[str, Callable[[], nn.Module]] = {
    "DoRA": lambda: adapted(peft.LoraConfig(r=2, use_dora=True, init_lora_weights=False, **LAYERS)),
    "rsLoRA": lambda: adapted(peft.LoraConfig(r=2, use_rslora=True, init_lora_weights=False, **LAYERS)),
    "AdaLora": adaptive_rank,
    "LoKr": lambda: adapted(peft.LoKrConfig(r=2, alpha=2, decompose_both=True, init_weights=False, **LAYERS)),
    "VeRA": lambda: adapted(peft.VeraConfig(r=2, init_weights=False, **LAYERS)),
    "VB-LoRA": lambda: adapted(peft.VBLoRAConfig(r=2, num_vectors=8, vector_length=4, topk=2, **LAYERS)),
    "DeLoRA": lambda: adapted(peft.DeloraConfig(r=2, init_weights=False, **LAYERS)),
    "MiSS": lambda: adapted(peft.MissConfig(r=4, init_weights=False, **LAYERS)),
    "BOFT": lambda: adapted(peft.BOFTConfig(boft_block_size=4, init_weights=False, **LAYERS)),
    "HRA": lambda: adapted(peft.HRAConfig(r=2, init_weights=False, **LAYERS)),
    "RoAd": lambda: adapted(peft.RoadConfig(group_size=4, init_weights=False, **LAYERS)),
    "FourierFT": lambda: adapted(peft.FourierFTConfig(n_frequency=10, init_weights=False, **LAYERS)),
    "WaveFT": lambda: adapted(peft.WaveFTConfig(n_frequency=10, init_weights=False, **LAYERS)),
    "IA3": lambda: adapted(peft.IA3Config(feedforward_modules=[], init_ia3_weights=False, **LAYERS)),
    "LayerNorm": lambda: adapted(peft.LNTuningConfig(task_type="SEQ_CLS", target_modules=["LayerNorm"])),
    "prompt": lambda: adapted(peft.PromptTuningConfig(task_type="SEQ_CLS", num_virtual_tokens=3)),
    "prefix": lambda: adapted(peft.PrefixTuningConfig(task_type="SEQ_CLS", num_virtual_tokens=3)),
    "P-tuning": lambda: adapted(
        peft.PromptEncoderConfig(task_type="SEQ_CLS", num_virtual_tokens=3, encoder_hidden_size=8)
    ),
}
ALONE: dict[str, Callable[[], nn.Module]] = {
    "SHiRA": lambda: adapted(peft.ShiraConfig(r=2, init_weights=False, **LAYERS)),
    "RandLora": lambda: adapted(peft.RandLoraConfig(r=2, init_weights=False, **LAYERS)),
    "C3A": lambda: adapted(peft.C3AConfig(block_size=4, init_weights=False, **LAYERS)),
}
ROW_BY_ROW = {"OFT", "FourierFT", "WaveFT"}
REFUSED: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "COFT": (lambda: orthogonal(coft=True), "changes its own 'weight' in the forward pass"),
}


def gradients(
    model: nn.Module, rows: dict[str, Tensor], autocast: torch.dtype | None = None, *, path: type = TapedGradients
) -> Tensor:
    records = as_records(model, rows)
    contribution = so.LossGradient(loss_for(model, records), autocast)
    contribution.check(model, records)
    each = contribution.of(model, records.gather(torch.arange(6)), torch.arange(6))
    assert isinstance(each, path)
    return torch.cat(list(each.rows(6))).double()


@pytest.mark.parametrize("name", [*FAST, *ALONE, *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW)])
def test_gradients_are_those_of_a_loop(name: str) -> None:
    model, rows = (FAST | SLOW | ALONE)[name](), BERT.rows(6)
    path: type = LoopedGradients if name in ALONE else Dense if name in ROW_BY_ROW else TapedGradients
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PEFT calls a deprecated property, and warns of hooks
        found, looped = gradients(model, rows, path=path), gradients_of_loop(model, rows)
    assert float((found - looped).norm() / looped.norm()) < 1e-5
    assert bool((looped.norm(dim=1) > 0).all())


@pytest.mark.parametrize("name", REFUSED)
def test_an_adapter_that_cannot_be_differentiated_by_example_is_refused_in_one_line(name: str) -> None:
    make, reason = REFUSED[name]
    with warnings.catch_warnings(), pytest.raises(so.SordinoError) as refused:
        warnings.simplefilter("ignore")
        gradients(make(), BERT.rows(6))
    assert reason in str(refused.value) and "\n" not in str(refused.value)


def test_the_page_lists_the_adapters_that_are_tested() -> None:
    page = (Path(__file__).parents[2] / "docs" / "fine-tuning.md").read_text()
    table = dict(re.findall(r"^\| ([\w-]+) (?:\([^|]*\) )?\| (taped|row by row|loop|refused)", page, re.M))
    assert {name for name, how in table.items() if how == "taped"} == (FAST | SLOW).keys() - ROW_BY_ROW
    assert {name for name, how in table.items() if how == "row by row"} == ROW_BY_ROW
    assert {name for name, how in table.items() if how == "loop"} == ALONE.keys()
    assert {name for name, how in table.items() if how == "refused"} == REFUSED.keys()


def test_a_pass_leaves_loha_as_it_was() -> None:
    before = layer.make_weight, layer.make_weight_cp
    gradients(adapted(peft.LoHaConfig(r=2, alpha=2, init_weights=False, **LAYERS)), BERT.rows(6))
    assert (layer.make_weight, layer.make_weight_cp) == before


def test_loha_has_the_weights_of_peft_and_the_gradients_of_these_weights() -> None:
    """PEFT 0.21 has wrong gradients for factors of convolution kernels, so the oracle is a finite difference."""
    generator = torch.Generator().manual_seed(0)
    matrices, kernels = ((4, 2), (2, 5)), ((2, 2, 3, 3), (2, 4), (2, 2))
    for shapes, theirs, name in (
        (matrices, layer.make_weight, "make_weight"),
        (kernels, layer.make_weight_cp, "make_weight_cp"),
    ):
        factors = [torch.randn(shape, dtype=torch.double, generator=generator).requires_grad_() for shape in shapes * 2]
        scale = torch.tensor(1.3, dtype=torch.double)
        expected = theirs(*factors, scale)
        with transformers_settings(nn.Identity()):
            ours = getattr(layer, name)
            assert ours is not theirs
            assert torch.allclose(ours(*factors, scale), expected)
            assert torch.autograd.gradcheck(lambda *x, ours=ours, scale=scale: ours(*x, scale), factors)


def test_the_ranks_of_adalora_are_a_function_of_the_releases() -> None:
    """Replayed without data, the releases give the same ranks and weights, so allocating ranks is post-processing."""
    schedule = {"total_step": 8, "tinit": 1, "tfinal": 2, "deltaT": 1}
    model, rows = adaptive_rank(**schedule), BERT.rows(20)
    replayed = copy.deepcopy(model)
    plan = so.Plan(
        so.Poisson(0.25, 8),
        so.LossGradient(loss_for(model, as_records(model, rows))),
        so.ClipByNorm(1.0),
        so.Gaussian(1.0),
    )
    releases: list[list[Tensor]] = []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step, private in enumerate(so.PrivateRun(plan, model, as_records(model, rows))):
        given = releases[-1] if releases else [None] * len(trained_of(model))
        assert all(p.grad is g or torch.equal(p.grad, g) for p, g in zip(trained_of(model), given, strict=True))
        private.divide(5).write_to(model)
        releases.append([p.grad.clone() for p in trained_of(model)])
        optimizer.step()
        model.base_model.update_and_allocate(step)
    optimizer = torch.optim.SGD(replayed.parameters(), lr=0.1)
    for step, release in enumerate(releases):
        for parameter, gradient in zip(trained_of(replayed), release, strict=True):
            parameter.grad = gradient.clone()
        optimizer.step()
        replayed.base_model.update_and_allocate(step)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), replayed.parameters(), strict=True))
    ranks = [int((p != 0).sum()) for name, p in model.named_parameters() if "lora_E" in name]
    assert sum(ranks) == len(ranks)  # of 3 each at first


def trained_of(model: nn.Module) -> list[Any]:
    return [parameter for parameter in model.parameters() if parameter.requires_grad]


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
