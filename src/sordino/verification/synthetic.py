"""Runs on synthetic records of the public shape, so that a verification may look at sums without looking at anybody."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor, nn

from sordino.kernel.budget import Budget
from sordino.kernel.contribution import SlowGradients
from sordino.kernel.encoding import Codec, Encoding, State, decoded_without_noise
from sordino.kernel.noise import HopelessNoise, NoiseAt
from sordino.kernel.randomness import Key, Stream
from sordino.kernel.records import Batch, Records, as_records
from sordino.kernel.run import PrivateRun
from sordino.kernel.sampling import Poisson
from sordino.kernel.states import BoundedSum, Layout, PerExample, Private
from sordino.kernel.step import BegunStep, Plan, Streams, begin, bounded_sum, sum_of_nobody

_ORDINARY_UNITS = 4
FAILING_AMONG = 24
_SCALES = (1.0, 1e3, 1e15, 3e38, 1e-40)
_HOLES = (float("nan"), float("inf"), -float("inf"))
_WILD_LABELS = (-1, -100, 10**6, -(2**40))


def with_poisson(plan: Plan, *, rate: float, steps: int) -> Plan:
    """The same stages under a sampler that takes any number of units; samplers have a check of their own."""
    return replace(plan, sampler=Poisson(rate=rate, steps=steps))


def undecoded(plan: Plan) -> Plan:
    """The same stages up to the noise: what is decoded from a release may be short of noise, or mix it."""
    return replace(plan, encoding=_WithoutDecoding(plan.encoding))


def ordinary(records: Records, num_units: int) -> Records:
    """Synthetic units with ordinary values."""
    batch = records.template(num_units)
    return as_records((*batch.inputs, batch.target), dtype=records.dtype)


def hostile(records: Records) -> Records:
    """Ordinary synthetic units, then the same scaled to extremes, with holes, and with labels that do not exist.

    And a few that are made of huge numbers that cancel, along each axis that could be one of places.
    """
    batch = records.template(_ORDINARY_UNITS)
    variants = [batch.inputs]
    variants += [tuple(_scaled(x, scale) for x in batch.inputs) for scale in _SCALES]
    variants += [tuple(_holed(x, hole) for x in batch.inputs) for hole in _HOLES]
    targets = [batch.target] * len(variants) + [_wild(batch.target)]
    variants.append(batch.inputs)
    for number_of_axes in range(1, max((x.ndim for x in batch.inputs), default=1)):
        for last in (False, True):
            variants.append(tuple(_cancelling(x[:1], number_of_axes, last=last) for x in batch.inputs))
            targets.append(batch.target[:1])
    inputs = (torch.cat(column) for column in zip(*variants, strict=True))
    return as_records((*inputs, torch.cat(targets)), dtype=records.dtype)


def failing(records: Records) -> Batch:
    """Ordinary synthetic rows, the first with whole numbers that no table of vectors has a row for."""
    batch = records.template(FAILING_AMONG)
    inputs = tuple(x if x.is_floating_point() else x.clone() for x in batch.inputs)
    for x in inputs:
        if not x.is_floating_point():
            x[0] = torch.iinfo(x.dtype).max
    return replace(batch, inputs=inputs)


def cancelling_places(places: int) -> Tensor:
    """Numbers whose sum is zero, and in float32 about two thirds of how many there are.

    Above 2^24 there are whole even numbers only: 1.5 is rounded up, and twice 0.75 does not lead back.

    >>> numbers = cancelling_places(64)
    >>> float(numbers.double().sum())
    0.0
    >>> total = torch.zeros(())
    >>> for number in numbers:
    ...     total += number
    >>> float(total)
    40.0
    """
    numbers, triples = torch.zeros(places), max(0, places - 2) // 3
    if triples:
        numbers[1 : 1 + 3 * triples] = torch.tensor([1.5, -0.75, -0.75]).repeat(triples)
        numbers[0], numbers[-1] = 2.0**24, -(2.0**24)
    return numbers


@dataclass(frozen=True, repr=False)
class StepNoise:
    """The noise of one step, and where it came from, with what was known before the step."""

    noise: Tensor
    at: NoiseAt


def fresh_run(
    plan: Plan, model: nn.Module, data: Records | Budget, *, seed: int, physical: int | Literal["auto"] = "auto"
) -> PrivateRun:
    """A run whose randomness is frozen by the seed.

    Its few units are no reason to warn of much noise, and how its gradients are computed is a finding of its own.
    """
    with warnings.catch_warnings():
        for expected in (HopelessNoise, SlowGradients):
            warnings.simplefilter("ignore", expected)
        return PrivateRun(plan, model, data, seed=seed, physical_batch_size=physical)


@dataclass(frozen=True, repr=False)
class SyntheticRun:
    """A run on synthetic records, beside all that its steps are a function of.

    So the sum that a step adds noise to, which never leaves a run, is computed again by the function that computed it.
    """

    run: PrivateRun
    model: nn.Module
    records: Records
    key: Key

    @classmethod
    def fresh(
        cls, plan: Plan, model: nn.Module, records: Records, *, seed: int, physical: int | Literal["auto"] = "auto"
    ) -> SyntheticRun:
        """A run whose randomness is frozen by the seed, at its first step."""
        run = fresh_run(plan, model, records, seed=seed, physical=physical)
        return cls(run, model, records, Key.from_seed(seed).of_release(run.number))

    @property
    def streams(self) -> Streams:
        return Streams.of(self.key)

    @property
    def encoded_layout(self) -> Layout:
        """The coordinates that noise falls on."""
        return sum_of_nobody(self.run.plan, self.model, self.records, self.run.state, self.streams).layout

    def begun(self, joined: Tensor, number: int) -> BegunStep:
        """Step `number` as it begins if these join, with what the run knows now."""
        return begin(self.run.plan, self.run.state, number, joined, self.streams)

    def bounded_sum(self, begun: BegunStep) -> BoundedSum:
        """The sum that noise is added to."""
        plan, size = self.run.plan, self.run.physical_batch_size
        return bounded_sum(plan, self.model, self.records, begun, self.streams, size)

    def sum_of(self, joined: Tensor) -> Tensor:
        """The sum of the first step, if these join."""
        return self.bounded_sum(self.begun(joined, 0)).value.double()

    def noise(self) -> Iterator[StepNoise]:
        """The noise of each step: what was released, minus what the same codec makes of the bare sum."""
        plan, streams = self.run.plan, self.streams
        for number, joined in enumerate(plan.sampler.batches(self.records.num_units, streams.sampling)):
            begun = self.begun(torch.from_numpy(joined), number)
            at = NoiseAt(self.key.stream("noise"), number, self.run.state.noise, begun.codec.encode)
            bare = self.bounded_sum(begun)
            released = next(self.run, None)
            if released is None:  # fewer steps than planned: the ledger's check says so
                return
            yield StepNoise(released.value - decoded_without_noise(begun.codec, bare), at)


@dataclass(frozen=True)
class _WithoutDecoding:
    """An encoding whose releases are shown as they are. It learns nothing from them."""

    encoding: Encoding

    def init(self, layout: Layout) -> State:
        return self.encoding.init(layout)

    def codec(self, state: State, step: int, randomness: Stream) -> Codec:
        return _UndecodedCodec(self.encoding.codec(state, step, randomness), state)


@dataclass(frozen=True)
class _UndecodedCodec:
    codec: Codec
    state: State

    def encode(self, each: PerExample) -> PerExample:
        return self.codec.encode(each)

    def decode(self, released: Private) -> tuple[Private, State]:
        return released, self.state


def _scaled(tensor: Tensor, scale: float) -> Tensor:
    return tensor * scale if tensor.is_floating_point() else tensor


def _cancelling(row: Tensor, axes: int, *, last: bool) -> Tensor:
    """A row with numbers that cancel along its first or last axes; whole numbers are the same at all places."""
    axes = min(axes, row.ndim - 1)
    if not row.is_floating_point():
        return torch.ones_like(row)
    shape = row.shape[-axes:] if last else row.shape[1 : 1 + axes]
    numbers = cancelling_places(shape.numel()).to(row).reshape(shape)
    return (numbers if last else numbers.reshape(*shape, *[1] * (row.ndim - 1 - axes))).expand_as(row).clone()


def _holed(tensor: Tensor, hole: float) -> Tensor:
    if not tensor.is_floating_point():
        return tensor
    holed = tensor.clone()
    holed.flatten(1)[:, 0] = hole
    return holed


def _wild(target: Tensor) -> Tensor:
    if target.is_floating_point():
        return target * 1e30
    labels = torch.tensor(_WILD_LABELS).to(target)
    return labels.reshape(-1, *[1] * (target.ndim - 1)).expand_as(target)
