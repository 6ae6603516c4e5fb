"""A model inside `torch.compile` is trained as the module inside it, and keeps its names."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import sordino as so
from sordino.kernel.states import Layout
from sordino.training.run_folder import RunFolder

X = torch.randn(60, 4, generator=torch.Generator().manual_seed(0))
Y = torch.randint(0, 3, (60,), generator=torch.Generator().manual_seed(1))


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))


def as_a_whole() -> nn.Module:
    return torch.compile(network(), backend="eager")


def in_place() -> nn.Module:
    model = network()
    model.compile(backend="eager")
    return model


def in_part() -> nn.Module:
    model = network()
    model[0] = torch.compile(model[0], backend="eager")
    return model


def trained(model: nn.Module, **arguments) -> so.training.fit.Fitted:
    settings = {"epsilon": 3.0, "delta": 1e-3, "batch_size": 20, "steps": 4, "seed": 0, "progress": False}
    return so.fit(model, (X, Y), **(settings | arguments))


@pytest.mark.parametrize("compiled", [as_a_whole, in_place, in_part])
def test_a_compiled_model_gets_the_weights_of_the_plain_one_bit_for_bit(compiled) -> None:
    plain, model = network(), compiled()
    trained(plain)
    fitted = trained(model, evaluation=so.Public((X, Y)))
    assert fitted.model is model and "test_accuracy" in fitted.metrics[-1]
    assert all(torch.equal(one, other) for one, other in zip(plain.parameters(), model.parameters(), strict=True))


def test_its_run_folder_has_the_names_of_the_module_inside_and_is_finished_by_either(tmp_path: Path) -> None:
    trained(as_a_whole(), out=tmp_path / "run")
    folder = RunFolder(tmp_path / "run")
    assert folder.weights().keys() == network().state_dict().keys()
    assert "OptimizedModule" not in (tmp_path / "run" / "training.json").read_text()
    model = network()
    trained(model, out=tmp_path / "run", resume=True)
    assert torch.equal(model[0].weight, folder.weights()["0.weight"])


def test_a_loop_of_ones_own_writes_gradients_to_it_and_evaluates_the_compiled_one() -> None:
    calls = []

    def backend(graph, inputs):
        calls.append(graph)
        return graph.forward

    model = torch.compile(network(), backend=backend)
    plan = so.Plan(so.Poisson(0.5, 2), so.LossGradient(F.cross_entropy), so.ClipByNorm(1.0), so.Gaussian(2.0))
    run = so.PrivateRun(plan, model, (X, Y))
    assert run.layout == Layout.of(network())
    for private in run:
        private.divide(30).write_to(model)
    assert not calls and all(x.grad.abs().sum() > 0 for x in model.parameters())
    so.training.evaluation.accuracy(model, so.Public((X, Y)))
    assert calls
