"""A training that ends early by what public rows say, with the guarantee of all planned steps."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest
import torch
from small_trainings import INPUTS, LABELS, PUBLIC, trained
from training_commands import contents

import sordino as so
from sordino.errors import Interrupted, UsageError
from sordino.kernel.randomness import Key
from sordino.training import run_writer as writer_module
from sordino.training.callbacks import Callback, EarlyStopping
from sordino.training.evaluation import Charged, Evaluation
from sordino.training.loop import Training


@pytest.fixture(scope="module", autouse=True)
def quick():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(writer_module, "_EVALUATIONS", 6)
        yield
    torch.set_num_threads(threads)


def stopping() -> EarlyStopping:
    """Ends at the second evaluation, because nothing gains two."""
    return EarlyStopping(patience=1, least_gain=2.0)


def test_a_training_that_stops_early_promises_what_was_planned_and_measures_its_tests(tmp_path: Path) -> None:
    whole = trained(None)
    fitted = trained(tmp_path / "run", callbacks=[stopping()])
    assert fitted.guarantee == whole.guarantee and fitted.metrics[-1]["step"] == 4 < 12
    assert {"validation_accuracy", "test_accuracy"} <= fitted.metrics[-1].keys()
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert tuple(rows) == fitted.metrics
    assert json.loads((tmp_path / "run" / "privacy.json").read_text())["steps"] == 12
    again = trained(tmp_path / "run", resume=True, callbacks=[stopping()])
    assert again.metrics == fitted.metrics


def test_a_stopped_training_that_is_interrupted_and_resumed_stops_where_it_would_have(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained(tmp_path / "whole", callbacks=[stopping()])
    step = Training.step

    def signalled(training: Training) -> None:
        if training.run.steps in at:
            os.kill(os.getpid(), signal.SIGTERM)
        step(training)

    monkeypatch.setattr(Training, "step", signalled)
    for at in ([2], [3]):  # between two evaluations, and in the step that is the last one
        out = tmp_path / f"stopped-{at[0]}"
        with pytest.raises(Interrupted):
            trained(out, callbacks=[stopping()])
        at.clear()
        trained(out, callbacks=[stopping()], resume=True)
        assert contents(out) == contents(tmp_path / "whole")


def test_nothing_but_public_or_charged_rows_can_end_a_training() -> None:
    with pytest.raises(UsageError, match="Private rows that are not charged for cannot decide"):
        trained(None, evaluation=Evaluation(at_end=PUBLIC), callbacks=[stopping()])
    with pytest.raises(UsageError, match="metric must be one of validation_accuracy, got 'validation_loss'"):
        trained(None, callbacks=[EarlyStopping("validation_loss")])
    budget = so.Budget((INPUTS, LABELS))
    charged = Charged(budget, noise_multiplier=30.0, evaluations=6, key=Key.from_seed(9))
    fitted = trained(None, data=budget, evaluation=charged, callbacks=[stopping()])
    assert fitted.metrics[-1]["step"] == 4
    assert fitted.guarantee.epsilon == budget.guarantee(delta=1e-3).epsilon > 2.9  # all six evaluations are paid


def test_a_callback_of_ones_own_may_end_a_training_before_anything_is_measured() -> None:
    class AtOnce(Callback):
        def wants_to_stop(self) -> bool:
            return True

    fitted = trained(None, callbacks=[AtOnce()])
    assert fitted.metrics[-1]["step"] == 0 and "test_accuracy" in fitted.metrics[-1]


def test_errors_that_fall_are_better() -> None:
    falling = EarlyStopping("validation_mse", patience=2, lower_is_better=True)
    for mse in (3.0, 2.0, 2.5, 1.0, 1.5):
        falling.on_evaluation({"step": 1, "validation_mse": mse})
    assert falling.best == 1.0 and not falling.wants_to_stop()
