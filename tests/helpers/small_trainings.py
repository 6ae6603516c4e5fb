"""A small training that can be killed and resumed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from killed_commands import Killed, ending_after
from torch import nn

import sordino as so
from sordino.kernel.augmentation import Jitter, Views
from sordino.training.averaging import Ema
from sordino.training.evaluation import Public
from sordino.training.fit import Fitted
from sordino.training.loop import Training
from sordino.training.schedules import Cosine

GENERATOR = torch.Generator().manual_seed(0)


INPUTS, LABELS = torch.randn(200, 6, generator=GENERATOR), torch.randint(0, 3, (200,), generator=GENERATOR)


PUBLIC = Public((INPUTS[:50], LABELS[:50]))


STEPS = 12


def trained(out: Path, **changes) -> Fitted:
    torch.manual_seed(0)
    between = changes.pop("between", (nn.Tanh(), nn.Dropout(0.3)))
    model = nn.Sequential(nn.Linear(6, 8), *between, nn.Linear(8, 3))
    arguments = {
        "epsilon": 3.0,
        "delta": 1e-3,
        "batch_size": 40,
        "steps": STEPS,
        "learning_rate": 0.05,
        "optimizer": lambda parameters: torch.optim.Adam(parameters, lr=0.05),
        "schedule": Cosine(warmup=0.1),
        "averaging": Ema(0.9),
        "views": Views(2, (Jitter(0.1),)),
        "evaluation": PUBLIC,
        "physical_batch_size": 16,
        "progress": False,
        "seed": 7,
    }
    data = changes.pop("data", (INPUTS, LABELS))
    return so.fit(model, data, out=out, **(arguments | changes))


def kill_after(calls: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Simulates a kill after `calls` operations that may leave something half done: steps, syncs and renames."""
    ending = ending_after(calls)
    monkeypatch.setattr(os, "fsync", ending(os.fsync))
    monkeypatch.setattr(os, "replace", ending(os.replace))
    monkeypatch.setattr(Training, "step", ending(Training.step))


def killed(out: Path, calls: int, **changes) -> bool:
    with pytest.MonkeyPatch.context() as patch:
        kill_after(calls, patch)
        try:
            trained(out, **changes)
        except Killed:
            return True
    return False
