"""Accuracy and time of `sordino train` with its default settings, for several seeds.

    python -m bench.accuracy --data mnist fashion-mnist --models scatter-linear --epsilons 1 3 --seeds 3

Rows are written to results/accuracy.json as they are measured, and replace older rows. Each run is a separate process
with an empty feature cache, as on first use, so its time includes the features. Accuracy is that of the final iterate.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import tomllib
from pathlib import Path
from typing import Any

from bench.step import origin
from sordino._input.files import write_atomically
from sordino.training.run_folder import RunFolder

RESULTS = Path(__file__).parent.parent / "results" / "accuracy.json"


def main() -> None:
    arguments = _arguments()
    rows: list[dict[str, Any]] = json.loads(RESULTS.read_bytes())["rows"] if RESULTS.exists() else []
    for model in arguments.models:
        for data in arguments.data:
            for epsilon in arguments.epsilons:
                for seed in range(arguments.seeds):
                    row = _run(data, model, epsilon, seed)
                    rows = [old for old in rows if _key(old) != _key(row)] + [row]
                    _save(rows)
                    print(
                        f"{data} {model} epsilon {epsilon} seed {seed}: {row['test_accuracy']:.4f}, {row['seconds']} s"
                    )


def _run(data: str, model: str, epsilon: float, seed: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        settings = ["--data", data, "--model", model, "--epsilon", f"{epsilon:g}", "--delta", "1e-5"]
        command = ["sordino", "train", *settings, "--seed", str(seed), "--out", str(out), "--quiet"]
        begun = time.monotonic()
        _with_empty_cache([sys.executable, "-c", "from sordino.cli import main; main()", *command[1:]], Path(folder))
        seconds = round(time.monotonic() - begun)
        run = RunFolder(out)
        last, promised = run.metrics()[-1], run.privacy()
        shown = " ".join(command[:-3])
        return {
            "data": data,
            "model": model,
            "epsilon": promised["epsilon"],
            "target_epsilon": epsilon,
            "delta": promised["delta"],
            "adjacency": promised["adjacency"],
            "seed": seed,
            "test_accuracy": last["test_accuracy"],
            "seconds": seconds,
            "recipe": tomllib.loads(run.recipe().decode()),
            **(origin("bench.accuracy") | {"command": shown}),
        }


def _with_empty_cache(command: list[str], folder: Path) -> None:
    """Runs a command with the existing datasets and an empty feature cache."""
    data = Path(os.environ.get("SORDINO_DATA", Path.home() / ".cache" / "sordino"))
    fresh = folder / "data"
    fresh.mkdir()
    for path in data.iterdir():
        if path.name != "features":
            (fresh / path.name).symlink_to(path)
    subprocess.run(command, env=os.environ | {"SORDINO_DATA": str(fresh)}, stdout=subprocess.DEVNULL, check=True)


def _key(row: dict[str, Any]) -> tuple[object, ...]:
    return row["data"], row["model"], row["target_epsilon"], row["seed"]


def _save(rows: list[dict[str, Any]]) -> None:
    rows = sorted(rows, key=lambda row: tuple(map(str, _key(row))))
    groups: dict[tuple[object, ...], list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault(_key(row)[:3], []).append(row)
    means = [
        {
            "data": key[0],
            "model": key[1],
            "target_epsilon": key[2],
            "seeds": len(group),
            "mean_test_accuracy": statistics.mean(row["test_accuracy"] for row in group),
            "most_seconds": max(row["seconds"] for row in group),
        }
        for key, group in groups.items()
    ]
    write_atomically(RESULTS, (json.dumps({"means": means, "rows": rows}, indent=2) + "\n").encode())


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", nargs="+", default=["mnist", "fashion-mnist"])
    parser.add_argument("--models", nargs="+", default=["scatter-linear"])
    parser.add_argument("--epsilons", nargs="+", type=float, default=[1.0, 3.0])
    parser.add_argument("--seeds", type=int, default=3)
    return parser.parse_args()


if __name__ == "__main__":
    main()
