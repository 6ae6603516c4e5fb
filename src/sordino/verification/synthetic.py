"""Runs on synthetic records of the public shape, so that a verification may look at sums without looking at anybody."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor, nn

from sordino.budget import Budget
from sordino.encoding import Codec, Encoding, State
from sordino.noise import HopelessNoise, NoiseAt
from sordino.randomness import Stream
from sordino.records import Records, as_records
from sordino.run import Plan, PrivateRun
from sordino.sampling import Poisson
from sordino.states import Layout, PerExample, Private

_ORDINARY_UNITS = 4
_SCALES = (1.0, 1e3, 1e15, 3e38, 1e-40)
_HOLES = (float("nan"), float("inf"), -float("inf"))
_WILD_LABELS = (-1, -100, 10**6, -(2**40))


def with_poisson(plan: Plan, *, rate: float, steps: int) -> Plan:
    """The same stages under a sampler that takes any number of units; samplers have a check of their own."""
    return replace(plan, sampler=Poisson(rate=rate, steps=steps))


def undecoded(plan: Plan) -> Plan:
    """The same stages up to the noise: what is decoded from a release may be short of noise, or mix it."""
    return replace(plan, encoding=_Undecoded(plan.encoding))


def encoded_layout(run: PrivateRun) -> Layout:
    """The coordinates that noise falls on."""
    codec = run.plan.encoding.codec(run._coding_state, 0, run._coding)
    return run._bounded_sum(torch.zeros(0, dtype=torch.int64), codec, 0).layout


def ordinary(records: Records, num_units: int) -> Records:
    """Synthetic units with ordinary values."""
    batch = records.template(num_units)
    return as_records((*batch.inputs, batch.target), dtype=records.dtype)


def hostile(records: Records) -> Records:
    """Ordinary synthetic units, then the same scaled to extremes, with holes, and with labels that do not exist."""
    batch = records.template(_ORDINARY_UNITS)
    variants = [batch.inputs]
    variants += [tuple(_scaled(x, scale) for x in batch.inputs) for scale in _SCALES]
    variants += [tuple(_holed(x, hole) for x in batch.inputs) for hole in _HOLES]
    targets = [batch.target] * len(variants) + [_wild(batch.target)]
    inputs = (torch.cat(column) for column in zip(*variants, batch.inputs, strict=True))
    return as_records((*inputs, torch.cat(targets)), dtype=records.dtype)


def bounded_sum(run: PrivateRun, indices: Tensor, step: int = 0) -> Tensor:
    """The sum that noise is added to: the quantity that never leaves a run."""
    return run._bounded_sum(indices, run.plan.encoding.codec(run._coding_state, step, run._coding), step).value.double()


@dataclass(frozen=True, repr=False)
class Drawn:
    """The noise of one step, and where it came from, with what was known before the step."""

    noise: Tensor
    at: NoiseAt


def noise_of(run: PrivateRun) -> Iterator[Drawn]:
    """The noise of each step of a run: what was released, minus what the same codec makes of the bare sum."""
    plan, num_units = run.plan, run._records.num_units
    for step, indices in enumerate(plan.sampler.batches(num_units, run._sampling)):
        codec = plan.encoding.codec(run._coding_state, step, run._coding)
        bare, at = run._bounded_sum(torch.from_numpy(indices), codec, step), run._noise_at(step, codec)
        released = next(run, None)
        if released is None:  # fewer steps than planned: the ledger's check says so
            return
        yield Drawn(released.value - codec.decode(replace(released, value=bare.value)).value, at)


def fresh_run(
    plan: Plan, model: nn.Module, data: Records | Budget, *, seed: int, physical: int | Literal["auto"] = "auto"
) -> PrivateRun:
    """A run whose randomness is frozen by the seed. Its few units are no reason to warn of much noise."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", HopelessNoise)
        return PrivateRun(plan, model, data, seed=seed, physical_batch_size=physical)


@dataclass(frozen=True)
class _Undecoded:
    """An encoding whose releases are shown as they are. It learns nothing: that would need what is decoded."""

    encoding: Encoding

    def init(self, layout: Layout) -> State:
        return self.encoding.init(layout)

    def codec(self, state: State, step: int, randomness: Stream) -> Codec:
        return _UndecodedCodec(self.encoding.codec(state, step, randomness))

    def update(self, state: State, private: Private) -> State:
        return state


@dataclass(frozen=True)
class _UndecodedCodec:
    codec: Codec

    def encode(self, each: PerExample) -> PerExample:
        return self.codec.encode(each)

    def decode(self, private: Private) -> Private:
        return private


def _scaled(tensor: Tensor, scale: float) -> Tensor:
    return tensor * scale if tensor.is_floating_point() else tensor


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
