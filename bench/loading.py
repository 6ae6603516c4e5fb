"""Time of a private step whose rows take time to read, in the training thread and in worker processes.

python -m bench.loading > results/bench_loading.json

A row takes 2 ms, as from a disk or over a network: the reader waits, and leaves the processor to the step. A step has
256 rows, so reading takes 512 ms in one process and 256 ms in two. The step hides the reading if it takes as long with
workers as with rows in memory.
"""

from __future__ import annotations

import argparse
import json
import time
from statistics import median
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import Dataset

import sordino as so
from bench.step import origin

ROWS, BATCH, PIXELS = 4096, 256, (3, 32, 32)
SECONDS_PER_ROW = 2e-3
_WIDTH = 32


class SlowRows(Dataset[tuple[Tensor, int]]):
    """Rows in memory, each of which is handed out after a while."""

    def __init__(self, inputs: Tensor, labels: list[int], seconds: float) -> None:
        self.inputs, self.labels, self.seconds = inputs, labels, seconds

    def __len__(self) -> int:
        return len(self.inputs)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        time.sleep(self.seconds)
        return self.inputs[index], self.labels[index]


def network() -> nn.Module:
    """A convolutional network whose step takes longer than two workers need to read its rows."""
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    for channels in (PIXELS[0], _WIDTH, _WIDTH):
        layers += [nn.Conv2d(channels, _WIDTH, 3, padding=1), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(16 * _WIDTH, 10))


def milliseconds_per_step(data: Any, steps: int) -> float:
    """The median time of a step, after two that start the workers and fill their queues."""
    plan = so.Plan(
        so.FixedSize(BATCH, ROWS, steps + 2), so.LossGradient(F.cross_entropy), so.ClipByNorm(1.0), so.Gaussian(1.0)
    )
    model, times = network(), []
    run = so.PrivateRun(plan, model, data, seed=0)
    for _ in range(steps + 2):
        start = time.perf_counter()
        next(run).divide(BATCH).write_to(model)
        times.append(time.perf_counter() - start)
    return 1000 * median(times[2:])


def measured(steps: int, workers: int) -> dict[str, float]:
    """Milliseconds of a step by where its rows come from."""
    inputs, labels = torch.rand(ROWS, *PIXELS), torch.randint(10, (ROWS,))
    slow = SlowRows(inputs, labels.tolist(), SECONDS_PER_ROW)
    ahead = so.as_records(slow, loading=so.Loading(num_workers=workers))
    return {
        "rows in memory": milliseconds_per_step((inputs, labels), steps),
        "read in the training thread": milliseconds_per_step(slow, steps),
        f"read ahead by {workers} workers": milliseconds_per_step(ahead, steps),
    }


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--steps", type=int, default=21, help="number of steps that are timed")
    arguments.add_argument("--workers", type=int, default=2, help="number of worker processes")
    chosen = arguments.parse_args()
    found = measured(chosen.steps, chosen.workers)
    in_memory, alone, ahead = found.values()
    about = {
        "milliseconds_per_row": 1000 * SECONDS_PER_ROW,
        "rows_per_step": BATCH,
        "milliseconds_per_step": {name: round(value, 1) for name, value in found.items()},
        "share_of_reading_hidden": round(1 - max(0.0, ahead - in_memory) / (alone - in_memory), 3),
    }
    print(json.dumps({**about, **origin("bench.loading")}, indent=2))


if __name__ == "__main__":
    main()
