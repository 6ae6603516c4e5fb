"""Time of a step's noise, of all that follows its sum, and of its sampling, beside other generators of normals.

python -m bench.noise > results/bench_noise.json
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from math import pi

import numpy as np
import torch
from torch import Tensor, nn

import sordino as so
from bench.sides import milliseconds
from bench.step import origin
from sordino.kernel.lattice import spacing_of
from sordino.kernel.micro_batches import keep_what_is_freed
from sordino.kernel.noise import NoiseAt
from sordino.kernel.randomness import NORMALS_PER_BLOCK, Key
from sordino.kernel.records import as_records
from sordino.kernel.states import NUMBERS_AT_A_TIME, BoundedSum, Layout, Private

NORMALS = 400_000
PARAMETERS = {"mlp": 407_050, "dp-cnn": 550_570, "gated": 1_003_520, "ten million": 10_000_000}
EXAMPLES = (60_000, 1_000_000)
BATCH, INPUTS = 1024, 784
STD = 1.1
AFTER = (100_000, 1_000_000, 13_000_000, 20_000_000, 100_000_000)
THREADS = (1, 2)
_REPEATS = 21
_PAIRS = NORMALS_PER_BLOCK // 2
_CHUNK, _CHUNKS = 10_000_000, 300


def generators() -> dict[str, float]:
    """Milliseconds of each generator for as many normals as an MLP has parameters."""
    stream = Key.fresh().stream("noise")
    draws: dict[str, Callable[[], object]] = {
        "sordino (AES-256, float64)": lambda: stream.normals(NORMALS, step=0),
        "torch.randn float32": lambda: torch.randn(NORMALS),
        "torch.randn float64": lambda: torch.randn(NORMALS, dtype=torch.float64),
        "numpy PCG64 ziggurat float64": lambda: np.random.default_rng(0).standard_normal(NORMALS),
    }
    try:
        import randomgen
    except ImportError:  # an optional package for comparison
        pass
    else:
        counter = np.random.Generator(randomgen.AESCounter(key=1))
        draws["randomgen AESCounter ziggurat float64"] = lambda: counter.standard_normal(NORMALS)
    return {name: milliseconds(draw, _REPEATS) for name, draw in draws.items()}


def releases(add: Callable[[BoundedSum, NoiseAt], object]) -> dict[str, float]:
    """Milliseconds from a sum to a private gradient, by the number of parameters."""
    at = NoiseAt(Key.fresh().stream("noise"), 0)
    times = {}
    for name, size in PARAMETERS.items():
        total = BoundedSum(torch.randn(size, dtype=torch.float64), 1.0, Layout(("w",), ((size,),)))
        times[name] = milliseconds(partial(add, total, at), _REPEATS)
    return times


def after_the_sum() -> list[dict[str, float]]:
    """Nanoseconds per parameter from a float32 sum to the gradients of a model, by threads and size.

    Noise, division and write-back, the noise alone, and for comparison one copy of the sum to memory that is there.
    """
    rows, kept = [], torch.get_num_threads()
    for threads in THREADS:
        torch.set_num_threads(threads)
        for size in AFTER:
            model = nn.Linear(size // 100, 100, bias=False)
            total, copied = BoundedSum(torch.randn(size), 1.0, Layout.of(model)), torch.zeros(size)
            add = partial(so.Gaussian(STD).add, total, NoiseAt(Key.fresh().stream("noise"), 0))
            works: dict[str, Callable[[], object]] = {
                "all": partial(_write, add, model),
                "noise": add,
                "copy": partial(copied.copy_, total.value),
            }
            repeats = max(3, min(_REPEATS, 10**8 // size))
            times = {name: 1e6 * milliseconds(work, repeats) / size for name, work in works.items()}
            rows.append({"threads": threads, "parameters": size, **times})
    torch.set_num_threads(kept)
    return rows


def _write(add: Callable[[], Private], model: nn.Module) -> None:
    add().divide(256).write_to(model)


def add_float32(total: BoundedSum, at: NoiseAt) -> Tensor:
    """Adds float32 normals without exact rounding, for comparison. It is not private: the last bits reveal the sum."""
    std = STD * total.bound
    spacing = spacing_of(std)
    size = len(total.value)
    normals = np.empty(size, np.float32)

    def fill(block: int, part: slice) -> None:
        out = normals[part]
        cosines, sines = out[:_PAIRS], out[_PAIRS:]
        words = at.stream.words(_PAIRS + (len(cosines) + 1) // 2, step=at.step, block=2 * block)
        radius = (words[: len(cosines)] >> np.uint64(1)).view(np.int64).astype(np.float64)
        radius += 0.5
        radius *= 2.0**-63
        np.log(radius, out=radius)
        radius *= -2.0
        root = np.sqrt(radius.astype(np.float32))
        angle = words[_PAIRS:].view(np.int32)[: len(cosines)].astype(np.float32)
        angle *= np.float32(pi * 2.0**-31)
        np.multiply(np.cos(angle), root, out=cosines)
        np.multiply(np.sin(angle[: len(sines)]), root[: len(sines)], out=sines)

    at.stream.in_blocks(size, fill)
    released = torch.empty(size, dtype=torch.float64)
    pieces = (torch.split(x, NUMBERS_AT_A_TIME) for x in (released, total.value, torch.from_numpy(normals)))
    for out, part, drawn in zip(*pieces, strict=True):
        out.copy_(drawn).mul_(std / spacing).add_(part, alpha=1 / spacing).round_().mul_(spacing)
    return released


def batches() -> dict[str, float]:
    """Milliseconds to sample the units of a step, and to gather their records."""
    stream = Key.fresh().stream("sampling")
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

    Box-Muller with a 24-bit uniform ends at 5.768. A true normal exceeds this once in 1.2e8 draws, on either side.
    """
    largest = max(float(torch.randn(_CHUNK).abs().max()) for _ in range(_CHUNKS))
    return {"draws": _CHUNK * _CHUNKS, "largest": largest}


def main() -> None:
    keep_what_is_freed()
    exact, float32 = releases(so.Gaussian(STD).add), releases(add_float32)
    measured = {
        "normals": NORMALS,
        "milliseconds": generators(),
        "parameters": PARAMETERS,
        "release_milliseconds": exact,
        "release_milliseconds_float32": float32,
        "exact_over_float32": {name: exact[name] / float32[name] for name in PARAMETERS},
        "after_the_sum_nanoseconds": after_the_sum(),
        "batch_milliseconds": batches(),
        "torch_float32_tail": torch_tail(),
    }
    print(json.dumps(origin("bench.noise") | measured, indent=2))


if __name__ == "__main__":
    main()
