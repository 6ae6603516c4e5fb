"""Wire formats decode what they encode, have a public length, and refuse damaged messages."""

from __future__ import annotations

import pytest
import torch

from sordino.errors import StateError
from sordino.training.communication import DenseFormat, IndexFormat, SeedFormat

SIZE = 1000
WIRES = [DenseFormat(), IndexFormat(), SeedFormat()]


def mask(rate: float, seed: int = 0) -> torch.Tensor:
    keep = torch.ones(SIZE, dtype=torch.bool)
    keep[torch.randperm(SIZE, generator=torch.Generator().manual_seed(seed))[: int(rate * SIZE)]] = False
    return keep


def update(keep: torch.Tensor, seed: int = 0) -> torch.Tensor:
    drawn = torch.randn(SIZE, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    return drawn.where(keep, 0.0)


@pytest.mark.parametrize("wire", WIRES, ids=lambda wire: wire.name)
@pytest.mark.parametrize("rate", [0.0, 0.5, 0.9, 0.98, 1.0])
def test_what_arrives_is_what_was_sent_up_to_float32(wire, rate):
    keep = mask(rate)
    sent = update(keep)
    got = wire.unpack(wire.pack(sent, keep), keep)
    assert got.dtype == torch.float64
    assert torch.equal(got, sent.float().double())


@pytest.mark.parametrize("wire", WIRES, ids=lambda wire: wire.name)
def test_the_length_of_a_message_does_not_depend_on_its_values(wire):
    keep = mask(0.7)
    assert len({len(wire.pack(values, keep)) for values in (update(keep), update(keep, 1), torch.zeros(SIZE))}) == 1


def test_a_seed_coded_message_is_shorter_in_proportion_to_the_rate():
    lengths = [len(SeedFormat().pack(update(mask(rate)), mask(rate))) for rate in (0.0, 0.5, 0.9)]
    assert lengths == [4000, 2000, 400]


def test_saying_which_coordinates_are_sent_costs_a_bit_each_or_a_number_for_each_that_is_sent():
    lengths = [len(IndexFormat().pack(update(mask(rate)), mask(rate))) for rate in (0.0, 0.5, 0.9, 0.99)]
    assert lengths == [4 + 125 + 4000, 4 + 125 + 2000, 4 + 125 + 400, 4 + 40 + 40]


def test_an_index_coded_message_needs_no_mask_at_the_other_end():
    keep = mask(0.99)
    other = torch.zeros(SIZE, dtype=torch.bool)
    assert torch.equal(
        IndexFormat().unpack(IndexFormat().pack(update(keep), keep), other), update(keep).float().double()
    )


@pytest.mark.parametrize("wire", WIRES, ids=lambda wire: wire.name)
@pytest.mark.parametrize("rate", [0.5, 0.99])
def test_a_message_that_was_cut_or_lengthened_is_refused(wire, rate):
    keep = mask(rate)
    message = wire.pack(update(keep), keep)
    for broken in (message[:-1], message + b"\0", b"", message[: len(message) // 2]):
        with pytest.raises(StateError, match="an update"):
            wire.unpack(broken, keep)


@pytest.mark.parametrize("wire", WIRES, ids=lambda wire: wire.name)
def test_a_value_that_is_not_finite_is_refused(wire):
    keep = mask(0.5)
    values = update(keep)
    values[keep.nonzero()[0]] = torch.inf
    with pytest.raises(StateError, match="not finite"):
        wire.unpack(wire.pack(values, keep), keep)


def test_indices_out_of_range_or_twice_are_refused():
    keep = mask(0.99)
    message = bytearray(IndexFormat().pack(update(keep), keep))
    twice, outside = bytes(message[:4] + message[4:8] + message[4:8] + message[12:]), bytearray(message)
    outside[40:44] = (SIZE).to_bytes(4, "little")
    for broken in (twice, bytes(outside)):
        with pytest.raises(StateError, match="must be increasing and within the model's coordinates"):
            IndexFormat().unpack(broken, keep)


def test_more_values_than_coordinates_are_refused():
    with pytest.raises(StateError, match="more values than the model has coordinates"):
        IndexFormat().unpack((SIZE + 1).to_bytes(4, "little") + b"\0" * 100, mask(0.5))
