"""Every command on the folder that `so.fit(own_model, ..., out=RUN)` wrote."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import shutil
import signal
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import sordino as so
from sordino.convex import GatedReLU, fit_hidden_state
from sordino.errors import Interrupted
from sordino.kernel.augmentation import Jitter
from sordino.kernel.randomness import Key
from sordino.recipes import OwnRun
from sordino.training.averaging import Ema
from sordino.training.callbacks import Callback
from sordino.training.description import TrainingDescription
from sordino.training.evaluation import Evaluation
from sordino.training.fit import Fitted
from sordino.training.run_folder import RunFolder
from sordino.training.schedules import Cosine

NETS = """
import torch.nn.functional as F
from torch import nn
import sordino as so

class Net(nn.Module):
    def __init__(self, width=8):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, width), nn.Tanh(), nn.Linear(width, 3))
    def forward(self, x):
        return self.layers(x)

def network():
    return Net()

def wider():
    return Net(9)

def nothing():
    return 3

def failing():
    raise ValueError("no weights here")

def own_loss(outputs, target):
    return 2 * F.cross_entropy(outputs, target)

def with_loss():
    return so.TrainingSetup(Net(), loss=own_loss)

def with_another_clip():
    return so.TrainingSetup(Net(), loss=own_loss, clip=so.ClipByNorm(7.0))
"""
ROWS = torch.randn(240, 4, generator=torch.Generator().manual_seed(0))
LABELS = ROWS[:, :3].argmax(dim=1)
TRAIN, TEST = slice(0, 120), slice(120, 240)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)


def own_loss(outputs: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return 2 * F.cross_entropy(outputs, target)


def trained(out: Path, **changes) -> Fitted:
    torch.manual_seed(0)
    public = so.Public((ROWS[TEST], LABELS[TEST]))
    settings = {"epsilon": 3.0, "delta": 1e-3, "batch_size": 40, "steps": 12, "seed": 0, "progress": False}
    settings |= {"evaluation": Evaluation(during=public, at_end=public)}
    return so.fit(Net(), (ROWS[TRAIN], LABELS[TRAIN]), out=out, **(settings | changes))


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    """A folder with the run of an own model, one with an own loss, rows, and the file that defines the model."""
    folder = tmp_path_factory.mktemp("own")
    trained(folder / "run")
    trained(folder / "own-loss", loss=own_loss)
    (folder / "nets.py").write_text(NETS)
    rows, labels = ROWS.numpy(), LABELS.numpy()
    np.savez(folder / "new.npz", inputs=rows[TEST])
    np.savez(folder / "public.npz", inputs=rows[TEST], target=labels[TEST])
    np.savez(
        folder / "all.npz",
        inputs=rows[TRAIN], target=labels[TRAIN], test_inputs=rows[TEST], test_target=labels[TEST],
    )  # fmt: skip
    return folder


@pytest.fixture(autouse=True)
def here(place: Path, monkeypatch: pytest.MonkeyPatch):
    """Commands run in that folder, and every test imports `nets` anew."""
    monkeypatch.chdir(place)
    yield
    for name in ("nets", "sordino_user_nets"):
        sys.modules.pop(name, None)


# What a folder says, without any code


def test_runs_lists_it_with_its_class_and_what_was_measured(run) -> None:
    (row,) = json.loads(run("runs", "run", "--json"))["rows"]
    assert row["model"].endswith("test_own_model.Net") and row["state"] == "finished"
    assert row["data"] == "own rows" and row["epsilon"] <= 3.0 and 0 <= row["test_accuracy"] <= 1
    assert {"own-loss", "run"} == {Path(row["run"]).name for row in json.loads(run("runs", ".", "--json"))["rows"]}


def test_the_description_rebuilds_the_plan_and_the_optimizer(tmp_path: Path) -> None:
    encoding = so.RandomSparsify(0.5, epochs=4, steps_per_epoch=3)
    changes = {"views": so.Views(2, (Jitter(0.1),)), "clip": so.ClipPerLayer((1.0,) * 4), "encoding": encoding}
    fitted = trained(
        tmp_path / "run", **changes, loss=nn.CrossEntropyLoss(label_smoothing=0.1), schedule=Cosine(0.1),
        averaging=Ema(0.9), optimizer=lambda weights: torch.optim.Adam(weights, lr=0.01, betas=(0.8, 0.9)),
    )  # fmt: skip
    folder = RunFolder(tmp_path / "run")
    description = TrainingDescription.read(folder)
    plan = description.plan(folder.promised(), None)
    assert plan.stages == fitted.plan.stages
    assert plan.contribution.views == changes["views"] and plan.contribution.loss.label_smoothing == 0.1
    assert description.stage("schedule") == Cosine(0.1) and description.stage("averaging") == Ema(0.9)
    optimizer = description.optimizer(Net(), None)
    assert isinstance(optimizer, torch.optim.Adam) and optimizer.param_groups[0]["betas"] == (0.8, 0.9)
    assert optimizer.param_groups[0]["lr"] == 0.01


def test_training_again_from_the_description_gives_the_same_weights(place: Path) -> None:
    """Plan, optimizer, divisor and schedule are those of the run: with its key, its weights come out."""
    own = OwnRun.read(Path("run"), "nets:network")
    torch.manual_seed(0)
    model = Net()
    records = so.as_records((ROWS[TRAIN], LABELS[TRAIN]))
    own.train(model, records, own.plan(), Key.from_seed(0))
    assert all(torch.equal(x, own.module.state_dict()[name]) for name, x in model.state_dict().items())


def test_a_card_is_written_from_what_the_folder_holds(run, tmp_path: Path) -> None:
    run("report", "run", "--out", tmp_path)
    facts, page = json.loads((tmp_path / "report.json").read_text()), (tmp_path / "report.html").read_text()
    assert facts["guarantee"]["epsilon"] <= 3.0 and facts["settings"]["optimizer"] == "SGD(lr=0.5, momentum=0.9)"
    assert facts["settings"]["clip"] == "ClipByNorm(norm=1.0)" and facts["settings"]["loss"] == "cross_entropy"
    assert facts["settings"]["trained_parameters"] == 67 and facts["settings"]["model"].endswith(".Net")
    assert facts["data"]["inputs"] == ["4, float32"] and facts["data"]["unit"] == "example"
    assert len(facts["measured"]["course"]) == 12 and "validation_accuracy" in facts["measured"]["course"][0]
    assert "--data FILE (public rows) and --model MODULE:FUNCTION" in facts["measured"]["absent"]
    assert [each["name"] for each in facts["spending"]["samplers"]] and "signature" in facts
    assert "Net on rows of your own" in page and "fixed, and not shown here" in page


def test_a_card_with_a_model_and_public_rows_has_an_accuracy(run, tmp_path: Path) -> None:
    run("report", "run", "--model", "nets:network", "--data", "public.npz", "--out", tmp_path)
    measured = json.loads((tmp_path / "report.json").read_text())["measured"]
    assert measured["test"]["rows"] == 120 and set(measured["by_class"]) == {"0", "1", "2"}
    assert measured["test"]["accuracy"] == measured["at_the_end_of_training"]["test_accuracy"]


def test_runs_of_own_models_are_compared(run, tmp_path: Path) -> None:
    run("report", "run", "own-loss", "--out", tmp_path)
    differing = json.loads((tmp_path / "report.json").read_text())["differences"]
    assert differing["loss"] == ["cross_entropy", "own_loss"]


@pytest.mark.parametrize(
    ("name", "before", "after", "said"),
    [
        ("training.json", '"norm": 1.0', '"norm": 0.5', "belongs to another training.json"),
        ("privacy.json", "count=12", "count=11", "leaves out steps"),
        ("training.json", '"stage": "ClipByNorm"', '"stage": "system"', "is damaged: its clip cannot be rebuilt"),
        ("training.json", '"dtype": "float32"', '"dtype": "float1"', "training.json in .* is damaged"),
        ("training.json", '"divisor": 40', '"divisor": -1', "training.json in .* is damaged: .*divisor must be"),
    ],
)
def test_a_folder_that_was_changed_is_refused(refused, tmp_path: Path, name, before, after, said) -> None:
    copy = Path(shutil.copytree("run", tmp_path / "copy"))
    text = (copy / name).read_text()
    assert before in text
    (copy / name).write_text(text.replace(before, after))
    assert re.search(said, refused("report", copy, code=5))


# Predictions


def test_predictions_are_those_of_the_model_that_was_trained(run, tmp_path: Path) -> None:
    model = trained(tmp_path / "again").model
    rows = list(csv.DictReader(io.StringIO(run("predict", "run", "--data", "new.npz", "--model", "nets:network"))))
    expected = model(ROWS[TEST]).softmax(dim=1).detach()
    assert [int(row["prediction"]) for row in rows] == expected.argmax(dim=1).tolist()
    assert float(rows[0]["p(1)"]) == pytest.approx(float(expected[0, 1]), rel=1e-5)


def test_outputs_that_are_no_logits_are_scores_and_a_row_with_a_hole_has_no_answer(run, tmp_path: Path) -> None:
    rows = ROWS[TEST][:3].clone()
    rows[1, 2] = torch.nan
    np.savez(tmp_path / "new.npz", inputs=rows.numpy())
    printed = run("predict", "own-loss", "--data", tmp_path / "new.npz", "--model", "nets.py:network")
    lines = list(csv.DictReader(io.StringIO(printed)))
    assert "score(0)" in lines[0] and lines[1]["prediction"] == "" != lines[2]["prediction"]


def test_names_of_classes_come_from_the_facts_beside_the_rows(run, tmp_path: Path) -> None:
    np.savez(tmp_path / "rows.npz", inputs=ROWS[TEST].numpy(), target=LABELS[TEST].numpy())
    text = 'confirmed_public = true\n[inputs]\nshape = [4]\n[target]\nclasses = ["a", "b", "c"]\n'
    (tmp_path / "rows.toml").write_text(text)
    run("report", "run", "--model", "nets:network", "--data", tmp_path / "rows.npz", "--out", tmp_path)
    measured = json.loads((tmp_path / "report.json").read_text())["measured"]
    assert set(measured["by_class"]) == {"a", "b", "c"}


def test_a_model_of_several_inputs_predicts_numbers(run, tmp_path: Path) -> None:
    """Token ids and floats, and a number as the target."""
    (tmp_path / "two.py").write_text(TWO)
    sys.path.insert(0, str(tmp_path))
    try:
        import two
    finally:
        sys.path.remove(str(tmp_path))
    tokens, floats = torch.randint(0, 9, (60, 3)), torch.randn(60, 2)
    fitted = so.fit(
        two.network(), (tokens, floats, floats.sum(dim=1)), epsilon=3.0, delta=1e-3, batch_size=20, steps=2,
        loss=F.mse_loss, out=tmp_path / "run", progress=False,
    )  # fmt: skip
    np.savez(tmp_path / "new.npz", inputs_1=tokens.numpy(), inputs_2=floats.numpy(), target=floats.sum(dim=1).numpy())
    model = f"{tmp_path / 'two.py'}:network"
    rows = list(
        csv.DictReader(io.StringIO(run("predict", tmp_path / "run", "--data", tmp_path / "new.npz", "--model", model)))
    )
    assert float(rows[5]["prediction"]) == pytest.approx(float(fitted.model(tokens, floats)[5].detach()), rel=1e-4)
    run("report", tmp_path / "run", "--model", model, "--data", tmp_path / "new.npz")
    assert json.loads((tmp_path / "run" / "report.json").read_text())["measured"]["test"]["rows"] == 60


TWO = """
import torch
from torch import nn

class Two(nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.last = nn.Embedding(9, 4), nn.Linear(6, 1)
    def forward(self, tokens, floats):
        return self.last(torch.cat([self.table(tokens).mean(dim=1), floats], dim=1)).squeeze(1)

def network():
    return Two()
"""


@pytest.mark.parametrize(
    ("model", "said"),
    [
        (
            "nets:wider",
            r"does not fit the weights in 'run', .*'layers.0.weight' is torch.float32 of shape \(9, 4\) in it",
        ),
        ("nets:nothing", "must return the untrained module or a sordino.TrainingSetup, got int"),
        ("nets:failing", r"failed: ValueError: no weights here"),
        ("nets:absent", "is not a function"),
        ("nowhere:network", "cannot be imported: ModuleNotFoundError"),
        ("nowhere.py:network", "no such file"),
        ("nets", "model must be MODULE:FUNCTION|--model must be MODULE:FUNCTION"),
    ],
)
def test_a_function_that_does_not_give_the_model_is_refused_in_one_line(refused, model: str, said: str) -> None:
    assert re.search(said, refused("predict", "run", "--data", "new.npz", "--model", model))


@pytest.mark.parametrize(
    ("arrays", "said"),
    [
        ({"inputs": np.zeros((3, 5), np.float32)}, r"has rows of shape \(5,\), the model takes \(4,\)"),
        ({"rows": np.zeros((3, 4), np.float32)}, "must hold an array named inputs"),
        ({"inputs": np.zeros((0, 4), np.float32)}, "has no rows"),
    ],
)
def test_rows_that_the_model_cannot_take_are_refused(refused, tmp_path: Path, arrays, said) -> None:
    np.savez(tmp_path / "new.npz", **arrays)
    said_now = refused("predict", "run", "--data", tmp_path / "new.npz", "--model", "nets:network", code=3)
    assert re.search(said, said_now)


@pytest.mark.parametrize(
    "command",
    [
        ("predict", "run", "--data", "new.npz"),
        ("effects", "run", "--data", "public.npz"),
        ("verify", "run"),
        ("audit", "run", "--quiet"),
        ("attack", "members", "run", "--data", "all.npz", "--quiet"),
    ],
)
def test_a_command_that_needs_the_model_says_what_to_pass(refused, command) -> None:
    said = refused(*command)
    assert "'run' was written by so.fit with a model of your own" in said
    assert "pass --model MODULE:FUNCTION, a function that returns the untrained module." in said


@pytest.mark.parametrize("command", [("effects",), ("attack", "members", "--quiet")])
def test_a_command_that_needs_rows_says_what_to_pass(refused, command) -> None:
    assert "pass --data FILE" in refused(*command, "run", "--model", "nets:network")


# What is measured


def test_effects_are_measured_on_public_rows(run, tmp_path: Path) -> None:
    given = ("--model", "nets:network", "--data", "public.npz")
    found = json.loads(run("effects", "run", *given, "--out", tmp_path / "effects", "--json"))
    assert found["rows"] == 120 and {group["name"] for group in found["groups"]} == {"0", "1", "2"}
    assert found["calibration"] is not None and (tmp_path / "effects" / "effects.html").exists()


def test_a_twin_is_trained_on_the_rows_that_are_passed(run, tmp_path: Path) -> None:
    given = ("--model", "nets:network", "--data", "all.npz", "--out", tmp_path / "effects")
    assert "not private" in run("effects", "run", *given, "--twin")
    assert (tmp_path / "effects.internal" / "effects-internal.json").exists()


@pytest.mark.usefixtures("quick_verification")
def test_a_plan_is_verified_as_it_was_carried_out(run) -> None:
    assert "not refuted" in run("verify", "run", "--model", "nets:network")


@pytest.mark.usefixtures("quick_verification")
def test_a_loss_of_ones_own_comes_from_a_setup(run, refused) -> None:
    said = refused("verify", "own-loss", "--model", "nets:network")
    assert "the loss of the run in 'own-loss' is code of your own (own_loss)" in said
    assert "return sordino.TrainingSetup(model, loss=...)" in said
    assert "not refuted" in run("verify", "own-loss", "--model", "nets:with_loss")
    said = refused("verify", "own-loss", "--model", "nets:with_another_clip")
    assert "the clip that --model gives differs from that of the run" in said


def test_the_plan_of_a_run_is_not_changed_by_options(refused) -> None:
    assert "--epsilon cannot be changed" in refused("verify", "run", "--model", "nets:network", "--epsilon", 1)


@pytest.mark.parametrize("rows", [(), ("--data", "all.npz")])
def test_a_run_is_audited_on_synthetic_rows_or_its_own(run, tmp_path: Path, rows) -> None:
    given = ("--model", "nets:network", *rows, "--canaries", 60, "--quiet", "--json", "--out", tmp_path)
    found = json.loads(run("audit", "run", *given))
    assert found["verdict"] == "not refuted" and found["canaries"] == 60 and 2.9 < found["epsilon"] <= 3.0


def test_a_run_is_audited_by_its_final_model(run, tmp_path: Path) -> None:
    given = ("--model", "nets:network", "--box", "black", "--canaries", 100, "--quiet", "--json", "--out", tmp_path)
    found = json.loads(run("audit", "run", *given))
    assert found["verdict"] == "not refuted" and found["box"] == "black"


def test_members_are_attacked_by_references_of_the_same_plan(run, refused, tmp_path: Path) -> None:
    given = ("--model", "nets:network", "--rows", 40, "--references", 2, "--quiet")
    found = json.loads(run("attack", "members", "run", "--data", "all.npz", *given, "--out", tmp_path, "--json"))
    assert found["members"] == 40 and found["attacks"][0]["name"].startswith("LiRA")
    shorter = run("attack", "members", "run", "--data", "all.npz", *given, "--epochs", 1, "--out", tmp_path, "--json")
    assert "1 epochs to the same epsilon" in json.loads(shorter)["trained"]
    said = refused("attack", "members", "run", "--data", "public.npz", *given, code=3)
    assert "pass a file with test_inputs and test_target" in said
    np.savez(tmp_path / "few.npz", inputs=ROWS[:90], target=LABELS[:90], test_inputs=ROWS, test_target=LABELS)
    said = refused("attack", "members", "run", "--data", tmp_path / "few.npz", *given, code=3)
    assert "was trained on 120 examples, " in said and "pass the rows that it was trained on" in said


@pytest.mark.usefixtures("quick_verification")
def test_a_hidden_state_run_needs_no_function(run, tmp_path: Path) -> None:
    """Its plan has the model in it, of which the folder says all that is needed."""
    plan = so.NoisyCGD(so.Cyclic(4, 3), GatedReLU(4), clip=1.0, noise_multiplier=2.0, learning_rate=0.5)
    fit_hidden_state(
        plan, (ROWS[TRAIN], LABELS[TRAIN]), outputs=3, delta=1e-3, seed=0, out=tmp_path / "run", progress=False
    )
    out = ("--out", tmp_path / "out")
    assert "GatedReLU" in run("runs", tmp_path / "run")
    assert "score(2)" in run("predict", tmp_path / "run", "--data", "new.npz")
    run("report", tmp_path / "run", "--data", "public.npz", *out)
    assert "not refuted" in run("verify", tmp_path / "run")
    assert "not refuted" in run("audit", tmp_path / "run", "--canaries", 60, "--quiet", *out)
    given = ("--rows", 40, "--references", 2, "--quiet", *out)
    assert "LiRA" in run("attack", "members", tmp_path / "run", "--data", "all.npz", *given)


# Nothing in a folder is executed


def test_nothing_in_a_folder_is_imported_or_executed(run, refused, tmp_path: Path, monkeypatch) -> None:
    """Neither files that look like the user's code, nor names in training.json that lead to code."""
    copy = Path(shutil.copytree("run", tmp_path / "copy"))
    for name in ("nets.py", "sitecustomize.py", "conftest.py", "torch.py", "trap.py"):
        (copy / name).write_text(f"open({str(tmp_path / 'executed')!r}, 'w')\ndef network(): pass\n")
    text = (copy / "training.json").read_text()
    (copy / "training.json").write_text(re.sub(r'"class": "[^"]*"', '"class": "trap.network"', text))
    run("runs", copy)
    run("report", copy, "--out", tmp_path / "card")
    monkeypatch.chdir(copy)
    assert "cannot be imported" in refused("predict", ".", "--data", "rows.npz", "--model", "trap:network")
    said = refused("predict", ".", "--data", "rows.npz", "--model", "trap.py:network")
    assert "lies in the run folder, and nothing in a run folder is executed" in said
    assert not (tmp_path / "executed").exists()


def test_an_installed_package_is_not_hidden_by_a_file_beside_it(run, tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "fractions.py").write_text("raise RuntimeError")
    (tmp_path / "nets.py").write_text("import fractions\n" + NETS)
    model = f"{tmp_path / 'nets.py'}:network"
    assert run("predict", "run", "--data", "new.npz", "--model", model)


# Folders of other kinds


def test_a_run_that_was_stopped_is_listed_and_says_how_to_go_on(run, refused, tmp_path: Path) -> None:
    with pytest.raises(Interrupted):
        trained(tmp_path / "run", callbacks=[StopAfterTwo()])
    (row,) = json.loads(run("runs", tmp_path / "run", "--json"))["rows"]
    assert row["state"] == "step 2 of 12"
    assert "is not finished: resume it first, by so.fit(" in refused("report", tmp_path / "run")
    said = refused("train", "--resume", tmp_path / "run")
    assert "call so.fit again with the same arguments, out= and resume=True" in said
    trained(tmp_path / "run", resume=True)
    before = json.loads((Path("run") / "training.json").read_text())
    assert json.loads((tmp_path / "run" / "training.json").read_text()) == before


class StopAfterTwo(Callback):
    def on_step(self, step: int, steps: int) -> None:
        if step == 2:
            os.kill(os.getpid(), signal.SIGTERM)


def test_a_folder_of_an_earlier_version_says_how_it_is_described(refused, run, tmp_path: Path) -> None:
    copy = Path(shutil.copytree("run", tmp_path / "copy"))
    (copy / "training.json").unlink()
    assert "resume=True, which describes it" in refused("runs", copy)
    assert "resume=True, which describes it" in refused("report", copy)
    trained(copy, resume=True)
    assert (copy / "training.json").read_text() == (Path("run") / "training.json").read_text()


def test_a_model_is_not_named_for_a_run_with_a_recipe(run, refused, tmp_path: Path) -> None:
    run(
        "train",
        "--data",
        "digits",
        "--model",
        "linear",
        "--epsilon",
        3,
        "--steps",
        2,
        "--quiet",
        "--out",
        tmp_path / "d",
    )
    for command in (("predict", "--data", "digits"), ("report",)):
        name, *rest = command
        assert "the recipe has 'linear': leave it out" in refused(
            name, tmp_path / "d", *rest, "--model", "nets:network"
        )
    assert "the recipe has 'linear': leave it out" in refused("audit", tmp_path / "d", "--model", "nets:network")
