"""Contract suites, one per protocol. The test class of a new stage inherits the suite and provides the stage.

Statistical tests fix their seed. The false alarm rate of each is that of `verification`, one in a million.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from torch import Tensor

from sordino.accounting import privacy_of
from sordino.encodings.combined import CombinedCodec
from sordino.encodings.matched import BesideCodec, ScaleCodec
from sordino.encodings.project import EmbeddingCodec, ResidualCodec
from sordino.kernel.clipping import SCALED_TO, Clip
from sordino.kernel.encoding import Codec, Encoding
from sordino.kernel.noise import Gaussian, Noise, NoiseAt
from sordino.kernel.randomness import Key
from sordino.kernel.sampling import Sampler
from sordino.kernel.states import BoundedSum, Dense, Layout, PerExample, Private
from sordino.verification import sampler_checks

LAYOUT = Layout(("weight", "bias"), ((2, 3), (2,)))

any_float32 = st.floats(width=32, allow_nan=True, allow_infinity=True)
rows_of_numbers = arrays(
    np.float32,
    st.tuples(st.integers(1, 6), st.just(LAYOUT.size)),
    elements=st.floats(-(2.0**60), 2.0**60, width=32),
)
rows_of_anything = arrays(np.float32, st.tuples(st.integers(1, 6), st.just(LAYOUT.size)), elements=any_float32)


def stream(name: str = "test", seed: int = 0):
    return Key.from_seed(seed).stream(name)


def relative_error(found, expected):
    """The relative error in norm, because single coordinates may cancel."""
    return float((found - expected).norm() / expected.norm())


class SamplerContract:
    """The contract of samplers: they draw batches as their event says, by address."""

    sampler: Sampler
    num_units = 60

    def test_the_same_address_gives_the_same_batches(self):
        first = list(islice(self.sampler.batches(self.num_units, stream()), 20))
        again = list(islice(self.sampler.batches(self.num_units, stream()), 20))
        assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))

    @pytest.mark.parametrize("start", [1, 7, 13])
    def test_resumed_batches_are_the_rest(self, start):
        whole = list(self.sampler.batches(self.num_units, stream()))
        rest = list(self.sampler.batches(self.num_units, stream(), start=start))
        assert all(np.array_equal(a, b) for a, b in zip(whole[start:], rest, strict=True))

    @pytest.mark.parametrize("num_units", [1, 2, 60])
    def test_there_are_as_many_batches_as_steps_empty_ones_included(self, num_units):
        assert sum(1 for _ in self.sampler.batches(num_units, stream())) == self.sampler.steps

    def test_batches_hold_distinct_units_of_the_data(self):
        for batch in self.sampler.batches(self.num_units, stream()):
            assert batch.dtype == np.int64
            assert len(set(batch.tolist())) == len(batch)
            assert all(0 <= unit < self.num_units for unit in batch)

    def test_batches_follow_the_law_of_the_event(self):
        findings = list(sampler_checks.examine(self.sampler, seed=1))
        assert [finding for finding in findings if not finding.passed] == []

    def test_no_steps_cost_nothing_and_more_steps_cost_no_less(self):
        epsilons = [
            privacy_of(self.sampler.compose(Gaussian(2.0).event, steps), self.sampler.adjacency).epsilon(1e-5)
            for steps in (0, 1, self.sampler.steps // 2, self.sampler.steps)
        ]
        assert epsilons[0] == 0
        assert epsilons == sorted(epsilons)

    def test_the_expected_batch_is_the_mean_batch(self):
        sizes = [len(batch) for seed in range(30) for batch in self.sampler.batches(self.num_units, stream(seed=seed))]
        margin = 6 * max(np.std(sizes), 1e-9) / len(sizes) ** 0.5
        assert np.mean(sizes) == pytest.approx(self.sampler.expected_batch_size(self.num_units), abs=margin + 1e-9)

    def test_the_global_random_state_is_left_alone(self):
        torch_before, numpy_before = torch.get_rng_state(), np.random.get_state()[1].copy()
        list(self.sampler.batches(self.num_units, stream()))
        assert torch.equal(torch_before, torch.get_rng_state())
        assert np.array_equal(numpy_before, np.random.get_state()[1])


class PerExampleContract:
    """The contract of per-example gradients: every lazy operation agrees with the rows that it represents."""

    make: Callable[..., PerExample]

    def rows(self) -> Tensor:
        return torch.cat(list(self.make().rows(3))).double()

    def test_squared_norms_are_those_of_the_rows(self):
        each = self.make()
        blocks = self.rows().split(list(each.layout.sizes), dim=1)
        expected = torch.stack([block.square().sum(dim=1) for block in blocks], dim=1)
        torch.testing.assert_close(each.squared_norms(), expected, rtol=5e-6, atol=1e-12)

    def test_weighted_sums_are_those_of_the_rows(self):
        each, rows = self.make(), self.rows()
        weights = torch.linspace(0, 1, len(rows), dtype=torch.float64)
        assert relative_error(each.weighted_sum(weights), weights @ rows) < 1e-6

    def test_weights_may_differ_by_block(self):
        each, rows = self.make(), self.rows()
        blocks = len(each.layout.sizes)
        weights = torch.linspace(0, 1, len(rows) * blocks, dtype=torch.float64).reshape(len(rows), blocks)
        spread = weights.repeat_interleave(torch.tensor(each.layout.sizes), dim=1)
        assert relative_error(each.weighted_sum(weights), (spread * rows).sum(dim=0)) < 1e-6

    def test_a_sum_weighted_by_norms_is_that_of_the_rows(self):
        each, rows = self.make(), self.rows()
        total, weights = each.sum_weighted_by(lambda squares: 1 / (1 + squares.sum(dim=1)))
        expected = 1 / (1 + rows.square().sum(dim=1))
        assert weights.shape == (len(rows), len(each.layout.sizes))
        assert relative_error(weights[:, 0], expected) < 1e-5
        assert relative_error(total, expected @ rows) < 1e-5

    def test_under_a_mask_norms_and_sums_are_those_of_the_kept_coordinates(self):
        each, rows = self.make(), self.rows()
        keep = torch.rand(each.layout.size, generator=torch.Generator().manual_seed(1)) < 0.4
        kept, masked = rows * keep, each.masked(keep)
        blocks = kept.split(list(each.layout.sizes), dim=1)
        squares = torch.stack([block.square().sum(dim=1) for block in blocks], dim=1)
        torch.testing.assert_close(masked.squared_norms(), squares, rtol=1e-5, atol=1e-12)
        weights = torch.linspace(0, 1, len(rows), dtype=torch.float64)
        assert relative_error(masked.weighted_sum(weights), weights @ kept) < 1e-6
        total, given = masked.sum_weighted_by(lambda squares: 1 / (1 + squares.sum(dim=1)))
        assert relative_error(total, given[:, 0] @ kept) < 1e-6
        assert relative_error(torch.cat(list(masked.rows(3))).double(), kept) < 1e-6

    def test_two_masks_are_their_intersection(self):
        each, generator = self.make(), torch.Generator().manual_seed(2)
        one, other = (torch.rand(each.layout.size, generator=generator) < 0.5 for _ in range(2))
        twice, once = (torch.cat(list(x.rows(3))) for x in (each.masked(one).masked(other), each.masked(one & other)))
        assert torch.equal(twice, once)

    def test_norms_and_sums_are_float64(self):
        each = self.make()
        assert each.squared_norms().dtype == torch.float64
        assert each.weighted_sum(torch.ones(len(self.rows()))).dtype == torch.float64


class ClipContract:
    """The contract of clips: they bound the contribution of any unit."""

    clip: Clip

    def sum_of(self, rows: np.ndarray | Tensor) -> Tensor:
        return self.clip(Dense(torch.as_tensor(rows), LAYOUT)).value

    @settings(deadline=None, max_examples=200)
    @given(rows_of_anything)
    def test_removing_any_unit_moves_the_sum_by_at_most_the_bound(self, rows):
        whole = self.sum_of(rows)
        assert whole.isfinite().all()
        for unit in range(len(rows)):
            rest = self.sum_of(np.delete(rows, unit, axis=0))
            assert float((whole - rest).norm()) <= self.clip.bound

    @settings(deadline=None, max_examples=50)
    @given(rows_of_anything)
    def test_two_halves_add_up_to_the_whole(self, rows):
        half = len(rows) // 2
        parts = self.clip(Dense(torch.as_tensor(rows[:half]), LAYOUT)) + self.clip(
            Dense(torch.as_tensor(rows[half:]), LAYOUT)
        )
        torch.testing.assert_close(parts.value, self.sum_of(rows), rtol=1e-9, atol=1e-9)
        assert parts.bound == self.clip.bound

    @pytest.mark.parametrize("hole", [float("nan"), float("inf"), -float("inf")])
    def test_a_unit_that_is_not_finite_counts_as_absent(self, hole):
        good = torch.randn(4, LAYOUT.size, generator=torch.Generator().manual_seed(0))
        bad = good.clone()
        bad[2, 5] = hole
        torch.testing.assert_close(self.sum_of(bad), self.sum_of(good[[0, 1, 3]]), rtol=1e-12, atol=1e-12)

    def test_nobody_adds_up_to_zero(self):
        assert self.sum_of(torch.zeros(0, LAYOUT.size)).tolist() == [0.0] * LAYOUT.size

    def test_the_bound_is_nearly_reached(self):
        huge = 1e6 * torch.ones(1, LAYOUT.size)
        assert float(self.sum_of(huge).norm()) == pytest.approx(self.clip.bound * SCALED_TO, rel=1e-5)

    def test_the_bound_holds_in_float64_for_many_parameters(self):
        size = 10**6
        layout = Layout(("weight", "bias"), ((size - 10,), (10,)))
        row = torch.randn(1, size, generator=torch.Generator().manual_seed(1))
        for scale in (1e-3, 1.0, 1e3):
            assert float(self.clip(Dense(scale * row, layout)).value.norm()) <= self.clip.bound


class NoiseContract:
    """The contract of noises: they add the noise of their event, scaled by the sum's own bound, at an address."""

    noise: Noise

    def add(self, bound: float = 1.0, step: int = 0, size: int = 20_000, value: float = 0.0, seed: int = 0) -> Private:
        layout = Layout(("weight",), ((size,),))
        total = BoundedSum(torch.full((size,), value, dtype=torch.float64), bound, layout)
        return self.noise.add(total, NoiseAt(stream("noise", seed), step))

    def test_the_scale_follows_the_bound_of_the_sum(self):
        torch.testing.assert_close(self.add(bound=8.0).value, 8.0 * self.add(bound=1.0).value)

    def test_the_same_address_gives_the_same_noise_and_another_step_another(self):
        assert torch.equal(self.add(step=3).value, self.add(step=3).value)
        assert (self.add(step=3).value == self.add(step=4).value).double().mean() < 1e-3

    def test_another_key_gives_other_noise(self):
        assert (self.add(seed=0).value == self.add(seed=1).value).double().mean() < 1e-3

    def test_the_noise_does_not_depend_on_the_sum(self):
        shifted = self.add(value=1024.0).value - 1024.0
        torch.testing.assert_close(shifted, self.add(value=0.0).value)

    def test_more_noise_costs_less(self):
        from sordino.accounting import Adjacency

        epsilons = [
            privacy_of(self.noise.with_multiplier(multiplier).event, Adjacency.ZERO_OUT).epsilon(1e-5)
            for multiplier in (0.5, 1.0, 2.0, 4.0)
        ]
        assert epsilons == sorted(epsilons, reverse=True)


def stretch_of(codec: Codec) -> float:
    """The largest factor by which a codec may lengthen a vector: 1, unless it rescales gradients."""
    if isinstance(codec, CombinedCodec):
        return stretch_of(codec.first) * stretch_of(codec.second)
    if isinstance(codec, ResidualCodec):
        return max(1 / codec.embedding_norm, 1 / codec.residual_norm)
    return 1 / float(codec.scale.min()) if isinstance(codec, ScaleCodec | BesideCodec) else 1.0


def obliqueness_of(codec: Codec) -> float:
    """1, or more for a projection without residual after a scale: it is oblique in the units before the scale."""
    if isinstance(codec, CombinedCodec) and isinstance(codec.second, EmbeddingCodec):
        return float(codec.first.scale.max()) * stretch_of(codec.first) if hasattr(codec.first, "scale") else 1.0
    return 1.0


def adversarial_units() -> Tensor:
    """Vectors that are sparse or dense, of one sign or both, in one block of coordinates or all, tiny or huge."""
    dense = torch.randn(2, LAYOUT.size, generator=torch.Generator().manual_seed(4))
    units, start = [torch.eye(LAYOUT.size), -torch.eye(LAYOUT.size), torch.ones(1, LAYOUT.size), dense], 0
    for size in LAYOUT.sizes:
        block = torch.zeros(2, LAYOUT.size)
        block[:, start : start + size] = dense[:, start : start + size]
        units.append(block)
        start += size
    return torch.cat([scale * torch.cat(units) for scale in (1e-10, 1.0, 1e18)])


class EncodingContract:
    """The contract of encodings: each unit is encoded alone and not lengthened, and states depend on releases only."""

    encoding: Encoding

    def codecs(self) -> list[Codec]:
        """The codecs of five steps, each made from the state after the previous step."""
        state, made, generator = self.encoding.init(LAYOUT), [], torch.Generator().manual_seed(5)
        for step in range(5):
            made.append(self.encoding.codec(state, step, stream("coding")))
            layout = made[-1].encode(Dense(torch.zeros(0, LAYOUT.size), LAYOUT)).layout
            value = torch.randn(layout.size, generator=generator, dtype=torch.float64)
            _, state = made[-1].decode(Private(value, layout, noise_square=0.5))
        return made

    def encoded(self, codec: Codec, rows: np.ndarray | Tensor) -> Tensor:
        return torch.cat(list(codec.encode(Dense(torch.as_tensor(rows), LAYOUT)).rows(100)))

    def test_the_codec_is_addressed_by_state_and_step(self):
        each = Dense(torch.randn(3, LAYOUT.size, generator=torch.Generator().manual_seed(0)), LAYOUT)
        state = self.encoding.init(LAYOUT)
        once, twice = (self.encoding.codec(state, 5, stream("coding")).encode(each) for _ in range(2))
        assert all(torch.equal(a, b) for a, b in zip(once.rows(3), twice.rows(3), strict=True))

    def test_decoding_returns_to_the_layout_of_the_model(self):
        for codec in self.codecs():
            encoded = codec.encode(Dense(torch.ones(2, LAYOUT.size), LAYOUT))
            decoded, _ = codec.decode(Private(encoded.weighted_sum(torch.ones(2)), encoded.layout))
            assert type(decoded) is Private
            assert decoded.layout == LAYOUT
            assert decoded.value.shape == (LAYOUT.size,)

    def test_no_unit_is_made_longer_than_it_can_decode(self):
        units = adversarial_units()
        for codec in self.codecs():
            each = codec.encode(Dense(units, LAYOUT))
            lengths, encoded = units.double().norm(dim=1), self.encoded(codec, units).double()
            assert bool((encoded.norm(dim=1) <= lengths * stretch_of(codec) * (1 + 1e-5)).all())
            torch.testing.assert_close(each.squared_norms().sum(dim=1).sqrt(), encoded.norm(dim=1), rtol=1e-5, atol=0)
            for length, row in zip(lengths, encoded, strict=True):
                decoded, _ = codec.decode(Private(row, each.layout))
                assert float(decoded.value.norm()) <= float(length) * obliqueness_of(codec) * (1 + 1e-5)

    @settings(deadline=None, max_examples=6)
    @given(rows_of_numbers)
    def test_each_unit_is_encoded_as_if_it_were_alone(self, rows):
        for codec in self.codecs()[::4]:
            together = self.encoded(codec, rows)
            for unit in range(len(rows)):
                alone = self.encoded(codec, rows[unit : unit + 1])[0]
                margin = 1e-5 * float(np.linalg.norm(rows[unit].astype(np.float64))) * stretch_of(codec)
                torch.testing.assert_close(together[unit], alone, rtol=0, atol=margin)  # products round by batch

    @settings(deadline=None, max_examples=6)
    @given(rows_of_anything, any_float32)
    def test_no_unit_is_encoded_by_what_the_others_are(self, rows, other):
        """The encoding of a unit is bit for bit independent of the others."""
        for codec in self.codecs()[::4]:
            before = self.encoded(codec, rows).numpy()
            for unit in range(len(rows)):
                changed = np.full_like(rows, other)
                changed[unit] = rows[unit]
                after = self.encoded(codec, changed).numpy()
                np.testing.assert_array_equal(before[unit], after[unit])  # NaN equals NaN

    def test_what_is_decoded_and_learnt_is_a_function_of_the_release(self):
        """Decoding does not depend on the units that the codec has encoded, and is repeatable."""
        state, generator = self.encoding.init(LAYOUT), torch.Generator().manual_seed(6)
        for step in range(4):
            fresh, used = (self.encoding.codec(state, step, stream("coding")) for _ in range(2))
            total = used.encode(Dense(adversarial_units(), LAYOUT))
            total.weighted_sum(torch.ones(len(adversarial_units())))
            value = torch.randn(total.layout.size, generator=generator, dtype=torch.float64)
            released, before = Private(value, total.layout, noise_square=0.5), value.clone()
            found = [codec.decode(released) for codec in (fresh, used, used)]
            (gradient, state), others = found[0], found[1:]
            for other, learnt in others:
                assert torch.equal(other.value, gradient.value)
                assert torch.equal(torch.as_tensor(other.noise_square), torch.as_tensor(gradient.noise_square))
                assert learnt.keys() == state.keys()
                assert all(torch.equal(learnt[name], state[name]) for name in state)
            assert torch.equal(released.value, before)
            assert state.keys() == self.encoding.init(LAYOUT).keys()
