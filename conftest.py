"""Randomness of torch that is the same in every test and every docstring example, whatever ran before."""

import pytest
import torch


@pytest.fixture(autouse=True)
def seeded():
    """Seeds torch, so that models that a test initialises are the same in every run."""
    torch.manual_seed(0)
