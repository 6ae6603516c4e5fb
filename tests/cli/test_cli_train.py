"""`sordino train` from end to end: what a run leaves, what it prints, and when it does not begin."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from dp_accounting.dp_event import PoissonSampledDpEvent, SelfComposedDpEvent
from training_commands import DIGITS, FILES, contents, last_row
from training_commands import digits as digits
from training_commands import elsewhere as elsewhere
from training_commands import quick as quick

from sordino._input.safetensors_file import load_tensors
from sordino.accounting import Adjacency, PureDpEvent, privacy_of
from sordino.kernel.randomness import Key
from sordino.training.checkpoint import Checkpoints
from sordino.training.run_folder import RunFolder


def test_a_run_leaves_recipe_facts_measures_model_and_promise_and_nothing_else(digits: Path) -> None:
    assert contents(digits).keys() == FILES
    assert not RunFolder(digits).private.exists()
    assert 0.2 < last_row(digits)["test_accuracy"] <= 1
    assert all("test_accuracy" not in line for line in (digits / "metrics.jsonl").read_text().splitlines()[:-1])


def test_a_promise_has_the_fields_of_a_plan(digits: Path, run) -> None:
    promised = json.loads((digits / "privacy.json").read_text())
    sizes = ["--examples", promised["examples"], "--batch-size", 100, "--steps", 4]
    planned = json.loads(run("plan", *sizes, "--epsilon", 3, "--delta", "1e-4", "--json"))
    assert promised.keys() == planned.keys() | {"identity"}
    assert 2.9 < promised["epsilon"] <= 3
    assert promised["noise_multiplier"] == pytest.approx(planned["noise_multiplier"], rel=1e-3)
    same = ("examples", "batch_size", "sample_rate", "epochs", "steps", "delta", "sampler", "adjacency", "unit")
    assert {name: promised[name] for name in same} == {name: planned[name] for name in same}


def test_the_same_seed_gives_the_same_folder_and_so_does_its_recipe(digits: Path, run) -> None:
    run(*DIGITS, "--seed", 0, "--out", "again")
    assert contents(Path("again")) == contents(digits)
    run("train", digits / "recipe.toml", "--seed", 0, "--quiet", "--out", "by recipe")
    assert contents(Path("by recipe")) == contents(digits)
    run("train", digits / "recipe.toml", "--seed", 1, "--quiet", "--out", "another")
    assert contents(Path("another"))["model.safetensors"] != contents(digits)["model.safetensors"]


def test_what_is_printed_can_be_signed(digits: Path, run) -> None:
    printed = run("train", "--resume", digits)
    promised = json.loads((digits / "privacy.json").read_text())
    shown, adjacency = re.search(r"^epsilon +([\d.]+) under (\S+)$", printed, re.MULTILINE).groups()
    assert promised["epsilon"] <= float(shown) <= promised["epsilon"] * 1.0001
    assert adjacency == "zero-out"
    assert re.search(rf"^test accuracy +{last_row(digits)['test_accuracy']:.4f}$", printed, re.MULTILINE)
    assert printed.splitlines()[-1] == promised["statement"]
    assert "the seed stays secret" in promised["statement"]


def test_without_a_seed_runs_differ_and_say_nothing_of_one(run) -> None:
    for _ in range(2):
        assert "seed" not in run(*DIGITS, "--steps", 1)
    one, other = (contents(Path("runs") / f"digits-linear-{number}") for number in (1, 2))
    assert b"\nseed" not in one["recipe.toml"]
    assert one["model.safetensors"] != other["model.safetensors"]


def test_runs_are_named_by_data_and_model_and_counted(run, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("runs/digits-linear-1").mkdir(parents=True)
    Path("runs/digits-linear-2.private").mkdir()
    assert "runs/digits-linear-3" in run(*DIGITS, "--steps", 1)


def test_an_occupied_folder_is_refused_and_left_as_it_is(digits: Path, refused) -> None:
    before = contents(digits)
    assert "is not empty" in refused(*DIGITS, "--out", digits)
    assert contents(digits) == before
    Path("file").write_text("mine")
    assert "is not empty" in refused(*DIGITS, "--out", "file")
    assert "is not empty" in refused(*DIGITS, "--out", ".")
    assert "cannot be written to" in refused(*DIGITS, "--out", "file/run", code=3)


@pytest.mark.parametrize(
    ("options", "code"),
    [
        (["--data", "diigts"], 2),
        (["--data", "none.csv", "--schema", "none.toml"], 3),
        (["--data", "./nowhere"], 3),
        (["--model", "h-cnn"], 2),
        (["--batch-size", "100000"], 2),
        (["--delta", "0.5"], 2),
        (["--augment", "crop:8"], 2),
    ],
)
@pytest.mark.parametrize("out", [[], ["--out", "out"]])
def test_a_run_that_cannot_begin_leaves_no_folder(options: list[str], code: int, out: list[str], refused) -> None:
    refused(*DIGITS, *out, "--tensorboard", *options, code=code)
    assert [path for path in Path().rglob("*") if path.name != "runs"] == []


def test_without_a_delta_the_usual_one_is_taken_promised_and_said(run) -> None:
    printed = run(
        "train", "--data", "digits", "--model", "linear", "--epsilon", 3, "--steps", 2, "--quiet", "--out", "out"
    )
    assert "(delta was not given: 0.0001 is the largest power of ten below 1 / examples)" in printed
    assert RunFolder("out").privacy()["delta"] == 1e-4
    assert "\ndelta = 0.0001\n" in Path("out/recipe.toml").read_text()


@pytest.mark.filterwarnings("ignore::sordino.kernel.noise.HopelessNoise")
@pytest.mark.parametrize("noise", ["optimized", "optimized:laplace", "optimized:isotropic:flat:squared"])
def test_optimized_noise_promises_what_a_plan_does_and_every_command_reads_the_run(noise: str, run) -> None:
    run(*DIGITS, "--noise", noise, "--seed", 0, "--out", "out")
    promised = RunFolder("out").privacy()
    assert "PureDpEvent" in promised["event"] and promised["epsilon"] <= 3
    sizes = ["--examples", promised["examples"], "--batch-size", 100, "--steps", 4]
    planned = json.loads(run("plan", *sizes, "--epsilon", 3, "--delta", "1e-4", "--noise", noise, "--json"))
    assert promised["noise_multiplier"] == pytest.approx(planned["noise_multiplier"], rel=1e-3)
    event = PoissonSampledDpEvent(100 / promised["examples"], PureDpEvent(promised["noise_multiplier"]))
    again = privacy_of(SelfComposedDpEvent(event, 4), Adjacency.ZERO_OUT).epsilon(1e-4)
    assert again == pytest.approx(promised["epsilon"], rel=1e-6)
    assert f'noise = "{noise}"' in Path("out/recipe.toml").read_text()
    assert "finished" in run("runs", "out") and "report.html" in run("report", "out")
    assert run("predict", "out", "--data", "digits").startswith("row,prediction")


def test_a_training_that_diverges_keeps_its_promise(refused) -> None:
    assert "smaller learning rate" in refused(*DIGITS, "--lr", "1e38", "--clip", "1e4", "--out", "out")
    assert RunFolder("out").is_begun


def test_a_second_process_does_not_take_back_what_the_first_began(refused, monkeypatch: pytest.MonkeyPatch) -> None:
    with Checkpoints.begin(Path("out.private").absolute(), Key.from_seed(0)):
        monkeypatch.setattr(RunFolder, "is_free", True)  # as it was when the second one looked
        assert "has a run already" in refused(*DIGITS, "--out", "out")
    assert Path("out.private/key.json").exists() and Path("out/recipe.toml").exists()


@pytest.mark.parametrize(
    "options",
    [
        ["--optimizer", "adam", "--lr", "0.01", "--schedule", "cosine:0.1", "--averaging", "ema:0.9"],
        ["--sampler", "shuffled", "--model", "mlp", "--views", "2", "--augment", "jitter:0.1"],
        ["--precision", "bfloat16", "--model", "mlp"],
        [
            "--sampler",
            "cyclic",
            "--adjacency",
            "replace-one",
            "--weight-decay",
            "0.01",
            "--momentum",
            "0",
            "--physical-batch-size",
            "32",
        ],
    ],
)
def test_every_option_reaches_the_recipe(options: list[str], run) -> None:
    run(*DIGITS, *options, "--seed", 0, "--out", "out")
    recipe = Path("out/recipe.toml").read_text()
    for name, value in zip(options[::2], options[1::2], strict=True):
        assert re.search(rf'^{name[2:].replace("-", "_")} = "?{re.escape(value)}(\.0)?"?$', recipe, re.MULTILINE)


def test_half_precision_moves_the_weights_a_little_and_the_promise_not_at_all(digits: Path, run) -> None:
    run(*DIGITS, "--seed", 0, "--precision", "bfloat16", "--out", "halved")
    whole, halved = (RunFolder(folder) for folder in (digits, Path("halved")))
    assert halved.privacy()["epsilon"] == whole.privacy()["epsilon"]
    one, other = (load_tensors(folder.path / "model.safetensors").tensors for folder in (whole, halved))
    far = {name: float((one[name] - other[name]).norm() / one[name].norm()) for name in one}
    assert all(0 < distance < 0.05 for distance in far.values()), far


def test_tensorboard_gets_public_quantities_only(run) -> None:
    accumulators = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    run(*DIGITS, "--seed", 0, "--out", "run", "--tensorboard")
    events = accumulators.EventAccumulator("run/tensorboard")
    events.Reload()
    at_end = {"accuracy", "auc", "balanced_accuracy", "constant_accuracy", "f1"}
    public = {"epoch", "epsilon", "delta", "validation_accuracy", *(f"test_{name}" for name in at_end)}
    assert set(events.Tags()["scalars"]) == public
    assert not any(kind for name, kind in events.Tags().items() if name != "scalars")
    assert [event.step for event in events.Scalars("epsilon")] == [2, 4]
    assert events.Scalars("test_accuracy")[0].value == pytest.approx(last_row(Path("run"))["test_accuracy"])


def test_a_full_disk_is_one_line_and_the_run_goes_on_once_there_is_room(
    digits: Path, run, refused, monkeypatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device", "run.private/state")

    with monkeypatch.context() as patch:
        patch.setattr("sordino.training.checkpoint.Checkpoints.save", full)
        said = refused(*DIGITS, "--seed", 0, "--out", "full", code=3)
    assert said == (
        "sordino: I/O error: 'run.private/state' No space left on device. "
        "Files written so far stay, and the run can be resumed.\n"
    )
