"""Overhead of random sparsification per step, with a mask per epoch and with a mask per step.

    python -m bench.sparsify --json > results/bench_sparsify.json

Sparsified steps alternate with steps that keep all coordinates, in one process; times are medians. A mask per epoch is
drawn before the timed steps, so the time to draw it is added, divided by the steps of an epoch.
"""

from __future__ import annotations

import argparse
import json
from functools import partial
from typing import Any

from bench.models import BENCHMARKS
from bench.sides import alternating, milliseconds, turn
from bench.step import origin, private_step
from sordino.encodings import ConstantRate, RandomSparsify
from sordino.kernel.randomness import Key
from sordino.kernel.states import Layout

STEPS_PER_EPOCH = 50  # of 50,000 rows in batches of 1000
_MANY = 10**4


def sparsify(rate: float, refresh: int) -> RandomSparsify:
    """Sparsification at a constant rate: with an increasing rate, the first steps would keep everything."""
    return RandomSparsify(rate, _MANY, STEPS_PER_EPOCH, refresh=refresh, schedule=ConstantRate())


def measure(name: str, batch_size: int, rate: float, repeats: int) -> dict[str, Any]:
    """Measures one row of the table."""
    benchmark = BENCHMARKS[name]
    layout = Layout.of(benchmark.make())
    row: dict[str, Any] = {"model": name, "batch_size": batch_size, "rate": rate, "parameters": layout.size}
    row["mask_ms"] = mask_milliseconds(layout, rate, repeats)
    drawn_beside = {"per_epoch": row["mask_ms"] / STEPS_PER_EPOCH, "per_step": 0.0}
    for kind, refresh in {"per_epoch": 1, "per_step": STEPS_PER_EPOCH}.items():
        whole = private_step(benchmark, batch_size)
        sparse = private_step(benchmark, batch_size, sparsify(rate, refresh))
        whole_ms, sparse_ms = alternating([partial(turn, whole), partial(turn, sparse)], repeats)
        added = (sparse_ms + drawn_beside[kind]) / whole_ms - 1
        row |= {f"{kind}_ms": sparse_ms, f"{kind}_without_ms": whole_ms, f"{kind}_adds": added}
    return row


def mask_milliseconds(layout: Layout, rate: float, repeats: int) -> float:
    """Milliseconds to draw a mask. Each mask has another number, so that none is cached."""
    encoding, stream, steps = sparsify(rate, STEPS_PER_EPOCH), Key.fresh().stream("coding"), iter(range(_MANY))
    return milliseconds(lambda: encoding.mask(next(steps), layout, stream), max(repeats, 9))


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--models", nargs="+", choices=list(BENCHMARKS), default=["dp-cnn"])
    arguments.add_argument("--batch-sizes", nargs="+", type=int, default=[256])
    arguments.add_argument("--rates", nargs="+", type=float, default=[0.5, 0.9])
    arguments.add_argument("--repeats", type=int, default=15)
    arguments.add_argument("--json", action="store_true")
    chosen = arguments.parse_args()
    rows = []
    for name in chosen.models:
        for batch_size in chosen.batch_sizes:
            for rate in chosen.rates:
                rows.append(measure(name, batch_size, rate, chosen.repeats))
                if not chosen.json:
                    print(_line(rows[-1]), flush=True)
    if chosen.json:
        print(json.dumps(origin("bench.sparsify") | {"rows": rows}, indent=2))


def _line(row: dict[str, Any]) -> str:
    kinds = "  ".join(
        f"{kind.replace('_', ' ')} {row[f'{kind}_ms']:.1f} ms, adds {row[f'{kind}_adds']:+.1%}"
        for kind in ("per_epoch", "per_step")
    )
    return f"{row['model']:9} batch {row['batch_size']:5}  rate {row['rate']:g}  {kinds}  mask {row['mask_ms']:.1f} ms"


if __name__ == "__main__":
    main()
