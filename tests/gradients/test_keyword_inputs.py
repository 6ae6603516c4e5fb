"""Rows that are dictionaries reach the model by the names of its arguments, on every path of the gradients."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import sordino as so
from sordino.gradients.row_loss import RowLoss
from sordino.gradients.taped import TapedGradients
from sordino.gradients.vmapped import gradients_of_rows
from sordino.kernel.contribution import LossGradient
from sordino.kernel.records import as_records

ROWS = {"ids": torch.randint(9, (12, 5)), "scale": torch.rand(12, 1), "labels": torch.randint(3, (12,))}


class Bag(nn.Module):
    """A classifier whose arguments stand in another order than the keys of the rows."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(9, 4), nn.Linear(4, 3)

    def forward(self, *, scale: Tensor, ids: Tensor) -> Tensor:
        return self.head(self.table(ids).mean(dim=1) * scale)


def expected(model: nn.Module) -> Tensor:
    rows = []
    for row in range(12):
        model.zero_grad()
        outputs = model(scale=ROWS["scale"][row : row + 1], ids=ROWS["ids"][row : row + 1])
        F.cross_entropy(outputs, ROWS["labels"][row : row + 1]).backward()
        rows.append(torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None]))
    return torch.stack(rows)


def test_gradients_are_those_of_single_examples() -> None:
    model, batch, seeds = Bag(), as_records(ROWS).gather(torch.arange(12)), torch.arange(12)
    gradient = LossGradient(F.cross_entropy)
    gradient.check(model, as_records(ROWS))
    taped = gradient.of(model, batch, seeds)
    assert isinstance(taped, TapedGradients)
    assert torch.allclose(torch.cat(list(taped.rows(12))), expected(model), atol=1e-6)
    loss = RowLoss.of(F.cross_entropy)
    by_vmap, _ = gradients_of_rows(model, loss, batch.inputs, batch.target, seeds, names=batch.names)
    assert torch.allclose(torch.cat([x.flatten(1) for x in by_vmap], dim=1), expected(model), atol=1e-6)


def test_a_run_trains_and_evaluates_a_model_by_names() -> None:
    model = Bag()
    fitted = so.fit(
        model, ROWS, epsilon=3.0, delta=1e-2, batch_size=6, epochs=2, progress=False, evaluation=so.Public(ROWS)
    )
    assert 0.0 <= fitted.metrics[-1]["test_accuracy"] <= 1.0


@pytest.mark.slow
def test_a_verification_calls_the_model_by_names() -> None:
    stages = so.LossGradient(F.cross_entropy), so.ClipByNorm(1.0), so.Gaussian(2.0)
    assert so.verify(so.Plan(so.Poisson(0.5, 2), *stages), Bag(), ROWS).passed


def test_a_model_without_such_an_argument_is_refused_in_one_line() -> None:
    with pytest.raises(so.SordinoError, match="unexpected keyword argument 'ids'") as refused:
        so.fit(nn.Linear(5, 3), ROWS, epsilon=3.0, delta=1e-2, batch_size=6, epochs=2, progress=False)
    assert "\n" not in str(refused.value)
