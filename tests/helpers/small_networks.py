"""Small networks of many kinds, and five rows for each.

In a file that imports `reseeded`, each test draws its networks and rows in the same way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor, nn

ROWS = 5


@pytest.fixture(autouse=True)
def reseeded() -> Iterator[None]:
    """Seeds torch for a test, and restores the global generator afterwards."""
    with torch.random.fork_rng():
        torch.manual_seed(1)
        yield


class Tied(nn.Module):
    """A model whose output layer shares the weight of the embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(7, 4)
        self.output = nn.Linear(4, 7, bias=False)
        self.output.weight = self.embedding.weight

    def forward(self, tokens: Tensor) -> Tensor:
        return self.output(self.embedding(tokens).mean(1))


class Twice(nn.Module):
    """A model that uses one layer twice."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.head = nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.layer(torch.tanh(self.layer(x)))))


class Bare(nn.Module):
    """A model with parameters outside of layers: a vector, a scalar, an empty tensor, and an unused one."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.randn(4))
        self.shift = nn.Parameter(torch.tensor(0.3))
        self.empty = nn.Parameter(torch.zeros(0, 2))
        self.unused = nn.Parameter(torch.randn(2, 2))
        self.head = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(x * self.scale + self.shift) + self.empty.sum()


class TwoInputs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(4, 3), nn.Embedding(7, 3)

    def forward(self, x: Tensor, tokens: Tensor) -> Tensor:
        return self.left(x) * self.right(tokens).sum(1)


class Recurrent(nn.Module):
    def __init__(self, kind: type[nn.LSTM] | type[nn.GRU] | type[nn.RNN]) -> None:
        super().__init__()
        self.layer, self.head = kind(3, 4, num_layers=2, batch_first=True), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layer(x)[0][:, -1])


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))


def convolutional() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1), nn.GroupNorm(2, 4), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(36, 3)
    )


def partly_frozen() -> nn.Module:
    model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))
    model[0].requires_grad_(False)
    model[2].bias.requires_grad_(False)
    return model


def frozen_batchnorm() -> nn.Module:
    model = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 3))
    model(torch.randn(20, 4))
    model[1].eval()
    return model


def attention() -> nn.Module:
    layer = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True)
    return nn.Sequential(layer, nn.Flatten(), nn.Linear(12, 3))


def vectors() -> tuple[Tensor, ...]:
    return (torch.randn(ROWS, 4),)


def pictures() -> tuple[Tensor, ...]:
    return (torch.randn(ROWS, 2, 6, 6),)


def sequences() -> tuple[Tensor, ...]:
    return (torch.randn(ROWS, 3, 3),)


def labels() -> Tensor:
    return torch.randint(3, (ROWS,))


MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[], tuple[Tensor, ...]]]] = {
    "mlp": (mlp, vectors),
    "convolutional": (convolutional, pictures),
    "tied embedding": (Tied, lambda: (torch.randint(7, (ROWS, 3)),)),
    "layer used twice": (Twice, vectors),
    "bare parameters": (Bare, vectors),
    "partly frozen": (partly_frozen, vectors),
    "frozen batchnorm": (frozen_batchnorm, vectors),
    "two inputs": (TwoInputs, lambda: (torch.randn(ROWS, 4), torch.randint(7, (ROWS, 3)))),
    "attention": (attention, lambda: (torch.randn(ROWS, 3, 4),)),
    "attention in eval mode": (lambda: attention().eval(), lambda: (torch.randn(ROWS, 3, 4),)),
    "lstm": (lambda: Recurrent(nn.LSTM), sequences),
    "gru": (lambda: Recurrent(nn.GRU), sequences),
    "rnn": (lambda: Recurrent(nn.RNN), sequences),
}
