"""Dropout and other random layers draw for each example from its own seed, whatever the batch, or are refused."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from row_gradients import gathered, loop, matrix
from small_networks import ROWS, labels, mlp, vectors
from small_networks import reseeded as reseeded
from torch import Tensor, nn

from sordino.errors import UsageError
from sordino.gradients.loop import why_alone
from sordino.gradients.row_randomness import RowRandomness
from sordino.kernel.contribution import LossGradient
from sordino.kernel.records import Batch, as_records

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


# --- other random operations ---


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
    ("function", "reason"),
    [
        (lambda x: x[:, torch.randperm(3)], "randperm cannot be drawn separately"),
        (lambda x: x * torch.randint(2, (3,)), "randint cannot be drawn separately"),
        (lambda x: x * torch.empty(3).bernoulli_(0.5), "it draws into a tensor that all examples share"),
        (lambda x: x if x.isfinite().all() else -x, "it branches on values"),
    ],
)
def test_an_operation_that_cannot_be_taken_row_by_row_makes_a_model_run_one_row_at_a_time(
    function: Callable[[Tensor], Tensor], reason: str
) -> None:
    model, records = Randomly(function), as_records((*vectors(), labels()))
    generator = torch.get_rng_state()
    LossGradient(F.cross_entropy).check(model, records)
    assert torch.equal(torch.get_rng_state(), generator)
    assert reason in str(why_alone(model))


def test_random_slopes_are_refused_by_name() -> None:
    records = as_records((*vectors(), labels()))
    with pytest.raises(UsageError, match=r"layer 'function' \(RReLU\) draws random slopes"):
        LossGradient(F.cross_entropy).check(Randomly(nn.RReLU()), records)
