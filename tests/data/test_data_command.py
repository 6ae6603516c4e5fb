"""`sordino data`: what is here, fetching, and a draft of a schema that says what a person has to do with it."""

import pytest
from typer.testing import CliRunner

from sordino.cli.data import app
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
