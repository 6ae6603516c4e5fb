"""Runs with a part taken out: each is the algorithm that it says, and none claims to be private."""

from __future__ import annotations

import math

import pytest
import torch
from small_runs import INPUTS, LABELS, make_model
from torch import nn

import sordino as so
from sordino.encodings import ConstantRate, RandomSparsify
from sordino.errors import UsageError
from sordino.kernel.clipping import SCALED_TO
from sordino.kernel.randomness import Key
from sordino.kernel.states import Layout
from sordino_papers.harness.ablations import AblationSettings, clipped_sgd, noisy_sgd

HALF = RandomSparsify(0.5, epochs=2, steps_per_epoch=1, schedule=ConstantRate())
EVERYBODY = so.Poisson(rate=1.0, steps=1)


def moved(train, encoding=HALF, **settings) -> torch.Tensor:
    """How far one step at learning rate 1 moves, times 40: the sum that it was made from."""
    model = make_model()
    before = nn.utils.parameters_to_vector(model.parameters()).detach()
    comparison = AblationSettings(EVERYBODY, divisor=40.0, encoding=encoding)
    train(model, (INPUTS, LABELS), torch.optim.SGD(model.parameters(), lr=1.0), comparison, **settings)
    return 40 * (before - nn.utils.parameters_to_vector(model.parameters()).detach())


def gradients() -> torch.Tensor:
    rows = []
    for x, y in zip(INPUTS, LABELS, strict=True):
        model = make_model()
        nn.functional.cross_entropy(model(x[None]), y[None]).backward()
        rows.append(torch.cat([parameter.grad.flatten() for parameter in model.parameters()]))
    return torch.stack(rows)


def mask() -> torch.Tensor:
    return HALF.mask(0, Layout.of(make_model()), Key.from_seed(0).of_release(0).stream("coding"))


def test_without_noise_the_sum_is_that_of_clipped_masked_gradients() -> None:
    rows = gradients() * mask()
    clipped = rows * (0.1 * SCALED_TO / rows.norm(dim=1, keepdim=True)).clamp(max=1.0)
    torch.testing.assert_close(moved(clipped_sgd, clip=so.ClipByNorm(0.1)), clipped.sum(dim=0), atol=2e-5, rtol=1e-4)


def test_without_a_clip_the_sum_is_that_of_masked_gradients_and_noise_on_kept_coordinates() -> None:
    noise = moved(noisy_sgd, noise_std=3.0) - (gradients() * mask()).sum(dim=0)
    assert float(noise[~mask()].abs().max()) == 0.0
    kept = int(mask().sum())
    # Five standard deviations of a root mean square: one false alarm in a million.
    assert float(noise[mask()].square().mean().sqrt()) == pytest.approx(3.0, rel=5 / math.sqrt(2 * kept))


def test_dropout_is_drawn_anew_in_every_step_and_for_every_unit(monkeypatch) -> None:
    """As a private run of the same seed draws it: an ablation differs from it by what it leaves out, and by no more."""
    drawn, of = [], so.LossGradient.of

    def noting(self, model, batch, seeds):
        drawn.append(seeds)
        return of(self, model, batch, seeds)

    monkeypatch.setattr(so.LossGradient, "of", noting)
    model, steps = make_model(), so.Poisson(rate=1.0, steps=3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    clipped_sgd(model, (INPUTS, LABELS), optimizer, AblationSettings(steps, divisor=40.0), clip=so.ClipByNorm(1.0))
    by_ablation = [seeds for seeds in drawn if len(seeds)]
    assert len(torch.cat(by_ablation).unique()) == 3 * len(INPUTS)
    drawn.clear()
    plan = so.Plan(steps, so.LossGradient(nn.functional.cross_entropy), so.ClipByNorm(1.0), so.Gaussian(1.0))
    list(so.PrivateRun(plan, model, (INPUTS, LABELS), seed=0, physical_batch_size=len(INPUTS)))
    assert torch.equal(torch.cat(by_ablation), torch.cat([seeds for seeds in drawn if len(seeds)]))


def test_neither_says_that_it_is_private() -> None:
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    comparison = AblationSettings(EVERYBODY, divisor=40.0)
    results = [
        noisy_sgd(model, (INPUTS, LABELS), optimizer, comparison, noise_std=1.0),
        clipped_sgd(model, (INPUTS, LABELS), optimizer, comparison, clip=so.ClipByNorm(1.0)),
    ]
    for result in results:
        assert "not private" in str(result)
        assert not hasattr(result, "guarantee") and "epsilon" not in repr(result)


def test_rows_that_have_a_budget_are_refused() -> None:
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    with pytest.raises(UsageError, match="data must be rows, got a Budget"):
        clipped_sgd(
            model, so.Budget((INPUTS, LABELS)), optimizer, AblationSettings(EVERYBODY, 40.0), clip=so.ClipByNorm(1.0)
        )
