"""Mistakes that must not type-check: mypy has to refuse every marked line, and only those. Never run."""

import torch.nn.functional as F
from torch import Tensor, nn

import sordino as so
from sordino.accounting import privacy_of
from sordino.encodings import Matched
from sordino.kernel.noise import NoiseAt
from sordino.kernel.states import BoundedSum, Dense
from sordino.optimized_noise.noise import OptimizedNoise
from sordino.optimized_noise.sources import Fixed, FromPublicRows, FromReleases, Magnitudes
from sordino.releases.gradient_sizes import release_sensitivity


def mispair(model: nn.Module, data: tuple[Tensor, Tensor], each: Dense, total: BoundedSum, at: NoiseAt) -> None:
    poisson, shuffled = so.Poisson(0.01, 100), so.Shuffled(100, 1)
    gradient, clip, noise = so.LossGradient(F.cross_entropy), so.ClipByNorm(1.0), so.Gaussian(1.0)
    plan = so.Plan(poisson, gradient, clip, noise)
    run = so.PrivateRun(plan, model, data)
    private = next(run)

    # shuffled batches with Poisson accounting: nothing takes a rate, an event or a loader
    so.Plan(shuffled, gradient, clip, noise, event=poisson.compose(noise.event, 100))  # refused
    so.PrivateRun(plan, model, data, sampler=shuffled)  # refused
    so.PrivateRun(plan, model, data, data_loader=data)  # refused
    run.guarantee(delta=1e-5, sampling_rate=0.01)  # refused
    privacy_of(poisson, so.Adjacency.ZERO_OUT)  # refused
    privacy_of(noise.event, so.Adjacency.ZERO_OUT, sampling_rate=0.01)  # refused
    privacy_of(noise.event, "zero-out")  # refused
    so.Guarantee.of(noise.event, delta=1e-5)  # refused
    so.calibrate(plan, epsilon=1.0, delta=1e-5, sample_rate=0.01)  # refused
    shuffled.compose(noise, 100)  # refused
    so.Shuffled(100, 1, rate=0.01)  # refused

    # a bound that is no longer true
    total / 256  # refused
    total * 0.5  # refused
    2 * total  # refused
    -total  # refused
    total - total  # refused
    total.bound = 0.1  # refused
    total.lift(Tensor.abs)  # refused
    total + each  # refused

    # noise for another clip norm, and stages in the wrong state or order
    noise.add(total, at, bound=0.1)  # refused
    noise.add(each, at)  # refused
    noise.add(total)  # refused
    clip(total)  # refused
    clip(private)  # refused
    so.Gaussian(noise_std=1.0)  # refused
    so.Plan(gradient, poisson, clip, noise)  # refused
    so.Plan(poisson, gradient, noise, clip)  # refused

    # weights from private rows, for free
    OptimizedNoise(1.0, data)  # refused
    OptimizedNoise(1.0, weights=FromReleases(), data=data)  # refused
    Matched(total)  # refused
    Fixed(each)  # refused
    FromPublicRows(data)  # refused
    FromReleases().update({}, Magnitudes(data[0], data[0]), total)  # refused
    release_sensitivity(data, model, noise=noise)  # refused

    # what does not leave a run
    run.batches  # refused
    run.losses  # refused
    run.norms  # refused

    # a second release for free, and a typo that is swallowed elsewhere
    so.Budget(data).charge(noise.event, what="mean")  # refused
    so.fit(model, data, epsilon=1.0, delta=1e-5, batch_size=10, epochs=1, poisson_sampling=False)  # refused
    so.fit(model, data, epsilon=1.0, delta=1e-5, batchsize=10, epochs=1)  # refused

    # what is right stays right
    (total + total).value
    private.divide(256).write_to(model)
    noise.add(clip(each), at).divide(256)
