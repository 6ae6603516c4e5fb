"""Per-example gradients against a loop over single examples with plain autograd."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from sordino.clipping import ClipByNorm
from sordino.contribution import Contribution, LossGradient
from sordino.errors import DataError, UsageError
from sordino.gradients.row_loss import RowLoss
from sordino.gradients.row_randomness import RowRandomness
from sordino.records import Batch, Records, as_records, by_user
from sordino.states import Dense, Layout, PerExample

ROWS = 5


@pytest.fixture(autouse=True)
def _seeded() -> Iterator[None]:
    with torch.random.fork_rng():
        torch.manual_seed(1)
        yield


class Tied(nn.Module):
    """The output layer is the embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(7, 4)
        self.output = nn.Linear(4, 7, bias=False)
        self.output.weight = self.embedding.weight

    def forward(self, tokens: Tensor) -> Tensor:
        return self.output(self.embedding(tokens).mean(1))


class Twice(nn.Module):
    """One layer used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.head = nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.layer(torch.tanh(self.layer(x)))))


class Bare(nn.Module):
    """Parameters that belong to no layer: a vector, a single number, an empty one, and one that is never used."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.randn(4))
        self.shift = nn.Parameter(torch.tensor(0.3))
        self.empty = nn.Parameter(torch.zeros(0, 2))
        self.unused = nn.Parameter(torch.randn(2, 2))
        self.head = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(x * self.scale + self.shift) + self.empty.sum()


class TwoInputs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(4, 3), nn.Embedding(7, 3)

    def forward(self, x: Tensor, tokens: Tensor) -> Tensor:
        return self.left(x) * self.right(tokens).sum(1)


class Recurrent(nn.Module):
    def __init__(self, kind: type[nn.LSTM] | type[nn.GRU] | type[nn.RNN]) -> None:
        super().__init__()
        self.layer, self.head = kind(3, 4, num_layers=2, batch_first=True), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layer(x)[0][:, -1])


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))


def convolutional() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1), nn.GroupNorm(2, 4), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(36, 3)
    )


def partly_frozen() -> nn.Module:
    model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))
    model[0].requires_grad_(False)
    model[2].bias.requires_grad_(False)
    return model


def frozen_batchnorm() -> nn.Module:
    model = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 3))
    model(torch.randn(20, 4))
    model[1].eval()
    return model


def attention() -> nn.Module:
    layer = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True)
    return nn.Sequential(layer, nn.Flatten(), nn.Linear(12, 3))


def vectors() -> tuple[Tensor, ...]:
    return (torch.randn(ROWS, 4),)


def pictures() -> tuple[Tensor, ...]:
    return (torch.randn(ROWS, 2, 6, 6),)


def sequences() -> tuple[Tensor, ...]:
    return (torch.randn(ROWS, 3, 3),)


MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[], tuple[Tensor, ...]]]] = {
    "mlp": (mlp, vectors),
    "convolutional": (convolutional, pictures),
    "tied embedding": (Tied, lambda: (torch.randint(7, (ROWS, 3)),)),
    "layer used twice": (Twice, vectors),
    "bare parameters": (Bare, vectors),
    "partly frozen": (partly_frozen, vectors),
    "frozen batchnorm": (frozen_batchnorm, vectors),
    "two inputs": (TwoInputs, lambda: (torch.randn(ROWS, 4), torch.randint(7, (ROWS, 3)))),
    "attention": (attention, lambda: (torch.randn(ROWS, 3, 4),)),
    "attention in eval mode": (lambda: attention().eval(), lambda: (torch.randn(ROWS, 3, 4),)),
    "lstm": (lambda: Recurrent(nn.LSTM), sequences),
    "gru": (lambda: Recurrent(nn.GRU), sequences),
    "rnn": (lambda: Recurrent(nn.RNN), sequences),
}


def loop(model: nn.Module, loss: Callable[[Any, Tensor], Tensor], inputs: tuple[Tensor, ...], target: Tensor) -> Tensor:
    """The oracle: one example at a time, forward and backward."""
    rows = []
    for b in range(len(target)):
        model.zero_grad()
        loss(model(*(x[b : b + 1] for x in inputs)), target[b : b + 1]).backward()
        trained = [p for p in model.parameters() if p.requires_grad]
        rows.append(torch.cat([torch.zeros(p.numel()) if p.grad is None else p.grad.flatten() for p in trained]))
    model.zero_grad()
    return torch.stack(rows)


def gathered(*parts: Tensor) -> Batch:
    return as_records(parts).gather(torch.arange(len(parts[-1])))


def rows_of(each: PerExample) -> Tensor:
    """The gradients themselves, whatever form they are held in."""
    return torch.cat([*each.rows(3), torch.zeros(0, each.layout.size)])


def matrix(
    model: nn.Module, loss: Callable[[Any, Tensor], Tensor], batch: Batch, seeds: Tensor | None = None
) -> Tensor:
    seeds = torch.arange(len(batch.units)) if seeds is None else seeds
    return rows_of(LossGradient(loss).of(model, batch, seeds))


def labels() -> Tensor:
    return torch.randint(3, (ROWS,))


@pytest.mark.parametrize("name", MODELS)
def test_gradients_are_those_of_a_loop_over_single_examples(name: str) -> None:
    make_model, make_inputs = MODELS[name]
    model, inputs, target = make_model(), make_inputs(), labels()
    records = as_records((*inputs, target))
    contribution = LossGradient(F.cross_entropy)
    contribution.check(model, records)
    each = contribution.of(model, records.gather(torch.arange(ROWS)), torch.arange(ROWS))
    torch.testing.assert_close(rows_of(each), loop(model, F.cross_entropy, inputs, target), rtol=1e-4, atol=1e-6)
    assert each.layout == Layout.of(model)


@pytest.mark.parametrize(
    "loss",
    [
        functools.partial(F.cross_entropy, weight=torch.tensor([0.1, 1.0, 10.0]), label_smoothing=0.2),
        nn.CrossEntropyLoss(weight=torch.tensor([0.1, 1.0, 10.0]), label_smoothing=0.2),
        functools.partial(
            F.cross_entropy, weight=torch.tensor([0.1, 1.0, 10.0]), label_smoothing=0.2, reduction="mean"
        ),
    ],
)
def test_class_weights_are_not_normalised_away(loss: Callable[[Any, Tensor], Tensor]) -> None:
    model, (x,), y = mlp(), vectors(), labels()
    weight = torch.tensor([0.1, 1.0, 10.0])
    summed = functools.partial(F.cross_entropy, weight=weight, label_smoothing=0.2, reduction="sum")
    torch.testing.assert_close(matrix(model, loss, gathered(x, y)), loop(model, summed, (x,), y), rtol=1e-4, atol=1e-6)


def test_a_loss_module_keeps_its_own_reduction() -> None:
    loss = nn.CrossEntropyLoss()
    matrix(mlp(), loss, gathered(*vectors(), labels()))
    assert loss.reduction == "mean"


def test_a_loss_of_several_numbers_per_example_is_summed() -> None:
    model, (x,), y = mlp(), vectors(), torch.randn(ROWS, 3)
    expected = loop(model, functools.partial(F.mse_loss, reduction="sum"), (x,), y)
    torch.testing.assert_close(matrix(model, F.mse_loss, gathered(x, y)), expected, rtol=1e-4, atol=1e-6)


def test_class_probabilities_are_targets_too() -> None:
    model, (x,), y = mlp(), vectors(), torch.randn(ROWS, 3).softmax(1)
    LossGradient(F.cross_entropy).check(model, as_records((x, y)))
    expected = loop(model, F.cross_entropy, (x,), y)
    torch.testing.assert_close(matrix(model, F.cross_entropy, gathered(x, y)), expected, rtol=1e-4, atol=1e-6)


def test_labels_for_each_position_are_summed_over_the_example() -> None:
    model = nn.Conv1d(2, 3, 1)
    x, y = torch.randn(ROWS, 2, 4), torch.randint(3, (ROWS, 4))
    y[0, 1] = -100
    summed = functools.partial(F.cross_entropy, reduction="sum")
    expected = loop(model, summed, (x,), y)
    torch.testing.assert_close(matrix(model, F.cross_entropy, gathered(x, y)), expected, rtol=1e-4, atol=1e-6)


def test_rows_of_a_user_are_summed_before_anything_else() -> None:
    model, x, y = mlp(), torch.randn(7, 4), torch.randint(3, (7,))
    users = by_user((x, y), torch.tensor([5, 2, 5, 9, 5, 2, 5]), rows_per_user=3)
    batch = users.gather(torch.tensor([1, 0]))  # user 5 owns rows 0, 2, 4 (and 6, above the bound); user 2 rows 1, 5
    each = loop(model, F.cross_entropy, (x,), y)
    expected = torch.stack([each[[0, 2, 4]].sum(0), each[[1, 5]].sum(0)])
    torch.testing.assert_close(matrix(model, F.cross_entropy, batch), expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("label", [3, -1, 10**9, -(10**12)])
def test_a_label_outside_the_public_classes_contributes_exact_zeros(label: int) -> None:
    model, (x,), y = mlp(), vectors(), labels()
    y[2] = label
    got = matrix(model, F.cross_entropy, gathered(x, y))
    assert torch.equal(got[2], torch.zeros_like(got[2]))
    expected = loop(model, F.cross_entropy, (x[[0, 1, 3, 4]],), y[[0, 1, 3, 4]])
    torch.testing.assert_close(got[[0, 1, 3, 4]], expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("loss", [F.cross_entropy, functools.partial(F.cross_entropy, ignore_index=7)])
def test_the_ignored_label_contributes_exact_zeros(loss: Callable[[Any, Tensor], Tensor]) -> None:
    y = torch.tensor([0, -100, 7, 1, 2])
    got = matrix(mlp(), loss, gathered(*vectors(), y))
    assert [bool(row.any()) for row in got] == [True, False, False, True, True]


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf"), 1e39])
def test_a_row_that_is_not_finite_contributes_exact_zeros_and_leaves_the_others_alone(value: float) -> None:
    model, y = mlp(), labels()
    x = torch.randn(ROWS, 4, dtype=torch.float64)
    clean = matrix(model, F.cross_entropy, gathered(x, y))
    x[1, 2] = value
    got = matrix(model, F.cross_entropy, gathered(x, y))
    assert not got[1].any()
    assert torch.equal(got[[0, 2, 3, 4]], clean[[0, 2, 3, 4]])


def test_a_row_on_which_only_the_model_fails_contributes_exact_zeros() -> None:
    model, tokens, y = Tied(), torch.randint(7, (ROWS, 3)), torch.randint(7, (ROWS,))
    tokens[3, 0] = 99
    got = matrix(model, F.cross_entropy, gathered(tokens, y))
    others = [0, 1, 2, 4]
    assert not got[3].any()
    torch.testing.assert_close(
        got[others], loop(model, F.cross_entropy, (tokens[others],), y[others]), rtol=1e-4, atol=1e-6
    )


def test_a_label_that_a_loss_of_ones_own_fails_on_contributes_exact_zeros() -> None:
    y = torch.tensor([0, 1, 99, 2, 0])
    got = matrix(mlp(), lambda outputs, target: F.cross_entropy(outputs, target), gathered(*vectors(), y))
    assert [bool(row.any()) for row in got] == [True, True, False, True, True]


@pytest.mark.parametrize(
    ("label", "usable"), [(-1, False), (0, True), (2, True), (3, False), (-100, True), (10**9, False)]
)
def test_a_label_is_compared_with_the_classes_before_it_is_looked_up(label: int, usable: bool) -> None:
    value, known = RowLoss.of(F.cross_entropy)(torch.zeros(1, 3), torch.tensor([label]))
    assert bool(known) == usable
    assert bool(value.isfinite())


def test_a_model_that_fails_on_anything_raises_instead_of_contributing_zeros() -> None:
    with pytest.raises(UsageError, match=r"layer '0' \(Linear\)"):
        matrix(nn.Sequential(nn.Linear(9, 3)), F.cross_entropy, gathered(*vectors(), labels()))


def test_an_empty_batch_has_no_rows() -> None:
    records = as_records((*vectors(), labels()))
    each = LossGradient(F.cross_entropy).of(mlp(), records.gather(torch.arange(0)), torch.arange(0))
    assert rows_of(each).shape == (0, 51)
    assert isinstance(each, PerExample)
    assert each.squared_norms().shape == (0, 4)


def test_seeds_must_be_one_per_row() -> None:
    with pytest.raises(UsageError, match=r"one per row \(5\), got shape \(4,\)"):
        LossGradient(F.cross_entropy).of(mlp(), gathered(*vectors(), labels()), torch.arange(4))


@pytest.mark.parametrize("name", MODELS)
def test_the_model_and_the_global_generator_are_left_as_they_were(name: str) -> None:
    make_model, make_inputs = MODELS[name]
    model, records = make_model(), as_records((*make_inputs(), labels()))
    before = {key: value.clone() for key, value in model.state_dict().items()}
    attributes = [dict(vars(module)) for module in model.modules()]
    generator = torch.get_rng_state()
    contribution = LossGradient(F.cross_entropy)
    contribution.check(model, records)
    contribution.of(model, records.gather(torch.arange(ROWS)), torch.arange(ROWS))
    assert torch.equal(torch.get_rng_state(), generator)
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    assert [list(vars(module)) for module in model.modules()] == [list(names) for names in attributes]
    assert all(p.grad is None for p in model.parameters())


def test_an_activation_stored_by_the_model_does_not_stay_there() -> None:
    class Storing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 3)

        def forward(self, x: Tensor) -> Tensor:
            self.last = x
            return self.layer(x)

    model = Storing()
    matrix(model, F.cross_entropy, gathered(*vectors(), labels()))
    assert not hasattr(model, "last")


def test_what_is_set_around_changes_nothing() -> None:
    model, batch = convolutional(), gathered(*pictures(), labels())
    plain = matrix(model, F.cross_entropy, batch)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(matrix(model, F.cross_entropy, batch), plain)
    with torch.no_grad():
        assert torch.equal(matrix(model, F.cross_entropy, batch), plain)
    with torch.inference_mode():
        assert torch.equal(matrix(model, F.cross_entropy, batch), plain)
        LossGradient(F.cross_entropy).check(model, as_records((*pictures(), labels())))
    torch.set_default_dtype(torch.float64)
    try:
        assert torch.equal(matrix(model, F.cross_entropy, batch), plain)
        assert torch.get_default_dtype() == torch.float64
    finally:
        torch.set_default_dtype(torch.float32)


def test_a_tensor_made_inside_the_model_has_the_precision_of_its_parameters() -> None:
    class Offset(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 3, dtype=torch.float32)

        def forward(self, x: Tensor) -> Tensor:
            return self.layer(x + torch.ones(4))  # in double precision, the layer would fail

    torch.set_default_dtype(torch.float64)
    try:
        assert matrix(Offset(), F.cross_entropy, gathered(*vectors(), labels())).any()
    finally:
        torch.set_default_dtype(torch.float32)


def test_a_model_in_double_precision_stays_there() -> None:
    model, (x,), y = mlp().double(), vectors(), labels()
    got = matrix(model, F.cross_entropy, gathered(x, y))
    assert got.dtype == torch.float64
    assert (got - loop(model, F.cross_entropy, (x.double(),), y)).abs().max() < 1e-12


def test_a_compiled_model_gives_the_gradients_of_the_original() -> None:
    model, batch = mlp(), gathered(*vectors(), labels())
    compiled = torch.compile(model, backend="eager")
    each = LossGradient(F.cross_entropy).of(compiled, batch, torch.arange(ROWS))
    assert torch.equal(rows_of(each), matrix(model, F.cross_entropy, batch))
    assert each.layout == Layout.of(compiled)


# --- dropout ---

DROPOUTS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "dropout": (lambda: nn.Dropout(0.5), (6,)),
    "dropout1d": (lambda: nn.Dropout1d(0.5), (2, 3)),
    "dropout2d": (lambda: nn.Dropout2d(0.5), (2, 3, 1)),
    "dropout3d": (lambda: nn.Dropout3d(0.5), (2, 3, 1, 1)),
    "alpha dropout": (lambda: nn.AlphaDropout(0.5), (6,)),
    "feature alpha dropout": (lambda: nn.FeatureAlphaDropout(0.5), (2, 3)),
    "attention": (lambda: nn.TransformerEncoderLayer(2, 1, 4, dropout=0.5, batch_first=True), (3, 2)),
}


def with_dropout(name: str) -> tuple[nn.Module, Tensor]:
    """A model with the dropout of this name, in double precision: a norm of two features loses half of the digits."""
    torch.manual_seed(0)
    layer, shape = DROPOUTS[name]
    model = nn.Sequential(nn.Unflatten(1, shape), layer(), nn.Flatten(), nn.Linear(6, 3), nn.Dropout(0.2))
    return nn.Sequential(nn.Linear(4, 6), model).double(), torch.randn(ROWS, 4)


@pytest.mark.parametrize("name", DROPOUTS)
def test_an_example_keeps_its_mask_whatever_the_batch(name: str) -> None:
    (model, x), y, seeds = with_dropout(name), labels(), torch.tensor([11, 12, 13, 14, 15])
    LossGradient(F.cross_entropy).check(model, as_records((x, y)))
    together = matrix(model, F.cross_entropy, gathered(x, y), seeds)
    for b in range(ROWS):
        alone = Batch((x[b : b + 1],), y[b : b + 1], torch.tensor([True]), torch.tensor([0]), 1)
        one = matrix(model, F.cross_entropy, alone, seeds[b : b + 1])[0]
        torch.testing.assert_close(together[b], one, rtol=1e-9, atol=1e-12)
    other = matrix(model, F.cross_entropy, gathered(x, y), seeds + 100)
    assert not torch.allclose(other, together)


def test_gradients_with_dropout_are_those_of_plain_autograd_with_the_same_mask() -> None:
    model, (x,), y, seeds = nn.Sequential(mlp(), nn.Dropout(0.5)), vectors(), labels(), torch.arange(20, 20 + ROWS)
    got = matrix(model, F.cross_entropy, gathered(x, y), seeds)
    for b in range(ROWS):
        model.zero_grad()
        with RowRandomness(seeds[b : b + 1]):
            loss = F.cross_entropy(model(x[b : b + 1]), y[b : b + 1])
        loss.backward()
        expected = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])
        torch.testing.assert_close(got[b], expected, rtol=1e-4, atol=1e-6)


def test_dropout_is_off_in_eval_mode() -> None:
    model, (x,), y = nn.Sequential(mlp(), nn.Dropout(0.5)).eval(), vectors(), labels()
    expected = loop(model, F.cross_entropy, (x,), y)
    torch.testing.assert_close(matrix(model, F.cross_entropy, gathered(x, y)), expected, rtol=1e-4, atol=1e-6)


def test_masks_keep_the_declared_share_and_are_independent() -> None:
    # 200 x 400 fair coins in each of two layers. False alarm below 1e-6 for each bound of 5 standard deviations.
    with RowRandomness(torch.arange(200)):
        first = F.dropout(torch.ones(200, 400), 0.3) > 0
        second = F.dropout(torch.ones(200, 400), 0.3) > 0
    deviation = (0.3 * 0.7 / 80_000) ** 0.5
    assert abs(first.double().mean() - 0.7) < 5 * deviation
    assert abs(second.double().mean() - 0.7) < 5 * deviation
    centred, other = first.double() - 0.7, second.double() - 0.7
    scale = 0.3 * 0.7
    between_layers = (centred * other).mean() / scale
    between_examples = (centred[1:] * centred[:-1]).mean() / scale
    between_features = (centred[:, 1:] * centred[:, :-1]).mean() / scale
    for correlation in (between_layers, between_examples, between_features):
        assert abs(correlation) < 5 / 79_000**0.5


def test_uniform_normal_and_exponential_draws_have_their_moments() -> None:
    # Means of 80,000 draws, within 5 standard deviations (false alarm below 1e-6 each).
    with RowRandomness(torch.arange(200)):
        uniform, normal = torch.rand(200, 400), torch.randn(200, 400)
        exponential = torch.empty(200, 400).exponential_(2.0)
    tolerance = 5 / 80_000**0.5
    assert 0 <= uniform.min() and uniform.max() < 1
    assert abs(uniform.double().mean() - 0.5) < tolerance * (1 / 12) ** 0.5
    assert abs(normal.double().mean()) < tolerance
    assert abs(normal.double().square().mean() - 1) < tolerance * 2**0.5
    assert abs(exponential.double().mean() - 0.5) < tolerance * 0.5


class Randomly(nn.Module):
    """A linear layer followed by any function."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.layer, self.function = nn.Linear(4, 3), function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self.layer(x))


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x + torch.randn_like(x),
        lambda x: x * torch.rand_like(x),
        lambda x: x * torch.bernoulli(torch.sigmoid(x)),
        lambda x: x * torch.bernoulli(torch.full_like(x, 0.5)),
        lambda x: x * torch.empty_like(x).uniform_(1, 2),
        lambda x: x + torch.empty_like(x).normal_(0, 2),
        lambda x: F.gumbel_softmax(x),
        lambda x: F.dropout(x, 0.5, inplace=True),
    ],
)
def test_other_random_operations_draw_from_the_seed_of_the_row(function: Callable[[Tensor], Tensor]) -> None:
    model, batch, seeds = Randomly(function), gathered(*vectors(), labels()), torch.tensor([3, 1, 4, 1, 5])
    first = matrix(model, F.cross_entropy, batch, seeds)
    assert torch.equal(matrix(model, F.cross_entropy, batch, seeds), first)
    assert not torch.equal(matrix(model, F.cross_entropy, batch, seeds + 1), first)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda x: x[:, torch.randperm(3)], "randperm cannot be drawn separately"),
        (lambda x: x * torch.randint(2, (3,)), "randint cannot be drawn separately"),
        (lambda x: x * torch.empty(3).bernoulli_(0.5), "draws into a tensor that all examples share"),
        (nn.RReLU(), r"layer 'function' \(RReLU\) draws its slopes"),
        (lambda x: x if x.isfinite().all() else -x, r"the model \(Randomly\) cannot be differentiated"),
    ],
)
def test_an_operation_that_cannot_be_taken_row_by_row_is_refused_by_name(
    function: Callable[[Tensor], Tensor], message: str
) -> None:
    model, records = Randomly(function), as_records((*vectors(), labels()))
    generator = torch.get_rng_state()
    with pytest.raises(UsageError, match=message):
        LossGradient(F.cross_entropy).check(model, records)
    assert torch.equal(torch.get_rng_state(), generator)


# --- laws ---


@settings(max_examples=25, deadline=None, derandomize=True)
@given(data=st.data())
def test_the_composition_of_a_micro_batch_changes_nothing(data: st.DataObject) -> None:
    widths = data.draw(st.lists(st.integers(1, 6), min_size=2, max_size=4), label="widths")
    activation = data.draw(st.sampled_from([nn.Tanh, nn.ReLU, nn.GELU]), label="activation")
    rows = data.draw(st.integers(2, 9), label="rows")
    cut = data.draw(st.integers(0, rows), label="cut")
    order = torch.tensor(data.draw(st.permutations(range(rows)), label="order"))
    layers = [layer for a, b in itertools.pairwise(widths) for layer in (nn.Linear(a, b), activation())]
    model = nn.Sequential(*layers, nn.Dropout(0.3), nn.Linear(widths[-1], 3))
    records = as_records((torch.randn(rows, widths[0]), torch.randint(4, (rows,))))  # label 3 is outside
    seeds = torch.randint(-(2**62), 2**62, (rows,))

    def each(indices: Tensor) -> Tensor:
        return matrix(model, F.cross_entropy, records.gather(indices), seeds[indices])

    whole = each(torch.arange(rows))
    parts = torch.cat([each(order[:cut]), each(order[cut:])])
    torch.testing.assert_close(parts, whole[order], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", MODELS)
def test_removing_any_example_moves_the_sum_by_its_own_gradient_only(name: str) -> None:
    make_model, make_inputs = MODELS[name]
    model, records = make_model(), as_records((*make_inputs(), labels()))
    seeds = torch.arange(ROWS)
    whole = matrix(model, F.cross_entropy, records.gather(torch.arange(ROWS)), seeds)
    for b in range(ROWS):
        rest = torch.tensor([i for i in range(ROWS) if i != b])
        without = matrix(model, F.cross_entropy, records.gather(rest), seeds[rest])
        torch.testing.assert_close(whole.sum(0) - without.sum(0), whole[b], rtol=1e-3, atol=1e-5)


# --- refusals ---


def records_of(target: Tensor) -> Records:
    return as_records((torch.randn(len(target), 4), target))


def test_a_contribution_has_the_protocol() -> None:
    assert isinstance(LossGradient(F.cross_entropy), Contribution)
    each = LossGradient(F.cross_entropy).of(mlp(), gathered(*vectors(), labels()), torch.arange(ROWS))
    assert isinstance(each, PerExample)


def test_no_repr_shows_a_gradient() -> None:
    each = LossGradient(F.cross_entropy).of(mlp(), gathered(*vectors(), labels()), torch.arange(ROWS))
    dense = Dense(rows_of(each), each.layout)
    for holder in (each, *each.blocks, dense, ClipByNorm(1.0)(dense)):
        assert "tensor" not in repr(holder)


def test_floating_class_labels_are_refused() -> None:
    with pytest.raises(DataError, match=r"class labels must be whole numbers, got torch\.float32"):
        LossGradient(F.cross_entropy).check(mlp(), records_of(torch.zeros(ROWS)))


def test_a_model_with_nothing_to_train_is_refused() -> None:
    with pytest.raises(UsageError, match="nothing to train"):
        LossGradient(F.cross_entropy).check(mlp().requires_grad_(False), records_of(labels()))
    with pytest.raises(UsageError, match="nothing to train"):
        LossGradient(F.cross_entropy).check(nn.Flatten(), records_of(labels()))


@pytest.mark.parametrize(
    ("dtype", "message"),
    [(torch.float16, "half precision"), (torch.bfloat16, "half precision"), (torch.complex64, "all be float32")],
)
def test_other_parameters_than_single_or_double_precision_are_refused(dtype: torch.dtype, message: str) -> None:
    model = mlp()
    model[0].weight = nn.Parameter(torch.zeros(6, 4, dtype=dtype))
    with pytest.raises(UsageError, match=message):
        LossGradient(F.cross_entropy).check(model, records_of(labels()))


@pytest.mark.parametrize(
    ("loss", "message"),
    [
        (lambda outputs, target: (outputs.sum(1) - target).square(), r"single number, got shape \(5,\)"),
        (lambda outputs, target: outputs.detach().sum(), "no gradient"),
        (lambda outputs, target: outputs.sum().item(), "single number, got float"),
        (lambda outputs: outputs.sum(), "the loss fails on synthetic outputs"),
        (lambda outputs, target: F.cross_entropy(outputs, target, weight=torch.tensor([1.0, 2.0, 3.0])), "loss mixes"),
        (lambda outputs, target: (outputs @ outputs.T).logsumexp(1).sum(), "loss mixes the examples"),
    ],
)
def test_a_loss_that_is_not_one_number_per_example_is_refused(loss: Callable[..., Tensor], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        LossGradient(loss).check(mlp(), records_of(labels()))


def test_a_loss_with_parameters_of_its_own_is_refused() -> None:
    with pytest.raises(UsageError, match="make them part of the model"):
        LossGradient(nn.Bilinear(3, 3, 1))
    with pytest.raises(UsageError, match="must be a function of"):
        LossGradient("cross_entropy")  # type: ignore[arg-type]
