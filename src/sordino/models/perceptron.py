"""Fully connected networks, from none to two hidden layers. Inputs of any shape are flattened."""

from __future__ import annotations

from torch import nn


def linear(inputs: int, outputs: int) -> nn.Module:
    """One linear layer: logistic or linear regression, inputs * outputs + outputs parameters.

    >>> sum(p.numel() for p in linear(784, 10).parameters())
    7850
    """
    return nn.Sequential(nn.Flatten(), nn.Linear(inputs, outputs))


def two_layer(inputs: int, outputs: int, *, width: int = 512) -> nn.Module:
    """The two-layer ReLU network: 407,050 parameters on 784 inputs with width 512 and 10 outputs.

    >>> sum(p.numel() for p in two_layer(784, 10).parameters())
    407050
    """
    return nn.Sequential(nn.Flatten(), nn.Linear(inputs, width), nn.ReLU(), nn.Linear(width, outputs))


def table_network(inputs: int, outputs: int, *, width: int = 64) -> nn.Module:
    """Two hidden layers of 64 with tanh, for tables: 11,010 parameters on 104 inputs with 2 outputs.

    >>> sum(p.numel() for p in table_network(104, 2).parameters())
    11010
    """
    hidden = [nn.Linear(inputs, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh()]
    return nn.Sequential(nn.Flatten(), *hidden, nn.Linear(width, outputs))
