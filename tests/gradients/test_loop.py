"""Gradients of one example at a time: models that cannot be run on many examples together, and large examples."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from contracts import PerExampleContract, relative_error
from row_gradients import gathered, loop, matrix, rows_of
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import sordino as so
from sordino.errors import UsageError
from sordino.gradients import loop as looped
from sordino.gradients.loop import RUNS_ALONE, LoopedGradients, is_faster_alone, run_alone, why_alone
from sordino.gradients.row_loss import RowLoss
from sordino.gradients.tape import Survey
from sordino.kernel.clipping import SCALED_TO
from sordino.kernel.records import as_records, by_user
from sordino.kernel.states import Layout
from sordino.training.evaluation import outputs_on

ROWS, CLASSES, WIDTH = 7, 3, 5


def labels(rows: int = ROWS) -> Tensor:
    return torch.arange(rows) % CLASSES


class Tokens(nn.Module):
    """Looks tokens up, some of them twice, and uses a part of the table as its output layer."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.other = nn.Embedding(9, WIDTH, padding_idx=0), nn.Embedding(9, WIDTH)
        self.layer = nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH), nn.Tanh())
        self.other.weight = self.table.weight
        self.positions, self.unused = nn.Embedding(4, WIDTH), nn.Linear(2, 2)

    def forward(self, x: Tensor) -> Tensor:
        each = self.table(x) + self.positions(torch.arange(x.shape[1])) + self.other(x.flip(1)).detach()
        return self.layer(each).mean(dim=1) @ self.table.weight[:CLASSES].T


def tokens(rows: int = ROWS) -> Tensor:
    return torch.randint(9, (rows, 4), generator=torch.Generator().manual_seed(3))


def gradients_of(model: nn.Module, x: Tensor, target: Tensor, users: Tensor | None = None) -> LoopedGradients:
    records = as_records((x, target)) if users is None else by_user((x, target), users, rows_per_user=2)
    batch = records.gather(torch.arange(records.num_units))
    seeds = torch.arange(len(batch.units))
    return LoopedGradients(model, RowLoss.of(F.cross_entropy), batch, seeds, Layout.of(model))


class TestLooped(PerExampleContract):
    @staticmethod
    def make() -> LoopedGradients:
        torch.manual_seed(0)
        return gradients_of(Tokens(), tokens(), labels())


class TestLoopedUnits(PerExampleContract):
    """Units of two rows, one row, and none that is valid."""

    @staticmethod
    def make() -> LoopedGradients:
        torch.manual_seed(0)
        return gradients_of(Tokens(), tokens(), labels(), users=torch.tensor([0, 1, 0, 2, 2, 3, 1]))


def test_gradients_are_those_of_plain_autograd() -> None:
    torch.manual_seed(0)
    model = Tokens()
    found = torch.cat(list(gradients_of(model, tokens(), labels()).rows(2)))
    torch.testing.assert_close(found, loop(model, F.cross_entropy, (tokens(),), labels()))


def test_the_gradient_of_a_unit_is_the_sum_of_those_of_its_rows() -> None:
    torch.manual_seed(0)
    model, users = Tokens(), torch.tensor([0, 1, 0, 2, 2, 3, 1])
    of_rows = torch.cat(list(gradients_of(model, tokens(), labels()).rows(9)))
    of_units = torch.cat(list(gradients_of(model, tokens(), labels(), users).rows(9)))
    torch.testing.assert_close(of_units, torch.zeros(4, of_rows.shape[1]).index_add_(0, users, of_rows))


class PhysicsInformed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(WIDTH, 8), nn.Tanh(), nn.Linear(8, 1))

    def forward(self, x: Tensor) -> Tensor:
        x = x.requires_grad_()
        value = self.net(x)
        (slope,) = torch.autograd.grad(value.sum(), x, create_graph=True)
        return torch.cat([value, slope[:, :2]], dim=1)


class Experts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate, self.head = nn.Linear(WIDTH, 3), nn.Linear(WIDTH, CLASSES)
        self.experts = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        weights, out = self.gate(x).softmax(dim=1), torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            chosen = torch.nonzero(weights.argmax(dim=1) == number)[:, 0]
            out = out.index_add(0, chosen, weights[chosen, number, None] * F.dropout(expert(x[chosen]), 0.0))
        return self.head(out)


class Branching(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = nn.Linear(WIDTH, CLASSES), nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return torch.stack([self.one(row) if row.sum() > 0 else self.other(row) for row in x])


class Packed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cells, self.head = nn.GRU(1, 6, batch_first=True), nn.Linear(6, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        lengths = (x > 0).sum(dim=1).clamp(min=1)
        packed = nn.utils.rnn.pack_padded_sequence(x[..., None], lengths, batch_first=True, enforce_sorted=False)
        return self.head(self.cells(packed)[1][0])


class OldSquare(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, x: Tensor) -> Tensor:
        context.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> Tensor:
        return 2 * gradient * context.saved_tensors[0]


class Through(nn.Module):
    """A function between two layers."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.first, self.last, self.function = nn.Linear(WIDTH, 4), nn.Linear(4, CLASSES), function

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.function(self.first(x)))


class Checkpointed(Through):
    def __init__(self, is_reentrant: bool) -> None:
        super().__init__(torch.tanh)
        self.inner, self.is_reentrant = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 4)), is_reentrant

    def forward(self, x: Tensor) -> Tensor:
        return self.last(checkpoint(self.inner, self.first(x), use_reentrant=self.is_reentrant))


class CheckpointedHead(nn.Module):
    """A re-entrant checkpoint whose input needs no gradient but by a tensor that is no parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(WIDTH, 6), nn.Tanh(), nn.Linear(6, CLASSES))

    def forward(self, x: Tensor) -> Tensor:
        return checkpoint(self.inner, x.clone().requires_grad_(), use_reentrant=True)


class SparseGraph(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("graph", torch.eye(WIDTH).roll(1, 0).to_sparse())
        self.layer = nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(torch.sparse.mm(self.graph, x.T).T)


class InnerSteps(nn.Module):
    """Adapts a weight to each example by a gradient step before it is used."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(CLASSES, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        outputs = []
        for row in x:
            (step,) = torch.autograd.grad((self.weight @ row).square().sum(), self.weight, create_graph=True)
            outputs.append((self.weight - 0.1 * step) @ row)
        return torch.stack(outputs)


class Solving(nn.Module):
    """Solves a system whose matrix is shared: the rule of vmap for this is wrong in some versions of torch."""

    def __init__(self) -> None:
        super().__init__()
        self.matrix, self.head = nn.Parameter(torch.eye(WIDTH) + 0.1 * torch.randn(WIDTH, WIDTH)), nn.Linear(WIDTH, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.linalg.solve(self.matrix, x[..., None])[..., 0])


class Undifferentiable(OldSquare):
    @staticmethod
    def backward(context: Any, gradient: Tensor) -> Tensor:
        raise ValueError("no single examples")


def written_into_zeros(x: Tensor) -> Tensor:
    out = torch.zeros(x.shape)
    out[:, 1:] = x[:, 1:]
    return out


ALONE: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "physics informed": (PhysicsInformed, "differentiates in its forward pass"),
    "experts": (Experts, "shapes of its tensors depend on values"),
    "branches": (Branching, "branches on values"),
    "packed sequences": (Packed, "takes a number from a tensor"),
    "old function": (lambda: Through(OldSquare.apply), "autograd.Function without setup_context"),
    "one hot without classes": (lambda: Through(lambda x: x * F.one_hot(x[:, 0].long().clamp(3, 3))), "takes a number"),
    "written into zeros": (lambda: Through(written_into_zeros), "writes values of an example into a tensor"),
    "checkpoint": (lambda: Checkpointed(False), "checkpoints"),
    "re-entrant checkpoint": (lambda: Checkpointed(True), ""),
    "re-entrant checkpoint of everything": (CheckpointedHead, ""),
    "sparse buffer": (SparseGraph, ""),
    "inner steps": (InnerSteps, ""),
    "early exit": (lambda: Through(lambda x: x if bool((x[:, 0] > 9).all()) else x.tanh()), "branches on values"),
}


@pytest.mark.parametrize("name", ALONE)
def test_a_model_that_cannot_be_run_on_many_examples_has_the_gradients_of_single_ones(name: str) -> None:
    torch.manual_seed(0)
    build, reason = ALONE[name]
    model, x = build(), torch.randn(ROWS, WIDTH)
    records, clip_norm = as_records((x, labels())), 0.7
    gradient = so.LossGradient(F.cross_entropy)
    gradient.check(model, records)
    assert reason in (why_alone(model) or "not alone")
    each = gradient.of(model, records.gather(torch.arange(ROWS)), torch.arange(ROWS))
    expected = loop(model, F.cross_entropy, (x,), labels()).double()
    weights = (clip_norm * SCALED_TO / expected.norm(dim=1)).clamp(max=1.0)
    assert relative_error(so.ClipByNorm(clip_norm)(each).value, weights @ expected) < 1e-6


def test_one_hot_vectors_need_no_loop() -> None:
    model = Through(lambda x: x * F.one_hot((x[:, 0] > 0).long(), num_classes=4))
    x = torch.randn(ROWS, WIDTH)
    so.LossGradient(F.cross_entropy).check(model, as_records((x, labels())))
    assert why_alone(model) is None
    found = matrix(model, F.cross_entropy, gathered(x, labels()))
    torch.testing.assert_close(found, loop(model, F.cross_entropy, (x,), labels()))


def test_a_wrong_rule_of_vmap_is_noticed() -> None:
    model, x = Solving(), torch.randn(ROWS, WIDTH)
    so.LossGradient(F.cross_entropy).check(model, as_records((x, labels())))
    found = matrix(model, F.cross_entropy, gathered(x, labels()))
    torch.testing.assert_close(found, loop(model, F.cross_entropy, (x,), labels()))


def test_the_guarantee_says_what_is_assumed_of_a_model_that_runs_alone() -> None:
    plan = so.Plan(so.Poisson(0.5, 1), so.LossGradient(F.cross_entropy), so.ClipByNorm(1.0), so.Gaussian(1.0))
    data = torch.randn(ROWS, WIDTH), labels()
    alone, together = so.PrivateRun(plan, Branching(), data), so.PrivateRun(plan, nn.Linear(WIDTH, CLASSES), data)
    assert RUNS_ALONE in alone.guarantee(delta=1e-3).assumptions
    assert RUNS_ALONE not in together.guarantee(delta=1e-3).assumptions


class Failing(nn.Module):
    """Fails on examples whose first value is 9."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        if any(row[0].item() == 9 for row in x):
            raise KeyError(f"an error that shows {x}")
        return self.layer(x)


def test_a_row_on_which_the_model_fails_adds_zero_and_changes_no_bit_of_the_others() -> None:
    torch.manual_seed(0)
    model, x = Failing(), torch.randn(ROWS, WIDTH)
    so.LossGradient(F.cross_entropy).check(model, as_records((x, labels())))
    before = matrix(model, F.cross_entropy, gathered(x, labels()))
    x[2, 0] = 9
    after = matrix(model, F.cross_entropy, gathered(x, labels()))
    assert not after[2].any() and before[2].any()
    assert torch.equal(after[[0, 1, 3, 4, 5, 6]], before[[0, 1, 3, 4, 5, 6]])


def test_a_model_that_fails_on_every_row_is_refused_without_words_of_vmap() -> None:
    with pytest.raises(UsageError, match="cannot be differentiated example by example: no single examples") as refused:
        so.LossGradient(F.cross_entropy).check(
            Through(Undifferentiable.apply), as_records((torch.randn(9, WIDTH), labels(9)))
        )
    assert "vmap" not in str(refused.value) and "\n" not in str(refused.value)


def test_a_row_is_computed_alike_whatever_rows_come_before_it() -> None:
    """A model that writes to its buffer and to its attributes on some rows."""

    class Writing(Failing):
        seen: Tensor

        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("seen", torch.zeros(()))
            self.count = 0

        def forward(self, x: Tensor) -> Tensor:
            if x[0, 0].item() == 9:
                self.seen += 1
                self.count += 1
            return self.layer(x) * (1 + self.seen + self.count)

    model, x = Writing(), torch.randn(ROWS, WIDTH)
    so.LossGradient(F.cross_entropy).check(model, as_records((x, labels())))
    before = matrix(model, F.cross_entropy, gathered(x, labels()))
    x[2, 0] = 9
    after = matrix(model, F.cross_entropy, gathered(x, labels()))
    assert torch.equal(after[[0, 1, 3, 4, 5, 6]], before[[0, 1, 3, 4, 5, 6]]) and not torch.equal(after, before)
    assert model.count == 0 and not model.seen


class ChangingWeights(Failing):
    """Changes its weights on some rows."""

    def __init__(self, change: Callable[[Tensor, Tensor], None]) -> None:
        super().__init__()
        self.change = change

    @property
    def shown(self) -> Tensor:
        return self.layer.weight.detach().clone()

    def forward(self, x: Tensor) -> Tensor:
        if x[0, 0].item() == 9:
            self.change(self.layer.weight, x)
        return self.layer(x)


def in_place(weight: Tensor, x: Tensor) -> None:
    with torch.no_grad():
        weight += 1


def through_data(weight: Tensor, x: Tensor) -> None:
    weight.data.mul_(float(x.sum()))


def through_numpy(weight: Tensor, x: Tensor) -> None:
    weight.detach().numpy()[:] = 3


def write_values(weight: Tensor, x: Tensor) -> None:
    weight.data.mul_(x.sum())


def write_by_argument(weight: Tensor, x: Tensor) -> None:
    F.threshold(weight.data, float("inf"), float(x.sum()), inplace=True)


def write_into_view(weight: Tensor, x: Tensor) -> None:
    torch.add(weight.detach().view(-1)[:2], x[0, :2], out=weight.detach().view(-1)[:2])


@pytest.mark.parametrize(
    "change", [in_place, through_data, through_numpy, write_values, write_by_argument, write_into_view]
)
def test_a_model_that_changes_its_weights_on_a_row_changes_nothing_for_others(change: Any) -> None:
    model, x = ChangingWeights(change), torch.randn(ROWS, WIDTH)
    so.LossGradient(F.cross_entropy).check(model, as_records((x, labels())))
    weight, before = model.shown, matrix(model, F.cross_entropy, gathered(x, labels()))
    x[2, 0] = 9
    after = matrix(model, F.cross_entropy, gathered(x, labels()))
    assert torch.equal(after[[0, 1, 3, 4, 5, 6]], before[[0, 1, 3, 4, 5, 6]])
    assert torch.equal(model.shown, weight)


class Caching(Failing):
    """Keeps inputs, gradients and values of some rows in tensors that are neither parameters nor buffers."""

    def __init__(self) -> None:
        super().__init__()
        self.cache, self.alpha = torch.zeros(CLASSES), torch.ones(1, requires_grad=True)
        self.direct = [self.layer.bias]

    def forward(self, x: Tensor) -> Tensor:
        if x[0, 0].item() == 9:
            kept.append(x)
            self.cache.view(-1).copy_(x[0, :CLASSES])
        out = self.layer(x) * self.alpha + self.direct[0] + self.cache
        if x[0, 0].item() == 8:
            out.register_hook(kept.append)
        return out + (kept[-1].sum() if kept else 0.0)


@pytest.mark.parametrize("secret", [8.0, 9.0])
def test_tensors_that_are_kept_for_a_row_reach_no_other_row(secret: float) -> None:
    kept.clear()
    model, x = Caching(), torch.randn(ROWS, WIDTH)
    model.layer.weight.grad = torch.full((CLASSES, WIDTH), 2.0)
    so.LossGradient(F.cross_entropy).check(model, as_records((x, labels())))
    before = matrix(model, F.cross_entropy, gathered(x, labels()))
    x[2, 0] = secret
    with pytest.raises(UsageError, match="uses a tensor that it kept from earlier rows"):
        matrix(model, F.cross_entropy, gathered(x, labels()))
    kept.clear()
    x[2, 0] = 0.0
    assert torch.equal(matrix(model, F.cross_entropy, gathered(x, labels()))[[0, 1, 3]], before[[0, 1, 3]])
    assert model.alpha.grad is None and model.layer.bias.grad is None
    assert bool((model.layer.weight.grad == 2).all())


def test_an_output_of_a_trained_table_may_be_changed_in_place() -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.head = nn.Embedding(9, WIDTH), nn.Linear(WIDTH, CLASSES)

        def forward(self, x: Tensor) -> Tensor:
            each = self.table(x)
            each *= 2
            each += 1
            return self.head(each.mean(dim=1))

    torch.manual_seed(0)
    model = Scaled()
    so.LossGradient(F.cross_entropy).check(model, as_records((tokens(), labels())))
    found = torch.cat(list(gradients_of(model, tokens(), labels()).rows(3)))
    torch.testing.assert_close(found, loop(model, F.cross_entropy, (tokens(),), labels()))


def test_a_large_model_may_read_its_constants(monkeypatch: pytest.MonkeyPatch) -> None:
    class Counted(Failing):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("count", torch.tensor(3.0))

        def forward(self, x: Tensor) -> Tensor:
            return self.layer(x) / self.count.item()

    monkeypatch.setattr(looped, "_LARGE_ROW", 0)
    model, x = Counted(), torch.randn(ROWS, WIDTH)
    so.LossGradient(F.cross_entropy).check(model, as_records((x, labels())))
    found = matrix(model, F.cross_entropy, gathered(x, labels()))
    torch.testing.assert_close(found, loop(model, F.cross_entropy, (x,), labels()))


def test_a_model_that_was_never_checked_is_run_alone_where_it_must_be() -> None:
    model, x = Branching(), torch.randn(ROWS, WIDTH)
    found = matrix(model, F.cross_entropy, gathered(x, labels()))
    torch.testing.assert_close(found, loop(model, F.cross_entropy, (x,), labels()))


def test_arrays_and_hooks_of_a_model_are_restored_after_each_row() -> None:
    class Holding(Failing):
        def __init__(self) -> None:
            super().__init__()
            self.seen = np.zeros(2)

        def forward(self, x: Tensor) -> Tensor:
            if x[0, 0].item() == 9:
                self.seen += float(x.sum())
                self.layer.register_forward_hook(lambda module, args, output: output + 1)
            return self.layer(x) * (1 + float(self.seen[0]))

    model, x = Holding(), torch.randn(ROWS, WIDTH)
    so.LossGradient(F.cross_entropy).check(model, as_records((x, labels())))
    before = matrix(model, F.cross_entropy, gathered(x, labels()))
    x[2, 0] = 9
    after = matrix(model, F.cross_entropy, gathered(x, labels()))
    assert torch.equal(after[[0, 1, 3, 4, 5, 6]], before[[0, 1, 3, 4, 5, 6]])
    assert not model.seen.any() and not model.layer._forward_hooks


class Tempered(nn.Module):
    """Has a parameter that is a single number."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.temperature = nn.Linear(WIDTH, CLASSES), nn.Parameter(torch.tensor(0.7))

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) / self.temperature


def test_a_parameter_that_is_one_number_needs_no_loop() -> None:
    model, x = Tempered(), torch.randn(ROWS, WIDTH)
    so.LossGradient(F.cross_entropy).check(model, as_records((x, labels())))
    assert why_alone(model) is None
    found = matrix(model, F.cross_entropy, gathered(x, labels()))
    torch.testing.assert_close(found, loop(model, F.cross_entropy, (x,), labels()))


kept: list[Any] = []


class KeepingTensors(Failing):
    def forward(self, x: Tensor) -> Tensor:
        x = super().forward(x)
        shift = kept[-1] if kept and len(x) == 1 else 0.0
        kept.append(x.detach()[:1] if len(x) == 1 else torch.zeros(1, CLASSES))
        return x + shift


class KeepingNumbers(Failing):
    def forward(self, x: Tensor) -> Tensor:
        factor = 1.0 + (kept[-1] if kept and len(x) == 1 else 0.0)
        kept.append(x.sum().item() if len(x) == 1 else 0.0)
        return super().forward(x) * factor


class KeepingInPlace(Failing):
    """Writes values of each example into a tensor that belongs to nobody."""

    def forward(self, x: Tensor) -> Tensor:
        if not kept:
            kept.append(torch.zeros(CLASSES))
        shift = kept[0].clone() if len(x) == 1 else 0.0
        out = super().forward(x)
        if len(x) == 1:
            kept[0][:] = out.detach()[0]
        return out + shift


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (KeepingTensors, "uses a tensor that it kept from earlier rows"),
        (KeepingNumbers, "other gradients if its examples come in another order"),
        (KeepingInPlace, "writes values of an example into a parameter, a buffer or a tensor from before"),
    ],
)
def test_a_model_that_keeps_something_of_an_example_is_refused(model: type[nn.Module], message: str) -> None:
    kept.clear()
    with pytest.raises(UsageError, match=message):
        so.LossGradient(F.cross_entropy).check(model(), as_records((torch.randn(9, WIDTH), labels(9))))


def test_a_table_that_depends_on_no_example_may_be_kept() -> None:
    tables: dict[int, Tensor] = {}

    class Shifted(Failing):
        def forward(self, x: Tensor) -> Tensor:
            if x.shape[1] not in tables:
                tables[x.shape[1]] = torch.arange(x.shape[1]) / 9
            return super().forward(x + tables[x.shape[1]])

    model, x = Shifted(), torch.randn(ROWS, WIDTH)
    so.LossGradient(F.cross_entropy).check(model, as_records((x, labels())))
    assert why_alone(model)
    found = matrix(model, F.cross_entropy, gathered(x, labels()))
    torch.testing.assert_close(found, loop(model, F.cross_entropy, (x,), labels()))


@pytest.mark.parametrize(
    "function",
    [lambda x: F.dropout(x, 0.5), lambda x: x[:, torch.randperm(4)], lambda x: x + torch.randn(())],
)
def test_draws_are_functions_of_the_seed_of_the_row(function: Callable[[Tensor], Tensor]) -> None:
    model = Through(lambda x: function(x) if x.sum().item() < 1e9 else x)
    batch, seeds, generator = gathered(torch.randn(ROWS, WIDTH), labels()), torch.arange(ROWS), torch.get_rng_state()
    so.LossGradient(F.cross_entropy).check(model, as_records((torch.randn(ROWS, WIDTH), labels())))
    first = matrix(model, F.cross_entropy, batch, seeds)
    assert torch.equal(matrix(model, F.cross_entropy, batch, seeds), first)
    others = matrix(model, F.cross_entropy, batch, seeds + ROWS * (torch.arange(ROWS) == 2))
    assert not torch.equal(others[2], first[2])
    assert torch.equal(others[[0, 1, 3, 4, 5, 6]], first[[0, 1, 3, 4, 5, 6]])
    torch.manual_seed(1)
    torch.set_rng_state(generator)
    matrix(model, F.cross_entropy, batch, seeds)
    assert torch.equal(torch.get_rng_state(), generator)


def test_large_rows_are_run_alone_and_small_ones_together(monkeypatch: pytest.MonkeyPatch) -> None:
    model, batch, seeds = Tokens(), gathered(tokens(), labels()), torch.arange(ROWS)
    gradient, clip = so.LossGradient(F.cross_entropy), so.ClipByNorm(0.5)
    together = gradient.of(model, batch, seeds)
    monkeypatch.setattr(looped, "_LARGE_ROW", 1)
    alone = gradient.of(model, batch, seeds)
    assert isinstance(alone, LoopedGradients) and not isinstance(together, LoopedGradients)
    assert relative_error(clip(alone).value, clip(together).value) < 1e-6
    data = (tokens(), labels())
    plan = so.Plan(so.Cyclic(1, 1), gradient, clip, so.Gaussian(1.0))
    inputs = sum(x[:1].nbytes for x in data)
    assert gradient.bytes_per_row(model, as_records(data)) == inputs
    assert RUNS_ALONE not in so.PrivateRun(plan, model, data).assumptions


@pytest.mark.parametrize(
    ("mib", "tensors", "copies", "alone"),
    [(63, 200, 0, False), (64, 10**6, 0, True), (9, 20, 0, True), (9, 21, 0, False), (7, 1, 0, False), (1, 1, 1, True)],
)
def test_large_rows_large_tensors_and_large_copies_are_run_alone(
    mib: int, tensors: int, copies: int, alone: bool
) -> None:
    plan = Survey((), (), mib << 20, copies << 20, tensors, None)
    assert is_faster_alone(plan, torch.device("cpu")) is alone
    assert not is_faster_alone(plan, torch.device("cuda"))


def test_a_registered_gradient_is_used_for_large_rows_too(monkeypatch: pytest.MonkeyPatch) -> None:
    class Factor(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.factor = nn.Parameter(torch.ones(WIDTH))

        def forward(self, x: Tensor) -> Tensor:
            return x * self.factor

    @so.register_gradient(Factor)
    def gradient(layer: Factor, x: Tensor, output_gradient: Tensor) -> dict[str, Tensor]:
        return {"factor": (x * output_gradient).sum(dim=0)}

    monkeypatch.setattr(looped, "_LARGE_ROW", 1)
    model, batch = nn.Sequential(Factor(), nn.Linear(WIDTH, CLASSES)), gathered(torch.randn(4, WIDTH), labels(4))
    assert not isinstance(so.LossGradient(F.cross_entropy).of(model, batch, torch.arange(4)), LoopedGradients)


def test_many_units_are_added_up_in_float64() -> None:
    model = Tokens()
    each = gradients_of(model, tokens(300), labels(300))
    total, weights = each.sum_weighted_by(lambda squares: torch.ones(len(squares)))
    assert total.dtype == torch.float64 and weights.shape == (300, len(each.layout.sizes))
    assert relative_error(total, rows_of(each).double().sum(dim=0)) < 1e-6


def test_public_rows_are_evaluated_one_at_a_time_where_they_are_trained_so() -> None:
    class OfTheBatch(Failing):
        def forward(self, x: Tensor) -> Tensor:
            return self.layer(x) if float(x.sum()) > 0 else -self.layer(x)

    alone, x = OfTheBatch(), torch.randn(ROWS, WIDTH)
    run_alone(alone, "a reason")
    found, _ = outputs_on(alone, so.Public(as_records((x, labels()))))
    assert torch.allclose(found, torch.cat([alone(row[None]) for row in x]))


def test_an_empty_batch_adds_up_to_zero() -> None:
    batch = as_records((torch.randn(4, WIDTH), labels(4))).gather(torch.zeros(0, dtype=torch.int64))
    model = Branching()
    so.LossGradient(F.cross_entropy).check(model, as_records((torch.randn(4, WIDTH), labels(4))))
    each = so.LossGradient(F.cross_entropy).of(model, batch, torch.zeros(0, dtype=torch.int64))
    assert isinstance(each, LoopedGradients) and not so.ClipByNorm(1.0)(each).value.any()


def test_a_label_out_of_range_and_a_row_that_is_not_finite_add_zero() -> None:
    model, x, target = Branching(), torch.randn(4, WIDTH), torch.tensor([0, 99, 1, 2])
    so.LossGradient(F.cross_entropy).check(model, as_records((torch.randn(4, WIDTH), labels(4))))
    x[3] = 1e38
    with torch.no_grad():
        model.one.weight.mul_(1e3)
    each = so.LossGradient(F.cross_entropy).of(model, gathered(x, target), torch.arange(4))
    assert not rows_of(each)[1].any()
    assert so.ClipByNorm(1.0)(each).value.isfinite().all()
