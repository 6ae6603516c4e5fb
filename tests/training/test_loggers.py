"""MLflow, Weights & Biases and TensorBoard get the public values of a training, and nothing else."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from small_trainings import trained
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from sordino.errors import UsageError
from sordino.training.callbacks import Callback, EventLog
from sordino.training.loggers import MLflowLog, WandbLog


def last_row_of(fitted) -> dict[str, float]:
    """The public values of the last evaluation, which has all that are measured."""
    assert {"epoch", "epsilon", "delta", "validation_accuracy", "test_accuracy"} <= fitted.metrics[-1].keys()
    return {name: value for name, value in fitted.metrics[-1].items() if name != "step"}


class Stop(Callback):
    def on_step(self, step: int, steps: int) -> None:
        raise KeyboardInterrupt


@pytest.mark.parametrize(("log", "extra"), [(MLflowLog, "mlflow"), (WandbLog, "wandb")])
def test_a_logger_that_is_not_installed_says_what_to_install(log, extra: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, extra, None)
    with pytest.raises(UsageError, match=rf"install sordino\[{extra}\]"):
        log()


def test_tensorboard_is_written_from_python(tmp_path: Path) -> None:
    fitted = trained(None, callbacks=[EventLog(tmp_path)])
    events = EventAccumulator(str(tmp_path))
    events.Reload()
    assert set(events.Tags()["scalars"]) == last_row_of(fitted).keys()


@pytest.mark.slow
def test_mlflow_has_the_guarantee_and_every_evaluation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")  # the server's database is not part of mlflow-skinny
    import mlflow

    mlflow.set_tracking_uri(f"file:{tmp_path / 'store'}")
    fitted = trained(None, callbacks=[MLflowLog("mine")])
    with pytest.raises(KeyboardInterrupt):
        trained(None, callbacks=[MLflowLog(), Stop()])
    with mlflow.start_run() as around:
        trained(None, callbacks=[MLflowLog()])
        assert mlflow.active_run() is not None  # a run that was active stays so
    client = mlflow.MlflowClient()
    runs = {run.info.status: run for run in client.search_runs(["0"]) if run.info.run_id != around.info.run_id}
    assert runs.keys() == {"FINISHED", "FAILED"} and runs["FINISHED"].info.run_name == "mine"
    for run in (runs["FINISHED"], client.get_run(around.info.run_id)):
        assert run.data.metrics == pytest.approx(last_row_of(fitted))
        assert float(run.data.params["epsilon"]) == fitted.guarantee.epsilon and run.data.params["steps"] == "12"
    steps = [each.step for each in client.get_metric_history(runs["FINISHED"].info.run_id, "epsilon")]
    assert steps == [row["step"] for row in fitted.metrics]


@pytest.mark.slow
def test_weights_and_biases_has_them_offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import wandb

    monkeypatch.setenv("WANDB_SILENT", "true")
    settings = {"project": "people", "mode": "offline", "dir": tmp_path}
    logged, log = [], wandb.Run.log
    monkeypatch.setattr(wandb.Run, "log", lambda run, row, step: (logged.append((step, row)), log(run, row, step=step)))
    fitted = trained(None, callbacks=[WandbLog(**settings)])
    assert [row | {"step": step} for step, row in logged] == list(fitted.metrics)
    assert wandb.run is None and len(list((tmp_path / "wandb").glob("offline-run-*"))) == 1
    with wandb.init(**settings) as around:
        trained(None, callbacks=[WandbLog()])
        assert wandb.run is around and around.config["epsilon"] == fitted.guarantee.epsilon
