"""Compares the convex program, the trained ReLU network and convex networks with random gates, on small data.

python -m bench.convex_origin --picture results/convex_origin.svg > results/convex_origin.json
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np

from bench.step import origin
from sordino_papers.hidden_state.arrangements import arrangements, random_arrangements
from sordino_papers.hidden_state.cone_program import Problem, train_networks

GATES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
DRAWS = 20
PROBLEMS = ((10, 2), (15, 2), (15, 3), (20, 3))


def problem(number: int, size: int) -> Problem:
    """A regression problem: noisy values of a curve. In three dimensions the last input is 1, for a bias."""
    rng = np.random.default_rng(number)
    rows = rng.normal(size=(number, size))
    if size == 3:
        rows[:, 2] = 1.0
    return Problem(rows, np.sin(2 * rows[:, 0]) + 0.3 * rng.normal(size=number), beta=0.1)


def measured(number: int, size: int) -> dict[str, Any]:
    small = problem(number, size)
    cones = small.with_cones()
    networks = np.sort(train_networks(small, width=40, restarts=20, steps=10_000, seed=0))
    rng = np.random.default_rng(0)
    gated = {
        gates: [small.without_cones(random_arrangements(small.rows, gates, rng)).value for _ in range(DRAWS)]
        for gates in GATES
    }
    return {
        "rows": number,
        "dimensions": size,
        "arrangements": len(arrangements(small.rows)),
        "cones": cones.value,
        "cones_lower_bound": cones.lower_bound,
        "best_network": networks[0],
        "median_network": float(np.median(networks)),
        "gated_all": small.without_cones(arrangements(small.rows)).value,
        "gated_random": {str(gates): float(np.mean(values)) for gates, values in gated.items()},
    }


def picture(results: list[dict[str, Any]], path: Path) -> None:
    """Plots the optimum over the number of random gates, with the optima of the ReLU network and of all gates."""
    import matplotlib.pyplot as plt

    figure, panels = plt.subplots(1, len(results), figsize=(4 * len(results), 3.2), layout="constrained")
    for result, panel in zip(results, panels, strict=True):
        numbers = [int(gates) for gates in result["gated_random"]]
        panel.plot(numbers, list(result["gated_random"].values()), "o-", color="tab:blue", label="random gates")
        panel.axhline(result["cones"], color="tab:red", label="ReLU network (cones)")
        panel.axhline(result["gated_all"], color="black", linestyle=":", label="all gates")
        panel.set(
            xscale="log", yscale="log", xlabel="gates", title=f"{result['rows']} rows in {result['dimensions']}-d"
        )
    panels[0].set_ylabel("optimal objective")
    panels[0].legend()
    figure.savefig(path)
    plt.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--picture", type=Path)
    arguments = parser.parse_args()
    results = [measured(*sizes) for sizes in PROBLEMS]
    if arguments.picture is not None:
        picture(results, arguments.picture)
    print(json.dumps(origin("bench.convex_origin") | {"draws": DRAWS, "problems": results}, indent=2))


if __name__ == "__main__":
    main()
