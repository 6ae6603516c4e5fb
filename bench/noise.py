"""How long a step's noise takes, against other generators of normals on the same machine, and its batch.

python -m bench.noise > results/bench_noise.json
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial

import numpy as np
import torch

import sordino as so
from bench.step import milliseconds, origin
from sordino.noise import NoiseAt
from sordino.records import as_records

NORMALS = 400_000
PARAMETERS = {"mlp": 407_050, "dp-cnn": 550_570, "gated": 1_003_520, "five million": 5_000_000}
EXAMPLES = (60_000, 1_000_000)
BATCH, INPUTS = 1024, 784
_REPEATS = 21
_CHUNK, _CHUNKS = 10_000_000, 300


def generators() -> dict[str, float]:
    """Milliseconds for as many normals as an MLP has parameters."""
    stream = so.Key.fresh().stream("noise")
    draws: dict[str, Callable[[], object]] = {
        "sordino (AES-256, float64 radius)": lambda: stream.normals(NORMALS, step=0),
        "torch.randn float32": lambda: torch.randn(NORMALS),
        "torch.randn float64": lambda: torch.randn(NORMALS, dtype=torch.float64),
        "numpy PCG64 ziggurat float64": lambda: np.random.default_rng(0).standard_normal(NORMALS),
    }
    try:
        import randomgen
    except ImportError:  # a peer to compare with, not a dependency
        pass
    else:
        counter = np.random.Generator(randomgen.AESCounter(key=1))
        draws["randomgen AESCounter ziggurat float64"] = lambda: counter.standard_normal(NORMALS)
    return {name: milliseconds(draw, _REPEATS) for name, draw in draws.items()}


def releases() -> dict[str, float]:
    """Milliseconds from a sum to a private gradient, by the number of parameters."""
    at = NoiseAt(so.Key.fresh().stream("noise"), 0)
    times = {}
    for name, size in PARAMETERS.items():
        total = so.BoundedSum(torch.randn(size, dtype=torch.float64), 1.0, so.Layout(("w",), ((size,),)))
        times[name] = milliseconds(partial(so.Gaussian(1.0).add, total, at), _REPEATS)
    return times


def batches() -> dict[str, float]:
    """Milliseconds to draw the units of a step, and to gather their records."""
    stream = so.Key.fresh().stream("sampling")
    times = {}
    for examples in EXAMPLES:
        for sampler in (so.Poisson(BATCH / examples, 10**6), so.FixedSize(BATCH, examples, 10**6)):
            drawn = sampler.batches(examples, stream)
            times[f"{sampler.name} of {examples:,}"] = milliseconds(partial(next, drawn), _REPEATS)
    records = as_records((torch.randn(EXAMPLES[0], INPUTS), torch.zeros(EXAMPLES[0], dtype=torch.int64)))
    indices = torch.from_numpy(stream.subset(EXAMPLES[0], BATCH, step=0))
    times[f"gathering {BATCH:,} rows of {INPUTS}"] = milliseconds(lambda: records.gather(indices), _REPEATS)
    return times


def torch_tail() -> dict[str, float]:
    """The largest of many float32 normals of torch.

    A true normal exceeds the 5.768 at which a 24-bit uniform ends Box-Muller once in 1.2e8 draws, on either side.
    """
    largest = max(float(torch.randn(_CHUNK).abs().max()) for _ in range(_CHUNKS))
    return {"draws": _CHUNK * _CHUNKS, "largest": largest}


def main() -> None:
    measured = {
        "normals": NORMALS,
        "milliseconds": generators(),
        "parameters": PARAMETERS,
        "release_milliseconds": releases(),
        "batch_milliseconds": batches(),
        "torch_float32_tail": torch_tail(),
    }
    print(json.dumps(origin("bench.noise") | measured, indent=2))


if __name__ == "__main__":
    main()
