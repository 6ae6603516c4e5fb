"""A release is the sum plus real-valued noise, rounded exactly: float64 errors change nothing, and a cell has the
probability that real-valued noise gives it.
"""

from __future__ import annotations

import math
from fractions import Fraction

import mpmath
import numpy as np
import pytest
import torch
from contracts import stream
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

import sordino as so
from sordino.kernel import randomness
from sordino.kernel.lattice import LATTICE_BITS, ConstantScale, rounded_sum, spacing_of, spacings_of
from sordino.kernel.noise import NoiseAt
from sordino.kernel.randomness import NORMAL_ERROR, Stream
from sordino.kernel.states import BoundedSum, Layout
from sordino.optimized_noise import best_blocks, isotropic, weighted_laplace
from sordino.optimized_noise.block_norm import Gammas
from sordino.optimized_noise.noise import OptimizedNoise
from sordino.optimized_noise.sources import Fixed

SIZE = 200_000
HONEST_FILL = Stream.fill_with_normals


def total_of(value):
    return BoundedSum(value, 1.0, Layout(("w",), ((len(value),),)))


def sums(size=SIZE):
    return torch.from_numpy(np.random.default_rng(1).normal(size=size) * 10)


def perturb(monkeypatch, size):
    """Moves every normal in float64 by a random amount of at most `size`."""
    randomness = np.random.default_rng(0)

    def fill(self, out, *, step, block):
        HONEST_FILL(self, out, step=step, block=block)
        out += randomness.uniform(-size, size, len(out))

    monkeypatch.setattr(Stream, "fill_with_normals", fill)


NOISES = [
    so.Gaussian(1.3),
    so.Gaussian(0.7),
    OptimizedNoise(0.5, Fixed(torch.logspace(-3, 0, SIZE)), fit=weighted_laplace),
    OptimizedNoise(0.5, Fixed(torch.logspace(-3, 0, SIZE)), fit=best_blocks),
    OptimizedNoise(0.5, Fixed(torch.ones(SIZE)), fit=isotropic),
]


@pytest.mark.parametrize("noise", NOISES, ids=["1.3", "0.7", "laplace", "blocks", "isotropic"])
def test_errors_of_float64_change_no_release(noise, monkeypatch):
    at = NoiseAt(stream(), 3)
    released = noise.add(total_of(sums()), at).value
    perturb(monkeypatch, NORMAL_ERROR / 2)
    assert torch.equal(noise.add(total_of(sums()), at).value, released)
    perturb(monkeypatch, NORMAL_ERROR * 2**17)
    assert not torch.equal(noise.add(total_of(sums()), at).value, released)


def test_normals_are_as_near_to_the_real_ones_as_the_rounding_takes_for_granted():
    drawn = stream().normals(70_000, step=5)
    places = range(0, 70_000, 300)
    real = [float(stream().normal_interval(place, step=5, further=1).mid) for place in places]
    # The rounding allows for 2^-41; the libraries here are right to a few units in the last place.
    assert np.abs(drawn[::300] - real).max() < 2.0**-48


def test_cosines_that_are_looked_up_are_right():
    exact = mpmath.mp.clone()
    exact.prec = 100
    for place in range(0, randomness._INTERVALS, 7):
        angle = (2 * place + 1) * exact.pi / randomness._INTERVALS
        assert abs(exact.cos(angle) - randomness._COSINES[place]) < 2.0**-50
        assert abs(exact.sin(angle) - randomness._SINES[place]) < 2.0**-50


def test_cosines_and_sines_are_right_within_each_interval():
    """At both ends and in the middle of intervals, where the error of the two terms is largest."""
    places = np.arange(0, randomness._INTERVALS, 13, dtype=np.uint64) << np.uint64(64 - 13)
    within = np.array([0, 1, 2**48, 2**50 - 1, 2**50, 2**50 + 3, 2**51 - 2**47, 2**51 - 1], np.uint64)
    turns = (places[:, None] + within).ravel()
    cosines, sines = np.empty(len(turns)), np.empty(len(turns))
    randomness._fill_with_cosines(turns.copy(), np.ones(len(turns)), cosines, sines)
    exact = mpmath.mp.clone()
    exact.prec = 120
    for turn, cosine, sine in zip(turns.tolist(), cosines.tolist(), sines.tolist(), strict=True):
        angle = 2 * exact.pi * turn / 2**64
        assert abs(exact.cos(angle) - cosine) < 2.0**-49 and abs(exact.sin(angle) - sine) < 2.0**-49


def test_logarithms_are_right_to_the_last_bits():
    """Exact rounding assumes an error of at most 2^-47. Tested for 1,000 uniforms, also near both ends."""
    drawn = stream().uniforms(1000, step=0)
    uniforms = np.concatenate([drawn, 2.0 ** -np.arange(1, 22), 1 - 2.0 ** -np.arange(2, 22)])
    exact = mpmath.mp.clone()
    exact.prec = 120
    for uniform, found in zip(uniforms.tolist(), np.log(uniforms).tolist(), strict=True):
        assert abs(found / exact.log(uniform) - 1) < 2.0**-50


class Rare(Stream):
    """A stream in which each uniform of a radius is the given word, with further bits from another stream."""

    word = 0

    def words(self, number, *, step, block=0, first=0):
        return np.full(number, 0 if block % 2 else self.word, np.uint64)

    def named(self, name):
        return stream().named(name)


@pytest.mark.parametrize("word", [0, 1, 2**20, 2**42 - 1, 2**64 - 1, 2**64 - 2**43 + 1])
def test_what_float64_cannot_tell_is_drawn_with_more_bits(word):
    rare = Rare(b"")
    object.__setattr__(rare, "word", word)
    found = float(rare.normals(1, step=0)[0])
    lowest, highest = (math.sqrt(-2 * math.log1p(-(2**64 - x) / 2**64)) if x > 2**63 else
                       math.sqrt(-2 * math.log(x / 2**64)) if x else math.inf for x in (word + 1, word))  # fmt: skip
    assert lowest * (1 - 1e-14) <= found <= highest * (1 + 1e-14)
    assert math.isfinite(found)


@settings(deadline=None, max_examples=50)
@given(st.floats(-1e15, 1e15), st.floats(1e-3, 1e6))
def test_the_nearest_lattice_point_is_released(value, std):
    spacing = spacing_of(std)
    released = rounded_sum(
        torch.full((8,), value, dtype=torch.float64), ConstantScale(std), spacing, stream=stream(), step=1
    )
    normals = stream().normals(8, step=1)
    for found, normal in zip(released.tolist(), normals.tolist(), strict=True):
        exact = Fraction(value) + Fraction(std) * Fraction(normal)
        assert (
            abs(Fraction(found) - exact)
            <= Fraction(spacing) * (Fraction(1, 2) + Fraction(2) ** -20) + abs(exact) * Fraction(2) ** -53
        )


def bytes_of(value):
    return so.Gaussian(1.0).add(total_of(value), NoiseAt(stream(), 0)).value.numpy().tobytes()


def test_a_huge_coordinate_changes_no_other():
    """A block with a sum far above the noise is rounded in two parts, and others in one."""
    value = sums(1000)
    released = so.Gaussian(1.0).add(total_of(value), NoiseAt(stream(), 0)).value
    for huge in (2.0**10, -(2.0**40), 1e300, math.inf):
        value[500] = huge
        found = so.Gaussian(1.0).add(total_of(value), NoiseAt(stream(), 0)).value
        assert torch.equal(found[:500], released[:500]) and torch.equal(found[501:], released[501:])


@pytest.mark.parametrize("size", [2.0**8, 2.0**9 - 1e-9, 2.0**9, 2.0**9 + 1e-9, 2.0**20 + 1e-6])
def test_sums_on_either_side_of_that_limit_are_rounded_exactly(size):
    value = torch.linspace(-size, size, 500, dtype=torch.float64)
    released = rounded_sum(value, ConstantScale(1.0), 2.0**-16, stream=stream(), step=1)
    normals = stream().normals(500, step=1)
    for found, part, normal in zip(released.tolist(), value.tolist(), normals.tolist(), strict=True):
        assert found == float(Fraction(round((Fraction(part) + Fraction(normal)) * 2**16), 2**16))


def test_a_release_does_not_tell_the_sign_of_a_zero():
    """About one release in 10^5 is zero. Zeros of a sum have a sign, which is not part of its real value."""
    assert bytes_of(torch.full((SIZE,), -0.0, dtype=torch.float64)) == bytes_of(torch.zeros(SIZE, dtype=torch.float64))


def test_the_number_of_threads_changes_no_release():
    value, found, before = sums(3_300_000), [], torch.get_num_threads()
    try:
        for threads in (1, 3):
            torch.set_num_threads(threads)
            found.append(bytes_of(value))
    finally:
        torch.set_num_threads(before)
    assert found[0] == found[1]


def test_float32_sums_and_float64_sums_are_released_alike():
    value = sums(1000).float()
    one, other = (so.Gaussian(1.0).add(total_of(x), NoiseAt(stream(), 0)).value for x in (value, value.double()))
    assert torch.equal(one, other)


def test_spacings_are_those_of_each_standard_deviation():
    stds = np.array([1.0, 1.5, 2.0, 0.1, 1e-300, 3e200])
    assert spacings_of(stds).tolist() == [spacing_of(std) for std in stds]
    assert spacing_of(1.0) == 2.0**-LATTICE_BITS


def test_a_sum_that_is_not_finite_stays_so_and_ends():
    value = torch.tensor([math.inf, math.nan, 0.0], dtype=torch.float64)
    released = so.Gaussian(1.0).add(total_of(value), NoiseAt(stream(), 0)).value
    assert not released[:2].isfinite().any() and released[2].isfinite()


def log_chance_of_cell(released, total, std, spacing):
    """The log-ratio of the probabilities of a cell for float32 normals and for real normals.

    It is 0 for cells that contain a power of two, where the spacing of float32 changes.
    """
    low, high = (np.abs(released - total) + side * spacing / 2 for side in (-1, 1))
    low, high = low / std, high / std
    binade = 2.0 ** np.floor(np.log2(np.maximum(low, 2.0**-30)))
    numbers = np.floor(high / binade * 2**23) - np.floor(low / binade * 2**23)
    chance = np.log(np.maximum(numbers, 0.5) / ((high - low) / binade * 2**23))
    return np.where((low > 2.0**-6) & (high < 2 * binade), chance, 0.0)


def attack(size=3_000_000):
    """The standard score of an attacker who counts the generator values that explain a release.

    The record moves each coordinate slightly, as one of a batch does. The evidence in exact normal noise is left out.
    """
    noise = so.Gaussian(1.37)
    std, spacing = noise.std(1.0), spacing_of(noise.std(1.0))
    neighbours = [np.zeros(size), np.full(size, 1 / math.sqrt(size))]
    score, spread = 0.0, 0.0
    for truth, other in (neighbours, neighbours[::-1]):
        released = noise.add(total_of(torch.from_numpy(truth)), NoiseAt(stream(), 0)).value.numpy()
        told = log_chance_of_cell(released, truth, std, spacing) - log_chance_of_cell(released, other, std, spacing)
        score, spread = score + told.sum(), math.hypot(spread, told.std() * math.sqrt(size))
    return score / spread


def test_the_attack_that_counts_generator_values_learns_nothing():
    assert abs(attack()) < 5


def test_the_attack_that_counts_generator_values_sees_noise_in_float32(monkeypatch):
    def fill(self, out, *, step, block):
        HONEST_FILL(self, out, step=step, block=block)
        out[:] = out.astype(np.float32)

    monkeypatch.setattr(Stream, "fill_with_normals", fill)
    assert attack() > 5


@pytest.mark.parametrize("shape", [1.0, 1.5, 3.0, 1000.0])
def test_gammas_are_of_their_law(shape):
    drawn = Gammas.draw(np.full(20_000, shape), stream(), step=2)
    assert stats.kstest(drawn.values, stats.gamma(shape).cdf).pvalue > 1e-6
    for index in range(0, 20_000, 2_003):
        real = float(drawn.interval(index, 1).mid)
        assert abs(drawn.values[index] / real - 1) <= 2 * drawn.errors[index]


def test_errors_of_float64_change_no_gamma(monkeypatch):
    drawn = Gammas.draw(np.full(100_000, 1.0), stream(), step=2)
    perturb(monkeypatch, NORMAL_ERROR / 2)
    again = Gammas.draw(np.full(100_000, 1.0), stream(), step=2)
    assert np.array_equal(drawn.accepted, again.accepted) and np.array_equal(drawn.places, again.places)
