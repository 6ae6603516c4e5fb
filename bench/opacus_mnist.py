"""Compares Opacus and sordino.opacus on one epoch of MNIST with the same script: time and accuracy.

    make peers && .venv-peers/bin/python -m bench.opacus_mnist --save results/opacus_mnist.json

The script is examples/opacus_mnist.py, with one import changed for Opacus. Each run is a separate process with one
thread; the two libraries alternate. Times are processor times of the epoch, since the machine may be busy.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import mean, median, stdev
from typing import Any

from bench.step import origin

ROOT = Path(__file__).resolve().parent.parent
SCRIPT = ROOT / "examples" / "opacus_mnist.py"
OURS, THEIRS = "from sordino.opacus import PrivacyEngine", "from opacus import PrivacyEngine"
SETTINGS = ({"batch-size": 64, "lr": 0.1}, {"batch-size": 512, "lr": 0.5})


def run(script: Path, settings: dict[str, float], seed: int) -> dict[str, float]:
    """Runs one epoch in a separate process."""
    options = [word for name, value in settings.items() for word in (f"--{name}", str(value))]
    command = [sys.executable, "-W", "ignore", str(script), "--epochs", "1", "--seed", str(seed), *options]
    path = f"{ROOT / 'examples' / 'stand_ins'}{os.pathsep}{ROOT / 'src'}"
    surroundings = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    out = subprocess.run(command, capture_output=True, text=True, check=True, env=surroundings).stdout
    patterns = {
        "seconds": r"([\d.]+) processor seconds",
        "epsilon": r"epsilon ([\d.]+)",
        "accuracy": r"accuracy ([\d.]+)",
    }
    return {name: float(re.search(pattern, out).group(1)) for name, pattern in patterns.items()}  # type: ignore[union-attr]


def measured(seeds: int) -> list[dict[str, Any]]:
    """Measures a row per setting and library, in alternation."""
    source = SCRIPT.read_text()
    if source.count(OURS) != 1:
        raise ValueError(f"the script must import the engine once, by {OURS!r}.")
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        theirs = Path(folder) / SCRIPT.name
        theirs.write_text(source.replace(OURS, THEIRS))
        scripts = {"opacus": theirs, "sordino.opacus": SCRIPT}
        for settings in SETTINGS:
            runs: dict[str, list[dict[str, float]]] = {name: [] for name in scripts}
            for seed in range(seeds):
                for name, script in scripts.items():
                    runs[name].append(run(script, settings, seed))
                    print(settings, name, runs[name][-1], flush=True)
            rows += [{"library": name, **settings, **_summary(found)} for name, found in runs.items()]
    return rows


def _summary(runs: list[dict[str, float]]) -> dict[str, Any]:
    accuracies = [one["accuracy"] for one in runs]
    return {
        "processor_seconds_median": median(one["seconds"] for one in runs),
        "accuracy_mean": round(mean(accuracies), 4),
        "accuracy_std": round(stdev(accuracies), 4) if len(runs) > 1 else None,
        "epsilon": runs[0]["epsilon"],
        "runs": runs,
    }


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--seeds", type=int, default=3, help="number of seeds 0, 1, ... of the initial weights")
    arguments.add_argument("--save", type=Path, help="where to write the result as JSON")
    chosen = arguments.parse_args()
    rows = measured(chosen.seeds)
    result = {
        **origin("bench.opacus_mnist"),
        "threads_of_each_run": 1,
        "seeds": list(range(chosen.seeds)),
        "epochs": 1,
        "noise_multiplier": 1.0,
        "max_grad_norm": 1.0,
        "delta": 1e-5,
        "rows": rows,
    }
    if chosen.save:
        chosen.save.write_text(json.dumps(result, indent=2) + "\n")
    for row in rows:
        print({name: value for name, value in row.items() if name != "runs"})


if __name__ == "__main__":
    main()
