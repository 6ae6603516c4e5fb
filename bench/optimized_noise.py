"""Speed of drawing optimized noise, compared with a NumPy loop, vectorized NumPy and Gaussian noise.

    python -m bench.optimized_noise --json > results/bench_optimized_noise.json

Weights are lognormal. The loop draws one coordinate at a time; both NumPy versions use PCG64, which is not
cryptographic. The choice of blocks, done once per training step, is timed separately.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch

from bench.sides import milliseconds
from bench.step import origin
from sordino.kernel.randomness import Key
from sordino.optimized_noise import BlockNorm, best_blocks, isotropic, weighted_laplace

DIMENSIONS = (10**3, 10**4, 10**5, 10**6, 10**7)
_LARGEST_LOOP = 10**5  # the loop's time per coordinate does not depend on their number
_FAMILIES = {"weighted_laplace": weighted_laplace, "isotropic": isotropic, "best_blocks": best_blocks}


def by_loop(noise: BlockNorm, generator: np.random.Generator) -> np.ndarray:
    """Draws coordinate by coordinate, with one call of NumPy each."""
    rates, block_of = noise.rates.tolist(), noise.block_of.tolist()
    radii, lengths, z = [0.0] * len(rates), [0.0] * len(rates), []
    for block in block_of:
        z.append(generator.standard_normal())
        radii[block] += generator.standard_exponential()
        lengths[block] += z[-1] ** 2
    return np.array([x * radii[b] / (rates[b] * lengths[b] ** 0.5) for x, b in zip(z, block_of, strict=True)])


def by_vector(noise: BlockNorm, generator: np.random.Generator) -> np.ndarray:
    """Draws whole vectors, with radii from the gamma distribution."""
    block_of = noise.block_of.numpy()
    z = generator.standard_normal(len(block_of))
    radii = generator.standard_gamma(np.bincount(block_of)) / noise.rates.numpy()
    lengths = np.sqrt(np.bincount(block_of, z * z))
    return np.asarray(z * (radii / lengths)[block_of])


def measure(dimension: int, repeats: int) -> dict[str, Any]:
    """Measures one row: coordinates per second of each method, and milliseconds to choose the blocks."""
    generator, stream = np.random.default_rng(0), Key.fresh().stream("noise")
    weights = torch.from_numpy(np.exp(generator.standard_normal(dimension)))
    noises = {name: fit(weights, 1.0) for name, fit in _FAMILIES.items()}
    draws: dict[str, Callable[[], object]] = {"gaussian": lambda: stream.normals(dimension, step=0)}
    for name, noise in noises.items():
        draws[name] = partial(noise.sample, stream, step=0)
        draws[f"{name}_numpy_vector"] = partial(by_vector, noise, generator)
    rates = {name: 1000 * dimension / milliseconds(draw, repeats) for name, draw in draws.items()}
    if dimension <= _LARGEST_LOOP:
        loop = milliseconds(lambda: by_loop(noises["best_blocks"], generator), min(repeats, 3))
        rates["best_blocks_numpy_loop"] = 1000 * dimension / loop
    return {
        "dimension": dimension,
        "blocks": len(noises["best_blocks"].rates),
        "coordinates_per_second": rates,
        "best_blocks_ms": milliseconds(lambda: best_blocks(weights, 1.0), min(repeats, 5)),
    }


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--dimensions", nargs="+", type=int, default=list(DIMENSIONS))
    arguments.add_argument("--repeats", type=int, default=7)
    arguments.add_argument("--json", action="store_true")
    chosen = arguments.parse_args()
    torch.set_num_threads(1)
    rows = []
    for dimension in chosen.dimensions:
        rows.append(measure(dimension, chosen.repeats))
        if not chosen.json:
            print(_line(rows[-1]), flush=True)
    if chosen.json:
        print(json.dumps(origin("bench.optimized_noise") | {"threads": 1, "rows": rows}, indent=2))


def _line(row: dict[str, Any]) -> str:
    rates = "  ".join(f"{name} {rate / 1e6:.2f}" for name, rate in row["coordinates_per_second"].items())
    return f"d {row['dimension']:>10,}  blocks chosen in {row['best_blocks_ms']:.1f} ms  million per second: {rates}"


if __name__ == "__main__":
    main()
