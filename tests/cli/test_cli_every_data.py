"""Tables, arrays, pictures and standard sets train on the command line to models that predict."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from killed_commands import killed_at
from table_of_people import NEW, PEOPLE, SCHEMA, table
from training_commands import FILES, TARGET, answers, contents, last_row
from training_commands import digits as digits
from training_commands import elsewhere as elsewhere
from training_commands import quick as quick

from sordino.data.standard import load_digits

# Tables


def test_a_table_trains_to_a_model_that_predicts_by_the_names_of_classes(run) -> None:
    table(Path("people.csv"), Path("people.toml"), facts='test = "public.csv"' + SCHEMA)
    table(Path("public.csv"), Path("unused.toml"), rows=51)
    run(*PEOPLE, "--out", "run")
    assert contents(Path("run")).keys() == FILES | {"schema.toml"}
    assert last_row(Path("run"))["test_accuracy"] > 0.9
    assert json.loads(Path("run/privacy.json").read_text())["unit"] == "example"
    Path("new.csv").write_text(NEW)
    said = answers(run("predict", "run", "--data", "new.csv"))
    assert [row["prediction"] for row in said[:3]] == ["no, never", "yes", ""]
    assert said[0].keys() == {"row", "prediction", "p(no, never)", "p(yes)"}
    assert float(said[0]["p(no, never)"]) + float(said[0]["p(yes)"]) == pytest.approx(1)
    assert set(said[2].values()) == {"2", ""}  # its row, and no answer
    assert said[3]["prediction"] != ""  # a missing number is the middle of its bounds
    assert run("predict", "run", "--data", "new.csv", "--out", "said.csv") == ""
    assert answers(Path("said.csv").read_text()) == said


def test_a_table_of_users_promises_to_users(run) -> None:
    table(Path("people.csv"), Path("people.toml"), facts='user = "person"\nrows_per_user = 2' + SCHEMA)
    run(*PEOPLE, "--out", "run")
    promised = json.loads(Path("run/privacy.json").read_text())
    assert (promised["unit"], promised["examples"]) == ("user", 200)
    assert "for every user" in promised["statement"]
    Path("new.csv").write_text(NEW)
    said = answers(run("predict", "run", "--data", "new.csv"))
    assert [row["prediction"] for row in said[:3]] == ["no, never", "yes", ""]


@pytest.mark.parametrize("unit", ["", 'user = "person"\nrows_per_user = 2\n'])
def test_a_table_of_numbers_is_learnt_and_predicted_in_their_own_unit(unit: str, run) -> None:
    facts = unit + SCHEMA.replace(
        '{column = "ill", classes = ["no, never", "yes"]}', '{column = "pay", bounds = [0, 1000]}'
    )
    table(Path("people.csv"), Path("people.toml"), facts='test = "public.csv"\n' + facts)
    table(Path("public.csv"), Path("unused.toml"), rows=51)
    run(*PEOPLE, "--lr", "0.2", "--out", "run")
    assert 0 <= last_row(Path("run"))["test_mse"] < 0.2
    assert json.loads(Path("run/privacy.json").read_text())["unit"] == ("user" if unit else "example")
    Path("new.csv").write_text(NEW)
    low, high, unknown, _ = answers(run("predict", "run", "--data", "new.csv"))
    assert float(low["prediction"]) < 400 < 600 < float(high["prediction"])
    assert unknown == {"row": "2", "prediction": ""}


def test_under_add_or_remove_nothing_that_is_seen_depends_on_the_true_size(
    run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []
    for rows in (400, 399):
        folder = tmp_path / str(rows)
        folder.mkdir()
        monkeypatch.chdir(folder)
        table(Path("people.csv"), Path("people.toml"), rows=rows)
        start = [argument for argument in PEOPLE if argument not in ("--batch-size", "100")]
        printed = run(*start, "--adjacency", "add-or-remove", "--expected-examples", 400, "--out", "run")
        files = contents(Path("run"))
        del files["model.safetensors"]
        seen.append((printed, files))
    assert seen[0] == seen[1]
    assert b'"examples": 400' in seen[0][1]["privacy.json"] and "add-or-remove" in seen[0][0]


# Other data


def test_arrays_train_and_predict(run, refused) -> None:
    generator = np.random.default_rng(0)
    inputs = generator.normal(size=(300, 4)).astype(np.float32)
    inputs[0, 0], inputs[1, 1] = np.nan, 1e30
    np.savez("a.npz", inputs=inputs, target=(inputs[:, 0] > 0).astype(np.int64))
    facts = "confirmed_public = true\n[inputs]\nshape = [4]\nrange = [-2, 2]\n[target]\nclasses = 2"
    Path("a.toml").write_text(facts)
    start = ["train", "--data", "a.npz", "--model", "linear", *TARGET, "--delta", "1e-3", "--seed", 0]
    run(*start, "--steps", 20, "--lr", 2, "--out", "run")
    np.savez("new.npz", inputs=np.array([[-1, 0, 0, 0], [2, 0, 0, 0], [9e9, 0, 0, 0], [np.nan, 0, 0, 0]]))
    low, high, clamped, unknown = answers(run("predict", "run", "--data", "new.npz"))
    assert (low["prediction"], high["prediction"], unknown["prediction"]) == ("0", "1", "")
    assert high["p(1)"] == clamped["p(1)"]  # both are at the end of the public range
    np.savez("other.npz", inputs=np.zeros((2, 5)))
    assert "rows of shape (5,), the model takes (4,)" in refused("predict", "run", "--data", "other.npz", code=3)
    np.savez("none.npz", inputs=np.zeros((0, 4)))
    assert "has no rows" in refused("predict", "run", "--data", "none.npz", code=3)
    np.savez("named.npz", rows=np.zeros((2, 4)))
    assert "array named inputs" in refused("predict", "run", "--data", "named.npz", code=3)


def test_a_folder_of_pictures_trains_and_predicts(run, refused) -> None:
    image = pytest.importorskip("PIL.Image")

    def picture(path: Path, shade: int, size: tuple[int, int] = (8, 8)) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        image.new("L", size, shade).save(path)

    for number in range(60):
        picture(Path(f"shades/train/dark/{number}.png"), number)
        picture(Path(f"shades/train/light/{number}.png"), 195 + number)
    picture(Path("shades/test/dark/0.png"), 10)
    picture(Path("shades/test/light/0.png"), 250)
    run("train", "--data", "shades", "--model", "linear", *TARGET, "--delta", "1e-3", "--steps", 20, "--seed", 0)
    assert last_row(Path("runs/shades-linear-1"))["test_accuracy"] == 1
    picture(Path("new/a.png"), 0)
    picture(Path("new/b.png"), 255)
    said = answers(run("predict", "runs/shades-linear-1", "--data", "new"))
    assert [row["prediction"] for row in said] == ["dark", "light"]
    assert [row["file"] for row in said] == ["a.png", "b.png"]
    picture(Path("new/c.png"), 0, (9, 8))
    assert "has shape (1, 8, 9)" in refused("predict", "runs/shades-linear-1", "--data", "new", code=3)
    Path("empty").mkdir()
    assert "there is no image" in refused("predict", "runs/shades-linear-1", "--data", "empty", code=3)


def test_the_test_rows_of_a_standard_set_are_predicted_as_well_as_was_measured(digits: Path, run) -> None:
    said = answers(run("predict", digits, "--data", "digits"))
    truth = load_digits().test.target.tolist()
    right = [int(row["prediction"]) == label for row, label in zip(said, truth, strict=True)]
    assert sum(right) / len(right) == pytest.approx(last_row(digits)["test_accuracy"])


def test_features_that_are_kept_or_lost_on_the_way_do_not_matter(
    run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SORDINO_DATA", str(tmp_path / "sets"))
    begin = ["train", "--data", "digits", "--model", "scatter-linear", *TARGET, "--steps", "4", "--seed", "0", "--out"]
    run(*begin, "whole")
    kept, *_ = (tmp_path / "sets" / "features").iterdir()
    kept.write_bytes(b"damaged")
    assert killed_at(25, [*begin, "run"], monkeypatch)
    shutil.rmtree(tmp_path / "sets")
    run("train", "--quiet", "--resume", "run")
    assert contents(Path("run")) == contents(Path("whole"))
