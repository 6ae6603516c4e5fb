"""Bugs that were found in differentially private training code, or are easy to make, to be planted in the kernel.

Each has a name, the check of the verification that must detect it, and a function that plants it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mutants.planting import Mutant, Patches, Plant
from sordino.accounting import Adjacency, tightest
from sordino.accounting.accountant_views import views_of
from sordino.gradients import blocks
from sordino.gradients.layers import LinearOperation
from sordino.gradients.norms import Lengths
from sordino.gradients.norms import lengths_of_products as honest_lengths
from sordino.gradients.taped import TapedGradients
from sordino.kernel import clipping, contribution, run, sampling, step
from sordino.kernel.clipping import ClipByNorm
from sordino.kernel.contribution import LossGradient
from sordino.kernel.noise import Gaussian
from sordino.kernel.randomness import Key, Stream
from sordino.kernel.run import PrivateRun
from sordino.kernel.sampling import Poisson
from sordino.kernel.states import BoundedSum, Dense, Private
from sordino.kernel.step import BegunStep
from sordino.optimized_noise.noise import OptimizedNoise
from sordino.optimized_noise.sources import Fixed
from sordino.verification import neighbor_replay, sampler_checks, step_count
from sordino.verification.noise_checks import INDEPENDENCE, SCALE, TAIL

SENSITIVITY, SAMPLER, ACCOUNTANT = neighbor_replay.NAME, sampler_checks.NAME, step_count.ACCOUNTANT
LEDGER, CONSTANTS, RELEASES = step_count.STEPS, step_count.CONSTANTS, step_count.RELEASES
GRADIENTS = neighbor_replay.GRADIENTS

Draw = Callable[[Stream, int, int, int], NDArray[Any]]

MUTANTS: list[Mutant] = []
OF_OPTIMIZED_NOISE: list[Mutant] = []
OF_PLACES: list[Mutant] = []


def mutant(name: str, caught_by: str, among: list[Mutant] = MUTANTS) -> Callable[[Plant], Plant]:
    def register(plant: Plant) -> Plant:
        among.append(Mutant(name, caught_by, plant))
        return plant

    return register


def scaled_noise(patch: Patches, factor: Callable[[BoundedSum], float]) -> None:
    honest = Gaussian.add

    def add(self: Any, total: Any, at: Any) -> Private:
        return scaled(honest(self, total, at), total, factor(total))

    patch.set(Gaussian, "add", add)


def scaled(released: Private, total: BoundedSum, factor: float) -> Private:
    return replace(released, undivided=total.value + factor * (released.value - total.value))


def other_normals(patch: Patches, draw: Draw) -> None:
    """Draws the normals of every block by `draw(stream, number, step, block)`."""

    def fill(self: Stream, out: NDArray[Any], *, step: int, block: int) -> None:
        out[:] = draw(self, len(out), step, block)

    patch.set(Stream, "fill_with_normals", fill)


_honest_fill = Stream.fill_with_normals


def honest_normals(stream: Stream, number: int, step: int, block: int) -> NDArray[Any]:
    out = np.empty(number)
    _honest_fill(stream, out, step=step, block=block)
    return out


@mutant("noise times 0.9", SCALE)
def _noise_times_0_9(patch: Patches) -> None:
    scaled_noise(patch, lambda total: 0.9)


@mutant("noise times 0.5", SCALE)
def _noise_times_0_5(patch: Patches) -> None:
    scaled_noise(patch, lambda total: 0.5)


@mutant("noise forgets the clip norm", SCALE)
def _noise_forgets_the_clip_norm(patch: Patches) -> None:
    scaled_noise(patch, lambda total: 1 / total.bound)


@mutant("noise divided by the batch size", SCALE)
def _noise_divided_by_the_batch_size(patch: Patches) -> None:
    honest, drawn = step.begin, list[int]()

    def begin(plan: Any, state: Any, number: int, joined: Tensor, streams: Any) -> BegunStep:
        drawn.append(max(1, len(joined)))
        return honest(plan, state, number, joined, streams)

    for caller in (step, run):
        patch.set(caller, "begin", begin)
    scaled_noise(patch, lambda total: 1 / drawn[-1] if drawn else 1.0)


@mutant("no noise on the bias", SCALE)
def _no_noise_on_the_bias(patch: Patches) -> None:
    honest = Gaussian.add

    def add(self: Any, total: Any, at: Any) -> Private:
        released = honest(self, total, at)
        value = released.value.clone()
        last = total.layout.sizes[-1]
        if len(total.layout.sizes) > 1:
            value[-last:] = total.value[-last:]
        return replace(released, undivided=value)

    patch.set(Gaussian, "add", add)


@mutant("clips the mean of the batch", SENSITIVITY)
def _clips_the_mean_of_the_batch(patch: Patches) -> None:
    def clip(self: Any, each: Any) -> BoundedSum:
        count = max(1, len(each.squared_norms()))
        total = sum((rows.nan_to_num(0, 0, 0).double().sum(0) for rows in each.rows(16)), torch.zeros(each.layout.size))
        mean = total / count
        return BoundedSum(count * mean * min(1.0, self.norm / max(1e-12, float(mean.norm()))), self.norm, each.layout)

    patch.set(ClipByNorm, "__call__", clip)


@mutant("clips each layer at the whole norm", SENSITIVITY)
def _clips_each_layer_at_the_whole_norm(patch: Patches) -> None:
    def clip(self: Any, each: Any) -> BoundedSum:
        total = clipping.ClipPerLayer((self.norm,) * len(each.layout.sizes))(each)
        return BoundedSum(total.value, self.norm, each.layout)

    patch.set(ClipByNorm, "__call__", clip)


@mutant("does not clip the bias", SENSITIVITY)
def _does_not_clip_the_bias(patch: Patches) -> None:
    def forgetful(honest: Any) -> Any:
        def sum_weighted_by(self: Any, weights_of: Any, bound: float = 0.0) -> Any:
            def without_biases(squares: Any) -> Any:
                squares = squares.clone()
                squares[:, 1::2] = 0
                return weights_of(squares)

            return honest(self, without_biases, bound)

        return sum_weighted_by

    for form in (Dense, TapedGradients):
        patch.set(form, "sum_weighted_by", forgetful(form.sum_weighted_by))


@mutant("a record that is not finite poisons the sum", SENSITIVITY)
def _a_record_that_is_not_finite_poisons_the_sum(patch: Patches) -> None:
    def shrink(norms: Any, largest: Any) -> Any:
        return (largest / norms).clamp(max=1.0)

    patch.set(clipping, "_shrink", shrink)
    patch.set(clipping, "_sum_of_rows", lambda each, weights: each.weighted_sum(weights))
    honest = LossGradient.of

    def of(self: Any, model: Any, batch: Any, seeds: Any) -> Dense:
        each = honest(self, model, batch, seeds)
        rows = torch.cat([*each.rows(16), torch.zeros(0, each.layout.size)])
        return Dense(torch.where(batch.valid[:, None], rows, torch.nan), each.layout)

    patch.set(LossGradient, "of", of)


@mutant("the same noise in every step", INDEPENDENCE)
def _the_same_noise_in_every_step(patch: Patches) -> None:
    other_normals(patch, lambda stream, number, step, block: honest_normals(stream, number, 0, block))


@mutant("noise in float16", SCALE)
def _noise_in_float16(patch: Patches) -> None:
    other_normals(patch, lambda *address: honest_normals(*address).astype(np.float16))


@mutant("noise in float32", SCALE)
def _noise_in_float32(patch: Patches) -> None:
    other_normals(patch, lambda *address: honest_normals(*address).astype(np.float32))


@mutant("noise that ends at 5.77 standard deviations", TAIL)
def _noise_that_ends_at_5_77_standard_deviations(patch: Patches) -> None:
    other_normals(patch, lambda *address: honest_normals(*address).clip(-5.77, 5.77))


@mutant("shuffled batches, accounted as Poisson", SAMPLER)
def _shuffled_batches_accounted_as_poisson(patch: Patches) -> None:
    def batches(self: Any, num_units: int, randomness: Stream, start: int = 0) -> Iterator[Any]:
        per_epoch = max(1, round(1 / self.rate))
        shuffled = sampling.Shuffled(per_epoch, math.ceil(self.steps / per_epoch))
        drawn = shuffled.batches(num_units, randomness, start)
        return (next(drawn) for _ in range(start, self.steps))

    patch.set(Poisson, "batches", batches)


@mutant("divides by the batch that was drawn", SCALE)
def _divides_by_the_batch_that_was_drawn(patch: Patches) -> None:
    honest = step.finish

    def finish(begun: BegunStep, total: BoundedSum, state: Any, release: Any) -> tuple[Private, Any]:
        private, after = honest(begun, total, state, release)
        return private.divide(max(1, len(begun.indices))), after

    for caller in (step, run):
        patch.set(caller, "finish", finish)


@mutant("divides by the size of the data times the rate", CONSTANTS)
def _divides_by_the_size_of_the_data_times_the_rate(patch: Patches) -> None:
    patch.set(Poisson, "expected_batch_size", lambda self, num_units: math.floor(num_units * self.rate))


@mutant("an operation across examples", SENSITIVITY)
def _an_operation_across_examples(patch: Patches) -> None:
    honest = LossGradient.of

    def of(self: Any, model: Any, batch: Any, seeds: Any) -> Any:
        centred = tuple(x - x.mean(dim=0) if x.is_floating_point() and len(x) else x for x in batch.inputs)
        return honest(self, model, replace(batch, inputs=centred), seeds)

    patch.set(LossGradient, "of", of)


@mutant("skips empty batches", LEDGER)
def _skips_empty_batches(patch: Patches) -> None:
    honest = PrivateRun._next_batch

    def somebody(self: Any) -> Tensor:
        while not len(joined := honest(self)):
            pass
        return joined

    patch.set(PrivateRun, "_next_batch", somebody)


@mutant("accounts for half the rate", ACCOUNTANT)
def _accounts_for_half_the_rate(patch: Patches) -> None:
    honest = Poisson.compose

    def compose(self: Any, release: Any, steps: int) -> Any:
        return honest(replace(self, rate=self.rate / 2), release, steps)

    patch.set(Poisson, "compose", compose)


@mutant("accounts for epochs instead of steps", ACCOUNTANT)
def _accounts_for_epochs_instead_of_steps(patch: Patches) -> None:
    honest = Poisson.compose
    patch.set(Poisson, "compose", lambda self, release, steps: honest(self, release, math.ceil(steps * self.rate)))


@mutant("does not clip at all", SENSITIVITY)
def _does_not_clip_at_all(patch: Patches) -> None:
    honest = ClipByNorm.__call__

    def clip(self: Any, each: Any) -> BoundedSum:
        total = honest(ClipByNorm(1e6), each)
        return BoundedSum(total.value, self.norm, each.layout)

    patch.set(ClipByNorm, "__call__", clip)


@mutant("batches of one size, accounted as Poisson", SAMPLER)
def _batches_of_one_size_accounted_as_poisson(patch: Patches) -> None:
    def batches(self: Any, num_units: int, randomness: Stream, start: int = 0) -> Iterator[Any]:
        size = round(self.rate * num_units)
        return (np.sort(randomness.permutation(num_units, step=step)[:size]) for step in range(start, self.steps))

    patch.set(Poisson, "batches", batches)


@mutant("replacing one is accounted as leaving one out", ACCOUNTANT)
def _replacing_one_is_accounted_as_leaving_one_out(patch: Patches) -> None:
    patch.set(tightest, "views_of", lambda event, adjacency: views_of(event, Adjacency.ZERO_OUT))


@mutant("one rule is wrong", GRADIENTS)
def _one_rule_is_wrong(patch: Patches) -> None:
    honest = LinearOperation.blocks

    def blocks(self: Any, saved: Any, output_gradient: Any) -> Any:
        return honest(self, saved, 0.8 * output_gradient)

    patch.set(LinearOperation, "blocks", blocks)


@mutant("a memory of the micro-batch before", SENSITIVITY)
def _a_memory_of_the_micro_batch_before(patch: Patches) -> None:
    honest = LossGradient.of
    sums: list[Tensor] = []

    def of(self: Any, model: Any, batch: Any, seeds: Any) -> Any:
        sign = -1.0 if sums and float(sums.pop()) < 0 else 1.0
        sums.append(batch.inputs[0].nan_to_num().double().sum())
        return honest(self, model, replace(batch, inputs=tuple(sign * x for x in batch.inputs)), seeds)

    patch.set(LossGradient, "of", of)


@mutant("optimised noise times 0.9", SCALE, OF_OPTIMIZED_NOISE)
def _optimised_noise_times_0_9(patch: Patches) -> None:
    honest = OptimizedNoise.add_and_learn

    def add_and_learn(self: Any, total: Any, at: Any) -> Any:
        released, state = honest(self, total, at)
        return scaled(released, total, 0.9), state

    patch.set(OptimizedNoise, "add_and_learn", add_and_learn)


@mutant("optimised noise forgets the clip norm", SCALE, OF_OPTIMIZED_NOISE)
def _optimised_noise_forgets_the_clip_norm(patch: Patches) -> None:
    honest = OptimizedNoise.law
    patch.set(OptimizedNoise, "law", lambda self, bound, at: honest(self, 1.0, at))


@mutant("weights from the sum that noise is to hide", SCALE, OF_OPTIMIZED_NOISE)
def _weights_from_the_sum_that_noise_is_to_hide(patch: Patches) -> None:
    honest = OptimizedNoise.add_and_learn

    def add_and_learn(self: Any, total: Any, at: Any) -> Any:
        return honest(replace(self, weights=Fixed(total.value.abs() + 0.01)), total, at)

    patch.set(OptimizedNoise, "add_and_learn", add_and_learn)


@mutant("the same directions in every step", INDEPENDENCE, OF_OPTIMIZED_NOISE)
def _the_same_directions_in_every_step(patch: Patches) -> None:
    other_normals(patch, lambda stream, number, step, block: honest_normals(stream, number, 0, block))


@mutant("directions in float32", SCALE, OF_OPTIMIZED_NOISE)
def _directions_in_float32(patch: Patches) -> None:
    other_normals(patch, lambda *address: honest_normals(*address).astype(np.float32))


@mutant("optimised noise that ends at 5.77 standard deviations", TAIL, OF_OPTIMIZED_NOISE)
def _optimised_noise_that_ends_at_5_77_standard_deviations(patch: Patches) -> None:
    other_normals(patch, lambda *address: honest_normals(*address).clip(-5.77, 5.77))


@mutant("the number of the release is not in the address of its noise", RELEASES)
def _the_number_of_the_release_is_not_in_the_address_of_its_noise(patch: Patches) -> None:
    patch.set(Key, "of_release", lambda self, number: self)


@mutant("norms of places that cancel are not raised, and their sums are float32", SENSITIVITY, OF_PLACES)
def _norms_of_places_that_cancel_are_not_raised(patch: Patches) -> None:
    def lengths_of_products(one: Any, other: Any, features: int) -> Lengths:
        found = honest_lengths(one, other, features)
        return Lengths((one * other).sum(dim=(1, 2)).clamp(min=0).where(found.squares.isfinite(), torch.inf))

    patch.set(blocks, "lengths_of_products", lengths_of_products)
    patch.set(blocks.OfPlaces, "add_bounded", blocks.Block.add_bounded)


@mutant("a row that fails decides how all are computed", SENSITIVITY, OF_PLACES)
def _a_row_that_fails_decides_how_all_are_computed(patch: Patches) -> None:
    def without_failing_rows(attempt: Any, batch: Any, seeds: Any) -> Any:
        return attempt(batch, seeds), batch

    patch.set(contribution, "without_failing_rows", without_failing_rows)
