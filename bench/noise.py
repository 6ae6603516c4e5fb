"""How long the noise of a step takes, against other generators of normals on the same machine.

python -m bench.noise > results/bench_noise.json
"""

from __future__ import annotations

import json

import numpy as np
import torch

from bench.step import milliseconds, origin
from sordino import Key

NORMALS = 400_000
_CHUNK, _CHUNKS = 10_000_000, 300


def main() -> None:
    stream = Key.fresh().stream("noise")
    generators = {
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
        generators["randomgen AESCounter ziggurat float64"] = lambda: counter.standard_normal(NORMALS)
    largest = max(float(torch.randn(_CHUNK).abs().max()) for _ in range(_CHUNKS))
    # A true normal exceeds the 5.768 at which a 24-bit uniform ends Box-Muller once in 1.2e8 draws, on either side.
    tail = {"draws": _CHUNK * _CHUNKS, "largest": largest}
    times = {name: milliseconds(draw, 21) for name, draw in generators.items()}
    print(
        json.dumps(
            origin("bench.noise") | {"normals": NORMALS, "milliseconds": times, "torch_float32_tail": tail}, indent=2
        )
    )


if __name__ == "__main__":
    main()
