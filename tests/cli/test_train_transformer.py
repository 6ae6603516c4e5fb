"""`sordino train --model hf:PATH`: saved transformers on rows of texts, and every command on their runs."""

from __future__ import annotations

import csv
import importlib
import json
import shutil
import signal
import time
from pathlib import Path
from typing import Any

import datasets
import peft
import pyarrow
import pyarrow.parquet
import pytest
import torch
from killed_commands import Killed, killed_at, process
from saved_transformers import made, reviews, saved, tokenizer, write_lines
from training_commands import answers, last_row
from training_commands import elsewhere as elsewhere
from training_commands import quick as quick
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, AutoTokenizer

from sordino.recipes.recipe import Recipe
from sordino.training.run_folder import RunFolder

TARGET = ["--epsilon", "8", "--delta", "1e-3", "--seed", "0", "--quiet"]
FEW = ["--steps", "4", "--batch-size", "50", "--max-length", "12"]
TRAIN = ["train", "--data", "train.jsonl", *TARGET, *FEW]
CLASSIFY = [*TRAIN, "--model", "hf:classifier"]
FILES = {"recipe.toml", "facts.json", "privacy.json", "metrics.jsonl", "model.safetensors", "model"}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    for name in ("bert", "classifier", "gpt", "vit"):
        saved(name, folder)
    return folder


@pytest.fixture(autouse=True)
def here(models: Path, elsewhere) -> None:
    """The models and some reviews, in the current folder."""
    for path in models.iterdir():
        shutil.copytree(path, path.name)
    write_lines(Path("train.jsonl"), reviews(200))
    write_lines(Path("test.jsonl"), reviews(40, seed=1))


def files(folder: Path) -> dict[str, bytes]:
    """The files of a run and of its model, without the random name of the run."""
    found = {str(path.relative_to(folder)): path for path in folder.rglob("*") if path.is_file()}
    return {name: path.read_bytes() for name, path in sorted(found.items()) if name != "privacy.json"}


def test_a_run_is_listed_and_reported_with_its_accuracy_on_public_rows(run) -> None:
    run(*CLASSIFY, "--out", "run")
    assert "hf:classifier" in run("runs", "run")
    run("report", "run", "--data", "test.jsonl")
    measured = json.loads(Path("run/report.json").read_text())["measured"]
    rows = answers(run("predict", "run", "--data", "test.jsonl"))
    right = sum(row["prediction"] == text["label"] for row, text in zip(rows, reviews(40, seed=1), strict=True))
    assert (measured["test"]["right"], measured["test"]["rows"]) == (right, 40)
    assert set(measured["by_class"]) == {"neg", "pos"}


def test_a_classifier_is_trained_and_loaded_again(run, capsys) -> None:
    printed = run(*CLASSIFY, "--test-data", "test.jsonl", "--steps", "40", "--lr", "0.05", "--out", "run")
    assert {path.name for path in Path("run").iterdir()} == FILES
    assert "epsilon" in printed and last_row(Path("run"))["test_accuracy"] > 0.8
    shutil.rmtree("classifier")  # the run folder has all that predictions need
    rows = answers(run("predict", "run", "--data", "test.jsonl"))
    model = AutoModelForSequenceClassification.from_pretrained("run/model")
    words = AutoTokenizer.from_pretrained("run/model")
    capsys.readouterr()  # transformers shows that it loads
    assert model.config.id2label == {0: "neg", 1: "pos"}
    with torch.no_grad():
        for row, text in zip(rows, reviews(40, seed=1), strict=True):
            logits = model(**words(text["text"], return_tensors="pt")).logits[0]
            assert float(logits.softmax(-1)[1]) == pytest.approx(float(row["p(pos)"]), abs=1e-4)
    right = [row["prediction"] == text["label"] for row, text in zip(rows, reviews(40, seed=1), strict=True)]
    assert sum(right) / 40 == pytest.approx(last_row(Path("run"))["test_accuracy"])


def test_every_format_of_the_same_rows_gives_the_same_weights(run, capsys) -> None:
    rows, ids = reviews(200), tokenizer("classifier")
    with Path("train.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, ["label", "text"])
        writer.writeheader()
        writer.writerows(rows)
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), "train.parquet")
    datasets.Dataset.from_list(rows).save_to_disk("saved")
    tokens = [{"input_ids": ids(row["text"])["input_ids"], "labels": int(row["label"] == "pos")} for row in rows]
    write_lines(Path("tokens.jsonl"), tokens)
    capsys.readouterr()
    weights = set()
    for place, data in enumerate(("train.jsonl", "train.csv", "train.parquet", "saved", "tokens.jsonl")):
        run(*CLASSIFY, "--data", data, "--out", f"run{place}")
        weights.add(Path(f"run{place}/model.safetensors").read_bytes())
    assert len(weights) == 1


def test_a_recipe_repeats_the_run(run) -> None:
    run(*CLASSIFY, "--lora", "2", "--out", "first")
    run("train", "first/recipe.toml", "--seed", "0", "--quiet", "--out", "second")
    assert files(Path("first")) == files(Path("second"))


@pytest.mark.parametrize("moment", [14, 25, 38])
def test_a_run_that_is_killed_ends_with_the_same_weights(moment: int, run, monkeypatch) -> None:
    run(*CLASSIFY, "--out", "whole")
    assert killed_at(moment, [*CLASSIFY, "--out", "run"], monkeypatch)
    run("train", "--quiet", "--resume", "run")
    assert files(Path("run")) == files(Path("whole"))


def test_a_model_that_was_not_written_before_a_kill_is_written_by_resuming(run, refused, monkeypatch) -> None:
    run(*CLASSIFY, "--out", "whole")

    def killed(*arguments: object) -> None:
        Path("run/.model.1").mkdir()
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(importlib.import_module("sordino.recipes.transformers"), "write_saved", killed)
        with pytest.raises(Killed):
            run(*CLASSIFY, "--out", "run")
    assert RunFolder("run").is_finished
    assert "sordino train --resume 'run' writes it" in refused("predict", "run", "--data", "test.jsonl")
    Path("train.jsonl").unlink()
    run("train", "--quiet", "--resume", "run")
    assert files(Path("run")) == files(Path("whole"))


@pytest.mark.slow
def test_a_process_that_is_killed_is_resumed_to_the_same_weights(run) -> None:
    long = [*CLASSIFY, "--steps", "400", "--test-data", "test.jsonl"]
    run(*long, "--out", "whole")
    running = process(*long, "--out", "run")
    while not list(Path("run.private").glob("*.safetensors")) and running.poll() is None:
        time.sleep(0.01)
    running.send_signal(signal.SIGKILL)
    assert running.wait() == -signal.SIGKILL
    assert not RunFolder("run").is_finished
    run("train", "--quiet", "--resume", "run")
    assert files(Path("run")) == files(Path("whole"))


@pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning")  # PEFT asks transformers for it
def test_adapters_are_trained_and_load_onto_the_model_below_them(run, capsys) -> None:
    run(*CLASSIFY, "--lora", "2", "--lr", "0.05", "--out", "run")
    assert {"adapter_config.json", "adapter_model.safetensors"} <= {path.name for path in Path("run/model").iterdir()}
    rows = answers(run("predict", "run", "--data", "test.jsonl"))
    adapted = peft.PeftModel.from_pretrained(made("classifier"), "run/model").eval()
    words = AutoTokenizer.from_pretrained("run/model")
    text = reviews(40, seed=1)[0]["text"]
    with torch.no_grad():
        logits = adapted(**words(text, return_tensors="pt")).logits[0]
    capsys.readouterr()
    assert float(logits.softmax(-1)[1]) == pytest.approx(float(rows[0]["p(pos)"]), abs=1e-4)


def test_a_language_model_learns_and_gives_each_text_a_perplexity(run, capsys) -> None:
    gpt = [*TRAIN, "--model", "hf:gpt", "--test-data", "test.jsonl", "--buckets", "6,12"]
    del gpt[gpt.index("--max-length") : gpt.index("--max-length") + 2]
    run(*gpt, "--steps", "30", "--lr", "0.05", "--out", "run")
    metrics = RunFolder("run").metrics()
    assert metrics[-1]["test_perplexity"] < 17
    rows = answers(run("predict", "run", "--data", "test.jsonl"))
    total, tokens = (sum(float(row[name]) * int(row["tokens"]) ** power for row in rows) for name, power in
                     (("loss", 1), ("tokens", 0)))  # fmt: skip
    assert total / tokens == pytest.approx(metrics[-1]["test_loss"], rel=1e-4)
    one_token = answers(run("predict", "run", "--data", write_lines(Path("one.jsonl"), [{"text": "good"}])))
    assert one_token == [{"row": "0", "tokens": "0", "loss": "", "perplexity": ""}]  # nothing is predicted
    weights = AutoModelForCausalLM.from_pretrained("run/model").state_dict()
    capsys.readouterr()
    assert all(torch.equal(x, weights[name]) for name, x in RunFolder("run").weights().items())


def test_images_of_a_dataset_are_classified_by_its_classes(run) -> None:
    run("train", "--data", "digits", "--model", "hf:vit", *TARGET, "--delta", "1e-4", "--steps", "2", "--out", "run")
    rows = answers(run("predict", "run", "--data", "digits"))
    assert len(rows) == 360 and "p(9)" in rows[0] and last_row(Path("run"))["test_accuracy"] >= 0


def test_rows_that_cannot_be_used_have_empty_predictions_and_no_message(run) -> None:
    bad: list[Any] = ["{", {"text": 7, "label": "neg"}, {"text": "good", "label": "other"}, "[]"]
    write_lines(Path("train.jsonl"), [*reviews(100), *bad])
    run(*CLASSIFY, "--test-data", "train.jsonl", "--out", "run")
    rows = answers(run("predict", "run", "--data", "train.jsonl"))
    assert [row["prediction"] == "" for row in rows[100:]] == [True, True, False, True]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--model", "hf:nowhere"], "must name a folder with a saved transformer, and there is none"),
        (["--model", "hf:."], "has no config.json"),
        (["--model", "hf:vit", "--task", "image-classification"], "unknown format"),
        (["--model", "hf:bert", "--task", "sequence-classification"], "by --classes, as no,yes"),
        (["--model", "hf:bert", "--classes", "no,yes"], "--classes goes with a classification"),
        (["--model", "hf:bert", "--task", "causal-lm"], "sees later tokens"),
        (["--model", "hf:bert", "--task", "parsing"], "--task must be one of sequence-classification"),
        (["--model", "hf:gpt", "--train-only", "head"], "--train-only must be left out for GPT2LMHeadModel"),
        (["--model", "hf:classifier", "--text-column", "body"], "'train.jsonl' has no column 'body'"),
        (["--model", "hf:classifier", "--label-column", "stars"], "'train.jsonl' has no column 'stars'"),
        (["--model", "hf:classifier", "--max-length", "33"], "--max-length must be at most 32"),
        (["--model", "hf:classifier", "--buckets", "8,4"], "--buckets must be increasing whole numbers"),
        (["--model", "hf:classifier", "--buckets", "4,8", "--max-length", "8"], "exclude each other"),
        (["--model", "hf:classifier", "--lora", "2", "--train-only", "head"], "exclude each other"),
        (["--model", "hf:classifier", "--classes", "no,no"], "--classes must be different names in order"),
        (["--model", "hf:classifier", "--class-weights", "1,2"], "--class-weights goes with other networks"),
        (["--model", "hf:classifier", "--augment", "flip"], "--augment does not go with texts"),
        (["--model", "hf:classifier", "--test-data", "none.jsonl"], "no such file or folder"),
        (["--model", "linear", "--lora", "2"], "--lora needs --model hf:PATH, got 'linear'"),
        (["--model", "gated-relu", "--allow-download"], "--allow-download needs --model hf:PATH"),
    ],
)  # fmt: skip
def test_what_cannot_be_trained_is_said_in_one_line_before_a_row_is_read(options, said, refused, monkeypatch) -> None:
    def read(*arguments: object, **named: object) -> None:
        raise AssertionError("a row was read")

    monkeypatch.setattr("sordino.data.text_rows.TextRows.read", read)
    code = 3 if "train.jsonl" in said or "no such file" in said or "format" in said else 2  # what is wrong with data
    command = ["train", "--data", "train.jsonl", *TARGET, "--steps", "2", *options, "--out", "run"]
    assert said in refused(*command, code=code)
    assert not Path("run").exists()


def test_commands_that_need_other_rows_say_so(run, refused) -> None:
    run(*CLASSIFY, "--out", "run")
    for command in (["effects", "run"], ["attack", "members", "run"], ["audit", "run", "--box", "black"]):
        assert "is a transformer" in refused(*command)
    assert "--model must be a name from" in refused(
        "tune", *CLASSIFY[1:3], "--model", "hf:classifier", "--epsilon", "3"
    )


@pytest.mark.slow
@pytest.mark.usefixtures("quick_verification")
def test_its_plan_is_verified_and_its_gradients_are_audited(run) -> None:
    run(*CLASSIFY, "--out", "run")
    assert "not refuted" in run("verify", "run")
    assert "not refuted" in run("audit", "run", "--canaries", "50", "--quiet")


def test_a_folder_is_named_after_data_and_model(run) -> None:
    run(*CLASSIFY)
    assert Recipe.of_run(RunFolder("runs/train-classifier-1")).model == "hf:classifier"
