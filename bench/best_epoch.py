"""Bias from reporting the best epoch on the test set instead of the last, for entries of the sparsification table.

    python -m bench.best_epoch --only "S, RS, fashion-mnist" --save results/sparsification/best-epochs.jsonl

Papers often report the best epoch. Because it is chosen on the test set, it is a biased estimate of accuracy. This
script measures the bias, for the last iterates and for their averages.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bench.kept import keep
from sordino.kernel.calibration import calibrate
from sordino.kernel.run import PrivateRun
from sordino.training.evaluation import accuracy
from sordino_papers.harness.rows import network_rows
from sordino_papers.harness.training import DELTA, DpSgdTrial
from sordino_papers.sparsification.table import EPSILONS, FRAMEWORKS, NONE, RANDOM


def measured(data: str, trial: DpSgdTrial, epsilon: float, seed: int) -> dict[str, Any]:
    """Test accuracies in percent: of the last epoch and of the best epoch."""
    rows, begun = network_rows(data, trial.network), time.monotonic()
    model, average = trial.build(rows.facts, seed), trial.average
    assert average is not None
    plan = calibrate(trial.plan(trial.poisson(len(rows)), 1.0, len(rows)), epsilon=epsilon, delta=DELTA)
    optimizer, steps, per_epoch = trial.optimizer_for(model.parameters()), plan.steps, len(rows) / trial.batch_size
    state, last, averaged = average.init(_weights(model)), list[float](), list[float]()
    for step, private in enumerate(PrivateRun(plan, model, rows.data, seed=seed), start=1):
        private.divide(trial.batch_size).write_to(model)
        optimizer.step()
        state = average.update(state, _weights(model), step - 1, steps)
        if int(step / per_epoch) > int((step - 1) / per_epoch) or step == steps:
            last.append(accuracy(model, rows.test))
            kept = {name: value.clone() for name, value in _weights(model).items()}
            model.load_state_dict(average.weights(state))
            averaged.append(accuracy(model, rows.test))
            model.load_state_dict(kept)
    found = {"last": last[-1], "best": max(last), "averaged": averaged[-1], "best_averaged": max(averaged)}
    percent = {name: round(100 * value, 2) for name, value in found.items()}
    return {"seed": seed, "epochs": len(last), **percent, "seconds": round(time.monotonic() - begun)}


def _weights(model: torch.nn.Module) -> dict[str, Tensor]:
    return {name: value.detach() for name, value in model.named_parameters()}


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--only", default="", help="Only entries whose names contain this string.")
    arguments.add_argument("--seed", type=int, default=0)
    arguments.add_argument("--save", type=Path, help="A file to which a line is added for each training.")
    chosen = arguments.parse_args()
    for framework in FRAMEWORKS:
        for place, epsilon in enumerate(EPSILONS):
            for kind in (NONE, RANDOM):
                name = f"{framework.title}, {kind}, {framework.data}, epsilon {epsilon:g}"
                if chosen.only not in name:
                    continue
                trial = framework.trial(framework.chosen[kind][place], epsilon)
                found = measured(framework.data, trial, epsilon, chosen.seed)
                keep({"entry": name, **found}, "bench.best_epoch", chosen.save)


if __name__ == "__main__":
    main()
