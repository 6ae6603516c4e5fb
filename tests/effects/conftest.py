"""A small network that has learnt the digits, and their public rows on a scale from 0 to 1."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from sordino.data import load


@pytest.fixture(scope="session")
def digits():
    """Pixels from 0 to 1 and labels: rows to learn from, and rows to attack."""
    data = load("digits")
    return tuple((split.inputs.float() / 16, split.target) for split in (data.train, data.test))


@pytest.fixture(scope="session")
def network(digits):
    """It has about 97 % right."""
    (inputs, target), _ = digits
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 10))
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    for _ in range(60):
        optimizer.zero_grad()
        F.cross_entropy(model(inputs), target).backward()
        optimizer.step()
    return model.eval()
