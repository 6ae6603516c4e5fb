"""Benchmark of the accountants on 400 settings: the time of each, and the number of tight results.

python -m bench.accountant > results/bench_accountant.json
"""

from __future__ import annotations

import json
import math
import resource
import time
from itertools import product

from bench.step import origin
from sordino import Adjacency, Gaussian, Poisson
from sordino.accounting import all_answers

RATES, MULTIPLIERS = (1e-5, 1e-3, 0.05, 0.5, 1.0), (0.3, 0.7, 1.5, 8.0, 100.0)
STEPS, DELTAS = (1, 10**2, 10**4, 10**6), (1e-3, 1e-6, 1e-10, 1e-15)


def main() -> None:
    seconds, finite, tight = [], 0, 0
    for rate, multiplier, steps, delta in product(RATES, MULTIPLIERS, STEPS, DELTAS):
        event = Poisson(rate, steps).compose(Gaussian(multiplier).event, steps)
        start = time.perf_counter()
        best = all_answers(event, Adjacency.ZERO_OUT, delta)[0]
        seconds.append(time.perf_counter() - start)
        finite += math.isfinite(best.epsilon) and best.epsilon >= 0
        tight += best.accountant in ("pld", "exact-gaussian") or best.epsilon == 0
    result = {
        "settings": len(seconds),
        "finite": finite,
        "tight": tight,
        "slowest_seconds": max(seconds),
        "total_seconds": sum(seconds),
        "peak_mib_of_the_process": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }
    print(json.dumps(origin("bench.accountant") | result, indent=2))


if __name__ == "__main__":
    main()
