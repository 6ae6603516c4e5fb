"""Two encodings are one after the other, each with its own randomness and its own state."""

from __future__ import annotations

import pytest
import torch
from contracts import LAYOUT, stream

from sordino.encodings import Combined, ConstantRate, Freeze, Matched, RandomSparsify, RankedSparsify
from sordino.errors import UsageError
from sordino.kernel.states import Dense, Layout, Private
from sordino.optimized_noise.sources import FromReleases

HALF = RandomSparsify(0.5, epochs=2, steps_per_epoch=1, schedule=ConstantRate())


def test_two_masks_keep_what_both_keep() -> None:
    both, coding = Combined(HALF, HALF), stream("coding")
    masks = [HALF.mask(0, LAYOUT, coding.named(position)) for position in ("first", "second")]
    assert not torch.equal(*masks)
    codec = both.codec(both.init(LAYOUT), 0, coding)
    [row] = codec.encode(Dense(torch.ones(1, LAYOUT.size), LAYOUT)).rows(1)
    assert torch.equal(row[0] != 0, masks[0] & masks[1])
    decoded, _ = codec.decode(Private(torch.ones(LAYOUT.size), LAYOUT))
    assert torch.equal(decoded.value != 0, masks[0] & masks[1])


def test_each_learns_from_what_it_decoded() -> None:
    ranked = RankedSparsify(0.5, epochs=2, steps_per_epoch=3)
    both, alone = Combined(Freeze(["bias"]), ranked), ranked.init(LAYOUT)
    state, value = both.init(LAYOUT), torch.arange(8.0)
    _, state = both.codec(state, 0, stream()).decode(Private(value, LAYOUT))
    _, alone = ranked.codec(alone, 0, stream()).decode(Private(value, LAYOUT))
    assert sorted(state) == ["first/keep", "second/keep", "second/steps", "second/sum"]
    assert torch.equal(state["second/sum"], alone["sum"])


@pytest.mark.parametrize("masks", [HALF, Freeze(["bias"]), Combined(HALF, Freeze(["bias"]))], ids=repr)
def test_a_ranking_learns_from_all_that_was_released_whichever_of_two_it_is(masks) -> None:
    ranked, value = RankedSparsify(0.5, epochs=2, steps_per_epoch=3), torch.arange(1.0, 9.0)
    for both, position in ((Combined(ranked, masks), "first"), (Combined(masks, ranked), "second")):
        state = both.init(LAYOUT)
        _, state = both.codec(state, 0, stream()).decode(Private(value, LAYOUT))
        assert torch.equal(state[f"{position}/sum"], value.double())


def test_a_scale_learns_from_noise_that_fell_where_another_masks() -> None:
    matched, value = Matched(FromReleases()), torch.arange(1.0, 9.0)
    learnt = []
    for both, position in ((Combined(matched, HALF), "first"), (Combined(HALF, matched), "second")):
        state = both.init(LAYOUT)
        _, state = both.codec(state, 0, stream()).decode(Private(value, LAYOUT, noise_square=4.0))
        learnt.append({name: x for name, x in state.items() if name.startswith(position)})
    for one, other in zip(*(state.values() for state in learnt), strict=True):
        assert torch.equal(one, other)


def test_what_one_leaves_where_it_was_another_does_not_prune() -> None:
    model = torch.nn.Linear(3, 2)
    pruning = Freeze.by_magnitude(model, stages=(0,), final=0.9, prune=True)
    for both in (Combined(Freeze(["weight"]), pruning), Combined(pruning, Freeze(["weight"]))):
        state, layout = both.init(Layout.of(model)), Layout.of(model)
        _, state = both.codec(state, 0, stream()).decode(Private(torch.ones(layout.size), layout))
        rest = both.rest(state)
        assert torch.equal(layout.split(rest.frozen)["weight"], torch.ones(2, 3, dtype=torch.bool))
        assert not layout.split(rest.pruned)["weight"].any()


def test_a_name_that_no_parameter_has_is_refused() -> None:
    with pytest.raises(UsageError, match=r"names must be of trainable parameters, got 'fc.weight'"):
        Freeze(["weight", "fc.weight"]).init(LAYOUT)


def test_only_encodings_combine() -> None:
    with pytest.raises(UsageError, match="second must be an Encoding, got float"):
        Combined(HALF, 0.5)
