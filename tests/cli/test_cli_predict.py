"""`sordino predict` refuses in one line what it cannot take: unfinished runs, other data, changed or hostile files."""

from __future__ import annotations

import json
import os
import pickle
import shutil
from dataclasses import asdict
from pathlib import Path

import pytest
import torch
from killed_commands import killed_at
from table_of_people import NEW
from training_commands import DIGITS
from training_commands import copied as copied
from training_commands import digits as digits
from training_commands import elsewhere as elsewhere
from training_commands import quick as quick

from sordino._input.safetensors_file import load_tensors, save_tensors
from sordino.data import Facts
from sordino.recipes.networks import build, prepared_by
from sordino.recipes.predict import parse_facts


def test_an_unfinished_run_predicts_nothing(refused, monkeypatch: pytest.MonkeyPatch) -> None:
    assert killed_at(25, [*DIGITS, "--out", "run"], monkeypatch)
    assert "is not finished: resume it first" in refused("predict", "run", "--data", "digits")


@pytest.mark.parametrize(
    ("data", "code", "said"),
    [
        ("two-patch", 3, "the model takes (1, 8, 8)"),
        ("new.csv", 2, "is a table, but the model was not trained on a table"),
        ("nowhere", 3, "is neither the name of a dataset nor readable"),
        ("none.npz", 3, "cannot be read"),
    ],
)
def test_data_that_a_model_cannot_take_is_refused(data: str, code: int, said: str, digits: Path, refused) -> None:
    Path("new.csv").write_text(NEW)
    assert said in refused("predict", digits, "--data", data, code=code)


def test_predictions_are_not_written_where_they_cannot_be(digits: Path, refused) -> None:
    Path("folder").mkdir()
    assert "cannot be written" in refused("predict", digits, "--data", "digits", "--out", "folder", code=3)
    assert "cannot be written" in refused("predict", digits, "--data", "digits", "--out", "no/where", code=3)
    os.mkfifo("pipe")
    assert "is not a regular file" in refused("predict", digits, "--data", "digits", "--out", "pipe", code=3)
    assert Path("pipe").is_fifo()


def test_a_model_that_was_trained_on_other_features_is_refused(copied: Path, refused) -> None:
    """Numbers of the right shape fit any weights: without a word the answers would be wrong."""
    facts = copied / "facts.json"
    facts.write_text(facts.read_text().replace("version 1", "version 0"))
    said = refused("predict", copied, "--data", "digits", code=5)
    assert "version 0" in said and "use the version that trained it" in said


def test_a_run_of_before_features_were_named_still_predicts(copied: Path, run) -> None:
    facts = json.loads((copied / "facts.json").read_text())
    assert facts.pop("prepared_by").startswith("Pixels(")
    (copied / "facts.json").write_text(json.dumps(facts))
    assert "prediction" in run("predict", copied, "--data", "digits")


@pytest.mark.parametrize(
    ("model", "facts"),
    [
        ("h-cnn", Facts("colour", (3, 32, 32), 10, (0, 255), mean=(0.5, 0.4, 0.4), std=(0.2, 0.2, 0.3))),
        ("dp-cnn", Facts("colour", (3, 32, 32), 10, (0, 255), mean=(0.5, 0.4, 0), std=(0.2, 1, 0.3))),
        ("h-cnn-s", Facts("grey", (1, 28, 28), 10)),
        ("gated-relu", Facts("people", (4,), 2, (-1, 1.0))),
        ("gated-relu", Facts("grey", (1, 28, 28), 10, (0.0, 255.0))),
        ("mlp", Facts("people", (4,), None, (-1.0, 1.0), target_range=(0.0, 9.0))),
    ],
)
def test_features_keep_their_name_when_facts_are_written_and_read(model: str, facts: Facts) -> None:
    read = parse_facts(json.loads(json.dumps(asdict(facts))), what="facts.json")
    assert prepared_by(build(model, read, seed=0)) == prepared_by(build(model, facts, seed=0))


class Evil:
    def __reduce__(self):
        return Path.touch, (Path("executed"),)


def test_a_pickle_in_place_of_a_model_is_refused_unexecuted(copied: Path, refused) -> None:
    (copied / "model.safetensors").write_bytes(pickle.dumps(Evil()))
    assert "is not a safetensors file" in refused("predict", copied, "--data", "digits", code=5)
    assert not Path("executed").exists()


def test_weights_that_are_not_finite_are_refused(copied: Path, refused) -> None:
    weights = load_tensors(copied / "model.safetensors").tensors
    next(iter(weights.values())).view(-1)[0] = torch.nan
    save_tensors(copied / "model.safetensors", weights)
    assert "not finite" in refused("predict", copied, "--data", "digits", code=5)


def test_weights_of_another_architecture_are_refused(copied: Path, refused, run) -> None:
    run(*DIGITS, "--model", "mlp", "--steps", 1, "--out", "mlp")
    shutil.copy("mlp/model.safetensors", copied)
    assert "belongs to another model" in refused("predict", copied, "--data", "digits", code=5)


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("facts.json", '"input_shape": [', '"input_shape": ["8", '),
        ("facts.json", '"num_classes": 10', '"num_classes": 1000000000'),
        ("facts.json", "    1,\n    8", "    16777216,\n    8"),
        ("facts.json", "{", ""),
        ("recipe.toml", '"linear"', '"h-cnn"'),
        ("recipe.toml", '"linear"', '"evil"'),
        ("recipe.toml", "epsilon", "epsilom"),
    ],
)
def test_a_changed_run_is_refused_before_memory_is_taken(name: str, old: str, new: str, copied: Path, refused) -> None:
    text = (copied / name).read_text()
    assert old in text
    (copied / name).write_text(text.replace(old, new, 1))
    refused("predict", copied, "--data", "digits", code=5)
