"""The page about Lightning runs with the real library, and what it says about checkpoints and charges holds."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest
import torch
from pages import run_examples


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # Lightning gives advice by warnings, on workers and public loggers
def test_a_lightning_training_keeps_its_promise_and_goes_on_from_a_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    names = run_examples("docs/lightning.md")
    model, plan = names["model"], names["plan"]
    assert model.private_run.steps == 12 and 2.9 < model.private_run.guarantee(delta=1e-3).epsilon <= 3.0
    saved = torch.load("checkpoints/epoch=0-step=8.ckpt", weights_only=False)
    assert saved["private_run"]["step"] == 8
    del model, names["model"], names["every_four"]
    gc.collect()  # the step log is held by one run at a time
    again = names["PrivateClassifier"]("steps.log")
    names["trainer"]().fit(again, ckpt_path="checkpoints/epoch=0-step=8.ckpt")
    assert again.private_run.steps == 12 and again.private_run.steps_drawn_again == 4
    assert again.lr_schedulers().last_epoch == 12
    assert again.private_run.guarantee(delta=1e-3).epsilon > plan.guarantee(delta=1e-3).epsilon
