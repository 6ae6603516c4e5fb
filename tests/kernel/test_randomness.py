"""Draws depend on their address only: not on threads, processes or the number of values requested."""

from __future__ import annotations

import math
import multiprocessing
import threading
import tracemalloc

import numpy as np
import pytest
import torch
from contracts import stream
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binomtest, chisquare, kstest

from sordino.kernel import randomness
from sordino.kernel.randomness import NORMALS_PER_BLOCK, Stream

PAIRS = NORMALS_PER_BLOCK // 2
MANY = 50 * NORMALS_PER_BLOCK + 12_345  # enough for three threads, and a part of a block


@pytest.fixture(autouse=True)
def _threads_as_before():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def drawn(number=MANY):
    return stream().normals(number, step=3).tobytes()


def test_the_number_of_threads_changes_nothing():
    torch.set_num_threads(1)
    alone = drawn()
    for threads in (2, 3, 40):
        torch.set_num_threads(threads)
        assert drawn() == alone


@pytest.mark.parametrize("number", [0, 1, 1000, PAIRS - 1, PAIRS, PAIRS + 1, NORMALS_PER_BLOCK, NORMALS_PER_BLOCK + 1])
def test_a_short_draw_is_the_beginning_of_a_long_one(number):
    assert drawn(number) == drawn(3 * NORMALS_PER_BLOCK)[: 8 * number]


def test_normals_are_those_of_box_and_muller():
    found = stream().normals(2 * NORMALS_PER_BLOCK, step=3)
    for block in range(2):
        radius, angle = (stream().words(PAIRS, step=3, block=2 * block + half) * 2.0**-64 for half in (0, 1))
        radius, angle = np.sqrt(-2 * np.log(radius)), 2 * math.pi * angle
        expected = np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])
        part = found[block * NORMALS_PER_BLOCK :][:NORMALS_PER_BLOCK]
        np.testing.assert_allclose(part, expected, rtol=0, atol=1e-9)


def test_named_streams_share_nothing():
    words = [stream().named(name).words(1000, step=0) for name in ("radius", "further bits")] + [
        stream().words(1000, step=0)
    ]
    assert len(np.unique(np.concatenate(words))) == 3000


class Told(Stream):
    """A stream that tells `hear` which block of normals a thread is about to draw."""

    def __init__(self, hear):
        super().__init__(b"")
        object.__setattr__(self, "hear", hear)

    def words(self, number, *, step, block=0):
        self.hear(block // 2)
        return np.full(number, 2**63, np.uint64)


def meeting(threads):
    """A function that blocks each thread until so many have called it."""
    everybody, here = threading.Barrier(threads), threading.local()

    def meet(block):
        if not hasattr(here, "met"):
            here.met = everybody.wait(timeout=20)

    return meet


def test_much_is_drawn_on_as_many_threads_as_torch_may_use():
    torch.set_num_threads(3)
    Told(meeting(3)).normals(MANY, step=0)


def test_little_is_drawn_without_help():
    torch.set_num_threads(4)
    drawn_by = []
    Told(lambda block: drawn_by.append(threading.current_thread())).normals(9 * NORMALS_PER_BLOCK, step=0)
    assert drawn_by == 18 * [threading.current_thread()]  # words of radii and of angles


@pytest.mark.parametrize("by_caller", [True, False])
def test_a_block_that_fails_fails_the_draw_whoever_draws_it(by_caller):
    torch.set_num_threads(2)
    caller, meet = threading.current_thread(), meeting(2)

    def fail(block):
        meet(block)
        if (threading.current_thread() is caller) == by_caller:
            raise MemoryError("no room for this block")

    with pytest.raises(MemoryError, match="no room"):
        Told(fail).normals(MANY, step=0)


def drawn_by_two():
    Told(meeting(2)).normals(MANY, step=0)
    return drawn()


@pytest.mark.skipif("fork" not in multiprocessing.get_all_start_methods(), reason="this system has no fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")  # other libraries' threads are not used in the child
def test_a_forked_process_draws_the_same_with_helpers_of_its_own():
    torch.set_num_threads(2)
    here = drawn_by_two()
    with multiprocessing.get_context("fork").Pool(1) as children:
        assert children.apply_async(drawn_by_two).get(timeout=60) == here


@settings(deadline=None)
@given(st.floats(0, 1, exclude_min=True), st.integers(0, 50))
def test_those_are_chosen_whose_uniform_and_the_next_one_are_at_most_the_chance(chance, step):
    uniforms = stream().uniforms(500, step=step)
    assert np.array_equal(stream().chosen(500, chance, step=step), np.flatnonzero(uniforms + 2.0**-53 <= chance))
    border = float(uniforms[0]) + 2.0**-53
    assert 0 in stream().chosen(500, border, step=step)
    assert 0 not in stream().chosen(500, math.nextafter(border, 0), step=step)


def test_nobody_is_chosen_with_a_chance_below_all_uniforms():
    assert not len(stream().chosen(500, 2.0**-54, step=0)) and not len(stream().chosen(500, 0.0, step=0))
    assert len(stream().chosen(500, 1.0, step=0)) == 500


@settings(deadline=None)
@given(st.integers(1, 3000), st.data())
def test_a_subset_is_the_first_of_the_permutation(number, data):
    size = data.draw(st.integers(1, number))
    expected = np.sort(stream().permutation(number, step=7)[:size])
    assert np.array_equal(stream().subset(number, size, step=7), expected)


@pytest.mark.parametrize("size", [1, 50_000, 99_999, 100_000])
def test_a_subset_of_many_is_the_first_of_the_permutation(size):
    expected = np.sort(stream().permutation(100_000, step=7)[:size])
    assert np.array_equal(stream().subset(100_000, size, step=7), expected)


@pytest.mark.parametrize("word", [0, 2**63, 2**64 - 1])
def test_a_subset_has_its_size_even_if_all_words_are_equal(word):
    class Equal(Stream):
        def words(self, number, *, step, block=0):
            return np.full(number, word, np.uint64)

    assert Equal(b"").subset(1000, 10, step=0).tolist() == list(range(10))


def geometric_law(gaps, probability):
    """The p-value of a chi-square test that gaps are geometric, with about equally probable classes."""
    classes = 20
    edges = np.unique(np.floor(np.log1p(-np.arange(1, classes) / classes) / np.log1p(-probability)).astype(int))
    edges = edges[edges > 0]
    counts = np.bincount(np.searchsorted(edges, gaps, side="right"), minlength=len(edges) + 1)
    survival = np.concatenate([[1.0], (1 - probability) ** edges.astype(float), [0.0]])
    return chisquare(counts, -np.diff(survival) * len(gaps)).pvalue


@pytest.mark.parametrize("probability", [1e-6, 0.01, 0.125])
def test_gaps_are_geometric(probability):
    assert geometric_law(stream(seed=3).geometric(20_000, probability, step=5), probability) > 1e-3


@pytest.mark.parametrize("probability", [1e-7, 0.03, 0.125])
def test_gaps_are_those_of_real_numbers(probability):
    """Float64 decides nothing that exact intervals would decide otherwise."""
    drawn = [stream(seed=3).geometric(300, probability, step=5, error=error) for error in (0.0, 1.0)]
    assert np.array_equal(*drawn)


def test_a_gap_near_to_an_integer_is_decided_by_further_bits():
    """Uniforms from 1/2 on have a quotient just below 1, which float64 rounds to 1 and further bits to 0."""

    class Halves(Stream):
        def words(self, number, *, step, block=0, first=0):
            return np.full(number, 2**63, np.uint64)

    assert Halves(stream(seed=3).secret).geometric(3, 0.5, step=0).tolist() == [0, 0, 0]


@pytest.mark.parametrize("probability", [1e-7, 1e-4, 0.01])
def test_of_many_units_each_is_chosen_with_its_chance_and_memory_stays_small(probability):
    number, seeds = 50_000_000, range(12)
    tracemalloc.start()
    chosen = [stream(seed=seed).chosen(number, probability, step=seed) for seed in seeds]
    largest = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert all((np.diff(each) > 0).all() and (each >= 0).all() and (each < number).all() for each in chosen)
    total = sum(map(len, chosen))
    assert binomtest(total, number * len(seeds), probability).pvalue > 1e-3
    assert kstest(np.concatenate(chosen) / number, "uniform").pvalue > 1e-3
    assert largest < 200 * total + 2**20


def test_words_of_many_units_with_a_large_chance_are_read_in_parts(monkeypatch):
    whole = stream(seed=3).chosen(1000, 0.4, step=1)
    monkeypatch.setattr(randomness, "_MOST_WORDS", 64)
    assert np.array_equal(stream(seed=3).chosen(1000, 0.4, step=1), whole)


def test_a_draw_by_gaps_finds_every_subset_of_few_units_with_its_chance(monkeypatch):
    monkeypatch.setattr(randomness, "_MOST_WORDS", 2)
    draws, number, probability = 8000, 3, 0.125
    draw = stream(seed=3)
    found = [sum(1 << int(unit) for unit in draw.chosen(number, probability, step=step)) for step in range(draws)]
    members = np.array([subset.bit_count() for subset in range(2**number)])
    expected = draws * probability**members * (1 - probability) ** (number - members)
    assert chisquare(np.bincount(found, minlength=2**number), expected).pvalue > 1e-3
