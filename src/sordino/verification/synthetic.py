"""Runs on synthetic records of the public shape, so that a verification can inspect sums that are not private."""

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
from sordino.kernel.records import Batch, Records
from sordino.kernel.run import PrivateRun
from sordino.kernel.sampling import Poisson
from sordino.kernel.states import BoundedSum, Layout, PerExample, Private
from sordino.kernel.step import BegunStep, Plan, Streams, begin, bounded_sum, sum_of_nobody
from sordino.training.loop import releases_of

_ORDINARY_UNITS = 4
FAILING_AMONG = 24
_SCALES = (1.0, 1e3, 1e15, 3e38, 1e-40)
_NON_FINITE = (float("nan"), float("inf"), -float("inf"))
_INVALID_LABELS = (-1, -100, 10**6, -(2**40))


def with_poisson(plan: Plan, *, rate: float, steps: int) -> Plan:
    """The plan with a Poisson sampler, which accepts any number of units. Samplers are checked separately."""
    return replace(plan, sampler=Poisson(rate=rate, steps=steps))


def undecoded(plan: Plan) -> Plan:
    """The plan without decoding. A decoded release may have fewer noisy coordinates, or mix their noise."""
    return replace(plan, encoding=_WithoutDecoding(plan.encoding))


def ordinary(records: Records, num_units: int) -> Records:
    """Synthetic units with ordinary values."""
    batch = records.template(num_units)
    return records.with_rows(batch.inputs, batch.target)


def hostile(records: Records) -> Records:
    """Synthetic units with ordinary values, and variants: scaled to extremes, not finite, with invalid labels.

    A few more have huge values that cancel, along each axis that could be an axis of places.
    """
    batch = records.template(_ORDINARY_UNITS)
    variants = [batch.inputs]
    variants += [tuple(_scaled(x, scale) for x in batch.inputs) for scale in _SCALES]
    variants += [tuple(_with_non_finite(x, value) for x in batch.inputs) for value in _NON_FINITE]
    targets = [batch.target] * len(variants) + [_invalid(batch.target)]
    variants.append(batch.inputs)
    for number_of_axes in range(1, max((x.ndim for x in batch.inputs), default=1)):
        for last in (False, True):
            variants.append(tuple(_cancelling(x[:1], number_of_axes, last=last) for x in batch.inputs))
            targets.append(batch.target[:1])
    inputs = (torch.cat(column) for column in zip(*variants, strict=True))
    return records.with_rows(tuple(inputs), torch.cat(targets))


def failing(records: Records) -> Batch:
    """Synthetic rows with ordinary values, of which the first has integers beyond the size of any embedding table."""
    batch = records.template(FAILING_AMONG)
    inputs = tuple(x if x.is_floating_point() else x.clone() for x in batch.inputs)
    for x in inputs:
        if not x.is_floating_point():
            x[0] = torch.iinfo(x.dtype).max
    return replace(batch, inputs=inputs)


def cancelling_places(places: int) -> Tensor:
    """Values whose exact sum is zero, and whose sum in float32 is about two thirds of their number.

    Above 2^24, float32 has even integers only: adding 1.5 rounds up by 2, and subtracting 0.75 twice changes nothing.

    >>> values = cancelling_places(64)
    >>> float(values.double().sum())
    0.0
    >>> total = torch.zeros(())
    >>> for value in values:
    ...     total += value
    >>> float(total)
    40.0
    """
    values, triples = torch.zeros(places), max(0, places - 2) // 3
    if triples:
        values[1 : 1 + 3 * triples] = torch.tensor([1.5, -0.75, -0.75]).repeat(triples)
        values[0], values[-1] = 2.0**24, -(2.0**24)
    return values


@dataclass(frozen=True, repr=False)
class StepNoise:
    """The noise of one step, and its address with the state before the step."""

    noise: Tensor
    at: NoiseAt


def fresh_run(
    plan: Plan, model: nn.Module, data: Records | Budget, *, seed: int, physical: int | Literal["auto"] = "auto"
) -> PrivateRun:
    """A run with the randomness of a seed.

    Two warnings are suppressed: noise is large because there are few units, and gradients are checked separately.
    """
    with warnings.catch_warnings():
        for expected in (HopelessNoise, SlowGradients):
            warnings.simplefilter("ignore", expected)
        return PrivateRun(plan, model, data, seed=seed, physical_batch_size=physical)


@dataclass(frozen=True, repr=False)
class SyntheticRun:
    """A run on synthetic records, with all inputs of its steps.

    So the sum of a step before the noise, which never leaves a run, can be computed again by the same function.
    """

    run: PrivateRun
    model: nn.Module
    records: Records
    key: Key

    @classmethod
    def fresh(
        cls, plan: Plan, model: nn.Module, records: Records, *, seed: int, physical: int | Literal["auto"] = "auto"
    ) -> SyntheticRun:
        """A run with the randomness of a seed, at its first step."""
        run = fresh_run(plan, model, records, seed=seed, physical=physical)
        return cls(run, model, records, Key.from_seed(seed).of_release(run.number))

    @property
    def streams(self) -> Streams:
        return Streams.of(self.key)

    @property
    def encoded_layout(self) -> Layout:
        """The layout of the coordinates to which noise is added."""
        return sum_of_nobody(self.run.plan, self.model, self.records, self.run.state, self.streams).layout

    def begun(self, joined: Tensor, number: int) -> BegunStep:
        """Step `number` as it begins for the units `joined`, with the present state of the run."""
        return begin(self.run.plan, self.run.state, number, joined, self.streams)

    def bounded_sum(self, begun: BegunStep) -> BoundedSum:
        """The sum of a step before the noise."""
        plan, size = self.run.plan, self.run.physical_batch_size
        return bounded_sum(plan, self.model, self.records, begun, self.streams, size)

    def sum_of(self, joined: Tensor) -> Tensor:
        """The sum of the first step for the units `joined`, before the noise."""
        return self.bounded_sum(self.begun(joined, 0)).value.double()

    def noise(self) -> Iterator[StepNoise]:
        """The noise of each step: the release minus the sum without noise, decoded by the same codec."""
        plan, streams, releases = self.run.plan, self.streams, releases_of(self.run)
        for number, joined in enumerate(plan.sampler.batches(self.records.num_units, streams.sampling)):
            begun = self.begun(torch.from_numpy(joined), number)
            at = NoiseAt(self.key.stream("noise"), number, self.run.state.noise, begun.codec.encode)
            total = self.bounded_sum(begun)
            released = next(releases, None)
            if released is None:  # fewer steps than planned, which `step_count` finds
                return
            _, value = released
            yield StepNoise(value - decoded_without_noise(begun.codec, total), at)


@dataclass(frozen=True)
class _WithoutDecoding:
    """An encoding that encodes, but returns releases without decoding them, and learns nothing from them."""

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
    """A row with values that cancel along its first or last axes. Integers are equal at all places."""
    axes = min(axes, row.ndim - 1)
    if not row.is_floating_point():
        return torch.ones_like(row)
    shape = row.shape[-axes:] if last else row.shape[1 : 1 + axes]
    values = cancelling_places(shape.numel()).to(row).reshape(shape)
    return (values if last else values.reshape(*shape, *[1] * (row.ndim - 1 - axes))).expand_as(row).clone()


def _with_non_finite(tensor: Tensor, value: float) -> Tensor:
    if not tensor.is_floating_point():
        return tensor
    changed = tensor.clone()
    changed.flatten(1)[:, 0] = value
    return changed


def _invalid(target: Tensor) -> Tensor:
    if target.is_floating_point():
        return target * 1e30
    labels = torch.tensor(_INVALID_LABELS).to(target)
    return labels.reshape(-1, *[1] * (target.ndim - 1)).expand_as(target)
