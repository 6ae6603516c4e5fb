"""Lazy import of commands, and error messages that name options in place of Python arguments.

`sordino --help` lists names and summaries from the table below, so it imports no command and no torch.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import Any, cast

import typer
from typer.core import TyperCommand, TyperGroup

from sordino.errors import SordinoError

GROUP = "sordino.commands"  # entry points with which other packages add commands

COMMANDS = {  # name: (module:function, summary)
    "plan": ("plan:plan", "Compute epsilon, noise or steps of a training, without data."),
    "train": ("train:train", "Train a private model and write a run folder."),
    "tune": ("tune:tune", "Tune clipping norm and momentum; epsilon counts every trial."),
    "pretrain": ("data:pretrain", "Pretrain a network on synthetic images, at no privacy cost."),
    "runs": ("runs:runs", "List and compare runs."),
    "predict": ("runs:predict", "Apply the model of a run to new rows."),
    "report": ("runs:report", "Write the privacy card of a run, or compare several runs."),
    "effects": ("effects:effects", "Measure accuracy by group and robustness on public rows."),
    "verify": ("checks:verify", "Test a recipe's privacy mechanism on synthetic neighbors."),
    "audit": ("checks:audit", "Train with canaries and bound epsilon from below."),
    "models": ("data:models", "List the networks that can be trained by name."),
    "data": ("data:app", "List and fetch datasets, and draft the schema of a table."),
    "attack": ("attacks:app", "Run membership inference or gradient reconstruction."),
    "reproduce": ("reproduce:reproduce", "Reproduce a table of a paper and compare the numbers."),
}

_ANY_ARGUMENTS = {"ignore_unknown_options": True, "allow_extra_args": True, "help_option_names": []}
_OTHER_NAMES = {"learning_rate": "lr", "clip_norm": "clip"}  # Python arguments whose option has another name


class Command(TyperCommand):
    """A command whose errors name options (`--batch-size`) where the library names arguments (`batch_size`)."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except SordinoError as error:
            error.args = (in_options(str(error), self.params),)
            raise


class Commands(TyperGroup):
    """The group of all commands. Each is imported when it is looked up."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        self.commands = cast(Any, _LazyCommands())  # never written to

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(summaries())


class _LazyCommands(Mapping[str, Any]):
    """Commands by name. A command is imported when it is looked up."""

    def __iter__(self) -> Iterator[str]:
        return iter(name for name, _ in summaries())

    def __len__(self) -> int:
        return len(summaries())

    def __getitem__(self, name: str) -> Any:
        registered = _registered()
        if name in registered:
            return _command(name, registered[name].load())
        module, attribute = COMMANDS[name][0].split(":")
        found = getattr(import_module(f"sordino.cli.{module}"), attribute)
        return _command(name, found, _ANY_ARGUMENTS if name == "reproduce" else None)


def summaries() -> list[tuple[str, str]]:
    """Name and one-line summary of each command."""
    own = {name: summary for name, (_, summary) in COMMANDS.items()}
    others = {name: f"Run {entry.value}." for name, entry in _registered().items() if name not in own}
    return [*own.items(), *others.items()]


def in_options(message: str, parameters: Iterable[Any]) -> str:
    """Replaces names of Python arguments in a message by the options of a command.

    A message about a file begins with the name of the file. It is not changed, because it names entries of that file.

    >>> plan = _LazyCommands()["plan"]
    >>> in_options("batch_size must be a whole number from 1 to 10, got 0.", plan.params)
    '--batch-size must be a whole number from 1 to 10, got 0.'
    """
    if re.match(r"(the recipe in )?['\"]", message):
        return message
    names = {parameter.name: _shown(parameter) for parameter in parameters}
    names |= {other: names[name] for other, name in _OTHER_NAMES.items() if name in names}
    for name, option in names.items():
        word = rf"(?<![\w./'\"-]){re.escape(name)}(?![\w/'\"])"
        message = re.sub(rf"{word} \({re.escape(option)}\)", option, message)
        if "_" in name:  # cannot be an English word
            message = re.sub(word, option, message)
        else:
            message = re.sub(rf"^{name}(?=(\[\d+\])? (must|needs|and \S+ (exclude|need)))", option, message)
            message = re.sub(rf"(?<= and ){name}(?= (exclude|need))", option, message)
    return message


def _shown(parameter: Any) -> str:
    """The option as typed, such as `--batch-size`, or the name of a positional argument."""
    return next((each for each in parameter.opts if each.startswith("--")), str(parameter.name))


def _registered() -> Mapping[str, EntryPoint]:
    """Commands that other packages register, by name."""
    return {entry.name: entry for entry in entry_points(group=GROUP)}


def _command(name: str, found: Any, settings: dict[str, Any] | None = None) -> Any:
    """Makes a click command of a function, or a group of a typer app."""
    if isinstance(found, typer.Typer):
        group = typer.main.get_command(found)
        group.name = name
        return group
    one = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
    one.command(name, cls=Command, context_settings=settings)(found)
    return typer.main.get_command(one)
