"""The command line: reads arguments, calls the library, prints. No arithmetic happens here.

Exit codes: 0 done, 2 wrong argument, 3 data, 4 budget, 5 corrupt state. An error is one line: what, got, allowed.
"""

from __future__ import annotations

import json
import sys
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from sordino.accounting import Adjacency, Unit
from sordino.accounting.guarantee import rounded_up
from sordino.errors import SordinoError
from sordino.planning import Planned, Question, SamplerName, compare, solve

app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False, no_args_is_help=True)


@app.callback()
def sordino() -> None:
    """Train neural networks on sensitive data with a proof of differential privacy."""


@app.command()
def plan(
    examples: Annotated[int, typer.Option(help="Number of examples (or users), a public number.")],
    batch_size: Annotated[int | None, typer.Option(help="Expected batch size.")] = None,
    epochs: Annotated[float | None, typer.Option(help="Passes over the data.")] = None,
    steps: Annotated[int | None, typer.Option(help="Optimizer steps, instead of epochs.")] = None,
    noise_multiplier: Annotated[float | None, typer.Option(help="Noise std over clip norm.")] = None,
    epsilon: Annotated[float | None, typer.Option(help="Target epsilon.")] = None,
    delta: Annotated[float | None, typer.Option(help="Target delta, below 1 / examples.")] = None,
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
    table = Table(show_header=False, box=None)
    shown = ("examples", "batch_size", "sample_rate", "epochs", "steps", "noise_multiplier", "epsilon", "delta")
    for name in (*shown, "sampler", "adjacency", "unit", "view", "accountant"):
        value = numbers[name]
        shown_value = rounded_up(value, 6) if isinstance(value, float) else str(value)
        mark = "  <- solved" if name.replace("_", " ") == planned.solved_for else ""
        table.add_row(name.replace("_", " "), shown_value + mark)
    console = Console()
    console.print(table)
    for note in planned.notes:
        console.print(f"({note})")
    console.print()
    console.print(planned.guarantee.statement)


def _print_comparison(planned: Planned, as_json: bool) -> None:
    compared = compare(planned.question)
    if as_json:
        names = ("sampler", "adjacency", "accountant", "epsilon")
        values = ((name, relation, answer.accountant, answer.epsilon) for name, relation, answer in compared)
        rows = [dict(zip(names, row, strict=True)) for row in values]
        delta, multiplier = planned.question.delta, planned.question.noise_multiplier
        print(json.dumps({"delta": delta, "noise_multiplier": multiplier, "rows": rows}, indent=2))
        return
    table = Table(title=f"epsilon at delta {planned.question.delta:g}, every step seen")
    for heading in ("sampler", "adjacency", "accountant", "epsilon"):
        table.add_column(heading, justify="right" if heading == "epsilon" else "left")
    for name, relation, answer in compared:
        table.add_row(name, relation, answer.accountant, rounded_up(answer.epsilon, 5))
    Console().print(table)


def main(arguments: list[str] | None = None) -> None:
    """Runs the command line and exits: every refusal is one line on standard error."""
    command = typer.main.get_command(app)
    try:
        code = command.main(arguments, prog_name="sordino", standalone_mode=False)
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
