"""`explain` says of each layer how its gradients are computed, why, and what a step costs."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import sordino as so
from bench.tiny_transformers import ARCHITECTURES
from sordino.gradients.tape import give_up
from sordino.verification.explanation import GradientMethod

ROWS = (torch.zeros(9, 4), torch.zeros(9, dtype=torch.int64))


class Scaled(nn.Module):
    """A linear layer, a factor without a rule, and a layer that nothing uses."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.scale, self.unused = nn.Linear(4, 3), nn.Parameter(torch.ones(3)), nn.Linear(2, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) * self.scale


def test_each_layer_has_its_method_and_the_operation_that_has_no_rule() -> None:
    found = so.explain(Scaled(), ROWS)
    methods = {layer.name: (layer.method.value, layer.why) for layer in found.layers}
    assert methods == {
        "(model)": ("direct", "'mul' has no rule: each row has a copy"),
        "layer": ("taped", ""),
        "unused": ("direct", "no operation uses it"),
    }
    assert found.taped_share == 15 / 24 and found.bytes_per_row > 0 and found.relative_cost > 0
    assert "62.5% of the trained numbers are taped" in str(found)


def test_a_model_without_a_tape_is_differentiated_row_by_row() -> None:
    model = Scaled()
    give_up(model, "its gradients were wrong")
    found = so.explain(model, ROWS)
    assert {(layer.method, layer.why) for layer in found.layers} == {
        (GradientMethod.ROW_BY_ROW, "its gradients were wrong")
    }
    assert found.taped_share == 0 and found.bytes_per_row == 3 * 4 * 24


def test_equal_layers_of_a_transformer_are_one_line_and_only_adapters_are_listed() -> None:
    found = so.explain(ARCHITECTURES["llama"].make(lora=True), ARCHITECTURES["llama"].rows(4))
    assert len(found.layers) == 8 and found.taped_share == 1.0  # two factors of two layers in two blocks
    assert str(found).count("lora_A") == 2 and ".*." in str(found)


def test_a_model_that_cannot_be_used_is_refused() -> None:
    with pytest.raises(so.SordinoError, match="mixes the examples"):
        so.explain(nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3)), ROWS)
