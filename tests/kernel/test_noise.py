"""Noise reads the bound from the sum, depends on its address, and has a long enough tail."""

import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from contracts import LAYOUT, NoiseContract, stream
from scipy import stats

from sordino import Adjacency, Gaussian
from sordino.errors import UsageError
from sordino.kernel.noise import NoiseAt, check_tail
from sordino.kernel.randomness import NORMALS_PER_BLOCK, Key, Stream
from sordino.kernel.states import BoundedSum


class TestGaussian(NoiseContract):
    noise = Gaussian(1.3)

    def test_a_longer_vector_has_the_same_noise_at_its_beginning(self):
        assert torch.equal(self.add(size=200_000).value[:70_000], self.add(size=70_000).value)


class TestLittleGaussian(NoiseContract):
    noise = Gaussian(0.4)


def test_the_noise_is_normal_with_the_declared_standard_deviation():
    total = BoundedSum(torch.zeros(300_000, dtype=torch.float64), 0.5, LAYOUT)
    noise = Gaussian(3.0).add(total, NoiseAt(stream("noise"), 0)).value.numpy() / 1.5
    # chi-square on 300,000 draws: a false alarm in a million, and a scale wrong by 0.7 % is seen
    square = float((noise**2).sum())
    assert 1e-6 < 2 * min(stats.chi2.cdf(square, 300_000), stats.chi2.sf(square, 300_000))
    assert stats.kstest(noise, "norm").pvalue > 1e-6


def test_steps_and_blocks_are_uncorrelated():
    rows = np.stack([stream("noise").normals(4 * NORMALS_PER_BLOCK, step=step) for step in range(3)])
    blocks = rows.reshape(12, NORMALS_PER_BLOCK)
    correlations = np.corrcoef(blocks) - np.eye(12)
    # 66 pairs: the largest correlation exceeds 6 / sqrt(65536) with chance 1.3e-7
    assert np.abs(correlations).max() < 6 / math.sqrt(NORMALS_PER_BLOCK)


def test_the_result_lies_on_a_lattice_that_does_not_depend_on_the_sum():
    for value in (0.0, 1 / 3, 1e-9):
        total = BoundedSum(torch.full((1000,), value, dtype=torch.float64), 1.0, LAYOUT)
        released = Gaussian(1.0).add(total, NoiseAt(stream("noise"), 0)).value
        assert torch.equal(released * 2**16, (released * 2**16).round())


@pytest.mark.parametrize("multiplier", [0.001, 0.7, 1.0, 1.1, 999.0])
@pytest.mark.parametrize("bound", [1e-12, 0.3, 2.0, 1e12])
def test_the_release_is_the_sum_and_the_noise_rounded_once(multiplier, bound):
    value = bound * torch.linspace(-50, 50, 1000, dtype=torch.float64) ** 3
    total = BoundedSum(value.clone(), bound, LAYOUT)
    noise_std = Gaussian(multiplier).std(bound)
    spacing = 2.0 ** (math.floor(math.log2(noise_std)) - 16)
    normals = stream("noise").normals(1000, step=4)
    released = Gaussian(multiplier).add(total, NoiseAt(stream("noise"), 4)).value
    for found, part, normal in zip(released.tolist(), value.tolist(), normals.tolist(), strict=True):
        nearest = round((Fraction(part) + Fraction(noise_std) * Fraction(normal)) / Fraction(spacing))
        assert found == float(nearest * Fraction(spacing))
    assert torch.equal(total.value, value)


class FixedWords(Stream):
    """A stream with chosen words for radii and their further bits, to reach the end of the tail."""

    def words(self, number, *, step, block=0, first=0):
        return np.full(number, 0 if block % 2 else WORDS[0], np.uint64)

    def named(self, name):
        return FurtherWords(b"")


class FurtherWords(Stream):
    def words(self, number, *, step, block=0, first=0):
        return np.array([WORDS[1], *[1] * (number - 1)], np.uint64)


WORDS = [0, 0]


def radius(word, further=1):
    WORDS[:] = [word, further]
    return float(FixedWords(b"").normals(1, step=0)[0])  # the angle is 0, so that this is the radius itself


def test_the_tail_goes_on_without_a_gap_and_without_an_end():
    words = [2**k for k in range(63, 0, -1)]
    assert [radius(word) for word in words] == pytest.approx([math.sqrt(-2 * math.log(w / 2**64)) for w in words])
    further = [radius(0, 2**k) for k in range(63, 0, -1)]
    assert further == pytest.approx([math.sqrt(-2 * math.log(2**k / 2**128)) for k in range(63, 0, -1)])
    assert 13.2 < further[-1] < radius(0, 1) == pytest.approx(math.sqrt(-2 * math.log(2.0**-128)))
    assert 16 < radius(0, 0) < 17


class Ending(Gaussian):
    """A user-defined noise whose finite range is seen with probability 1e-9 per step."""

    def tail_risk(self, sensitivity, steps):
        return 1e-9 * steps


def test_noise_has_no_end_that_could_be_met_and_noise_that_has_one_is_refused():
    check_tail(Gaussian(0.001), Adjacency.REPLACE_ONE, steps=10**9, delta=0.0)
    check_tail(Ending(1.0), Adjacency.ZERO_OUT, steps=9, delta=1e-5)
    with pytest.raises(UsageError, match="noise_multiplier is too small"):
        check_tail(Ending(1.0), Adjacency.ZERO_OUT, steps=11, delta=1e-5)


@pytest.mark.parametrize("multiplier", [0, -1.0, float("nan"), float("inf"), 1e-12, 1e7, "1", None, True])
def test_a_noise_multiplier_that_protects_nobody_is_refused(multiplier):
    with pytest.raises(UsageError, match="noise_multiplier must be"):
        Gaussian(multiplier)


def test_streams_of_one_key_share_nothing():
    key = Key.from_seed(0)
    words = np.concatenate(
        [key.stream(name).words(1000, step=0) for name in ("sampling", "noise", "coding", "dropout")]
    )
    assert len(np.unique(words)) == 4000


def test_words_never_repeat_over_steps_and_blocks():
    words = np.concatenate([stream().words(100, step=step, block=block) for step in range(30) for block in range(3)])
    assert len(np.unique(words)) == len(words)


def test_bytes_are_those_of_aes_in_counter_mode():
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

    key = Key.from_seed(5).stream("noise")
    counter = (7).to_bytes(6, "big") + (2).to_bytes(4, "big") + bytes(6)
    encryptor = Cipher(algorithms.AES(key.secret), modes.CTR(counter)).encryptor()
    assert key.words(200_000, step=7, block=2).tobytes() == encryptor.update(bytes(1_600_000))


def test_a_key_does_not_show_its_secret():
    key = Key.fresh()
    assert key.secret.hex() not in repr(key) and str(key.secret) not in repr(key)
    assert "secret" not in repr(key.stream("noise"))


@pytest.mark.parametrize("seed", [-1, 1.5, "0", 2**63, True])
def test_a_seed_is_a_whole_number(seed):
    with pytest.raises(UsageError, match="seed must be a whole number"):
        Key.from_seed(seed)
