"""`fit` on transformers as they are: training, measurements, run folders and commands."""

from __future__ import annotations

import json
import math
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import sordino as so
from bench.tiny_transformers import ARCHITECTURES, classified_texts, texts
from sordino.cli import app
from sordino.huggingface import NextTokenLoss
from sordino.training.description import TrainingDescription
from sordino.training.run_folder import RunFolder

SETTINGS = {"epsilon": 8.0, "delta": 1e-2, "batch_size": 10, "epochs": 1, "progress": False, "learning_rate": 0.05}


def bert() -> torch.nn.Module:
    """The untrained model, as the command line makes it."""
    return ARCHITECTURES["bert"].make()


def test_a_language_model_learns_its_text_and_has_a_perplexity() -> None:
    model, rows = ARCHITECTURES["gpt2"].make(), texts(40)
    model.config.use_cache, rows["labels"] = True, torch.where(rows["labels"] >= 0, 7, -100)
    settings = {**SETTINGS, "epsilon": 100.0, "epochs": 3, "allow_weak": True}
    fitted = so.fit(model, {**rows, "text": [""] * 40}, evaluation=so.Public(rows), **settings)
    measured = {name.removeprefix("validation_"): x for name, x in fitted.metrics[-1].items()}
    first = fitted.metrics[0]["validation_loss"]
    assert measured["loss"] < first and math.isclose(measured["perplexity"], math.exp(measured["loss"]))
    plain = model(**rows).loss  # the mean over all tokens of all rows
    assert math.isclose(measured["loss"], float(plain.detach()), rel_tol=1e-5)
    assert model.config.use_cache is True
    assert "NextTokenLoss(over_tokens='mean')" in repr(fitted.plan)


def test_a_classifier_has_the_accuracy_of_its_predictions() -> None:
    model, rows = bert(), classified_texts(40)
    fitted = so.fit(model, rows, evaluation=so.Public(rows), **SETTINGS)
    labels = rows.pop("labels")
    assert fitted.metrics[-1]["test_accuracy"] == float((model(**rows).logits.argmax(1) == labels).double().mean())
    charged = so.Charged(so.Budget({**rows, "labels": labels}), noise_multiplier=1e-3, evaluations=1, seed=0)
    assert abs(charged.accuracy(model) - fitted.metrics[-1]["test_accuracy"]) < 0.01


@pytest.mark.slow
@pytest.mark.parametrize("name", ["bert", "t5"])
def test_verification_takes_the_rows_of_a_transformer(name: str) -> None:
    model, rows = ARCHITECTURES[name].make(), ARCHITECTURES[name].rows(40)
    plan = so.fit(model, {**rows, "text": [""] * 40}, **SETTINGS).plan
    assert so.verify(plan, model, rows).passed


def test_a_run_folder_can_be_resumed_read_and_used_for_predictions(tmp_path: Path) -> None:
    rows, run = classified_texts(40), tmp_path / "run"
    model = bert()
    so.fit(model, rows, out=run, **SETTINGS)
    finished = so.fit(bert(), rows, out=run, resume=True, **SETTINGS)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), finished.model.parameters(), strict=True))
    described = TrainingDescription.read(RunFolder(run))
    assert described.names == ("input_ids", "attention_mask") and described.text["loss"] == "RowClassLoss()"
    assert described.records(4).names == described.names
    written = tmp_path / "rows.npz"
    np.savez(written, input_ids=rows["input_ids"].numpy(), attention_mask=rows["attention_mask"].numpy())
    source = tmp_path / "network.py"
    source.write_text("from bench.tiny_transformers import ARCHITECTURES\n\nbert = ARCHITECTURES['bert'].make\n")
    answers = tmp_path / "answers.csv"
    result = CliRunner().invoke(
        app, ["predict", str(run), "--data", str(written), "--model", f"{source}:bert", "--out", str(answers)]
    )
    assert result.exit_code == 0, result.output
    labels = [line.split(",")[1] for line in answers.read_text().splitlines()[1:]]
    inputs = {name: rows[name] for name in described.names}
    assert labels == [str(int(label)) for label in model(**inputs).logits.argmax(dim=1)]


def test_a_run_folder_says_how_losses_of_tokens_were_added_up(tmp_path: Path) -> None:
    model, rows = ARCHITECTURES["gpt2"].make(), texts(40)
    run = tmp_path / "run"
    so.fit(model, rows, loss=NextTokenLoss("sum"), out=run, **SETTINGS)
    assert json.loads((run / "training.json").read_text())["plan"]["loss"] == "NextTokenLoss(over_tokens='sum')"
    rebuilt = TrainingDescription.read(RunFolder(run)).stage("loss")
    assert rebuilt == NextTokenLoss("sum") != NextTokenLoss("mean")
    assert CliRunner().invoke(app, ["runs", str(tmp_path)]).exit_code == 0


@pytest.mark.slow
def test_a_report_shows_how_losses_of_tokens_were_added_up(tmp_path: Path) -> None:
    model, rows, run = ARCHITECTURES["gpt2"].make(), texts(40), tmp_path / "run"
    so.fit(model, rows, evaluation=so.Public(rows), out=run, **SETTINGS)
    page = CliRunner().invoke(app, ["report", str(run), "--out", str(tmp_path / "card")])
    assert page.exit_code == 0, page.output
    (card,) = (tmp_path / "card").glob("*.html")
    assert "NextTokenLoss" in card.read_text()


@pytest.mark.parametrize("enable", ["activation_checkpointing_enable", "gradient_checkpointing_enable"])
def test_checkpointing_of_activations_changes_nothing_and_stays_switched_on(enable: str) -> None:
    def trained(checkpointing: bool) -> torch.nn.Module:
        model, rows = ARCHITECTURES["llama"].make().train(), texts(20)
        if checkpointing:
            with pytest.warns(FutureWarning) if enable.startswith("gradient") else nullcontext():
                getattr(model, enable)()
            model.enable_input_require_grads()
        so.fit(model, rows, seed=0, **SETTINGS)
        return model

    torch.manual_seed(0)
    with_it = trained(checkpointing=True)
    torch.manual_seed(0)
    without = trained(checkpointing=False)
    assert with_it.is_activation_checkpointing and not without.is_activation_checkpointing
    hooks = with_it.get_input_embeddings()._forward_hooks.values()
    assert {hook.__name__ for hook in hooks} == {"make_inputs_require_grads"}
    assert all(torch.equal(a, b) for a, b in zip(with_it.parameters(), without.parameters(), strict=True))
