"""Small networks to attack, and generated images."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from sordino.attacks.reconstruction import KnownNetwork
from sordino.attacks.reconstruction.cnn6 import invertible_network, logistic_loss


@pytest.fixture
def pictures():
    """Four smooth images of shape (3, 8, 8)."""
    coarse = torch.rand(4, 3, 4, 4, generator=torch.Generator().manual_seed(0))
    return F.interpolate(coarse, size=8, mode="bilinear")


@pytest.fixture
def linear():
    torch.manual_seed(0)
    return KnownNetwork(nn.Sequential(nn.Flatten(), nn.Linear(192, 10)), F.cross_entropy, (3, 8, 8), (0.5,), (0.25,))


@pytest.fixture
def hidden():
    """A network with one hidden layer."""
    torch.manual_seed(0)
    layers = nn.Flatten(), nn.Linear(192, 128), nn.ReLU(), nn.Linear(128, 10)
    return KnownNetwork(nn.Sequential(*layers), F.cross_entropy, (3, 8, 8), (0.5,), (0.25,))


@pytest.fixture
def recursive():
    """A network of three invertible convolutions: the first has 400 outputs for 192 inputs."""
    shapes = ((3, 16, 4, 2, 2), (16, 20, 3, 1, 1), (20, 24, 3, 2, 1))
    return KnownNetwork(invertible_network(shapes, 24 * 9), logistic_loss, (3, 8, 8), (0.5,), (0.25,))
