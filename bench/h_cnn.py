"""Chooses features, learning rates and averaging for H-CNN, on held-out training rows of CIFAR-10.

    python -m bench.h_cnn --rates 4 8 --save results/sparsification/h-cnn-settings.jsonl
    python -m bench.h_cnn --features red-green-blue --epochs 20 --rates 12

A third of the epochs at three times the rate learns nearly as much, with the noise that so few epochs need.

The network is trained on 40,000 rows and measured on 10,000, with the noise per step that an epsilon needs on all
50,000: batches and noise multiplier are four fifths of the real ones. So the comparison resembles the real training. It
is not private, and neither are the moments of the rows, which serve as a baseline. With far fewer rows the network
would overfit, and small steps would look better than they are.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bench.kept import keep
from sordino.data import load
from sordino.kernel.calibration import calibrate
from sordino.kernel.run import PrivateRun
from sordino.models.features import ScatteringFeatures, StandardisedScattering
from sordino.training.averaging import Averaging, Ema, Tail
from sordino.training.evaluation import accuracy
from sordino_papers.harness.rows import ExperimentRows, prepared_rows
from sordino_papers.harness.training import DELTA, DpSgdTrial
from sordino_papers.sparsification.table import SCATTERING

LEFT_OUT = 10_000
AVERAGES: dict[str, Averaging] = {
    **{f"ema:{decay:g}": Ema(decay) for decay in (0.9, 0.95, 0.97, 0.98, 0.99)},
    **{f"tail:{fraction:g}": Tail(fraction) for fraction in (0.1, 0.25, 0.5)},
}
_COLOUR = (3, 32, 32)

Prepare = Callable[[Tensor], Tensor]


class Published(ScatteringFeatures):
    """Scattering features of red, green and blue."""

    def _normalisation(self) -> Prepare:
        return lambda coefficients: coefficients


def by_own_moments(features: Prepare) -> Prepare:
    """Standardizes channels by the moments of the rows, as published but without noise."""
    std, mean = torch.std_mean(features(load("cifar10").train.inputs[:10_000]).float(), dim=(0, 2, 3), keepdim=True)
    return lambda inputs: ((features(inputs).float() - mean) / std).half()


FEATURES: dict[str, Callable[[], Prepare]] = {
    "drawn": lambda: StandardisedScattering(_COLOUR),
    "rows": lambda: ScatteringFeatures(_COLOUR),
    "own": lambda: by_own_moments(StandardisedScattering(_COLOUR)),
    "red-green-blue": lambda: by_own_moments(Published(_COLOUR)),
}


def measured(
    usual: DpSgdTrial, rows: ExperimentRows, rate: float, epochs: float, epsilon: float, seed: int
) -> dict[str, Any]:
    """Accuracies in percent of the last iterate and of its averages, on the held-out rows."""
    all_rows, usual = len(rows) + LEFT_OUT, replace(usual, epochs=epochs, precision="bfloat16")
    real = calibrate(usual.plan(usual.poisson(all_rows), 1.0, all_rows), epsilon=epsilon, delta=DELTA)
    share = len(rows) / all_rows
    trial = replace(usual, batch_size=round(share * usual.batch_size), learning_rate=rate)
    model, begun = trial.build(rows.facts, seed), time.monotonic()
    noise: Any = real.noise
    plan = trial.plan(trial.poisson(len(rows)), share * noise.noise_multiplier, len(rows))
    optimizer, steps = trial.optimizer_for(model.parameters()), plan.sampler.steps
    states = {name: average.init(_weights(model)) for name, average in AVERAGES.items()}
    for step, private in enumerate(PrivateRun(plan, model, rows.data, seed=seed)):
        private.divide(trial.batch_size).write_to(model)
        optimizer.step()
        states = {name: AVERAGES[name].update(state, _weights(model), step, steps) for name, state in states.items()}
    found = {"last": accuracy(model, rows.test)}
    for name, state in states.items():
        model.load_state_dict(AVERAGES[name].weights(state))
        found[name] = accuracy(model, rows.test)
    accuracies = {name: round(100 * value, 2) for name, value in found.items()}
    settings = {"rate": rate, "epochs": epochs, "epsilon": epsilon, "seed": seed}
    return {**settings, **accuracies, "seconds": round(time.monotonic() - begun)}


def _weights(model: torch.nn.Module) -> dict[str, Tensor]:
    return {name: value.detach() for name, value in model.named_parameters()}


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--features", choices=list(FEATURES), default="drawn")
    arguments.add_argument("--rates", nargs="+", type=float, default=[SCATTERING.usual.learning_rate])
    arguments.add_argument("--epochs", type=float, default=SCATTERING.usual.epochs)
    arguments.add_argument("--epsilon", type=float, default=3.0)
    arguments.add_argument("--seed", type=int, default=0)
    arguments.add_argument("--save", type=Path, help="A file to which a line is added for each training.")
    chosen = arguments.parse_args()
    rows = prepared_rows(load("cifar10"), FEATURES[chosen.features](), left_out=LEFT_OUT)
    for rate in chosen.rates:
        found = measured(SCATTERING.usual, rows, rate, chosen.epochs, chosen.epsilon, chosen.seed)
        keep({"features": chosen.features, **found}, "bench.h_cnn", chosen.save)


if __name__ == "__main__":
    main()
