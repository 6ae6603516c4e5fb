"""Chooses the inputs of the small networks of the sparsification table, on held-out training rows of Fashion-MNIST.

    python -m bench.small_inputs --network h-cnn-s --inputs logarithms groups-27
    python -m bench.small_inputs --network dp-cnn-s --inputs plain --save results/sparsification/small-inputs.jsonl

Networks are trained on 50,000 rows, with the noise that an epsilon needs on them, and measured on 10,000, as in the
search of the table. Seeds are paired. Products are in bfloat16, to save time.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch.nn.functional as F
from torch import Tensor

from bench.kept import keep
from sordino.data import load
from sordino.models.features import GroupedScattering, Pixels, ScatteringFeatures
from sordino_papers.harness.rows import ExperimentRows, prepared_rows
from sordino_papers.sparsification.table import LEFT_OUT, SMALL_CNN, SMALL_SCATTERING, Choice, NetworkSetup

_GREY = (1, 28, 28)
_CLOTHES = load("fashion-mnist")

Prepare = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Grouped(GroupedScattering):
    """Grouped scattering features with another number of groups."""

    groups: int = 27

    def _normalisation(self) -> Prepare:
        return lambda coefficients: F.group_norm(coefficients, self.groups)


FRAMEWORKS: dict[str, NetworkSetup] = {"dp-cnn-s": SMALL_CNN, "h-cnn-s": SMALL_SCATTERING}
INPUTS: dict[str, dict[str, Prepare]] = {
    "dp-cnn-s": {
        "normalised": Pixels(_CLOTHES.facts.input_range, _CLOTHES.facts.mean, _CLOTHES.facts.std),
        "centred": Pixels(_CLOTHES.facts.input_range, _CLOTHES.facts.mean),
        "plain": Pixels(_CLOTHES.facts.input_range),
    },
    "h-cnn-s": {
        "logarithms": ScatteringFeatures(_GREY),
        "groups-27": GroupedScattering(_GREY),
        **{f"groups-{groups}": Grouped(_GREY, groups=groups) for groups in (9, 81)},
    },
}


def measured(
    framework: NetworkSetup, rows: ExperimentRows, choice: Choice, epsilon: float, slower: float, seed: int
) -> dict[str, Any]:
    """The accuracy in percent on the held-out rows, at `slower` times the learning rate of the table."""
    usual, begun = framework.trial(choice, epsilon), time.monotonic()
    trial = replace(usual, learning_rate=slower * usual.learning_rate, precision="bfloat16")
    found = trial.to_epsilon(rows, epsilon, seed)
    settings = {"choice": str(choice), "epsilon": epsilon, "learning_rate": trial.learning_rate, "seed": seed}
    return {**settings, "accuracy": round(found.value, 2), "seconds": round(time.monotonic() - begun)}


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--network", choices=list(FRAMEWORKS), required=True)
    arguments.add_argument("--inputs", nargs="+", required=True, help="Inputs of the network.")
    arguments.add_argument("--clip", type=float, default=0.1)
    arguments.add_argument("--longer", type=float, default=1.0, help="Factor of the number of epochs of earlier work.")
    arguments.add_argument("--final-rate", type=float, default=0.0, help="Final fraction of masked coordinates.")
    arguments.add_argument("--epsilon", type=float, default=3.0)
    arguments.add_argument("--slower", type=float, nargs="+", default=[1.0], help="Factors of the learning rate.")
    arguments.add_argument("--seeds", type=int, nargs="+", default=[0])
    arguments.add_argument("--save", type=Path, help="A file to which a line is added for each training.")
    chosen = arguments.parse_args()
    choice = Choice(chosen.clip, chosen.longer, chosen.final_rate)
    for name in chosen.inputs:
        rows = prepared_rows(_CLOTHES, INPUTS[chosen.network][name], left_out=LEFT_OUT)
        for slower in chosen.slower:
            for seed in chosen.seeds:
                found = measured(FRAMEWORKS[chosen.network], rows, choice, chosen.epsilon, slower, seed)
                keep({"network": chosen.network, "inputs": name, **found}, "bench.small_inputs", chosen.save)


if __name__ == "__main__":
    main()
