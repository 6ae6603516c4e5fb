"""Test rows are read without the training rows, which do not exist here."""

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from sordino.data import Facts, Split
from sordino.data.standard import root
from sordino.errors import DataError, SordinoError
from sordino.models import build
from sordino.recipes import Recipe, SavedRun
from sordino.recipes.predict import parse_facts
from sordino.report.quality import RegressionErrors, Unmeasured, public_rows, quality_of
from sordino.training.run_folder import RunFolder

TEST_FILES = {
    "mnist": ["t10k-images-idx3-ubyte.gz", "t10k-labels-idx1-ubyte.gz"],
    "fashion-mnist": ["t10k-images-idx3-ubyte.gz", "t10k-labels-idx1-ubyte.gz"],
    "cifar10": ["test_batch.bin"],
    "adult": ["adult.test"],
}
ROWS = {"mnist": 10_000, "fashion-mnist": 10_000, "cifar10": 10_000, "adult": 16_281}


def recipe_of(data, **settings):
    return Recipe(str(data), "linear", epsilon=1.0, delta=1e-6, **settings)


@pytest.mark.parametrize("name", TEST_FILES)
def test_the_test_files_of_a_published_set_are_enough(name, tmp_path, monkeypatch):
    here = root() / name
    for file in TEST_FILES[name]:
        if not (here / file).exists():
            pytest.skip(f"{here / file} is missing: get it with `sordino data fetch {name}`")
        (tmp_path / name).mkdir(exist_ok=True)
        (tmp_path / name / file).symlink_to(here / file)
    monkeypatch.setenv("SORDINO_DATA", str(tmp_path))
    assert len(public_rows(recipe_of(name), Facts(name, (1,), 10), None).target) == ROWS[name]


def test_the_test_pictures_of_a_folder_are_enough(tmp_path):
    for label, name in enumerate(("a", "b")):
        (tmp_path / "pets" / "test" / name).mkdir(parents=True)
        Image.fromarray(np.full((4, 4), label, dtype=np.uint8)).save(tmp_path / "pets" / "test" / name / "1.png")
    facts = Facts("pets", (1, 4, 4), 3, class_names=("a", "absent", "b"))
    rows = public_rows(recipe_of(tmp_path / "pets"), facts, None)
    assert rows.target.tolist() == [0, 2]
    assert rows.inputs[:, 0, 0, 0].tolist() == [0, 1]


SCHEMA = """
confirmed_public = true
test = "later.csv"
target = {column = "ill", TARGET}
columns.age = {kind = "number", bounds = [0, 120]}
"""


@pytest.fixture
def table_run(tmp_path):
    """A run on a table of which only the test rows and the schema that names them exist."""

    def make(target, later):
        (tmp_path / "data").mkdir()
        (tmp_path / "data" / "later.csv").write_text(later)
        text = SCHEMA.replace("TARGET", target)
        folder = RunFolder(tmp_path / "run")
        schema = tmp_path / "data" / "people.toml"
        folder.write_recipe(recipe_of(tmp_path / "data" / "people.csv", schema=str(schema)).text())
        kinds = {"class_names": ("no", "yes"), "num_classes": 2} if "classes" in target else {"num_classes": None}
        facts = {"name": "people", "input_shape": (1,), "input_range": (-1.0, 1.0), **kinds}
        folder.write_facts(facts | ({} if "classes" in target else {"target_range": (0.0, 10.0)}), text)
        return folder

    return make


def test_the_test_rows_of_a_table_are_enough(table_run):
    folder = table_run('classes = ["no", "yes"]', "age,ill\n30,no\n90,yes\n")
    recipe = Recipe.of_run(folder)
    rows = public_rows(recipe, Facts("people", (1,), 2), folder.schema)
    assert rows.inputs.tolist() == [[-0.5], [0.5]] and rows.target.tolist() == [0, 1]
    assert not Path(recipe.data).exists()


def test_a_model_of_numbers_has_errors_and_no_classes(table_run):
    folder = table_run("bounds = [0, 10]", "age,ill\n30,1\n90,9\n")
    built = build("linear", parse_facts(folder.facts(), what="the facts"), seed=0)
    folder.write_model({name: torch.zeros_like(x) for name, x in built.module.state_dict().items()})
    quality = quality_of(SavedRun.read(folder.path))
    assert isinstance(quality, RegressionErrors) and quality.rows == 2
    assert quality.regression.mse == pytest.approx(0.64)  # the targets are -0.8 and 0.8, the answers 0


def test_a_set_without_test_rows_says_so(tmp_path):
    (tmp_path / "pets").mkdir()
    with pytest.raises(DataError, match="has no folder 'test' of test images"):
        public_rows(recipe_of(tmp_path / "pets"), Facts("pets", (1, 4, 4), 2), None)


def test_rows_that_cannot_be_judged_are_left_out(run, monkeypatch):
    inputs, target = torch.full((3, 1, 8, 8), 1.0), torch.tensor([0, -1, 0])
    inputs[2] = torch.nan
    monkeypatch.setattr("sordino.report.quality.public_rows", lambda *_: Split(inputs, target))
    assert quality_of(SavedRun.read(run)).overall.rows == 1
    monkeypatch.setattr("sordino.report.quality.public_rows", lambda *_: Split(inputs[2:], target[2:]))
    quality = quality_of(SavedRun.read(run))
    assert isinstance(quality, Unmeasured) and quality.reason.startswith("no test row is usable")


def test_test_rows_of_another_shape_are_a_reason_and_no_crash(run, monkeypatch):
    rows = Split(torch.zeros(3, 1, 9, 9), torch.zeros(3, dtype=torch.int64))
    monkeypatch.setattr("sordino.report.quality.public_rows", lambda *_: rows)
    quality = quality_of(SavedRun.read(run))
    assert isinstance(quality, Unmeasured) and "(1, 9, 9)" in quality.reason


def test_a_published_file_that_was_changed_is_a_reason(tmp_path, monkeypatch):
    (tmp_path / "adult").mkdir()
    (tmp_path / "adult" / "adult.test").write_text("x")
    monkeypatch.setenv("SORDINO_DATA", str(tmp_path))
    with pytest.raises(SordinoError, match="the published file has"):
        public_rows(recipe_of("adult"), Facts("adult", (105,), 2), None)
    shutil.rmtree(tmp_path / "adult")
    with pytest.raises(SordinoError, match="cannot be read"):
        public_rows(recipe_of("adult"), Facts("adult", (105,), 2), None)
