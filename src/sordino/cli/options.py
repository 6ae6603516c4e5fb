"""Options and tables that several commands share."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Annotated, Any, TypeVar

import typer

from sordino.errors import UsageError
from sordino.recipes.recipe import Recipe
from sordino.recipes.settings import DeclaredSetting, declared, option_of, renamed

Command = TypeVar("Command", bound=Callable[..., None])


def number(meaning: str, *names: str) -> Any:
    def parse(text: str) -> float:
        try:
            return float(text)
        except ValueError:
            raise typer.BadParameter(f"must be a number, got {text!r:.80}.") from None

    return typer.Option(*names, parser=parse, metavar="NUMBER", help=meaning)


def whole_number(meaning: str, *names: str) -> Any:
    def parse(text: str) -> int:
        try:
            return int(text)
        except ValueError:
            raise typer.BadParameter(f"must be a whole number, got {text!r:.80}.") from None

    return typer.Option(*names, parser=parse, metavar="WHOLE", help=meaning)


ModelFunction = Annotated[
    str | None,
    typer.Option(
        "--model",
        metavar="MODULE:FUNCTION",
        help="For a run of your own model: the function that returns the untrained module.",
    ),
]


LossFunction = Annotated[
    str | None,
    typer.Option("--loss", metavar="MODULE:FUNCTION", help="For a run with a loss of your own: the function."),
]


def with_settings(name: str, kind: type = Recipe) -> Callable[[Command], Command]:
    """Replaces `**settings` of the command `name` by one option for each setting of a recipe declared for it.

    The command receives only the settings that were given, by their names in the class of recipes, `kind`.
    """

    def decorate(command: Command) -> Command:
        signature = inspect.signature(command, eval_str=True)
        keyword = inspect.Parameter.KEYWORD_ONLY
        own = [
            each.replace(kind=keyword)
            for each in signature.parameters.values()
            if each.kind is not inspect.Parameter.VAR_KEYWORD
        ]
        shared = [_parameter(each, text) for each in declared(kind).values() if (text := each.help_for(name))]
        names = {each.name for each in shared}
        own = [each for each in own if each.name not in names]
        first = [each for each in own if each.default is inspect.Parameter.empty or each.name == "recipe"]
        rest = [each for each in own if each not in first]
        first = [each.replace(kind=inspect.Parameter.POSITIONAL_OR_KEYWORD) for each in first]
        all_options = inspect.Signature([*first, *shared, *rest])

        def given(*arguments: Any, **values: Any) -> None:
            bound = all_options.bind(*arguments, **values)
            bound.apply_defaults()
            found = bound.arguments
            absent = {name for name in names if found[name] is None or found[name] is False}  # 0 is a valid seed
            command(**{name: value for name, value in found.items() if name not in absent})

        given.__name__, given.__doc__ = command.__name__, command.__doc__
        given.__signature__ = all_options  # type: ignore[attr-defined]
        return given  # type: ignore[return-value]

    return decorate


def _parameter(setting: DeclaredSetting, meaning: str) -> inspect.Parameter:
    kinds: Mapping[str, Any] = {
        "number": (float | None, number(meaning, *setting.options)),
        "integer": (int | None, whole_number(meaning, *setting.options)),
        "boolean": (bool, typer.Option(*setting.options, help=meaning)),
        "string": (str | None, typer.Option(*setting.options, metavar="NAME", help=meaning)),
    }
    kind, option = kinds[setting.kind]
    default = False if setting.kind == "boolean" else None
    name, how = setting.name, inspect.Parameter.KEYWORD_ONLY
    return inspect.Parameter(name, how, default=default, annotation=Annotated[kind, option])


@contextmanager
def naming_options(*names: str) -> Iterator[None]:
    """Names these settings by their options in the messages of `UsageError`s raised in the block."""

    def name_of(name: str) -> str:
        return option_of(name) if name in names else name

    try:
        yield
    except UsageError as error:
        raise renamed(error, name_of) from None


def print_columns(rows: Sequence[Sequence[str]]) -> None:
    """Prints a table without cutting words: each column is as wide as its longest entry.

    An entry with line breaks or control characters is printed as its `repr`.
    """
    shown = [[text if text.isprintable() else repr(text) for text in row] for row in rows]
    widths = [max(len(row[column]) for row in shown) for column in range(len(shown[0]))]
    for row in shown:
        print("  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip())
