"""The process keeps memory that a step frees: on Linux, steps of a small network fetch no pages."""

from __future__ import annotations

import subprocess
import sys

import pytest

STEPS = """
import resource, torch, torch.nn.functional as F
from torch import nn
import sordino as so

model = nn.Sequential(nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 10))
plan = so.Plan(so.Poisson(0.5, 60), so.LossGradient(F.cross_entropy), so.ClipByNorm(1.0), so.Gaussian(1.0))
run = so.PrivateRun(plan, model, (torch.randn(512, 784), torch.zeros(512, dtype=torch.int64)))
fetched = []
for private in run:
    private.divide(256).write_to(model)
    fetched.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt)
print(sorted(b - a for a, b in zip(fetched[20:], fetched[21:]))[20])
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="other allocators have other thresholds")
def test_steps_of_a_small_network_fetch_no_memory_anew() -> None:
    """The sum, the noise and the release of this network take 1,500 pages and more in each step."""
    found = subprocess.run([sys.executable, "-c", STEPS], capture_output=True, text=True, check=True)
    assert int(found.stdout) < 100


RELEASE = """
import re, torch
from pathlib import Path
import sordino as so
from sordino.kernel.noise import NoiseAt
from sordino.kernel.randomness import Key
from sordino.kernel.states import BoundedSum, Layout

def peak():
    return 1024 * int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1])

def release(size):
    total = BoundedSum(torch.ones(size), 1.0, Layout(("w",), ((size,),)))
    before = peak()
    private = so.Gaussian(1.0).add(total, NoiseAt(Key.from_seed(0).stream("noise"), 0))
    return (peak() - before) / size

release(200_000)
print(release(12_000_000))
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="other systems count memory in other units")
def test_noise_takes_no_memory_but_that_of_the_release() -> None:
    """A release has 8 bytes for each parameter. One more vector of float32 would take 4."""
    found = subprocess.run([sys.executable, "-c", RELEASE], capture_output=True, text=True, check=True)
    assert 7 < float(found.stdout) < 10
