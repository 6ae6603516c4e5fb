"""`sordino data`: what is here, fetching, and a draft of a schema that says what a person has to do with it."""

import tomllib

import numpy as np
import pytest
from typer.testing import CliRunner

from sordino.cli.data import app
from sordino.data.npz import ArrayFacts, load_npz
from sordino.data.published import SOURCES
from sordino.data.standard import NAMES
from sordino.errors import UsageError


@pytest.fixture
def run(monkeypatch, tmp_path):
    """Runs a command with an empty folder of data sets. What the library refuses is raised."""
    monkeypatch.setenv("SORDINO_DATA", str(tmp_path / "sets"))

    def runner(*arguments):
        result = CliRunner().invoke(app, [str(argument) for argument in arguments], catch_exceptions=False)
        assert result.exit_code == 0, result.output
        return result.stdout

    return runner


def test_the_list_says_where_each_set_is_and_how_large(run, tmp_path):
    lines = {line.split()[0]: line for line in run("list").splitlines()}
    assert list(lines) == ["name", *NAMES]
    assert "comes with Sordino" in lines["digits"]
    assert "missing" in lines["mnist"] and lines["cifar10"].endswith("184 MB")
    folder = tmp_path / "sets" / "mnist"
    folder.mkdir(parents=True)
    for source in SOURCES["mnist"]:
        with (folder / source.file.name).open("wb") as file:
            file.truncate(source.file.size)
    assert repr(str(folder)) in run("list")


def test_fetch_prints_the_folder_of_a_set_that_is_there(run, tmp_path, monkeypatch):
    monkeypatch.setitem(SOURCES, "mnist", ())
    assert run("fetch", "mnist") == f"{tmp_path / 'sets' / 'mnist'}\n"
    with pytest.raises(UsageError, match="needs no download"):
        run("fetch", "digits")


@pytest.fixture
def table(tmp_path):
    path = tmp_path / "people.csv"
    path.write_text(
        "age,sex,ill\n" + "".join(f"{20 + i},{'fm'[i % 2]},{'no' if i % 3 else 'yes'}\n" for i in range(30))
    )
    return path


def test_a_drafted_schema_is_not_confirmed(run, table):
    printed = run("schema", table)
    assert "confirmed_public = false" in printed
    assert printed.startswith("#")


def test_a_draft_is_written_where_asked_and_never_over_another_file(run, table, tmp_path):
    out = tmp_path / "people.toml"
    assert "confirm or replace each fact" in run("schema", table, "--out", out)
    assert out.read_text() == run("schema", table)
    out.write_text("edited by hand")
    with pytest.raises(UsageError, match="exists and is not overwritten"):
        run("schema", table, "--out", out)
    assert out.read_text() == "edited by hand"


def test_what_is_said_about_a_file_is_kept_in_its_draft(run, tmp_path):
    (tmp_path / "people.csv").write_text("age~'sex'~y\n" + "".join(f"{i},5~'a'~{i}.0\n-9~'b'~3.0\n" for i in range(60)))
    document = tomllib.loads(
        run("schema", tmp_path / "people.csv", "--delimiter", "~", "--quote", "'", "--missing", "-9")
    )
    assert (document["delimiter"], document["quote"], document["decimal"]) == ("~", "'", ",")
    assert document["columns"]["age"] == {"kind": "number", "bounds": [0.0, 60.0]} and "-9" in document["missing"]
    assert document["read_from_private_rows"] is True
    with pytest.raises(UsageError, match="--delimiter must be one character"):
        run("schema", tmp_path / "people.csv", "--delimiter", "~~")


def test_a_draft_of_dates_and_of_other_columns(run, tmp_path):
    (tmp_path / "people.csv").write_text(
        "born,seen,size,y\n"
        + "".join(f"{1931 + i}-05-05,{1 + i % 28:02}.01.2021,{i if i else '-'},no\n" for i in range(60))
    )
    text = run("schema", tmp_path / "people.csv")
    columns = tomllib.loads(text)["columns"]
    assert columns["born"] == {"kind": "date", "bounds": ["1930-01-01", "2000-01-01"]}
    assert columns["seen"] == {"kind": "date", "bounds": ["2021-01-01", "2022-01-01"], "format": "%d.%m.%Y"}
    assert "# Left out: 'size', because not all of its cells are numbers: if these mark missing ones" in text
    assert "add them to missing: '-'" in text


def test_a_draft_of_arrays_loads_once_it_is_confirmed(run, tmp_path):
    path = tmp_path / "set.npz"
    inputs, target = np.linspace(-0.93, 0.77, 40, dtype=np.float32).reshape(10, 4), np.arange(10) % 3
    np.savez(path, inputs=inputs, target=target, owners=np.arange(10) // 2)
    run("schema", path, "--out", tmp_path / "set.toml")
    with pytest.raises(UsageError, match="confirmed_public must be true"):
        load_npz(path, tmp_path / "set.toml")
    text = (tmp_path / "set.toml").read_text().replace("confirmed_public = false", "confirmed_public = true")
    (tmp_path / "set.toml").write_text(text)
    found = load_npz(path, tmp_path / "set.toml")
    assert (found.facts.input_shape, found.facts.num_classes, found.facts.input_range) == ((4,), 3, (-1.0, 1.0))
    assert found.rows_per_user == 2 and ArrayFacts.read(tmp_path / "set.toml").declaration.is_open
