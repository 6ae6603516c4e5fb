"""Releases for given keys, one case for each function that releases. `--write` records their current values.

The recorded values should hold on every machine. Noise is reproducible: a release is the exact rounding of a real
number to a lattice whose spacing is 2^-16 of the noise (`lattice`). Sums are reproducible if they are exact in float32
and float64, or if each coordinate is a single product, which rounds equally in every order and kernel:

* each row of `one_hot` is an integer times a unit vector, so that each weight has a gradient from one row alone;
* where several rows contribute to a coordinate, inputs and weights are small integers and no gradient is clipped;
* losses are squared errors, learning rates and divisors are powers of two.

A case that differs from this says so. Its values before the noise may differ between machines by the last bit of
float32, for few coordinates, and the noise is so large that the lattice hides this except with a small probability.

    python tests/released_cases.py --write
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Callable, Iterable
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

import numpy as np
import torch
import torch.nn.functional as F
from sklearn.base import BaseEstimator
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

import sordino as so
from sordino.attacks.audit.canaries import coins
from sordino.convex.hidden_run import fit_hidden_state
from sordino.convex.least_squares import fit_adassp, fit_ssp
from sordino.convex.losses import Squared
from sordino.convex.model import GatedReLU, Linear, PairedReLU
from sordino.convex.noisy_cgd import NoisyCGD
from sordino.convex.random_features import RandomSigns
from sordino.convex.sufficient_statistics import release_statistics
from sordino.encodings import (
    Combined,
    ConstantRate,
    Freeze,
    FreezeByMagnitude,
    Matched,
    MatchedBought,
    Neurons,
    Project,
    ProjectBiased,
    PublicGradients,
    RandomSparsify,
    RankedSparsify,
    Subspace,
)
from sordino.kernel.augmentation import Crop, Flip, Jitter
from sordino.kernel.clipping import Clip
from sordino.kernel.encoding import Encoding
from sordino.kernel.noise import Noise
from sordino.kernel.randomness import Key
from sordino.kernel.sampling import Sampler
from sordino.kernel.states import BoundedSum, Dense, Layout
from sordino.opacus import PrivacyEngine
from sordino.optimized_noise.costs import AbsoluteCost, SquaredCost
from sordino.optimized_noise.fits import best_blocks, isotropic, weighted_laplace
from sordino.optimized_noise.sources import Fixed, Flat, FromPublicRows, FromReleases, Unweighted
from sordino.releases.gradient_sizes import release_sensitivity
from sordino.sklearn import ConvexReLURegressor, PrivateRegressor
from sordino.sklearn.noisy_accuracy import NoisyAccuracy
from sordino.training.averaging import Tail
from sordino.training.communication import DenseFormat, IndexFormat, SeedFormat, federated_sgd
from sordino.training.schedules import Step
from sordino.tuning import (
    Candidate,
    Compose,
    NegativeBinomialNumber,
    PoissonNumber,
    PrivateAccuracy,
    PublicScore,
    Repeat,
    Sgd,
    Task,
    clip_momentum,
    tune,
)

FILE = Path(__file__).parents[1] / "fixtures" / "released_bits.json"
ROWS = 16
SHOWN = 4  # values of each vector that are recorded in full, to show the size of a change

Released = dict[str, Tensor]  # releases by name, in order
Case = Callable[[], Released]
CASES: dict[str, Case] = {}


def case(name: str) -> Callable[[Case], Case]:
    """Registers a case under a unique name."""

    def register(function: Case) -> Case:
        assert name not in CASES, name
        CASES[name] = function
        return function

    return register


# Data and networks


def one_hot() -> tuple[Tensor, Tensor]:
    """Row i is an integer times unit vector i, so that weight i has a gradient from row i alone."""
    sizes = torch.tensor([1.0, 2.0, 3.0, 5.0, -1.0, -2.0, 4.0, 6.0, 7.0, -3.0, 1.0, 8.0, -5.0, 2.0, 9.0, -4.0])
    return torch.diag(sizes), torch.tensor([1.0, -2.0, 0.0, 3.0] * 4)


def network() -> nn.Module:
    """A linear network with sixteen integer weights."""
    model = nn.Sequential(nn.Linear(ROWS, 1, bias=False), nn.Flatten(0))
    with torch.no_grad():
        model[0].weight.copy_(torch.arange(ROWS).remainder(5).float()[None] - 2)
    return model


class TwoLayers(nn.Module):
    """A network with one layer for the first half of the inputs and one for the second half."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 1, bias=False), nn.Linear(8, 1, bias=False)
        with torch.no_grad():
            self.first.weight.copy_(torch.arange(8.0)[None] - 3)
            self.second.weight.copy_(2 - torch.arange(8.0)[None])

    def forward(self, rows: Tensor) -> Tensor:
        return (self.first(rows[:, :8]) + self.second(rows[:, 8:])).flatten()


def in_both_layers() -> tuple[Tensor, Tensor]:
    """Eight rows with an integer in each half, so that each weight has a gradient from one row alone."""
    rows = torch.cat([torch.diag(torch.arange(1.0, 9.0)), torch.diag(torch.tensor([3.0, -1.0] * 4))], dim=1)
    return rows, torch.tensor([1.0, -2.0, 0.0, 3.0] * 2)


def dense() -> tuple[Tensor, Tensor]:
    """Rows of small integers, which all contribute to each coordinate: sums are exact if nothing is clipped."""
    places = torch.arange(ROWS * 4)
    return (places.remainder(7) - 3).float().reshape(ROWS, 4), torch.arange(ROWS).remainder(3).float() - 1


def dense_network() -> nn.Module:
    model = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 1), nn.Flatten(0))
    with torch.no_grad():
        for parameter in model.parameters():
            size = parameter.numel()
            parameter.copy_((torch.arange(size).remainder(5) - 2).float().reshape(parameter.shape))
    return model


def pictures() -> tuple[Tensor, Tensor]:
    """Images with one channel of 4 x 4 integers."""
    return torch.arange(ROWS * 16).remainder(11).float().reshape(ROWS, 1, 4, 4) - 5, torch.arange(ROWS).remainder(
        3
    ) - 1.0


def picture_network() -> nn.Module:
    model = nn.Sequential(nn.Conv2d(1, 2, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(32, 1), nn.Flatten(0))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_((torch.arange(parameter.numel()).remainder(3) - 1).float().reshape(parameter.shape))
    return model


def four_classes() -> tuple[Tensor, Tensor]:
    """Two rows on each axis, in both directions; the class is the axis."""
    return torch.cat([torch.eye(4), -torch.eye(4), torch.eye(4), torch.eye(4)]), torch.arange(4).repeat(4)


# Runs

NO_CLIP = so.ClipByNorm(2.0**20)  # no gradient reaches the norm, so every clip weight is exactly 1
QUIET = so.Gaussian(2.0**-9)  # with that clip, a standard deviation of 2048


def plan(
    *,
    sampler: Sampler | None = None,
    clip: Clip | None = None,
    noise: Noise | None = None,
    encoding: Encoding | None = None,
    contribution: so.LossGradient | None = None,
) -> so.Plan:
    stages = {} if encoding is None else {"encoding": encoding}
    return so.Plan(
        sampler or so.Poisson(rate=0.5, steps=3),
        contribution or so.LossGradient(F.mse_loss),
        clip or so.ClipByNorm(1.0),
        noise or so.Gaussian(1.0),
        **stages,
    )


def released(
    wanted: so.Plan, model: nn.Module | None = None, data: object = None, *, seed: int = 7, **options: object
) -> Released:
    """The release of each step of a run with a fixed model."""
    run = so.PrivateRun(wanted, model or network(), one_hot() if data is None else data, seed=seed, **options)
    return {f"step {step}": private.value for step, private in enumerate(run)}


def moved(model: nn.Module) -> Released:
    return {name: x.detach().clone() for name, x in model.state_dict().items()}


def in_float32(found: Released) -> Released:
    """Rounds to float32 values that are scaled after the release: float64 powers may differ in their last bit."""
    return {name: x.float() for name, x in found.items()}


@contextmanager
def known_key(seed: int):
    """Replaces fresh keys by a known one, for functions that take no key."""
    with mock.patch.object(Key, "fresh", classmethod(lambda cls: cls.from_seed(seed))):
        yield


# Streams

STREAM = Key.from_seed(7).stream("example")


@case("stream/words")
def _() -> Released:
    words = STREAM.words(64, step=3, block=2)
    return {"words": torch.from_numpy(words.view(np.int64))}


@case("stream/uniforms")
def _() -> Released:
    return {"uniforms": torch.from_numpy(STREAM.uniforms(64, step=3))}


@case("stream/chosen, permutation, subset")
def _() -> Released:
    found = {
        "chosen": STREAM.chosen(500, 0.1, step=1),
        "permutation": STREAM.permutation(100, step=2),
        "subset": STREAM.subset(500, 50, step=3),
    }
    return {name: torch.from_numpy(x) for name, x in found.items()}


@case("stream/named, renewed and of a release")
def _() -> Released:
    keys = [Key.from_seed(7).renewed(2), Key.from_seed(7).of_release(1), Key(STREAM.named("other").secret)]
    return {str(place): torch.tensor(list(key.secret)) for place, key in enumerate(keys)}


@case("stream/normals beyond one block")
def _() -> Released:
    """The noise of a zero vector, rounded to the lattice, because logarithms may differ in their last bit."""
    layout = Layout(("w",), ((70_000,),))
    key = Key.from_seed(7)
    run = so.Budget(one_hot()).release(
        "zeros",
        noise=so.Gaussian(1.0),
        adjacency=so.Adjacency.ZERO_OUT,
        key=key,
        total_of=lambda: BoundedSum(torch.zeros(70_000, dtype=torch.float64), 1.0, layout),
    )
    return {"noise": run.value}


@case("stream/coins of canaries")
def _() -> Released:
    return {"coins": torch.from_numpy(coins(64, Key.from_seed(7)))}


# Samplers

ADD_OR_REMOVE, REPLACE_ONE = so.Adjacency.ADD_OR_REMOVE, so.Adjacency.REPLACE_ONE
SAMPLERS: dict[str, Sampler] = {
    "Poisson": so.Poisson(rate=0.5, steps=3),
    "Poisson of everybody": so.Poisson(rate=1.0, steps=2),
    "Poisson, add-or-remove": so.Poisson(rate=0.5, steps=3, adjacency=ADD_OR_REMOVE, expected_examples=20),
    "Poisson, replace-one": so.Poisson(rate=0.5, steps=3, adjacency=REPLACE_ONE),
    "TruncatedPoisson": so.TruncatedPoisson(rate=0.5, steps=3, examples=ROWS, largest_batch=6),
    "TruncatedPoisson, replace-one": so.TruncatedPoisson(0.5, 3, ROWS, largest_batch=6, adjacency=REPLACE_ONE),
    "BallsInBins": so.BallsInBins(bins=2, epochs=2),
    "BallsInBins, add-or-remove": so.BallsInBins(2, 2, adjacency=ADD_OR_REMOVE, expected_examples=20),
    "BallsInBins, replace-one": so.BallsInBins(2, 2, adjacency=REPLACE_ONE),
    "Shuffled": so.Shuffled(batches_per_epoch=2, epochs=2),
    "Shuffled, replace-one": so.Shuffled(3, 1, adjacency=REPLACE_ONE),
    "Cyclic": so.Cyclic(batches_per_epoch=3, epochs=1),
    "Cyclic, replace-one": so.Cyclic(2, 2, adjacency=REPLACE_ONE),
    "FixedSize": so.FixedSize(batch_size=5, examples=ROWS, steps=3),
}


def _of_sampler(sampler: Sampler) -> Released:
    key = Key.from_seed(7).stream("sampling")
    joined = {f"batch {step}": torch.from_numpy(batch) for step, batch in enumerate(sampler.batches(ROWS, key))}
    return joined | released(plan(sampler=sampler))


for _name, _sampler in SAMPLERS.items():
    CASES[f"sampler/{_name}"] = lambda sampler=_sampler: _of_sampler(sampler)


# Clips

CASES["clip/ClipByNorm"] = lambda: released(plan(clip=so.ClipByNorm(3.0)))
CASES["clip/ClipByNorm that clips nobody"] = lambda: released(plan(clip=NO_CLIP, noise=QUIET), dense_network(), dense())
CASES["clip/ClipPerLayer"] = lambda: released(plan(clip=so.ClipPerLayer((1.0, 2.0))), TwoLayers(), in_both_layers())
CASES["clip/Normalise"] = lambda: released(plan(clip=so.Normalise(norm=2.0, stabiliser=0.25)))


# Noises, each in all families


def optimized(weights: object, cost: object = None, fit: object = best_blocks) -> so.OptimizedNoise:
    return so.OptimizedNoise(2.0**-4, weights, cost or AbsoluteCost(), fit)


UNLIKE = torch.tensor([8.0, 1.0, 4.0, 2.0] * 4)

NOISES: dict[str, Noise] = {
    "Gaussian, small": so.Gaussian(0.25),
    "Gaussian, large": so.Gaussian(1000.0),
    "OptimizedNoise, best blocks": optimized(Fixed(UNLIKE)),
    "OptimizedNoise, weighted Laplace": optimized(Fixed(UNLIKE), fit=weighted_laplace),
    "OptimizedNoise, isotropic": optimized(Fixed(UNLIKE), fit=isotropic),
    "OptimizedNoise, best blocks, squared cost": optimized(Fixed(UNLIKE), SquaredCost()),
    "OptimizedNoise, weighted Laplace, squared cost": optimized(Fixed(UNLIKE), SquaredCost(), weighted_laplace),
    "OptimizedNoise, flat": optimized(Flat()),
    "OptimizedNoise, unweighted": optimized(Unweighted(Fixed(UNLIKE))),
    "OptimizedNoise, from releases": optimized(FromReleases(0.5)),
}
for _name, _noise in NOISES.items():
    CASES[f"noise/{_name}"] = lambda noise=_noise: released(plan(noise=noise))


@case("noise/OptimizedNoise, from public rows")
def _() -> Released:
    model = network()
    anchors = PublicGradients(model, 2 * one_hot()[0], classes=3, loss=F.mse_loss, labels=torch.arange(ROWS) % 3)
    source = FromPublicRows(_Floating(anchors), every=2)
    return released(plan(noise=so.OptimizedNoise(2.0**-6, source)), model)


class _Floating:
    """Anchors with float labels, for a regression loss."""

    def __init__(self, anchors: PublicGradients) -> None:
        self.anchors = anchors

    def __call__(self, step: int, randomness: object) -> Dense:
        rows, model = self.anchors.inputs, self.anchors.model
        errors = model(rows).detach() - torch.arange(len(rows)).remainder(3)
        return Dense(2 * errors[:, None] * rows, Layout.of(model))


# Encodings. A subspace has one public direction per group, a unit vector, so that QR rotates nothing.


def subspace() -> Subspace:
    layout = Layout.of(network())
    public = torch.zeros(2, ROWS)
    public[0, 0], public[1, 8] = 4.0, -2.0
    return Subspace(lambda step, randomness: Dense(public, layout), directions=2, groups=2)


EVERY_STEP = RandomSparsify(0.5, epochs=2, steps_per_epoch=2, refresh=2, schedule=ConstantRate())
RISING = RandomSparsify(0.75, epochs=3, steps_per_epoch=1)


def uneven() -> nn.Module:
    """A network whose weights have distinct magnitudes, so that their order is unique."""
    model = network()
    with torch.no_grad():
        model[0].weight.copy_((torch.arange(ROWS).mul(7).remainder(ROWS) - 4.5)[None])
    return model


ENCODINGS: dict[str, Callable[[nn.Module], Encoding]] = {
    "RandomSparsify, a mask in every step": lambda model: EVERY_STEP,
    "RandomSparsify, rising": lambda model: RISING,
    "RankedSparsify": lambda model: RankedSparsify(0.5, epochs=3, steps_per_epoch=1),
    "FreezeByMagnitude": lambda model: Freeze.by_magnitude(model, stages=(1, 2), final=0.5),
    "FreezeByMagnitude and RandomSparsify": lambda model: Combined(
        Freeze.by_magnitude(model, stages=(1, 2), final=0.5), EVERY_STEP
    ),
    "ProjectBiased": lambda model: ProjectBiased(subspace()),
    "RandomSparsify and RankedSparsify": lambda model: Combined(EVERY_STEP, RankedSparsify(0.5, 3, 1)),
    "RandomSparsify and ProjectBiased": lambda model: Combined(EVERY_STEP, ProjectBiased(subspace())),
}
for _name, _encoding in ENCODINGS.items():

    def _encoded(encoding: Callable[[nn.Module], Encoding] = _encoding) -> Released:
        model = uneven()
        return released(plan(encoding=encoding(model)), model)

    CASES[f"encoding/{_name}"] = _encoded


@case("encoding/Freeze")
def _() -> Released:
    return released(plan(encoding=Freeze(["first.weight"])), TwoLayers(), in_both_layers())


@case("encoding/FreezeByMagnitude, neurons")
def _() -> Released:
    model = dense_network()
    encoding = FreezeByMagnitude(model, (1,), 0.5, Neurons())
    return released(plan(encoding=encoding, clip=NO_CLIP, noise=QUIET), model, dense())


@case("encoding/Project")
def _() -> Released:
    encoding = Project(subspace(), embedding_norm=4.0, residual_norm=2.0)
    return released(plan(encoding=encoding, clip=so.ClipPerLayer((1.0, 1.0))))


@case("encoding/RandomSparsify and Project")
def _() -> Released:
    encoding = Combined(EVERY_STEP, Project(subspace(), embedding_norm=4.0, residual_norm=2.0))
    return released(plan(encoding=encoding, clip=so.ClipPerLayer((1.0, 1.0))))


LEARNT: dict[str, Encoding] = {
    "Matched by tensors": Matched(Fixed(UNLIKE)),
    "Matched by tensors, squared cost": Matched(Fixed(UNLIKE), SquaredCost()),
    "Matched by releases": Matched(FromReleases(0.5)),
    "Matched by releases, unweighted": Matched(Unweighted(FromReleases(0.5)), SquaredCost()),
    "MatchedBought": MatchedBought(share=0.5, memory=0.5),
    "RandomSparsify and Matched": Combined(EVERY_STEP, Matched(FromReleases(0.5))),
    "RandomSparsify and MatchedBought": Combined(EVERY_STEP, MatchedBought(share=0.5, memory=0.5)),
}
for _name, _learnt in LEARNT.items():
    CASES[f"encoding/{_name}"] = lambda encoding=_learnt: in_float32(released(plan(encoding=encoding)))


# Runs: micro-batches, users, views, dropout, datasets, and resumed steps


@case("run/micro-batches of three")
def _() -> Released:
    return released(plan(), physical_batch_size=3)


@case("run/two runs on one budget")
def _() -> Released:
    budget = so.Budget(one_hot())
    runs = [released(plan(), network(), budget) for _ in range(2)]
    return {f"run {number}, {name}": x for number, found in enumerate(runs) for name, x in found.items()}


@case("run/gradients of users")
def _() -> Released:
    owners = torch.arange(ROWS) // 2
    return released(plan(), data=so.by_user(one_hot(), owners, rows_per_user=2))


@case("run/network for pictures")
def _() -> Released:
    return released(plan(clip=NO_CLIP, noise=QUIET), picture_network(), pictures())


def seen(*transforms: object, number: int = 2) -> Released:
    contribution = so.LossGradient(F.mse_loss, views=so.Views(number, transforms))
    return released(plan(clip=NO_CLIP, noise=QUIET, contribution=contribution), picture_network(), pictures())


CASES["run/views: Flip"] = lambda: seen(Flip())
CASES["run/views: Crop"] = lambda: seen(Crop(1), number=4)
CASES["run/views: Flip and Crop"] = lambda: seen(Flip(), Crop(2), number=1)
# Each pixel gets a normal variable, computed by float32 logarithms and cosines. The noise hides their last bit: its
# lattice has a spacing of 2^-5, and sums of about a thousand are exact to about 2^-14.
CASES["run/views: Jitter"] = lambda: seen(Jitter(0.5), number=1)


@case("run/dropout")
def _() -> Released:
    model = nn.Sequential(nn.Dropout(0.5), *network())
    return released(plan(), model)


@case("run/dropout and views")
def _() -> Released:
    model = nn.Sequential(nn.Dropout2d(0.5), *picture_network())
    contribution = so.LossGradient(F.mse_loss, views=so.Views(2, (Flip(),)))
    return released(plan(clip=NO_CLIP, noise=QUIET, contribution=contribution), model, pictures())


class DrawnWhenRead(Dataset):
    """A dataset with random augmentation of its rows."""

    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, index: int) -> tuple[Tensor, float]:
        rows, targets = one_hot()
        return rows[index] * int(torch.randint(1, 5, ())), float(targets[index]) + int(np.random.randint(3))


@case("run/rows drawn when they are read")
def _() -> Released:
    return released(plan(clip=NO_CLIP, noise=QUIET), data=DrawnWhenRead())


@case("run/continued, steps drawn again")
def _() -> Released:
    wanted = plan(encoding=RankedSparsify(0.5, epochs=3, steps_per_epoch=1))
    run = so.PrivateRun(wanted, network(), one_hot(), seed=7)
    first, state = next(run).value, dict(run.coding_state)
    again = so.PrivateRun(wanted, network(), one_hot(), key=Key.from_seed(7).renewed(1))
    again.continue_at(1, state, drawn_again=1)
    return {"step 0": first} | {f"step {step}": private.value for step, private in enumerate(again, start=1)}


# Trainings: weights after a few steps


def zeros(inputs: int, outputs: int) -> nn.Module:
    layer = nn.Linear(inputs, outputs, bias=False)
    nn.init.zeros_(layer.weight)
    return layer


def halving(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.5, momentum=0.5)


def fitted(**options: object) -> Released:
    settings = {"epsilon": 8.0, "delta": 1e-2, "batch_size": 8, "steps": 3, "seed": 7, "progress": False}
    settings |= {"loss": F.mse_loss, "optimizer": halving}
    model = network()
    so.fit(model, one_hot(), **(settings | options))
    return moved(model)


CASES["fit/SGD"] = lambda: fitted()
CASES["fit/user's sampler"] = lambda: fitted(sampler=so.BallsInBins(2, 2), steps=None)
CASES["fit/averaged, with a schedule"] = lambda: fitted(averaging=Tail(0.5), schedule=Step((0.5,), 0.5))
CASES["fit/pure noise"] = lambda: fitted(noise=so.OptimizedNoise(1.0, Fixed(UNLIKE)), delta=0.0)
CASES["fit/sparsified"] = lambda: fitted(encoding=EVERY_STEP)


@case("fit/charged validation")
def _() -> Released:
    """Similar rows contribute to a coordinate: float32 sums of up to four values, smaller than the noise of about 8."""
    model, budget = zeros(4, 4), so.Budget(four_classes())
    charged = so.Charged(budget, noise_multiplier=4.0, evaluations=3, seed=8)
    found = so.fit(
        model, budget, epsilon=8.0, delta=1e-2, batch_size=8, steps=3, seed=7, progress=False, loss=Squared(),
        clip=8.0, optimizer=halving, evaluation=charged,
    )  # fmt: skip
    seen = [row["validation_accuracy"] for row in found.metrics]
    return moved(model) | {"validation": torch.tensor(seen, dtype=torch.float64)}


@case("fit/PrivateRegressor")
def _() -> Released:
    rows, targets = (x.numpy() for x in one_hot())
    estimator = PrivateRegressor(
        zeros, bounds=(-4.0, 4.0), epsilon=8.0, delta=1e-2, batch_size=8, epochs=1, learning_rate=0.5,
        optimizer=halving, random_state=7,
    )  # fmt: skip
    return moved(estimator.fit(rows, targets).module_)


@case("fit/ConvexReLURegressor")
def _() -> Released:
    """Rows are scaled, and all contribute to the constant feature: sums of up to eight products, below the noise."""
    rows, targets = (x.numpy() for x in one_hot())
    estimator = ConvexReLURegressor(
        target_range=(-4.0, 4.0), gates=4, epsilon=8.0, delta=1e-2, batch_size=8, epochs=2, learning_rate=0.5,
        clip=1.0, random_state=7,
    )  # fmt: skip
    return {"weights": next(estimator.fit(rows, targets).module_.parameters()).detach()}


# Single releases


@case("release/pure")
def _() -> Released:
    return {"value": so.release([120.0, 80.0, 3.0], 1.0, 1.0, weights=[1.0, 1.0, 10.0], seed=7).value}


@case("release/pure, squared cost, replace-one, a budget")
def _() -> Released:
    budget = so.Budget(one_hot())
    found = [
        so.release(list(range(8)), 2.0, 0.5, cost=SquaredCost(), adjacency=REPLACE_ONE, budget=budget, seed=7).value
        for _ in range(2)
    ]
    return {str(number): value for number, value in enumerate(found)}


@case("release/Gaussian")
def _() -> Released:
    return {"value": so.release(torch.arange(200.0), 1.0, 1.0, delta=1e-5, seed=7).value}


@case("release/moments")
def _() -> Released:
    """Moments of few integers in a range of 16, whose means are exact."""
    rows = torch.arange(ROWS * 2).remainder(9).float().reshape(ROWS, 2)
    found = {}
    for adjacency in (so.Adjacency.ZERO_OUT, REPLACE_ONE):
        budget = so.Budget(so.as_records((rows, torch.zeros(ROWS)), input_range=(0.0, 16.0)))
        moments = so.release_moments(budget, noise_multiplier=0.5, adjacency=adjacency, seed=7)
        found[f"mean, {adjacency}"], found[f"std, {adjacency}"] = (torch.tensor(x) for x in (moments.mean, moments.std))
    return found


@case("release/sensitivity, Gaussian")
def _() -> Released:
    bought = release_sensitivity(so.Budget(one_hot()), network(), noise=so.Gaussian(1.0), loss=F.mse_loss, seed=7)
    return {"weights": bought.weights}


@case("release/sensitivity, pure")
def _() -> Released:
    noise = so.OptimizedNoise(2.0**-3, Fixed(UNLIKE))
    bought = release_sensitivity(so.Budget(one_hot()), network(), noise=noise, loss=F.mse_loss, seed=7)
    return {"weights": in_float32({"weights": bought.weights})["weights"]}


@case("release/Charged accuracy")
def _() -> Released:
    budget = so.Budget(four_classes())
    charged = so.Charged(budget, noise_multiplier=1.0, evaluations=3, seed=7)
    model = nn.Linear(4, 4, bias=False)
    with torch.no_grad():
        model.weight.copy_(torch.eye(4))
    return {"accuracy": torch.tensor([charged.accuracy(model) for _ in range(3)], dtype=torch.float64)}


class AxisOfLargest(BaseEstimator):
    """Predicts the axis on which a row lies."""

    def predict(self, X: np.ndarray) -> np.ndarray:
        return np.asarray(X).argmax(axis=1)


@case("release/NoisyAccuracy")
def _() -> Released:
    rows, labels = (x.numpy() for x in four_classes())
    score = NoisyAccuracy(so.Budget((rows, labels)), noise_multiplier=1.0)
    with known_key(7):
        found = [score(AxisOfLargest(), rows, labels) for _ in range(3)]
    return {"scores": torch.tensor(found, dtype=torch.float64)}


# Convex: hidden states and least squares


def hidden(model: object, *, data: object = None, outputs: int = 1, **options: object) -> Released:
    settings = {"clip": 1.0, "noise_multiplier": 4.0, "learning_rate": 0.5, "loss": Squared()} | options
    wanted = NoisyCGD(so.Cyclic(2, 2), model, **settings)
    shown: Released = {}

    def look(epoch: int, weights: dict[str, Tensor]) -> None:
        shown.update({f"{name} after epoch {epoch}": x for name, x in weights.items() if name in trained})

    rows = one_hot() if data is None else data
    trained = {name for name, _ in model.build(rows[0].shape[1], outputs).named_parameters()}
    found = fit_hidden_state(
        wanted, rows, outputs=outputs, delta=1e-2, seed=7, progress=False,
        on_shown=look if wanted.shown_after else None,
    )  # fmt: skip
    return shown | {name: x for name, x in moved(found.model).items() if name in trained}


CASES["hidden/Linear"] = lambda: hidden(Linear())
CASES["hidden/Linear, shown, trailing steps"] = lambda: hidden(Linear(), shown_after=(1,), trailing_steps=2)
CASES["hidden/Linear, ridge, schedules"] = lambda: hidden(
    Linear(), strength=0.25, schedule=Step((0.5,), 0.5), noise_schedule=Step((0.5,), 0.5)
)
# The norm that is compared with the radius is a long sum in float64, and the projection is rounded to float32.
CASES["hidden/Linear, in a ball"] = lambda: hidden(Linear(), radius=1.0, examples=ROWS)
# Two or more open gates add equal squares. Gates depend on the sides of random planes, not on the last bit of a normal.
CASES["hidden/GatedReLU of classes"] = lambda: hidden(GatedReLU(4), data=four_classes(), outputs=4)
CASES["hidden/PairedReLU of classes"] = lambda: hidden(PairedReLU(4), data=four_classes(), outputs=4)

SIGNS = RandomSigns(width=8, bias=0.5)


@case("least squares/statistics")
def _() -> Released:
    found = {}
    for adjacency in (so.Adjacency.ZERO_OUT, REPLACE_ONE):
        statistics = release_statistics(
            so.Budget(four_classes()), SIGNS, num_classes=4, noise_multiplier=1.0, adjacency=adjacency, seed=7
        )
        found[f"gram, {adjacency}"], found[f"moment, {adjacency}"] = statistics.gram, statistics.moment
    return found


@case("least squares/statistics of users")
def _() -> Released:
    users = so.by_user(four_classes(), torch.arange(ROWS) % 5, rows_per_user=4)
    statistics = release_statistics(so.Budget(users), SIGNS, num_classes=4, noise_multiplier=1.0, seed=7)
    return {"gram": statistics.gram, "moment": statistics.moment}


# The weights are solved from the release in float64, and rounded to eight digits less.
def _rounded(found: Released) -> Released:
    return {name: x.double().mul(2**12).round() for name, x in found.items()}


@case("least squares/ridge on noisy statistics")
def _() -> Released:
    found = fit_ssp(four_classes(), SIGNS, num_classes=4, epsilon=4.0, delta=1e-2, seed=7)
    return _rounded({"weights": found.model.linear.weight})


@case("least squares/AdaSSP")
def _() -> Released:
    found = fit_adassp(four_classes(), SIGNS, num_classes=4, epsilon=4.0, delta=1e-2, seed=7)
    return _rounded({"weights": found.model.linear.weight, "ridge": torch.tensor([found.ridge])})


# Opacus: a script with the engine


def scripted(**options: object) -> Released:
    model, engine = network(), PrivacyEngine(seed=7)
    loader = DataLoader(TensorDataset(*one_hot()), batch_size=8)
    settings = {"noise_multiplier": 1.0, "max_grad_norm": 1.0} | options
    module, optimizer, private = engine.make_private(
        module=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.5), data_loader=loader, **settings
    )
    found: Released = {}
    for _ in range(2):
        for inputs, targets in private:
            optimizer.zero_grad()
            F.mse_loss(module(inputs), targets).backward()
            optimizer.step()
            found[f"gradient {len(found)}"] = model[0].weight.grad.clone()
    return found | moved(model)


CASES["Opacus/flat clip"] = lambda: scripted()
CASES["Opacus/clip per layer"] = lambda: scripted(clipping="per_layer", max_grad_norm=[2.0])
CASES["Opacus/shuffled"] = lambda: scripted(poisson_sampling=False)


# Communication


def federated(encoding: Encoding | None = None, wire: object = None) -> Released:
    model = network()
    federated_sgd(
        plan(encoding=encoding), model, one_hot(), clients=3, delta=1e-2, wire=wire, seed=7,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.5),
    )  # fmt: skip
    return moved(model)


CASES["federated/dense"] = lambda: federated(wire=DenseFormat())
CASES["federated/sparsified, index-coded"] = lambda: federated(EVERY_STEP, IndexFormat())
CASES["federated/sparsified, seed-coded"] = lambda: federated(EVERY_STEP, SeedFormat())


# Tuning: how many trials, which, and the best

NUMBERS = {
    "Poisson": PoissonNumber(6.0),
    "logarithmic": NegativeBinomialNumber(6.0),
    "geometric": NegativeBinomialNumber(6.0, 1.0),
    "negative binomial": NegativeBinomialNumber(6.0, 3.0),
}


@case("tuning/numbers of trials")
def _() -> Released:
    """A choice by sums of exponentials, whose last bit matters with probability 2^-50."""
    return {name: torch.tensor([x.draw(STREAM, step) for step in range(16)]) for name, x in NUMBERS.items()}


@case("tuning/candidates drawn")
def _() -> Released:
    candidates = [Candidate(clip=2.0**power, momentum=0.5) for power in range(5)]
    payment = Repeat(PoissonNumber(6.0))
    drawn = [payment.drawn(candidates, STREAM, stage) for stage in range(3)]
    return {f"stage {stage}": torch.tensor([each.clip for each in found]) for stage, found in enumerate(drawn)}


def tuned(payment: object, score: object) -> Released:
    """A tuning with squared errors of four outputs: float32 sums of up to four values, below the noise of about 8."""
    wanted = plan(sampler=so.Cyclic(2, 1), contribution=so.LossGradient(Squared()), clip=NO_CLIP)
    task = Task(lambda: zeros(4, 4), wanted, Sgd(lr=0.5), score, divisor=8)
    stages = clip_momentum(task.optimizer, wanted.encoding, momenta=(0.0, 0.5), factors=(0.5, 2.0))
    start = Candidate(clip=4.0, momentum=0.5)
    found = tune(task, four_classes(), stages, start, payment=payment, epsilon=8.0, delta=1e-2, seed=7)
    best = torch.tensor([found.candidate.clip, found.candidate.momentum, found.score], dtype=torch.float64)
    return {"best": best} | moved(found.model)


CASES["tuning/every candidate, private score"] = lambda: tuned(Compose(), PrivateAccuracy(4.0))
CASES["tuning/every candidate, public score"] = lambda: tuned(Compose(), PublicScore(so.Public(four_classes())))
CASES["tuning/a random number of trials"] = lambda: tuned(Repeat(PoissonNumber(4.0)), PrivateAccuracy(4.0))


# Recorded values


def kept(found: Released) -> dict[str, dict[str, object]]:
    """Digests of the exact bytes, and the first values, by name."""
    return {name: _kept(x.detach()) for name, x in found.items()}


def _kept(tensor: Tensor) -> dict[str, object]:
    array = np.ascontiguousarray(tensor.numpy())
    little = array.astype(array.dtype.newbyteorder("<"), copy=False)
    digest = hashlib.sha256(little.tobytes()).hexdigest()
    first = [float(x).hex() for x in array.reshape(-1)[:SHOWN]]
    return {"dtype": str(tensor.dtype), "shape": list(tensor.shape), "sha256": digest, "first": first}


def everything() -> dict[str, dict[str, dict[str, object]]]:
    return {name: kept(CASES[name]()) for name in sorted(CASES)}


if __name__ == "__main__":
    if sys.argv[1:] != ["--write"]:
        sys.exit("usage: python tests/released_cases.py --write")
    FILE.write_text(json.dumps(everything(), indent=1) + "\n")
