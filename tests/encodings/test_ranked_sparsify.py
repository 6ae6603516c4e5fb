"""Ranks are computed from noisy releases only."""

from __future__ import annotations

import torch
from contracts import stream
from small_runs import CODING, INPUTS, LABELS, make_model, make_plan

import sordino as so
from sordino.encodings import ConstantRate, RankedSparsify
from sordino.kernel.noise import NoiseAt
from sordino.kernel.randomness import Key
from sordino.kernel.states import BoundedSum, Layout, Private

RANKED = RankedSparsify(0.6, epochs=3, steps_per_epoch=2)


def test_algorithm_4_is_repeated_from_what_was_released() -> None:
    """Batches are empty, so the sum is noise only, which this test draws again for every coordinate."""
    run = so.PrivateRun(make_plan(RANKED, rate=1e-12), make_model(), (INPUTS, LABELS), seed=0)
    keep = torch.ones(run.layout.size, dtype=torch.bool)
    total = torch.zeros(run.layout.size, dtype=torch.float64)
    for step, private in enumerate(run):
        if step in (2, 4):
            order = total.abs().argsort()
            keep = torch.ones_like(keep).index_fill_(0, order[: int(RANKED.rate(step) * len(keep))], False)
            total.zero_()
        empty_sum = BoundedSum(torch.zeros_like(total), 1.0, run.layout)
        noise = so.Gaussian(1.0).add(empty_sum, NoiseAt(Key.from_seed(0).of_release(0).stream("noise"), step)).value
        assert torch.equal(private.value, noise * keep)
        total += noise
    assert int((~keep).sum()) == int(0.6 * run.layout.size)


def test_the_first_mask_keeps_everything_whatever_the_rate() -> None:
    ranked = RankedSparsify(0.6, epochs=3, steps_per_epoch=2, schedule=ConstantRate())
    codec = ranked.codec(ranked.init(Layout(("w",), ((10,),))), 0, CODING)
    assert bool(codec.keep.all())


def test_a_masked_coordinate_can_come_back() -> None:
    layout = Layout(("w",), ((2,),))
    ranked, state = RankedSparsify(0.5, epochs=2, steps_per_epoch=1), None
    masks = []
    for step, value in enumerate([[5.0, 1.0], [2.0, 9.0], [0.0, 0.0]]):
        state = ranked.init(layout) if state is None else state
        codec = ranked.codec(state, step, stream())
        masks.append(codec.keep.tolist())
        _, state = codec.decode(Private(torch.tensor(value), layout))
    assert masks == [[True, True], [True, False], [False, True]]
