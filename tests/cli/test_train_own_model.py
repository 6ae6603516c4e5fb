"""`sordino train --model nets.py:network --loss nets.py:own_loss`: own PyTorch code, named on the command line."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
import torch
from killed_commands import killed_at
from table_of_people import NEW, table
from torch import nn
from training_commands import TARGET, answers, contents
from training_commands import elsewhere as elsewhere
from training_commands import quick as quick

from sordino.data import Facts
from sordino.errors import UsageError
from sordino.recipes.named_code import named_model
from sordino.recipes.recipe import Recipe
from sordino.training.run_folder import RunFolder

NETS = """
import torch.nn.functional as F
from torch import nn
import sordino as so

def network():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.Tanh(), nn.Linear(16, 10))

def other():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))

def for_people():
    return nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 2))

def one_column():
    return nn.Linear(4, 1)

def one_number():
    return nn.Sequential(nn.Linear(4, 1), nn.Flatten(0))

def normalized():
    return nn.Sequential(nn.Flatten(), nn.BatchNorm1d(64), nn.Linear(64, 10))

def with_clip():
    return so.TrainingSetup(network(), clip=so.ClipByNorm(1.0))

def own_loss(outputs, target):
    return F.cross_entropy(outputs, target, label_smoothing=0.1)

def absolute(outputs, target):
    return (outputs - target).abs().mean()
"""
CODE = ["--model", "nets.py:network", "--loss", "nets.py:own_loss"]
SEED = ["--seed", "0", "--out"]
OWN = ["train", "--data", "digits", *CODE, *TARGET, "--batch-size", "100", "--steps", "4"]


@pytest.fixture(autouse=True)
def nets(elsewhere):
    Path("nets.py").write_text(NETS)
    yield
    for name in ("nets", "sordino_user_nets"):
        sys.modules.pop(name, None)


def test_a_run_is_killed_resumed_and_ends_as_if_it_had_not_been(run, refused, monkeypatch) -> None:
    run(*OWN, *SEED, "whole")
    whole = contents(Path("whole"))
    assert killed_at(25, [*OWN, *SEED, "run"], monkeypatch)
    for named in ([], CODE[:2]):
        assert "nothing that a file names is imported: pass --" in refused(
            "train", "--quiet", "--resume", "run", *named
        )
    run("train", "--quiet", "--resume", "run", *CODE)
    assert contents(Path("run")) == whole
    assert set(whole) == {"recipe.toml", "facts.json", "metrics.jsonl", "model.safetensors", "privacy.json"}


def test_every_command_reads_its_folder_once_the_model_is_named_again(run, refused) -> None:
    run(*OWN, *SEED, "run")
    out = "run"
    assert "nets.py:network" in run("runs", out)
    rows = answers(run("predict", out, "--data", "digits", "--model", "nets.py:network"))
    assert len(rows) == 360 and rows[0].keys() >= {"row", "prediction", "score(0)"}
    assert "pass --model nets.py:network" in refused("predict", out, "--data", "digits")
    assert "does not fit the weights" in refused("predict", out, "--data", "digits", "--model", "nets.py:other")


@pytest.mark.slow
def test_it_is_verified_audited_and_attacked_with_its_code(run, refused) -> None:
    run(*OWN, *SEED, "run")
    out = "run"
    run("report", out, "--model", "nets:network")
    assert "not refuted" in run("verify", out, *CODE)
    assert "pass --loss" in refused("audit", out, "--canaries", "100", "--quiet", *CODE[:2])
    assert "not refuted" in run("audit", out, "--canaries", "100", "--quiet", *CODE)
    run("attack", "members", out, "--rows", "100", "--references", "2", "--quiet", *CODE)
    run("effects", out, "--attacked", "0", "--twin", *CODE)


def test_a_recipe_of_somebody_else_runs_no_code(run, refused) -> None:
    Path("theirs.toml").write_text(
        'data = "digits"\nmodel = "nets.py:network"\nepsilon = 3.0\ndelta = 1e-4\nsteps = 2\n'
    )
    assert "pass --model nets.py:network if you trust it" in refused("train", "theirs.toml", "--out", "run")
    assert not Path("run").exists()
    run("train", "theirs.toml", "--model", "nets.py:network", "--out", "run", "--quiet")
    Path("run/mine.py").write_text(NETS)
    assert "lies in the run folder" in refused("predict", "run", "--data", "digits", "--model", "run/mine.py:network")


def test_a_table_is_read_by_its_schema_for_ones_own_model_too(run) -> None:
    table(Path("people.csv"), Path("people.toml"))
    Path("new.csv").write_text(NEW)
    people = ["train", "--data", "people.csv", "--schema", "people.toml", "--model", "nets:for_people", *TARGET]
    run(*people, "--steps", "30", "--batch-size", "100", "--lr", "2", *SEED, "run")
    rows = answers(run("predict", "run", "--data", "new.csv", "--model", "nets:for_people"))
    assert [row["prediction"] for row in rows][:3] == ["no, never", "yes", ""]
    assert {"p(yes)", "p(no, never)"} <= rows[0].keys()


def test_arrays_with_a_number_as_target_need_one_number_per_row(run, refused) -> None:
    rows = np.random.default_rng(0).uniform(-1, 1, (300, 4)).astype(np.float32)
    np.savez("arrays.npz", inputs=rows, target=rows.sum(axis=1))
    Path("arrays.toml").write_text(
        "confirmed_public = true\n[inputs]\nshape = [4]\nrange = [-1, 1]\n[target]\nbounds = [-4, 4]\n"
    )
    arrays = ["train", "--data", "arrays.npz", *TARGET, "--batch-size", "100", "--steps", "4"]
    said = refused(*arrays, "--model", "nets.py:one_column", "--out", "run")
    assert "must return one number per row, of shape (16,) for 16 rows, got (16, 1)" in said
    run(*arrays, "--model", "nets.py:one_number", "--loss", "nets.py:absolute", *SEED, "run")
    assert RunFolder("run").is_finished


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--model", "nets.py:missing"], "'nets.py' has none of this name"),
        (["--model", "no.py:network"], "no such file"),
        (["--model", "nets.py:"], "--model must be one of linear"),
        (["--model", "nets.py:for_people"], "the model fails on rows of shape (1, 8, 8): RuntimeError"),
        (["--model", "nets.py:normalized"], "BatchNorm1d"),
        (["--model", "nets.py:with_clip"], "must return the module alone here, got a TrainingSetup with clip"),
        (["--model", "linear", "--loss", "own_loss"], "--loss must be MODULE:FUNCTION"),
        (["--model", "linear", "--loss", "nets.py:missing"], "has none of this name"),
        (["--model", "gated-relu", "--method", "noisy-cgd", *CODE[2:]], "--loss needs --method dp-sgd"),
        (["--model", "timm:resnet10t"], "timm:resnet10t needs timm: install sordino[timm]"),
    ],
)  # fmt: skip
def test_what_cannot_be_trained_is_said_in_one_line_and_leaves_no_folder(options, said: str, refused) -> None:
    assert said in refused("train", "--data", "digits", *options, *TARGET, "--steps", "2", "--out", "run")
    assert not RunFolder("run").is_run


def test_tuning_takes_networks_by_name_only(refused) -> None:
    tune = ["tune", "--data", "digits", "--model", "nets.py:network", "--epsilon", "3", "--quiet"]
    assert "--model must be a name from" in refused(*tune)


def test_a_network_of_timm_gets_the_shapes_of_the_data_and_nothing_is_downloaded(monkeypatch) -> None:
    asked = {}

    def create_model(name, **settings):
        asked.update(settings, name=name)
        return nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.AdaptiveAvgPool2d(1), nn.Flatten())

    timm = ModuleType("timm")
    timm.is_model = lambda name: name == "vit_tiny"
    timm.models = SimpleNamespace(get_pretrained_cfg=lambda name: SimpleNamespace(fixed_input_size=True))
    timm.create_model = create_model
    monkeypatch.setitem(sys.modules, "timm", timm)
    model = named_model("timm:vit_tiny", Facts("pictures", (3, 32, 32), 10, (0.0, 255.0)))
    assert asked == {"name": "vit_tiny", "pretrained": False, "num_classes": 10, "in_chans": 3, "img_size": (32, 32)}
    assert isinstance(model[1], nn.GroupNorm) and model(torch.zeros(2, 3, 32, 32)).shape == (2, 8)
    with pytest.raises(UsageError, match="timm has no model 'vit_huge'"):
        named_model("timm:vit_huge", Facts("pictures", (3, 32, 32), 10))
    with pytest.raises(UsageError, match="classifies images"):
        named_model("timm:vit_tiny", Facts("people", (7,), 2))
    assert Recipe("digits", "timm:vit_tiny", epsilon=1.0).model == "timm:vit_tiny"
