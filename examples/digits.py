"""A private classifier of handwritten digits, on the 1,797 images that ship with scikit-learn.

python examples/digits.py                                    one run with a fixed split and seed
python examples/digits.py --seeds 5 --save results/digits.json   the mean of five runs, saved with command and commit
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import sys
from pathlib import Path
from statistics import mean

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

import sordino

EPSILON, DELTA = 3.0, 1e-4
NUM_TRAINING = 1437


def split() -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Splits the dataset: four fifths for training, one fifth for testing. Pixels are in the public range 0 to 16."""
    pixels, labels = load_digits(return_X_y=True)
    inputs, targets = torch.tensor(pixels / 16, dtype=torch.float32), torch.tensor(labels)
    order = torch.randperm(len(inputs), generator=torch.Generator().manual_seed(0))
    train, test = order[:NUM_TRAINING], order[NUM_TRAINING:]
    return (inputs[train], targets[train]), (inputs[test], targets[test])


def train(seed: int, progress: bool = True) -> tuple[float, sordino.Guarantee]:
    """Trains a model. Returns the test accuracy of the final model and its privacy guarantee."""
    training, (test_inputs, test_targets) = split()
    torch.manual_seed(seed)
    fitted = sordino.fit(
        nn.Linear(64, 10),
        training,
        epsilon=EPSILON,
        delta=DELTA,
        batch_size=256,
        epochs=30,
        seed=seed,
        progress=progress,
    )
    with torch.no_grad():
        correct = fitted.model(test_inputs).argmax(dim=1) == test_targets
    return float(correct.double().mean()), fitted.guarantee


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--seeds", type=int, default=1, help="number of runs, with seeds 0, 1, ...")
    arguments.add_argument("--save", type=Path, help="where to write the result as JSON")
    chosen = arguments.parse_args()
    runs = [train(seed) for seed in range(chosen.seeds)]
    accuracies = [accuracy for accuracy, _ in runs]
    guarantee = runs[-1][1]
    print(f"\nTest accuracy {100 * mean(accuracies):.1f} % on {1797 - NUM_TRAINING} images ({chosen.seeds} run(s)).\n")
    print(guarantee)
    if chosen.save:
        chosen.save.write_text(json.dumps(_result(accuracies, guarantee), indent=2) + "\n")


def _result(accuracies: list[float], guarantee: sordino.Guarantee) -> dict[str, object]:
    commit = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=True).stdout.strip()
    return {
        "command": "python " + " ".join(sys.argv),
        "commit": commit,
        "seeds": list(range(len(accuracies))),
        "machine": f"{platform.machine()}, {torch.get_num_threads()} threads, torch {torch.__version__}",
        "test_accuracy": accuracies,
        "mean_test_accuracy": mean(accuracies),
        "guarantee": guarantee.as_dict(),
    }


if __name__ == "__main__":
    main()
