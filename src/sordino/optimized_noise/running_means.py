"""Running means of what was released, with how much noise is in them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from sordino._input import validate
from sordino.kernel.encoding import State
from sordino.kernel.states import Layout


@dataclass(frozen=True, eq=False)
class Means:
    """The mean of each coordinate, the mean square of the noise in one release, and how many releases say as much."""

    value: Tensor
    noise: Tensor
    releases: Tensor


@dataclass(frozen=True)
class RunningMeans:
    """Each release counts `memory` times as much as the one after it. The state is tensors, for a checkpoint.

    >>> means, layout = RunningMeans(memory=0.5), Layout(("w",), ((1,),))
    >>> state = means.init(layout)
    >>> for value in (2.0, 5.0):
    ...     state = means.added(state, torch.tensor([value]), noise_square=1.0)
    >>> means.read(state).value, round(float(means.read(state).releases), 3)
    (tensor([4.], dtype=torch.float64), 1.8)
    """

    memory: float

    def __post_init__(self) -> None:
        validate.between(0, 1, high_open=True, memory=self.memory)

    def init(self, layout: Layout) -> State:
        zeros, nothing = torch.zeros(layout.size, dtype=torch.float64), torch.zeros((), dtype=torch.float64)
        return {"sum": zeros, "noise": zeros, "counted": nothing, "counted_square": nothing}

    def added(self, state: State, value: Tensor, noise_square: float | Tensor) -> State:
        new = 1 - self.memory
        noise = torch.as_tensor(noise_square, dtype=torch.float64).to(state["noise"].device)
        return {
            "sum": self.memory * state["sum"] + new * value.to(state["sum"]),
            "noise": self.memory * state["noise"] + new * noise,
            "counted": self.memory * state["counted"] + new,
            "counted_square": self.memory**2 * state["counted_square"] + new**2,
        }

    def read(self, state: State) -> Means | None:
        """Nothing before the first release."""
        counted = state["counted"]
        if not counted:
            return None
        return Means(state["sum"] / counted, state["noise"] / counted, counted.square() / state["counted_square"])
