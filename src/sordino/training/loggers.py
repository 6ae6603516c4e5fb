"""Callbacks that send the public values of a training to MLflow and to Weights & Biases.

They send what a run folder holds and nothing else: step numbers, the guarantee, and what was measured on public rows
or charged to the budget. Gradients, losses of private rows and batches never reach a callback.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from sordino.errors import UsageError
from sordino.training.callbacks import Callback, Row, TrainingStart


def _module(name: str, extra: str, label: str) -> Any:
    try:
        return import_module(name)
    except ImportError:
        raise UsageError(f"{label} is not installed: install sordino[{extra}].") from None


def _facts(start: TrainingStart) -> dict[str, object]:
    """The public facts that are logged once, as parameters of the run."""
    guarantee = start.guarantee
    return {
        "steps": start.steps,
        "batch_size": start.batch_size,
        "noise_multiplier": start.noise_multiplier,
        "epsilon": guarantee.epsilon,
        "delta": guarantee.delta,
        "adjacency": str(guarantee.adjacency),
        "unit": str(guarantee.unit),
    }


class MLflowLog(Callback):
    """Logs guarantee and evaluations to MLflow, into the active run or into one that begins and ends with the training.

    It needs `sordino[mlflow]`. Where runs go is set as usual, by `mlflow.set_tracking_uri` and `set_experiment`.
    """

    def __init__(self, run_name: str | None = None) -> None:
        self._mlflow, self._name = _module("mlflow", "mlflow", "MLflow"), run_name
        self._run_id, self._is_own, self._status = "", False, "FAILED"

    def on_start(self, start: TrainingStart) -> None:
        active = self._mlflow.active_run()
        self._is_own, self._status = active is None, "FAILED"
        run = self._mlflow.start_run(run_name=self._name) if active is None else active
        self._run_id = run.info.run_id
        self._mlflow.log_params(_facts(start), run_id=self._run_id)

    def on_evaluation(self, row: Row) -> None:
        values = {name: value for name, value in row.items() if name != "step"}
        self._mlflow.log_metrics(values, step=row["step"], run_id=self._run_id)

    def on_end(self, row: Row) -> None:
        self._status = "FINISHED"

    def on_close(self) -> None:
        if self._is_own:
            self._mlflow.end_run(self._status)


class WandbLog(Callback):
    """Logs guarantee and evaluations to Weights & Biases, into the run in progress or into one of its own.

    It needs `sordino[wandb]`. `settings` are those of `wandb.init`, as `project="people"` or `mode="offline"`.
    """

    def __init__(self, **settings: Any) -> None:
        self._wandb, self._settings = _module("wandb", "wandb", "Weights & Biases"), settings
        self._run: Any = None
        self._is_own, self._is_done = False, False

    def on_start(self, start: TrainingStart) -> None:
        self._is_own, self._is_done = self._wandb.run is None, False
        self._run = self._wandb.init(**self._settings) if self._is_own else self._wandb.run
        self._run.config.update(_facts(start))

    def on_evaluation(self, row: Row) -> None:
        self._run.log({name: value for name, value in row.items() if name != "step"}, step=row["step"])

    def on_end(self, row: Row) -> None:
        self._is_done = True

    def on_close(self) -> None:
        if self._is_own and self._run is not None:
            self._run.finish(exit_code=0 if self._is_done else 1)
