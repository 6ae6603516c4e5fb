"""The tape is compared with autograd before it is used for a model, and not used if it is wrong."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from contracts import relative_error
from row_gradients import loop, rows_of
from small_networks import reseeded as reseeded
from torch import Tensor, nn

import sordino as so
from sordino.gradients import agreement
from sordino.gradients.convolution import Convolution
from sordino.gradients.layers import ChannelNorm, EmbeddingOperation, LayerNorm, LinearOperation
from sordino.gradients.recurrent import Recurrence
from sordino.gradients.tape import why_given_up
from sordino.gradients.taped import TapedGradients
from sordino.kernel.contribution import SlowGradients
from sordino.kernel.records import Records, as_records
from sordino.training.checkpoint import gradient_fingerprint

ROWS, CLASSES = 5, 3
GRADIENT = so.LossGradient(F.cross_entropy)


class Pooled(nn.Module):
    """Layers, the mean of their outputs over places, and a classifier."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.layers, self.head = nn.Sequential(*layers), nn.LazyLinear(CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        y = self.layers(x)
        y = y[0] if isinstance(y, tuple) else y
        return self.head(torch.tanh(y.flatten(2).mean(dim=2) if y.ndim > 3 else y.flatten(1)))


def pictures() -> Tensor:
    return torch.randn(ROWS, 2, 6, 5)


def network(name: str) -> tuple[nn.Module, Tensor]:
    build, inputs = NETWORKS[name]
    model, x = build(), inputs()
    with torch.no_grad():
        model(x)
    return model, x


NETWORKS: dict[str, tuple[Callable[[], nn.Module], Callable[[], Tensor]]] = {
    "linear": (lambda: nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3)), lambda: torch.randn(ROWS, 6)),
    "convolution": (lambda: Pooled(nn.Conv2d(2, 4, 3), nn.ReLU()), pictures),
    "group norm": (lambda: Pooled(nn.Conv2d(2, 4, 3), nn.GroupNorm(2, 4), nn.Dropout(0.3)), pictures),
    "layer norm": (lambda: Pooled(nn.Linear(5, 7), nn.LayerNorm(7)), pictures),
    "embedding": (lambda: Pooled(nn.Embedding(7, 4)), lambda: torch.randint(0, 7, (ROWS, 6))),
    "recurrent": (lambda: Pooled(nn.GRU(5, 4, batch_first=True)), lambda: torch.randn(ROWS, 6, 5)),
}
RULES = {
    "linear": LinearOperation,
    "convolution": Convolution,
    "group norm": ChannelNorm,
    "layer norm": LayerNorm,
    "embedding": EmbeddingOperation,
    "recurrent": Recurrence,
}


def plant(rule: Any, monkeypatch: pytest.MonkeyPatch, factor: float = 0.9) -> None:
    """Plants a bug: the rule of this operation gets an output gradient that is multiplied by a factor."""
    honest = rule.blocks
    monkeypatch.setattr(rule, "blocks", lambda self, saved, gradient: honest(self, saved, factor * gradient))


def records_of(x: Tensor) -> Records:
    return as_records((x, torch.arange(len(x)) % CLASSES))


def contributed(model: nn.Module, x: Tensor) -> Any:
    units = torch.arange(len(x))
    return GRADIENT.of(model, records_of(x).gather(units), units)


@pytest.mark.parametrize("name", RULES)
def test_a_rule_that_is_wrong_is_left_unused_and_said_to_be(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(RULES[name], monkeypatch)
    model, x = network(name)
    with pytest.warns(SlowGradients, match=r"fast gradient of '.*' differs from autograd's by 1\.0e-01"):
        GRADIENT.check(model, records_of(x))
    assert "differs from autograd's" in str(why_given_up(model))
    each = contributed(model, x)
    assert not isinstance(each, TapedGradients)
    if name != "group norm":  # whose dropout a loop cannot draw
        labels = torch.arange(ROWS) % CLASSES
        assert relative_error(rows_of(each), loop(model, F.cross_entropy, (x,), labels)) < 1e-5


@pytest.mark.parametrize("name", RULES)
def test_right_rules_are_used(name: str) -> None:
    model, x = network(name)
    GRADIENT.check(model, records_of(x))
    assert why_given_up(model) is None and isinstance(contributed(model, x), TapedGradients)


def test_without_a_check_the_first_gradients_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    plant(LinearOperation, monkeypatch)
    model, x = network("linear")
    with pytest.warns(SlowGradients):
        assert not isinstance(contributed(model, x), TapedGradients)
    assert not isinstance(contributed(model, x), TapedGradients)  # and nothing is said twice


def test_a_rule_below_a_layer_of_zeros_is_looked_at_with_other_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    plant(Convolution, monkeypatch)
    model, x = network("convolution")
    nn.init.zeros_(model.head.weight)
    nn.init.zeros_(model.head.bias)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with pytest.warns(SlowGradients, match=r"'layers\.0\."):
        GRADIENT.check(model, records_of(x))
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_a_gradient_that_is_nothing_but_rounding_raises_no_alarm() -> None:
    model = Pooled(nn.Conv2d(2, 4, 3), nn.InstanceNorm2d(4, affine=True), nn.ReLU())  # which takes the bias away again
    model(pictures())
    GRADIENT.check(model, records_of(pictures()))
    assert why_given_up(model) is None


def test_what_is_compared_again_is_what_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    honest, compared = agreement.agreement, []
    monkeypatch.setattr(agreement, "agreement", lambda *given: compared.append(1) or honest(*given))
    model, x = network("group norm")
    for _ in range(3):
        contributed(model, x)
    assert len(compared) == 1
    contributed(model.eval(), x)
    contributed(model, torch.cat([x, x], dim=2))
    contributed(model.double(), x)
    assert len(compared) == 4


def test_only_a_copy_of_the_model_on_synthetic_rows_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise AssertionError("private rows were read")

    model, x = network("group norm")
    data = records_of(x)
    weights = {name: value.clone() for name, value in model.state_dict().items()}
    pointers = {name: value.data_ptr() for name, value in model.state_dict().items()}
    generator = torch.get_rng_state()
    monkeypatch.setattr(Records, "gather", refuse)
    GRADIENT.check(model, data)
    assert torch.equal(generator, torch.get_rng_state())
    assert all(torch.equal(value, weights[name]) for name, value in model.state_dict().items())
    assert all(value.data_ptr() == pointers[name] for name, value in model.state_dict().items())
    assert all(p.dtype == torch.float32 and p.grad is None for p in model.parameters())


def test_the_comparison_charges_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    plant(LinearOperation, monkeypatch)
    model, x = network("linear")
    budget = so.Budget(records_of(x))
    plan = so.Plan(so.Poisson(0.5, 2), GRADIENT, so.ClipByNorm(1.0), so.Gaussian(4.0))
    with pytest.warns(SlowGradients):
        run = so.PrivateRun(plan, model, budget, seed=0)
    assert budget.releases == ("training run",)
    assert next(run).value.isfinite().all()


class Locked(nn.Module):
    """Cannot be copied."""

    def __init__(self) -> None:
        super().__init__()
        self.layers, self.lock = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3)), threading.Lock()

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)


class InSingle(nn.Module):
    """Has a constant in single precision, and does not run in double."""

    def __init__(self) -> None:
        super().__init__()
        self.layers, self.mixing = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3)), torch.randn(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x @ self.mixing)


@pytest.mark.parametrize("make", [Locked, InSingle])
def test_a_model_that_has_no_copy_in_double_is_compared_as_it_is(
    make: Callable[[], nn.Module], monkeypatch: pytest.MonkeyPatch
) -> None:
    right, x = make(), torch.randn(ROWS, 6)
    before = {name: value.clone() for name, value in right.state_dict().items()}
    GRADIENT.check(right, records_of(x))
    assert isinstance(contributed(right, x), TapedGradients)
    assert all(torch.equal(value, before[name]) for name, value in right.state_dict().items())
    plant(LinearOperation, monkeypatch)
    with pytest.warns(SlowGradients):
        GRADIENT.check(make(), records_of(x))


def test_class_weights_in_single_precision_do_not_hinder_the_comparison(monkeypatch: pytest.MonkeyPatch) -> None:
    gradient = so.LossGradient(nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0, 3.0])))
    model, x = network("linear")
    gradient.check(model, records_of(x))
    assert why_given_up(model) is None
    plant(LinearOperation, monkeypatch)
    with pytest.warns(SlowGradients):
        gradient.check(network("linear")[0], records_of(x))


def test_a_rule_that_fails_gives_the_tape_up(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(self: Any, saved: Tensor, gradient: Tensor) -> Any:
        raise RuntimeError("shape '[5, 2]' is invalid for input of size 15")

    monkeypatch.setattr(LinearOperation, "blocks", failing)
    model, x = network("linear")
    GRADIENT.check(model, records_of(x))
    assert not isinstance(contributed(model, x), TapedGradients)
    assert why_given_up(model) == "the tape cannot record it"


def test_mixed_precision_and_views_are_compared_too(monkeypatch: pytest.MonkeyPatch) -> None:
    for gradient in (replace(GRADIENT, autocast=torch.bfloat16), replace(GRADIENT, views=so.Views(2))):
        model, x = network("convolution")
        gradient.check(model, records_of(x))
        assert why_given_up(model) is None
        with monkeypatch.context() as patch, pytest.warns(SlowGradients):
            plant(Convolution, patch)
            gradient.check(network("convolution")[0], records_of(x))


def test_a_model_is_told_again_by_its_gradients_whether_it_was_checked_before_or_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A resumed run computes the fingerprint of its gradients before any comparison, a new run after it."""
    plant(LinearOperation, monkeypatch)
    (one, x), (other, _) = network("linear"), network("linear")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SlowGradients)
        GRADIENT.check(one, records_of(x))
        digests = {gradient_fingerprint(GRADIENT, model, records_of(x)) for model in (one, other)}
    assert len(digests) == 1
    assert why_given_up(one) is not None and why_given_up(other) is not None
