"""Chooses the learning rate and the averaging for DP-CNN and DP-CNN/S, on held-out training rows.

    python -m bench.dp_cnn --epsilon 1 --rates 1 2 --save results/sparsification/dp-cnn-settings.jsonl
    python -m bench.dp_cnn --network dp-cnn-s --share 1 --rates 4 --save results/sparsification/dp-cnn-settings.jsonl

A third of the epochs at three times the rate moves the weights as far, and adds as much noise, in a third of the time:
at a given epsilon the noise multiplier grows with the square root of the number of steps. Held-out rows and noise are
those of `bench.h_cnn`, with as many held-out rows of the 60,000 of Fashion-MNIST.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

from bench.h_cnn import LEFT_OUT, measured
from bench.kept import keep
from sordino_papers.harness.rows import network_rows
from sordino_papers.sparsification.table import CNN, EPSILONS, NONE, RANDOM, SMALL_CNN

FRAMEWORKS = {framework.usual.network: framework for framework in (CNN, SMALL_CNN)}


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--network", choices=list(FRAMEWORKS), default=CNN.usual.network)
    arguments.add_argument("--rates", nargs="+", type=float, required=True)
    arguments.add_argument("--share", type=float, default=1 / 3, help="Fraction of the table's epochs.")
    arguments.add_argument("--epsilon", type=float, choices=EPSILONS, default=EPSILONS[0])
    arguments.add_argument("--masks", action="store_true", help="Sparsify as the table does.")
    arguments.add_argument("--seed", type=int, default=0)
    arguments.add_argument("--save", type=Path, help="A file to which a line is added for each training.")
    chosen = arguments.parse_args()
    framework = FRAMEWORKS[chosen.network]
    table = framework.chosen[RANDOM if chosen.masks else NONE][EPSILONS.index(chosen.epsilon)]
    choice = replace(table, stretched=1.0)  # the rates are arguments
    rows = network_rows(framework.data, chosen.network, left_out=LEFT_OUT)
    trial = choice.of(framework.usual)
    for rate in chosen.rates:
        found = measured(trial, rows, rate, chosen.share * trial.epochs, chosen.epsilon, chosen.seed)
        keep({"network": chosen.network, "choice": str(choice), **found}, "bench.dp_cnn", chosen.save)


if __name__ == "__main__":
    main()
