"""Time of the scattering transform for the images of MNIST and CIFAR-10, and of the whole feature preparation.

    python -m bench.scattering
    python -m bench.scattering --json > results/bench_scattering.json
    python -m bench.scattering --share 0.1          on a fraction of the images, with times scaled up

Images are random, because the time does not depend on their contents. Processor seconds are summed over threads, and
are meaningful on a busy machine too. `kymatio_seconds` are reference times of Kymatio on two cores, not measured here.
"""

from __future__ import annotations

import argparse
import json
import resource
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from bench.step import origin
from sordino.models.features import Scattering2D, ScatteringFeatures

SETS = {
    "70,000 grey pictures of 28 pixels": ((1, 28, 28), 70_000, 50.0),
    "60,000 colour pictures of 32 pixels": ((3, 32, 32), 60_000, 153.0),
}
_AT_A_TIME = 1000


def seconds(transform: Callable[[Tensor], Tensor], shape: tuple[int, ...], images: int) -> tuple[float, float]:
    """Wall and processor time for this many images, a thousand at a time, so that memory is no limit."""
    batch = torch.rand(_AT_A_TIME, *shape, generator=torch.Generator().manual_seed(0))
    transform(batch[:16])
    start, processor = time.perf_counter(), time.process_time()
    for begin in range(0, images, _AT_A_TIME):
        transform(batch[: min(_AT_A_TIME, images - begin)])
    return time.perf_counter() - start, time.process_time() - processor


def measure(name: str, share: float) -> dict[str, Any]:
    """Measures one row of the table."""
    shape, images, kymatio = SETS[name]
    some = max(1, round(share * images))
    row: dict[str, Any] = {"pictures": name, "share_measured": share}
    for what, transform in (("scattering", Scattering2D(shape=shape[1:])), ("features", ScatteringFeatures(shape))):
        elapsed, processor = (images / some * x for x in seconds(transform, shape, some))
        row |= {f"{what}_seconds": elapsed, f"{what}_processor_seconds": processor}
    row["peak_mib"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return row | {"kymatio_seconds": kymatio, "ratio_to_kymatio": row["scattering_seconds"] / kymatio}


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--share", type=float, default=1.0)
    arguments.add_argument("--json", action="store_true")
    chosen = arguments.parse_args()
    rows = [measure(name, chosen.share) for name in SETS]
    if chosen.json:
        print(json.dumps(origin("bench.scattering") | {"rows": rows}, indent=2))
        return
    for row in rows:
        times = f"scattering {row['scattering_seconds']:6.1f} s  features {row['features_seconds']:6.1f} s"
        print(f"{row['pictures']:36} {times}  Kymatio {row['kymatio_seconds']:6.1f} s")


if __name__ == "__main__":
    main()
