"""The list of commands, what is imported when, and options in the words of the command line."""

import ast
import re
import subprocess
import sys
from inspect import getdoc
from pathlib import Path

import pytest
import typer

import sordino
from sordino.cli import app, main
from sordino.cli.commands import COMMANDS, in_options

OLD_RUNS = Path(__file__).parents[1] / "fixtures" / "run_folders"
ALL = typer.main.get_command(app).commands
SEVERAL = [name for name in ALL if hasattr(ALL[name], "commands")]
SINGLE = [(name,) for name in ALL if name not in SEVERAL]
SINGLE += [(name, inner) for name in SEVERAL for inner in ALL[name].commands]
OTHERS = ("train", "tune", "plan", "reproduce")  # their summaries are in the table, their help is longer


def command(path):
    found = ALL[path[0]]
    return found.commands[path[1]] if len(path) == 2 else found


def modules_after(*statements):
    """The modules that are loaded after each statement of a new process, in which they are executed in turn."""
    code = "import sys"
    for statement in statements:
        code += (
            f"\ntry:\n    {statement}\nexcept SystemExit:\n    pass\nprint('loaded:', *sys.modules, file=sys.stderr)"
        )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    return [set(line.split()) for line in ended.stderr.splitlines() if line.startswith("loaded:")]


def test_help_and_version_import_no_command_and_nothing_heavy():
    for loaded in modules_after(*(f"from sordino.cli import main; main([{one!r}])" for one in ("--help", "--version"))):
        assert not loaded & {"torch", "numpy", "scipy", "rich", "dp_accounting", "sordino.accounting"}
        assert not any(f"sordino.cli.{place.split(':')[0]}" in loaded for place, _ in COMMANDS.values())


def test_a_plan_imports_no_torch():
    numbers = ["--examples", "1000", "--batch-size", "100", "--steps", "10", "--delta", "1e-5"]
    ways = (["--noise-multiplier", "2"], ["--epsilon", "2"], ["--epsilon", "2", "--sampler", "balls-in-bins"])
    commands = (f"from sordino.cli import main; main(['plan', *{numbers!r}, *{way!r}])" for way in ways)
    *_, loaded = modules_after(*commands)
    assert "sordino.recipes.planning" in loaded and "torch" not in loaded


def test_no_help_imports_torch_and_no_list_of_runs_or_datasets_does():
    helps = (f"from sordino.cli import main; main({[*path, '--help']!r})" for path in SINGLE)
    lists = (f"from sordino.cli import main; main({path!r})" for path in (["data", "list"], ["runs", str(OLD_RUNS)]))
    *_, loaded = modules_after(*helps, *lists)
    assert {f"sordino.cli.{place.split(':')[0]}" for place, _ in COMMANDS.values()} - loaded <= {
        "sordino.cli.reproduce"
    }
    assert "torch" not in loaded


def test_the_package_imports_nothing_until_a_name_is_used():
    before, light, heavy = modules_after(
        "import sordino", "from sordino import Poisson, Adjacency, UsageError", "from sordino import Gaussian"
    )
    assert "torch" not in before | light and "torch" in heavy


def test_every_public_name_has_one_home_which_type_checkers_know_too():
    (checked,) = [
        node
        for node in ast.parse(Path(sordino.__file__).read_text()).body
        if isinstance(node, ast.If)
        if ast.unparse(node.test) == "TYPE_CHECKING"
    ]
    homes = {each.name: line.module for line in checked.body for each in line.names if each.name in sordino.__all__}
    assert homes == sordino._HOMES
    assert sorted(homes) == dir(sordino) and len(sordino.__all__) == len(homes)
    for name, home in homes.items():
        assert getattr(sordino, name) is getattr(sys.modules[home], name)


def test_packages_are_attributes_and_other_names_are_none():
    assert sordino.accounting.smallest and sordino.kernel.__name__ == "sordino.kernel"
    for name in ("nothing", "_nothing"):
        with pytest.raises(AttributeError, match="has no attribute"):
            getattr(sordino, name)


def test_the_version_is_shown(run):
    assert re.fullmatch(r"sordino \d+\.\d+\S*, torch \d+\.\d+\S*, Python \d+\.\d+\S*\n", run("--version"))


@pytest.mark.parametrize("group", [(), *((name,) for name in SEVERAL)])
def test_a_list_of_commands_fits_in_eighty_columns(run, group, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    text = run(*group, "--help")
    assert all(len(line) <= 80 for line in text.splitlines()) and "..." not in text.split("Commands:")[1]
    for line in text.split("Commands:\n")[1].splitlines():
        assert re.fullmatch(r"  [a-z]+ +[A-Z][a-z]+ .*\.", line), line


@pytest.mark.parametrize("path", SINGLE, ids=" ".join)
def test_help_begins_with_what_the_command_does(run, path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    if path[0] not in OTHERS:
        first = getdoc(command(path).callback).split("\n")[0].split(". ")[0].split(": ")[0].rstrip(".")
        assert len(first) <= 68 and re.match(r"[A-Z][a-z]+ ", first)
    assert all(len(line) <= 80 for line in run(*path, "--help").splitlines() if path[0] != "reproduce")


@pytest.mark.parametrize("path", SINGLE, ids=" ".join)
def test_every_option_is_named_as_it_is_typed(path):
    parameters = command(path).params
    for parameter in parameters:
        typed = next((each for each in parameter.opts if each.startswith("--")), parameter.name)
        assert in_options(f"{parameter.name} must be 1, got 2.", parameters) == f"{typed} must be 1, got 2."


def test_names_in_quotes_files_and_sentences_stay():
    parameters = ALL["plan"].params
    for same in (
        "'my.toml': batch_size must be a whole number, got 0.",
        "the recipe in 'run': batch_size must be a whole number, got 0.",
        "one step exceeds epsilon 2 with this noise.",
        "there is no file at './batch_size/x'.",
    ):
        assert in_options(same, parameters) == same
    assert in_options("pass allow_weak (--allow-weak) to go on.", parameters) == "pass --allow-weak to go on."
    train = ALL["train"].params
    assert in_options("learning_rate must be above 0, got -1.", train) == "--learning-rate must be above 0, got -1."


DIGITS = ["--data", "digits", "--model", "linear"]
WRONG = {
    "--seed -1": ["verify", *DIGITS, "--epsilon", "1", "--delta", "1e-5"],
    "--delta 2": ["verify", *DIGITS, "--epsilon", "1"],
    "--method magic": ["verify", *DIGITS, "--epsilon", "1", "--delta", "1e-5"],
    "--epsilon -1": ["verify", *DIGITS, "--delta", "1e-5"],
    "--attacked -1": ["effects", "nowhere"],
    "--rate 2": ["attack", "reconstruct"],
    "--iterations 0": ["attack", "reconstruct"],
    "--total-variation -1": ["attack", "reconstruct"],
    "--pictures 0": ["attack", "reconstruct"],
    "--attack magic": ["attack", "reconstruct"],
    "--shape 3x3": ["pretrain", "--out", "new.safetensors"],
    "--out old.txt": ["pretrain"],
    "--noise-multiplier 0": ["plan", "--examples", "100", "--batch-size", "10", "--steps", "3"],
}


@pytest.mark.parametrize("wrong", WRONG)
def test_a_wrong_option_is_refused_by_its_name(refused, wrong, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    said = refused(*WRONG[wrong], *wrong.split())
    assert said.startswith(f"sordino: {wrong.split()[0]} must ") or f"'{wrong.split()[0]}'" in said
    assert not re.search(r"\b[a-z]+_[a-z]+\b", said)


def test_errors_of_the_system_are_input_or_output(capsys, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device", "runs/a")

    monkeypatch.setattr("sordino.cli.runs._found", full)
    with pytest.raises(SystemExit) as ended:
        main(["runs"])
    assert ended.value.code == 3
    said = capsys.readouterr().err
    assert said.startswith("sordino: I/O error: 'runs/a' No space left on device.")
