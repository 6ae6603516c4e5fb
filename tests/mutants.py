"""Nineteen bugs that were found in differentially private training code, and five of optimised noise, each planted.

A mutant is a name, the check that should notice it, and a function that plants it with pytest's monkeypatch.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch
from pytest import MonkeyPatch

from sordino import clipping, sampling
from sordino.clipping import ClipByNorm
from sordino.contribution import LossGradient
from sordino.gradients.taped import Taped
from sordino.noise import Gaussian, Noise
from sordino.optimized.noise import OptimizedNoise
from sordino.optimized.sources import Fixed
from sordino.randomness import Stream
from sordino.run import PrivateRun
from sordino.sampling import Poisson
from sordino.states import BoundedSum, Dense, Private

SENSITIVITY, SCALE, INDEPENDENCE, TAIL = (
    "sensitivity replay",
    "noise scale and shape",
    "noise independence",
    "noise tail",
)
SAMPLER, ACCOUNTANT, LEDGER, CONSTANTS = (
    "sampler statistics",
    "accountant golden values",
    "step ledger",
    "constants on neighbours",
)


@dataclass(frozen=True)
class Mutant:
    name: str
    caught_by: str
    plant: Callable[[MonkeyPatch], None]


MUTANTS: list[Mutant] = []
OF_OPTIMIZED_NOISE: list[Mutant] = []


def mutant(name: str, caught_by: str) -> Callable[[Callable[[MonkeyPatch], None]], None]:
    return lambda plant: MUTANTS.append(Mutant(name, caught_by, plant))


def mutant_of_optimized_noise(name: str, caught_by: str) -> Callable[[Callable[[MonkeyPatch], None]], None]:
    return lambda plant: OF_OPTIMIZED_NOISE.append(Mutant(name, caught_by, plant))


def scaled_noise(patch: MonkeyPatch, factor: Callable[[BoundedSum], float], kind: type[Noise] = Gaussian) -> None:
    honest = kind.add

    def add(self, total, at):
        released = honest(self, total, at)
        return replace(released, value=total.value + factor(total) * (released.value - total.value))

    patch.setattr(kind, "add", add)


def other_normals(patch: MonkeyPatch, draw: Callable[[Stream, int, int], np.ndarray]) -> None:
    patch.setattr(Stream, "normals", lambda self, number, *, step: draw(self, number, step))


@mutant("noise times 0.9", SCALE)
def _(patch):
    scaled_noise(patch, lambda total: 0.9)


@mutant("noise times 0.5", SCALE)
def _(patch):
    scaled_noise(patch, lambda total: 0.5)


@mutant("noise forgets the clip norm", SCALE)
def _(patch):
    scaled_noise(patch, lambda total: 1 / total.bound)


@mutant("noise divided by the batch size", SCALE)
def _(patch):
    honest = PrivateRun._bounded_sum
    drawn = []

    def bounded_sum(self, indices, codec, step):
        drawn.append(max(1, len(indices)))
        return honest(self, indices, codec, step)

    patch.setattr(PrivateRun, "_bounded_sum", bounded_sum)
    scaled_noise(patch, lambda total: 1 / drawn[-1] if drawn else 1.0)


@mutant("no noise on the bias", SCALE)
def _(patch):
    honest = Gaussian.add

    def add(self, total, at):
        released = honest(self, total, at)
        value = released.value.clone()
        last = total.layout.sizes[-1]
        if len(total.layout.sizes) > 1:
            value[-last:] = total.value[-last:]
        return replace(released, value=value)

    patch.setattr(Gaussian, "add", add)


@mutant("clips the mean of the batch", SENSITIVITY)
def _(patch):
    def clip(self, each):
        count = max(1, len(each.squared_norms()))
        total = sum((rows.nan_to_num(0, 0, 0).double().sum(0) for rows in each.rows(16)), torch.zeros(each.layout.size))
        mean = total / count
        return BoundedSum(count * mean * min(1.0, self.norm / max(1e-12, float(mean.norm()))), self.norm, each.layout)

    patch.setattr(ClipByNorm, "__call__", clip)


@mutant("clips each layer at the whole norm", SENSITIVITY)
def _(patch):
    def clip(self, each):
        total = clipping.ClipPerLayer((self.norm,) * len(each.layout.sizes))(each)
        return BoundedSum(total.value, self.norm, each.layout)

    patch.setattr(ClipByNorm, "__call__", clip)


@mutant("does not clip the bias", SENSITIVITY)
def _(patch):
    def forgetful(honest):
        def sum_weighted_by(self, weights_of):
            def without_biases(squares):
                squares = squares.clone()
                squares[:, 1::2] = 0
                return weights_of(squares)

            return honest(self, without_biases)

        return sum_weighted_by

    for form in (Dense, Taped):
        patch.setattr(form, "sum_weighted_by", forgetful(form.sum_weighted_by))


@mutant("a record that is not finite poisons the sum", SENSITIVITY)
def _(patch):
    def shrink(norms, largest):
        return (largest / norms).clamp(max=1.0)

    patch.setattr(clipping, "_shrink", shrink)
    patch.setattr(clipping, "_sum_of_rows", lambda each, weights: each.weighted_sum(weights))
    honest = LossGradient.of

    def of(self, model, batch, seeds):
        each = honest(self, model, batch, seeds)
        rows = torch.cat([*each.rows(16), torch.zeros(0, each.layout.size)])
        return Dense(torch.where(batch.valid[:, None], rows, torch.nan), each.layout)

    patch.setattr(LossGradient, "of", of)


@mutant("the same noise in every step", INDEPENDENCE)
def _(patch):
    honest = Stream.normals
    other_normals(patch, lambda stream, number, step: honest(stream, number, step=0))


@mutant("noise in float16", SCALE)
def _(patch):
    honest = Stream.normals

    def draw(stream, number, step):
        return honest(stream, number, step=step).astype(np.float16).astype(np.float32)

    other_normals(patch, draw)


@mutant("noise that ends at 5.77 standard deviations", TAIL)
def _(patch):
    def draw(stream, number, step):
        seed = int(stream.words(1, step=step)[0] >> np.uint64(1))
        return torch.randn(number, generator=torch.Generator().manual_seed(seed)).numpy()

    other_normals(patch, draw)


@mutant("shuffled batches, accounted as Poisson", SAMPLER)
def _(patch):
    def batches(self, num_units, randomness, start=0):
        per_epoch = max(1, round(1 / self.rate))
        shuffled = sampling.Shuffled(per_epoch, math.ceil(self.steps / per_epoch))
        drawn = shuffled.batches(num_units, randomness, start)
        return (next(drawn) for _ in range(start, self.steps))

    patch.setattr(Poisson, "batches", batches)


@mutant("divides by the batch that was drawn", SCALE)
def _(patch):
    honest = PrivateRun._private_gradient

    def private_gradient(self, indices):
        released = honest(self, indices)
        return Private(released.value / max(1, len(indices)), released.layout)

    patch.setattr(PrivateRun, "_private_gradient", private_gradient)


@mutant("divides by the size of the data times the rate", CONSTANTS)
def _(patch):
    patch.setattr(Poisson, "expected_batch_size", lambda self, num_units: math.floor(num_units * self.rate))


@mutant("an operation across examples", SENSITIVITY)
def _(patch):
    honest = LossGradient.of

    def of(self, model, batch, seeds):
        centred = tuple(x - x.mean(dim=0) if x.is_floating_point() and len(x) else x for x in batch.inputs)
        return honest(self, model, replace(batch, inputs=centred), seeds)

    patch.setattr(LossGradient, "of", of)


@mutant("skips empty batches", LEDGER)
def _(patch):
    def take(self):
        indices = next(self._batches)
        while not len(indices):
            indices = next(self._batches)
        return self._private_gradient(indices)

    patch.setattr(PrivateRun, "__next__", take)


@mutant("accounts for half the rate", ACCOUNTANT)
def _(patch):
    honest = Poisson.compose

    def compose(self, release, steps):
        return honest(replace(self, rate=self.rate / 2), release, steps)

    patch.setattr(Poisson, "compose", compose)


@mutant("accounts for epochs instead of steps", ACCOUNTANT)
def _(patch):
    honest = Poisson.compose
    patch.setattr(Poisson, "compose", lambda self, release, steps: honest(self, release, math.ceil(steps * self.rate)))


@mutant_of_optimized_noise("optimised noise times 0.9", SCALE)
def _(patch):
    scaled_noise(patch, lambda total: 0.9, OptimizedNoise)


@mutant_of_optimized_noise("optimised noise forgets the clip norm", SCALE)
def _(patch):
    honest = OptimizedNoise.law
    patch.setattr(OptimizedNoise, "law", lambda self, bound, at: honest(self, 1.0, at))


@mutant_of_optimized_noise("weights from the sum that noise is to hide", SCALE)
def _(patch):
    honest = OptimizedNoise.add

    def add(self, total, at):
        return honest(replace(self, weights=Fixed(total.value.abs() + 0.01)), total, at)

    patch.setattr(OptimizedNoise, "add", add)


@mutant_of_optimized_noise("the same directions in every step", INDEPENDENCE)
def _(patch):
    honest = Stream.normals
    other_normals(patch, lambda stream, number, step: honest(stream, number, step=0))


@mutant_of_optimized_noise("exponentials that end at 16.6", TAIL)
def _(patch):
    def draw(self, number, *, step):
        uniform = (self.words(number, step=step) >> np.uint64(40)).astype(np.float64) * 2.0**-24
        return -np.log(np.maximum(uniform, 2.0**-24))

    patch.setattr(Stream, "exponentials", draw)
