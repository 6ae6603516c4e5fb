"""Which normalisation of scattering features suits H-CNN, on training rows of CIFAR-10 that are left out.

    python -m bench.features --save results/features.json

10,000 rows are trained on, with the noise per step that epsilon 3 takes on all 50,000: the noise multiplier falls with
the batch. So what is compared learns as the real training does, in a fifth of its time; it is not private, and neither
are moments of the rows themselves, which are there to be compared with.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bench.step import origin
from sordino.data import load
from sordino.experiments.rows import Rows
from sordino.experiments.sparsification.table import SCATTERING
from sordino.experiments.sparsification.training import HalvedTrial
from sordino.features import ScatteringFeatures, StandardisedScattering
from sordino.validation import Public

_TRAINED, _LEFT_OUT = slice(10_000), slice(45_000, 47_000)
_ALL_ROWS, _NOISE_MULTIPLIER = 50_000, 4.48  # of epsilon 3 on all rows, in batches of 8192 for 60 epochs
_COLOUR = (3, 32, 32)

Prepare = Callable[[Tensor], Tensor]


def of_own_moments(rows: Tensor) -> Prepare:
    """Channels standardised by moments of the rows themselves, as published but without noise."""
    features = StandardisedScattering(_COLOUR)
    std, mean = torch.std_mean(features(rows).float(), dim=(0, 2, 3), keepdim=True)
    return lambda inputs: ((features(inputs).float() - mean) / std).half()


def accuracy(prepare: Prepare, seed: int) -> float:
    """In percent, on the rows that are left out."""
    loaded = load("cifar10")
    inputs, target = loaded.train.inputs, loaded.train.target
    held = Public((prepare(inputs[_LEFT_OUT]), target[_LEFT_OUT]))
    rows = Rows(prepare(inputs[_TRAINED]), target[_TRAINED], held, loaded.facts)
    usual = HalvedTrial(**vars(SCATTERING.usual))
    share = len(rows) / _ALL_ROWS
    trial = replace(usual, batch_size=round(share * usual.batch_size))
    return trial.with_noise(rows, trial.poisson(len(rows)), share * _NOISE_MULTIPLIER, seed).value


def measured(seeds: int) -> list[dict[str, Any]]:
    """A row for each normalisation."""
    trained = load("cifar10").train.inputs[_TRAINED]
    prepared: dict[str, Prepare] = {
        "row by row": ScatteringFeatures(_COLOUR),
        "by moments of drawn pictures": StandardisedScattering(_COLOUR),
        "by moments of the rows": of_own_moments(trained),
    }
    rows = []
    for name, prepare in prepared.items():
        begun = time.monotonic()
        accuracies = [accuracy(prepare, seed) for seed in range(seeds)]
        rows.append({"normalised": name, "accuracies": accuracies, "seconds": round(time.monotonic() - begun)})
        print(rows[-1], flush=True)
    return rows


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--seeds", type=int, default=1)
    arguments.add_argument("--save", type=Path)
    chosen = arguments.parse_args()
    found = {"rows": measured(chosen.seeds), **origin("bench.features")}
    if chosen.save:
        chosen.save.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
