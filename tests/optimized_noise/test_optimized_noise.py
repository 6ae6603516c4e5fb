"""Optimized noise in a plan: the noise, the learned weights, the epsilon, and resuming of runs."""

from __future__ import annotations

import inspect
import warnings
from dataclasses import replace
from math import sqrt
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from contracts import NoiseContract, stream
from small_trainings import killed, trained
from stopped_runs import released_by
from torch import nn
from training_commands import contents

import sordino as so
from sordino.accounting import PureDpEvent
from sordino.encodings import ConstantRate, ProjectBiased, PublicGradients, RandomSparsify, Subspace
from sordino.errors import UsageError
from sordino.kernel.encoding import Unchanged
from sordino.kernel.noise import HopelessNoise, NoiseAt
from sordino.kernel.states import BoundedSum, Layout
from sordino.optimized_noise import AbsoluteCost, SquaredCost, best_blocks, isotropic, weighted_laplace
from sordino.optimized_noise.noise import OptimizedNoise
from sordino.optimized_noise.sources import Fixed, Flat, FromPublicRows, FromReleases, Source, Unweighted

GENERATOR = torch.Generator().manual_seed(0)
INPUTS = torch.randn(1000, 4, generator=GENERATOR)
LABELS = (INPUTS[:, 0] > 0).long()
PUBLIC = torch.randn(20, 4, generator=GENERATOR)
FITS = [best_blocks, weighted_laplace, isotropic]
SOURCES = {
    "flat": lambda model: Flat(),
    "fixed": lambda model: Fixed(torch.arange(1.0, 11.0)),
    "releases": lambda model: FromReleases(0.7),
    "public rows": lambda model: FromPublicRows(PublicGradients(model, PUBLIC, classes=2), every=2),
    "unweighted": lambda model: Unweighted(FromReleases(0.7)),
}
SPARSE = RandomSparsify(0.5, epochs=2, steps_per_epoch=3, refresh=3, schedule=ConstantRate())


class TestBestBlocks(NoiseContract):
    noise = OptimizedNoise(1.3)


class TestWeightedLaplace(NoiseContract):
    noise = OptimizedNoise(0.4, Flat(), fit=weighted_laplace)


class TestIsotropic(NoiseContract):
    noise = OptimizedNoise(0.4, Flat(), SquaredCost(), fit=isotropic)


def make_model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Linear(4, 2)


def make_plan(noise, encoding=None, sampler=None, clip=1.0) -> so.Plan:
    gradient = so.LossGradient(F.cross_entropy)
    sampler = sampler or so.Poisson(rate=0.3, steps=8)
    return so.Plan(sampler, gradient, so.ClipByNorm(clip), noise, encoding or Unchanged())


def released(make_noise, make_encoding=lambda model: None, *, stop: int | None = None) -> torch.Tensor:
    """The releases of each step while SGD trains the model. With `stop`, a second run continues from that step."""
    model = make_model()

    def new_run() -> so.PrivateRun:
        return so.PrivateRun(make_plan(make_noise(model), make_encoding(model)), model, (INPUTS, LABELS), seed=0)

    return released_by(new_run, model, divisor=300, stop=stop)


def total_of(value: torch.Tensor, bound: float = 1.0) -> BoundedSum:
    return BoundedSum(value.double(), bound, Layout(("w",), ((len(value),),)))


def law(noise: OptimizedNoise, size: int, bound: float = 1.0):
    layout = Layout(("w",), ((size,),))
    return noise.law(bound, NoiseAt(stream("noise"), 0, noise.init(layout))).density


@pytest.mark.parametrize("fit", FITS)
@pytest.mark.parametrize("cost", [AbsoluteCost(), SquaredCost()])
def test_one_unit_s_whole_bound_is_worth_one_over_the_multiplier_and_no_more(fit, cost) -> None:
    noise = OptimizedNoise(0.5, Fixed(torch.arange(1.0, 31.0)), cost, fit)
    density = law(noise, 30, bound=4.0)
    assert density.lipschitz * 4.0 == pytest.approx(2.0, rel=1e-9)
    assert density.lipschitz * 4.0 <= 2.0
    drawn = torch.stack([density.sample(stream("noise"), step=step) for step in range(50)])
    moves = torch.randn(50, 30, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    moves *= 4.0 / moves.norm(dim=1, keepdim=True)
    ratios = density.log_density(drawn) - density.log_density(drawn + moves)
    assert float(ratios.abs().max()) <= 2.0


def test_a_fit_that_spends_more_is_refused() -> None:
    def steep(weights, lipschitz, cost):
        return isotropic(weights, 1.01 * lipschitz, cost)

    with pytest.raises(UsageError, match=r"fit must give a slope of at most 2, got 2\.02"):
        OptimizedNoise(0.5, Flat(), fit=steep).add(total_of(torch.zeros(4)), NoiseAt(stream(), 0))


def test_noise_is_least_where_weights_are_largest() -> None:
    weights = torch.tensor([1.0] * 200 + [1000.0] * 200)
    noise = OptimizedNoise(1.0, Fixed(weights)).add(total_of(torch.zeros(400)), NoiseAt(stream(), 0))
    squares = noise.value.square().reshape(2, 200).mean(dim=1)
    expected = noise.noise_square.reshape(2, 200).mean(dim=1)
    assert float(expected[0] / expected[1]) > 50
    # A block of 200 is a Gamma(200) radius times a direction: its mean square is known to 2 / sqrt(200), times five
    torch.testing.assert_close(squares, expected, rtol=5 * 2 / sqrt(200), atol=0)


def test_the_result_lies_on_a_lattice_that_does_not_depend_on_the_sum() -> None:
    noise = OptimizedNoise(1.0, Fixed(torch.logspace(-6, 0, 100)))
    squares = noise.add(total_of(torch.zeros(100)), NoiseAt(stream(), 0)).noise_square
    fine = 2.0 ** (torch.log2(squares.sqrt()).floor() - 16)
    for value in (0.0, 1 / 3, 1e-9, 1e4 / 3):
        counted = noise.add(total_of(torch.full((100,), value)), NoiseAt(stream(), 0)).value / fine
        assert torch.equal(counted, counted.round())


@pytest.mark.parametrize("name", SOURCES)
@pytest.mark.parametrize("fit", FITS)
def test_a_run_that_is_continued_releases_what_it_would_have_released(name: str, fit) -> None:
    def make(model):
        return OptimizedNoise(0.5, SOURCES[name](model), fit=fit)

    assert torch.equal(released(make, stop=3), released(make))


ENCODINGS = {
    "random sparsification": lambda model: SPARSE,
    "projection": lambda model: ProjectBiased(
        Subspace(PublicGradients(model, PUBLIC, classes=2), directions=3, groups=1)
    ),
}


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("source", ["flat", "releases", "public rows"])
def test_it_works_with_encodings_stopped_or_not(encoding: str, source: str) -> None:
    def make(model):
        return OptimizedNoise(0.5, SOURCES[source](model))

    whole = released(make, ENCODINGS[encoding])
    assert torch.equal(released(make, ENCODINGS[encoding], stop=5), whole)
    assert bool(whole.isfinite().all())
    if encoding == "random sparsification":
        assert (whole == 0).double().mean() == pytest.approx(0.5, abs=0.01)


def test_public_rows_go_through_the_step_s_codec() -> None:
    """Gradients of ten coordinates give weights of three directions; masked coordinates have weight zero."""
    model = make_model()
    source = SOURCES["public rows"](model)
    for name, size in [("projection", 3), ("random sparsification", 10)]:
        plan = make_plan(OptimizedNoise(0.5, source), ENCODINGS[name](model))
        next(run := so.PrivateRun(plan, model, (INPUTS, LABELS), seed=0))
        weights = run.coding_state["noise/weights"]
        assert len(weights) == size
    assert int((weights == 0).sum()) == 5


def test_what_noise_has_learnt_is_kept_beside_what_the_encoding_has() -> None:
    run = so.PrivateRun(make_plan(OptimizedNoise(0.5), SPARSE), make_model(), (INPUTS, LABELS), seed=0)
    next(run)
    names = sorted(run.coding_state)
    assert names == ["noise/counted", "noise/counted_square", "noise/noise", "noise/sum", "size"]


def test_it_learns_which_coordinates_are_large_from_what_it_released() -> None:
    values = torch.tensor([300.0] * 20 + [0.0] * 20)
    noise, layout = OptimizedNoise(1.0, FromReleases(0.9)), total_of(values).layout
    state = noise.init(layout)
    for step in range(20):
        release, state = noise.add_and_learn(total_of(values), NoiseAt(stream(), step, state))
    squares = release.noise_square.reshape(2, 20).mean(dim=1)
    assert float(squares[0]) < 0.5 * float(squares[1])


@pytest.mark.parametrize("sampler", [so.Poisson(0.1, 30), so.Shuffled(10, 3)])
@pytest.mark.parametrize("adjacency", [so.Adjacency.ZERO_OUT, so.Adjacency.REPLACE_ONE])
def test_a_plan_is_calibrated_and_carried_out(sampler, adjacency) -> None:
    sampler = replace(sampler, adjacency=adjacency)
    fitted = so.fit(
        make_model(), (INPUTS, LABELS), epsilon=8.0, delta=1e-5, batch_size=100, sampler=sampler, seed=0,
        noise=OptimizedNoise(1.0), learning_rate=2.0, progress=False,
    )  # fmt: skip
    assert 7.9 < fitted.guarantee.epsilon <= 8.0 and fitted.guarantee.adjacency is adjacency
    accuracy = (fitted.model(INPUTS).argmax(dim=1) == LABELS).double().mean()
    assert accuracy > 0.85


def test_a_plan_of_pure_noise_promises_a_delta_of_zero() -> None:
    sampler = so.Shuffled(10, 2)
    promise = make_plan(OptimizedNoise(4.0, Flat()), sampler=sampler).guarantee(delta=0.0)
    assert promise.epsilon == 0.5 and promise.delta == 0.0
    run = so.PrivateRun(make_plan(OptimizedNoise(0.5, Flat()), sampler=sampler), make_model(), (INPUTS, LABELS), seed=0)
    assert any("rounded exactly" in text for text in run.guarantee(delta=0.0).assumptions)


def test_a_training_that_is_killed_goes_on_with_what_its_noise_had_learnt(tmp_path: Path) -> None:
    noise = OptimizedNoise(1.0, FromReleases(0.8))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", HopelessNoise)  # 83 coordinates and batches of 40
        trained(tmp_path / "whole", noise=noise)
        assert killed(tmp_path / "run", 40, noise=noise)
        trained(tmp_path / "run", noise=noise, resume=True)
    assert contents(tmp_path / "run") == contents(tmp_path / "whole")


def test_hopeless_noise_is_said_before_the_budget_is_charged() -> None:
    """Noise of 10 coordinates with slope 1 / 100 has a norm of 100 sqrt(110); batches have 300 examples."""
    budget = so.Budget((INPUTS, LABELS))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(HopelessNoise, match=r"expected norm of 3\.5, and gradients are clipped to norm 1: 10"):
            so.PrivateRun(make_plan(OptimizedNoise(100.0, Flat(), fit=isotropic)), make_model(), budget)
    assert budget.releases == ()


def test_the_text_of_a_plan_names_the_fit_and_the_weights() -> None:
    text = repr(OptimizedNoise(2.0, Flat(), SquaredCost(), isotropic))
    assert text == "OptimizedNoise(2.0, weights=Flat(), cost=SquaredCost(), fit=isotropic)"
    assert OptimizedNoise(2.0).event == PureDpEvent(2.0)


def test_weights_cannot_be_read_from_private_rows_for_free() -> None:
    """A source receives releases, earlier magnitudes, and the fields of `Look`: a step, a stream and a codec's map."""
    for kind in (Flat, Fixed, FromReleases, FromPublicRows, Unweighted):
        for name in ("init", "magnitudes", "update"):
            allowed = list(inspect.signature(getattr(Source, name)).parameters)
            assert list(inspect.signature(getattr(kind, name)).parameters) == allowed
    kinds = {str(p.annotation) for p in inspect.signature(Source.update).parameters.values()}
    kinds |= {str(p.annotation) for p in inspect.signature(Source.magnitudes).parameters.values()}
    assert kinds - {str(inspect.Parameter.empty)} == {"State", "Magnitudes", "Private", "Look"}


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: OptimizedNoise(0.0), "noise_multiplier must be"),
        (lambda: OptimizedNoise(1e7), "noise_multiplier must be in"),
        (lambda: OptimizedNoise(1.0, torch.ones(3)), "weights must be a Source"),
        (lambda: OptimizedNoise(1.0, Flat(), 1), "cost must be an AbsoluteCost or SquaredCost"),
        (lambda: OptimizedNoise(1.0, Flat(), AbsoluteCost(), "laplace"), "fit must be"),
        (
            lambda: so.PrivateRun(
                make_plan(OptimizedNoise(1.0, FromPublicRows(PublicGradients(nn.Linear(4, 3), PUBLIC, classes=3)))),
                make_model(),
                (INPUTS, LABELS),
            ),
            "anchors must have 10 coordinates, got 15",
        ),
        (
            lambda: so.PrivateRun(make_plan(OptimizedNoise(1.0, Fixed(torch.ones(3)))), make_model(), (INPUTS, LABELS)),
            "weights must be 10, one per coordinate, got 3",
        ),
    ],
)
def test_settings_that_mean_nothing_are_refused(make, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        make()
