"""A kind of model: how to make a small one with rows for it, and what Sordino is expected to do with it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

CLASSES = 3
Loss = Callable[[Any, Tensor], Any]


@dataclass(frozen=True)
class Case:
    """A model with random weights, rows for it, and the loss. Rows in a dictionary go to the model by name.

    `loss_alone(model, row)` is the loss of a batch of one that the model computes itself, for the loop over single
    examples. Without it, the loop uses `loss`. Records of a transformer are made by `sordino.huggingface`.
    """

    model: nn.Module
    inputs: tuple[Tensor, ...] | dict[str, Tensor]
    target: Tensor
    loss: Loss = F.cross_entropy
    loss_alone: Callable[[nn.Module, dict[str, Tensor]], Tensor] | None = None


@dataclass(frozen=True)
class Kind:
    """A kind of model by name. `refused` is a part of the expected refusal, or "" if the model is to be trained.

    A model that `draws` gets its draws from the seed of each row, in the loop too.
    """

    name: str
    family: str
    make: Callable[[int], Case]
    refused: str = ""
    draws: bool = False


KINDS: dict[str, Kind] = {}


def kind(refused: str = "", draws: bool = False) -> Callable[[Callable[[int], Case]], Callable[[int], Case]]:
    """Registers a function from a number of rows to a `Case`; the name of the function is that of the kind."""

    def register(make: Callable[[int], Case]) -> Callable[[int], Case]:
        name = make.__name__.strip("_").replace("_", "-")
        if name in KINDS:
            raise ValueError(f"two kinds have the name {name!r}.")
        KINDS[name] = Kind(name, make.__module__.rpartition(".")[2], make, refused, draws)
        return make

    return register


class Net(nn.Module):
    """A model of named layers and parameters, and a function that runs them: `run(model, *inputs)`."""

    def __init__(self, run: Callable[..., Any], **parts: Any) -> None:
        super().__init__()
        self.run = run
        for name, part in parts.items():
            if isinstance(part, Tensor) and not isinstance(part, nn.Parameter):
                self.register_buffer(name, part)
            else:
                setattr(self, name, part)

    def forward(self, *inputs: Any, **named: Any) -> Any:
        return self.run(self, *inputs, **named)


def classes(rows: int, number: int = CLASSES) -> Tensor:
    """Random class labels."""
    return torch.randint(number, (rows,))


def vectors(model: nn.Module, rows: int, *shape: int, loss: Loss = F.cross_entropy) -> Case:
    """The case of a classifier of normal tensors."""
    return Case(model, (torch.randn(rows, *shape),), classes(rows), loss)


def tokens(model: nn.Module, rows: int, length: int, vocabulary: int) -> Case:
    """The case of a classifier of sequences of tokens."""
    return Case(model, (torch.randint(vocabulary, (rows, length)),), classes(rows))


def numbers(model: nn.Module, inputs: tuple[Tensor, ...], *shape: int) -> Case:
    """The case of a regression with normal targets."""
    return Case(model, inputs, torch.randn(len(inputs[0]), *shape), F.mse_loss)


def weights(*shape: int, scale: float = 0.3) -> nn.Parameter:
    """A parameter with normal values."""
    return nn.Parameter(scale * torch.randn(shape))
