"""Training as one does it without privacy. What it is given decides what its result may be shown to."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

_BATCH, _LR = 128, 3e-3
_EPOCHS, _FEWEST_STEPS = 10, 1000
WORDS = f"Adam at {_LR:g} falling to 0, batches of {_BATCH}, {_EPOCHS} epochs and at least {_FEWEST_STEPS} steps"


def as_input(rows: Tensor) -> Tensor:
    """Rows as a network takes them: bytes of images as float32, everything else as it is, such as token ids."""
    return rows.float() if rows.dtype == torch.uint8 else rows


def train_plainly(model: nn.Module, inputs: Tensor, target: Tensor, *, seed: int) -> nn.Module:
    """Trains the model on these rows, without a clip and without noise, and gives it back in eval mode.

    >>> rows, model = 9 * torch.eye(4).repeat(50, 1), nn.Linear(4, 4)
    >>> _ = nn.init.zeros_(model.weight)
    >>> model = train_plainly(model, rows, torch.arange(4).repeat(50), seed=0)
    >>> model(rows[:4]).argmax(dim=1)
    tensor([0, 1, 2, 3])
    """
    generator = torch.Generator().manual_seed(seed)
    per_epoch = math.ceil(len(target) / _BATCH)
    epochs = max(_EPOCHS, math.ceil(_FEWEST_STEPS / per_epoch))
    optimizer = torch.optim.Adam(model.parameters(), _LR)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, epochs * per_epoch)
    model.train()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)  # of dropout
        for _ in range(epochs):
            for rows in torch.split(torch.randperm(len(target), generator=generator), _BATCH):
                optimizer.zero_grad()
                torch.autograd.backward(F.cross_entropy(model(as_input(inputs[rows])), target[rows]))
                optimizer.step()
                schedule.step()
    return model.eval()
