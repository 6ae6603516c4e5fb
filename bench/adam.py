"""Held-out accuracy with Adam by learning rate, on public datasets, beside the default settings of SGD.

    python -m bench.adam --tasks cancer-linear digits-linear --rates 0.005 0.01 0.02 --epsilons 1 3 --seeds 2

A fifth of the training rows is held out to measure on, so no test split decides anything. Rows are written to
results/adam.json as they are measured, and replace older ones. `--rates default` measures the default rate of adam, and
`of-sgd` that of SGD.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import load_breast_cancer, load_diabetes

from bench.step import origin
from sordino._input.files import write_atomically
from sordino.data import load
from sordino.recipes import Recipe, carry_out
from sordino.recipes.prepared import rehearse

RESULTS = Path(__file__).parent.parent / "results" / "adam.json"
DELTA = 1e-5
_IMAGES = 7_000  # of MNIST


@dataclass(frozen=True)
class Task:
    """A dataset and a network, with settings that keep the run short."""

    data: str
    model: str
    epochs: float | None = None


TASKS = {
    "cancer-linear": Task("cancer", "linear"),
    "cancer-mlp": Task("cancer", "mlp"),
    "diabetes-linear": Task("diabetes", "linear"),
    "diabetes-mlp": Task("diabetes", "mlp"),
    "diabetes-two-layer": Task("diabetes", "two-layer"),
    "digits-linear": Task("digits", "linear"),
    "digits-two-layer": Task("digits", "two-layer"),
    "digits-mlp": Task("digits", "mlp"),
    "mnist-linear": Task("mnist", "linear"),
    "mnist-scatter-linear": Task("mnist", "scatter-linear", 20),
    "mnist-dp-cnn-s": Task("mnist", "dp-cnn-s", 12),
    "mnist-lenet": Task("mnist", "lenet", 12),
}


def arrays(data: str) -> tuple[NDArray[Any], NDArray[Any], str]:
    """Inputs and target of the training rows, and their public facts."""
    if data in ("digits", "mnist"):
        found = load(data)
        low, high = found.facts.input_range or (0.0, 1.0)
        facts = f"[inputs]\nshape = {list(found.facts.input_shape)}\nrange = [{low}, {high}]\n[target]\nclasses = 10\n"
        return found.train.inputs[:_IMAGES].numpy(), found.train.target[:_IMAGES].numpy(), facts
    inputs, target = (load_breast_cancer if data == "cancer" else load_diabetes)(return_X_y=True)
    low, high = inputs.min(0), inputs.max(0)  # of a public dataset
    scaled = (2 * (inputs - low) / (high - low) - 1).astype(np.float32)
    kind = "classes = 2" if data == "cancer" else "bounds = [25, 346]"
    facts = f"[inputs]\nshape = [{inputs.shape[1]}]\nrange = [-1, 1]\n[target]\n{kind}\n"
    return scaled, target, facts


def held_out(data: str, folder: Path) -> Path:
    """A .npz file of the training rows, in which a fifth of them is the test split."""
    inputs, target, facts = arrays(data)
    order = np.random.default_rng(0).permutation(len(inputs))
    out, kept = order[: len(order) // 5], order[len(order) // 5 :]
    path = folder / f"{data}.npz"
    np.savez(path, inputs=inputs[kept], target=target[kept], test_inputs=inputs[out], test_target=target[out])
    path.with_suffix(".toml").write_text("confirmed_public = true\n" + facts)
    return path


def measured(task: Task, path: Path, epsilon: float, seed: int, **settings: Any) -> dict[str, float]:
    """The accuracy (or R2) on the held-out rows, and the learning rate."""
    recipe = _recipe(task, path, epsilon, seed, **settings)
    with tempfile.TemporaryDirectory() as folder:
        run = carry_out(recipe, Path(folder) / "run", progress=False)
        last = run.metrics()[-1]
        decided = Recipe.read(Path(folder) / "run" / "recipe.toml")
    score = last["test_accuracy"] if "test_accuracy" in last else last["test_r2"]
    assert isinstance(score, float) and decided.learning_rate is not None
    return {"score": score, "learning_rate": decided.learning_rate}


def _recipe(task: Task, path: Path, epsilon: float, seed: int, **settings: Any) -> Recipe:
    if task.epochs is not None:
        settings["epochs"] = task.epochs
    return Recipe(str(path), task.model, epsilon=epsilon, delta=DELTA, seed=seed, **settings)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=list(TASKS))
    parser.add_argument("--rates", nargs="+", default=["default"])
    parser.add_argument("--epsilons", nargs="+", type=float, default=[1.0, 3.0])
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--sgd", action="store_true", help="measure the default settings of sgd too")
    parser.add_argument("--save", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    rows: list[dict[str, Any]] = json.loads(arguments.save.read_bytes())["rows"] if arguments.save.exists() else []
    for name in arguments.tasks:
        with tempfile.TemporaryDirectory() as folder:
            path = held_out(TASKS[name].data, Path(folder))
            for epsilon in arguments.epsilons:
                variants = [("sgd", "default")] if arguments.sgd else []
                for optimizer, rate in [*variants, *(("adam", rate) for rate in arguments.rates)]:
                    settings: dict[str, Any] = {"optimizer": optimizer}
                    if rate == "of-sgd":
                        settings["learning_rate"] = rehearse(
                            _recipe(TASKS[name], path, epsilon, 0)
                        ).settings.learning_rate
                    elif rate != "default":
                        settings["learning_rate"] = float(rate)
                    found = [measured(TASKS[name], path, epsilon, seed, **settings) for seed in range(arguments.seeds)]
                    scores = [one["score"] for one in found]
                    key = {"task": name, "epsilon": epsilon, "optimizer": optimizer, "rate": rate}
                    row = key | {
                        "learning_rate": found[0]["learning_rate"],
                        "mean": round(statistics.mean(scores), 4),
                        "scores": [round(score, 4) for score in scores],
                    }
                    rows = [old for old in rows if not key.items() <= old.items()] + [row]
                    print(row, flush=True)
                    origins = origin("bench.adam") | {"seeds": list(range(arguments.seeds)), "delta": DELTA}
                    write_atomically(arguments.save, (json.dumps(origins | {"rows": rows}, indent=1) + "\n").encode())


if __name__ == "__main__":
    main()
