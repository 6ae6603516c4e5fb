"""Chooses the learning rates of the shortened frameworks, on held-out training rows.

    python -m bench.frameworks --only DP-CNN --faster 1 4 --save results/sparsification-frameworks/rates.jsonl

At `--scale cpu` there are few steps, so that the published rates hardly move the weights. Rates are compared without
sparsification, and not on test rows.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

from bench.kept import keep
from sordino.data import load
from sordino_papers.harness.entry import RunScale
from sordino_papers.harness.keys import as_key
from sordino_papers.harness.rows import ExperimentRows, prepared_rows
from sordino_papers.sparsification.frameworks import DATA, FRAMEWORKS, FrameworkSetup
from sordino_papers.sparsification.methods import ComparedMethod, DpSgdMethod, EmbeddedMethod


def faster(way: ComparedMethod, factor: float) -> ComparedMethod:
    """The method with its learning rate multiplied by `factor`."""
    if isinstance(way, EmbeddedMethod):
        rate = factor * way.settings.learning_rate
        return replace(way, settings=replace(way.settings, learning_rate=rate))
    if isinstance(way, DpSgdMethod):
        return DpSgdMethod(replace(way.trial, learning_rate=factor * way.trial.learning_rate))
    raise TypeError(f"the method must be an EmbeddedMethod or a DpSgdMethod, got {way!r}.")


def left_out_rows(framework: FrameworkSetup) -> ExperimentRows:
    """The table's rows for training, and the last training rows, held out, for measuring."""
    loaded, left_out = load(DATA), framework.public
    if left_out is None:
        raise ValueError(f"{framework.title} measures on all rows, so none are left out.")
    prepare = partial(framework.way.built(loaded.facts, seed=0).prepare, progress=False)
    return prepared_rows(loaded, prepare, examples=framework.examples, left_out=left_out)


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    frameworks = {framework.title: framework for framework in FRAMEWORKS[RunScale.CPU]}
    arguments.add_argument("--only", nargs="+", choices=list(frameworks), default=list(frameworks))
    arguments.add_argument("--faster", nargs="+", type=float, default=[1.0, 2.0, 4.0], help="Learning rate factors.")
    arguments.add_argument("--seed", type=int, default=0)
    arguments.add_argument("--save", type=Path, help="A file to which a line is added for each training.")
    chosen = arguments.parse_args()
    for title in chosen.only:
        framework = frameworks[title]
        rows = left_out_rows(framework)
        for factor in chosen.faster:
            way, begun = faster(framework.way, factor), time.monotonic()
            with tempfile.TemporaryDirectory() as folder:
                found = way.train(rows, framework.epsilon, 0.0, chosen.seed, Path(folder) / "run")
            settings = {"framework": title, "method": as_key(way), "epsilon": framework.epsilon, "seed": chosen.seed}
            measured = {"accuracy": round(found.value, 2), "seconds": round(time.monotonic() - begun)}
            keep({**settings, **measured}, "bench.frameworks", chosen.save)


if __name__ == "__main__":
    main()
