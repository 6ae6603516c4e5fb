"""The command line: reads arguments, calls the library, prints. No arithmetic happens here.

Exit codes: 0 done, 2 wrong argument, 3 data, 4 budget, 5 corrupt state. An error is one line: what, got, allowed.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import Annotated, Any

import typer
from rich.console import Console

from sordino.accounting import Adjacency, Unit
from sordino.accounting.guarantee import rounded_up
from sordino.errors import SordinoError
from sordino.planning import Planned, Question, SamplerName, compare, solve

app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)


def _number(meaning: str) -> Any:
    def parse(text: str) -> float:
        try:
            return float(text)
        except ValueError:
            raise typer.BadParameter(f"must be a number, got {text!r}.") from None

    return typer.Option(parser=parse, metavar="NUMBER", help=meaning)


def _whole_number(meaning: str) -> Any:
    def parse(text: str) -> int:
        try:
            return int(text)
        except ValueError:
            raise typer.BadParameter(f"must be a whole number, got {text!r}.") from None

    return typer.Option(parser=parse, metavar="WHOLE", help=meaning)


@app.callback()
def sordino() -> None:
    """Train neural networks on sensitive data with a proof of differential privacy."""


@app.command()
def plan(
    examples: Annotated[int, _whole_number("Number of examples (or users), a public number.")],
    batch_size: Annotated[int | None, _whole_number("Expected batch size.")] = None,
    epochs: Annotated[float | None, _number("Passes over the data.")] = None,
    steps: Annotated[int | None, _whole_number("Optimizer steps, instead of epochs.")] = None,
    noise_multiplier: Annotated[float | None, _number("Noise std over clip norm.")] = None,
    epsilon: Annotated[float | None, _number("Target epsilon.")] = None,
    delta: Annotated[float | None, _number("Target delta, below 1 / examples.")] = None,
    sampler: Annotated[SamplerName, typer.Option(help="How batches are drawn.")] = SamplerName.POISSON,
    adjacency: Annotated[Adjacency | None, typer.Option(help="Which data sets are neighbours.")] = None,
    unit: Annotated[Unit, typer.Option(help="Whose privacy: an example's or a user's.")] = Unit.EXAMPLE,
    comparison: Annotated[bool, typer.Option("--compare", help="Show every sampler and accountant.")] = False,
    tight: Annotated[bool, typer.Option("--tight", help="Slower, tighter balls-in-bins accounting (cached).")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    allow_weak: Annotated[bool, typer.Option("--allow-weak", help="Accept epsilon above 20.")] = False,
    allow_large_delta: Annotated[
        bool, typer.Option("--allow-large-delta", help="Accept delta of 1 / examples or more.")
    ] = False,
) -> None:
    """Plan a training without data: leave one number out and it is solved for."""
    question = Question(examples, batch_size, epochs, steps, noise_multiplier, epsilon, delta, sampler, adjacency, unit)
    planned = solve(question, tight=tight, allow_weak=allow_weak, allow_large_delta=allow_large_delta)
    if comparison:
        _print_comparison(planned, as_json)
    elif as_json:
        print(json.dumps(planned.as_dict(), indent=2))
    else:
        _print_plan(planned)


def _print_plan(planned: Planned) -> None:
    numbers = planned.as_dict()
    shown = {name: str(numbers[name]) for name in _SHOWN}
    shown |= {name: f"{numbers[name]:.6g}" for name in ("sample_rate", "epochs")}
    shown["epsilon"] = f"{rounded_up(planned.guarantee.epsilon, 6)} under {planned.guarantee.adjacency}"
    named = [(name.replace("_", " "), value) for name, value in shown.items()]
    _print_columns([(name, value, "<- solved" if name == planned.solved_for else "") for name, value in named])
    for note in planned.notes:
        print(f"({note})")
    print()
    console = Console(highlight=False, markup=False)
    console.print(planned.guarantee.statement, soft_wrap=not console.is_terminal)  # in a file it is one line


_SHOWN = (
    *("examples", "batch_size", "sample_rate", "epochs", "steps", "noise_multiplier", "epsilon", "delta"),
    *("sampler", "adjacency", "unit", "view", "accountant"),
)


def _print_comparison(planned: Planned, as_json: bool) -> None:
    compared = compare(planned.question)
    delta, multiplier = planned.guarantee.delta, planned.question.noise_multiplier
    headings = ("sampler", "adjacency", "accountant", "epsilon")
    if as_json:
        values = ((name, relation, answer.accountant, answer.epsilon) for name, relation, answer in compared)
        rows = [dict(zip(headings, row, strict=True)) for row in values]
        print(json.dumps({"delta": delta, "noise_multiplier": multiplier, "rows": rows}, indent=2))
        return
    print(f"epsilon at delta {delta} with noise multiplier {multiplier}, every step seen")
    print()
    texts = [(name, relation, answer.accountant, rounded_up(answer.epsilon, 6)) for name, relation, answer in compared]
    _print_columns([headings, *texts])


def _print_columns(rows: Sequence[Sequence[str]]) -> None:
    """Each column as wide as its longest entry, however narrow the terminal: no word is ever cut."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        print("  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip())


def main(arguments: list[str] | None = None) -> None:
    """Runs the command line and exits: every refusal is one line on standard error."""
    command = typer.main.get_command(app)
    arguments = sys.argv[1:] if arguments is None else arguments
    try:
        code = command.main(arguments or ["--help"], prog_name="sordino", standalone_mode=False)
    except SordinoError as error:
        _fail(str(error), error.exit_code)
    except Exception as error:
        if not hasattr(error, "format_message"):  # click's own family of usage errors, wherever typer keeps it
            raise
        _fail(error.format_message(), 2)
    sys.exit(code or 0)


def _fail(message: str, code: int) -> None:
    print("sordino: " + " ".join(message.split()), file=sys.stderr)
    sys.exit(code)
