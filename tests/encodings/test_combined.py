"""Two encodings are one after the other, each with its own randomness and its own state."""

from __future__ import annotations

import pytest
import torch
from contracts import LAYOUT, stream

from sordino.encodings import Combined, ConstantRate, Freeze, RandomSparsify, RankedSparsify
from sordino.errors import UsageError
from sordino.states import Dense, Private

HALF = RandomSparsify(0.5, epochs=2, steps_per_epoch=1, schedule=ConstantRate())


def test_two_masks_keep_what_both_keep() -> None:
    both, coding = Combined(HALF, HALF), stream("coding")
    masks = [HALF.mask(0, LAYOUT, coding.named(position)) for position in ("first", "second")]
    assert not torch.equal(*masks)
    codec = both.codec(both.init(LAYOUT), 0, coding)
    [row] = codec.encode(Dense(torch.ones(1, LAYOUT.size), LAYOUT)).rows(1)
    assert torch.equal(row[0] != 0, masks[0] & masks[1])
    decoded = codec.decode(Private(torch.ones(LAYOUT.size), LAYOUT))
    assert torch.equal(decoded.value != 0, masks[0] & masks[1])


def test_each_learns_from_what_it_decoded() -> None:
    ranked = RankedSparsify(0.5, epochs=2, steps_per_epoch=3)
    both, alone = Combined(Freeze(["bias"]), ranked), ranked.init(LAYOUT)
    state, value = both.init(LAYOUT), torch.arange(8.0)
    state = both.update(state, both.codec(state, 0, stream()).decode(Private(value, LAYOUT)))
    alone = ranked.update(alone, ranked.codec(alone, 0, stream()).decode(Private(value, LAYOUT)))
    assert sorted(state) == ["first/keep", "second/keep", "second/steps", "second/sum"]
    assert torch.equal(state["second/sum"], alone["sum"])


def test_a_gradient_that_another_codec_decoded_is_refused() -> None:
    with pytest.raises(UsageError, match="their own codec"):
        Combined(HALF, HALF).update({}, Private(torch.zeros(8), LAYOUT))


def test_a_name_that_no_parameter_has_is_refused() -> None:
    with pytest.raises(UsageError, match=r"names must be of trainable parameters, got 'fc.weight'"):
        Freeze(["weight", "fc.weight"]).init(LAYOUT)


def test_only_encodings_combine() -> None:
    with pytest.raises(UsageError, match="second must be a Encoding, got float"):
        Combined(HALF, 0.5)
