"""A training on rows with random augmentation, which can run in a separate process and kill itself.

    python repeated_steps.py OUT KILLED_AT

writes the release of each step beside OUT, and kills itself before step KILLED_AT.
"""

from __future__ import annotations

import os
import random
import signal
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

import sordino as so
from sordino.training import run_writer
from sordino.training.loop import Training

STEPS = 12


class Augmented(Dataset[tuple[Tensor, int]]):
    """A dataset that draws from the three global generators, or from one of its own."""

    def __init__(self, own: np.random.Generator | None = None, scale: float = 1.0) -> None:
        generator = torch.Generator().manual_seed(1)
        self.inputs = torch.randn(200, 6, generator=generator)
        self.labels = torch.randint(0, 3, (200,), generator=generator).tolist()
        self.own, self.scale = own, scale

    def __len__(self) -> int:
        return len(self.inputs)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        if self.own is not None:
            return self.inputs[index] + float(self.own.normal()), self.labels[index]
        drawn = torch.randn(6) + float(np.random.normal()) + random.gauss(0, 1)
        return self.inputs[index] + self.scale * drawn, self.labels[index]


def trained(out: Path, *, killed_at: int = STEPS, **changes: Any) -> dict[int, Tensor]:
    """The release of each step, for a script that seeds all generators first."""
    torch.manual_seed(0)
    np.random.seed(0)
    random.seed(0)
    model, released, step = nn.Linear(6, 3), dict[int, Tensor](), Training.step

    def watched(training: Training) -> None:
        if training.run.steps == killed_at:
            os.kill(os.getpid(), signal.SIGKILL)
        begun = training.run.steps
        step(training)
        released[begun] = torch.cat([parameter.grad.flatten() for parameter in model.parameters()])
        torch.save(released, f"{out}.released")

    arguments = {"epsilon": 3.0, "delta": 1e-3, "batch_size": 40, "steps": STEPS, "progress": False, "seed": 7}
    before, threads = run_writer._STEPS_BETWEEN_CHECKPOINTS, torch.get_num_threads()
    run_writer._STEPS_BETWEEN_CHECKPOINTS, Training.step = 0.5, watched
    torch.set_num_threads(1)
    try:
        so.fit(model, changes.pop("data", Augmented()), out=out, **(arguments | changes))
    finally:
        run_writer._STEPS_BETWEEN_CHECKPOINTS, Training.step = before, step
        torch.set_num_threads(threads)
    return released


if __name__ == "__main__":
    trained(Path(sys.argv[1]), killed_at=int(sys.argv[2]))
