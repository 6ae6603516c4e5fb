"""Averages of the weights over a run: `Ema`, `Tail`, and torch's `AveragedModel`. They cost no privacy.

They are post-processing of released weights. The state of an average is immutable, and a checkpoint can hold it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor
from torch.optim.swa_utils import AveragedModel

from sordino._input import validate
from sordino.errors import StateError

Weights = Mapping[str, Tensor]

_COUNT = "count"
_PREFIX = "average."


@dataclass(frozen=True)
class Average:
    """State of an average over `count` iterates. With a count of 0, `weights` are those of the last iterate."""

    weights: dict[str, Tensor] = field(repr=False)
    count: int

    @classmethod
    def starting_at(cls, weights: Weights) -> Average:
        """The state before the first iterate, with a copy of the weights."""
        return cls({name: value.detach().clone() for name, value in weights.items()}, 0)

    def moved(self, weights: Weights, fraction: float) -> Average:
        """The average after one more iterate: (1 - fraction) * average + fraction * weights."""
        moved = {name: value.lerp(weights[name].detach(), fraction) for name, value in self.weights.items()}
        return Average(moved, self.count + 1)

    def state_tensors(self) -> dict[str, Tensor]:
        """Tensors to save, by name."""
        named = {_PREFIX + name: value for name, value in self.weights.items()}
        return {**named, _COUNT: torch.tensor(self.count)}

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor], like: Weights) -> Average:
        """Restores a saved state of a model with weights `like`.

        >>> average = Average({"weight": torch.ones(2)}, 3)
        >>> Average.from_tensors(average.state_tensors(), like={"weight": torch.zeros(2)}).count
        3
        """
        expected = {_PREFIX + name: (value.shape, value.dtype) for name, value in like.items()}
        expected[_COUNT] = torch.Size(()), torch.int64
        if {name: (value.shape, value.dtype) for name, value in tensors.items()} != expected:
            raise StateError("the saved average belongs to a model with other parameters.")
        count = int(tensors[_COUNT])
        if count < 0:
            raise StateError(f"the saved average has a count of {count}, which must be at least 0.")
        return cls({name: tensors[_PREFIX + name].clone() for name in like}, count)


@runtime_checkable
class Averaging(Protocol):
    """Averages iterates. `step` counts from 0 to `steps` - 1, and `weights` are those after that step."""

    def init(self, weights: Weights) -> Average: ...

    def update(self, state: Average, weights: Weights, step: int, steps: int) -> Average: ...

    def weights(self, state: Average) -> dict[str, Tensor]:
        """The averaged weights, to use in place of the last iterate."""
        ...


@dataclass(frozen=True)
class Ema:
    """Exponential moving average with a smaller decay in the first steps.

    De et al. (2022): the decay in step t is min(decay, (1 + t) / (10 + t)). So the initial weights soon have no
    influence, and no bias correction is needed.

    >>> ema, weights = Ema(0.9), {"weight": torch.ones(1)}
    >>> ema.weights(ema.update(ema.init({"weight": torch.zeros(1)}), weights, step=0, steps=10))
    {'weight': tensor([0.9000])}
    """

    decay: float = 0.999

    def __post_init__(self) -> None:
        validate.between(0, 1, high_open=True, decay=self.decay)

    def init(self, weights: Weights) -> Average:
        return Average.starting_at(weights)

    def update(self, state: Average, weights: Weights, step: int, steps: int) -> Average:
        _check_step(step, steps)
        return state.moved(weights, 1 - min(self.decay, (1 + step) / (10 + step)))

    def weights(self, state: Average) -> dict[str, Tensor]:
        return state.weights


@dataclass(frozen=True)
class Tail:
    """Mean of the last `fraction` of the iterates, at least of one. Before that, the weights are the last iterate.

    >>> tail = Tail(0.5)
    >>> state = tail.init({"weight": torch.zeros(1)})
    >>> for step in range(4):
    ...     state = tail.update(state, {"weight": torch.full((1,), float(step))}, step, 4)
    >>> tail.weights(state)
    {'weight': tensor([2.5000])}
    """

    fraction: float = 0.5

    def __post_init__(self) -> None:
        validate.between(0, 1, low_open=True, fraction=self.fraction)

    def init(self, weights: Weights) -> Average:
        return Average.starting_at(weights)

    def update(self, state: Average, weights: Weights, step: int, steps: int) -> Average:
        _check_step(step, steps)
        if step < steps - max(1, round(self.fraction * steps)):
            return Average.starting_at(weights)
        return state.moved(weights, 1 / (state.count + 1))

    def weights(self, state: Average) -> dict[str, Tensor]:
        return state.weights


@dataclass(frozen=True)
class TorchAverage:
    """The average of a torch `AveragedModel`: by its `avg_fn` or `multi_avg_fn`, or the mean if it has neither.

    The parameters of the `AveragedModel` do not change during training, so that a stopped run can be repeated.
    `write_to_model` writes the result into them.

    >>> model = torch.nn.Linear(1, 1, bias=False)
    >>> average = TorchAverage(AveragedModel(model))
    >>> state = average.init({"weight": torch.zeros(1, 1)})
    >>> for value in (1.0, 2.0):
    ...     state = average.update(state, {"weight": torch.full((1, 1), value)}, step=0, steps=2)
    >>> average.weights(state)
    {'weight': tensor([[1.5000]])}
    """

    averaged: AveragedModel = field(repr=False)
    digest: str = field(init=False)

    def __post_init__(self) -> None:
        probe = [torch.linspace(-1, 1, 5)]
        for count in (1, 10, 1000):  # distinguishes functions of one name, such as two rates of decay
            self._average(probe, [torch.linspace(2, 3, 5)], count)
        found = hashlib.blake2b(probe[0].numpy().tobytes(), digest_size=8).hexdigest()
        object.__setattr__(self, "digest", found)

    def init(self, weights: Weights) -> Average:
        return Average.starting_at(weights)

    def update(self, state: Average, weights: Weights, step: int, steps: int) -> Average:
        _check_step(step, steps)
        if not state.count:
            return Average(Average.starting_at(weights).weights, 1)
        moved = {name: value.clone() for name, value in state.weights.items()}
        self._average(list(moved.values()), [weights[name].detach() for name in moved], state.count)
        return Average(moved, state.count + 1)

    def weights(self, state: Average) -> dict[str, Tensor]:
        return state.weights

    @torch.no_grad()
    def write_to_model(self, state: Average) -> None:
        """Writes average and count into the `AveragedModel`, as its own `update_parameters` would have."""
        for name, parameter in self.averaged.module.named_parameters():
            if name in state.weights:
                parameter.copy_(state.weights[name])
        self.averaged.n_averaged.fill_(state.count)

    @torch.no_grad()
    def _average(self, averages: list[Tensor], weights: list[Tensor], count: int) -> None:
        """Updates the averages in place, as `AveragedModel.update_parameters` does."""
        if self.averaged.multi_avg_fn is not None:
            self.averaged.multi_avg_fn(averages, weights, torch.tensor(count))
            return
        for average, weight in zip(averages, weights, strict=True):
            if self.averaged.avg_fn is None:
                average.add_((weight - average) / (count + 1))
            else:
                average.copy_(self.averaged.avg_fn(average, weight, torch.tensor(count)))


def _check_step(step: int, steps: int) -> None:
    validate.count(steps=steps)
    validate.count(at_least=0, at_most=steps - 1, step=step)
