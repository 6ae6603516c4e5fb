"""`sordino plan`: the guarantee of a training, or the noise for a target, computed without data."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer
from rich.console import Console

from sordino.accounting import Unit
from sordino.accounting.guarantee import rounded_up
from sordino.cli.options import naming_options, number, print_columns, whole_number, with_settings
from sordino.recipes.planning import PlanAnswer, Question, compare, solve
from sordino.recipes.recipe import Recipe
from sordino.recipes.settings import checked_one, declared


@with_settings("plan")
def plan(
    examples: Annotated[int, whole_number("Public number of examples (or of users).")],
    noise_multiplier: Annotated[
        float | None, number("Noise multiplier: standard deviation / clipping norm, above 0.")
    ] = None,
    unit: Annotated[Unit, typer.Option(help="Privacy unit: example or user.")] = Unit.EXAMPLE,
    comparison: Annotated[bool, typer.Option("--compare", help="Compare all samplers and accountants.")] = False,
    tight: Annotated[
        bool, typer.Option("--tight", help="balls-in-bins: use the accountant PLD_accounting too (slow).")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    allow_weak: bool = False,
    allow_large_delta: bool = False,
    **settings: Any,
) -> None:
    """Compute epsilon, noise or steps of a training, without data.

    Give all but one of batch size, steps (or epochs), noise multiplier, epsilon and delta: the missing one is computed.
    """
    with naming_options("examples", "noise_multiplier", *declared(Recipe)):
        shared = {name: checked_one(Recipe, name, value) for name, value in settings.items()}
        question = Question(examples, noise_multiplier=noise_multiplier, unit=unit, **shared)
        planned = solve(question, tight=tight, allow_weak=allow_weak, allow_large_delta=allow_large_delta)
    if comparison:
        _print_comparison(planned, as_json)
    elif as_json:
        print(json.dumps(planned.as_dict(), indent=2))
    else:
        _print_plan(planned)


def _print_plan(planned: PlanAnswer) -> None:
    numbers = planned.as_dict()
    shown = {name: str(numbers[name]) for name in _SHOWN}
    shown |= {name: f"{numbers[name]:.6g}" for name in ("sample_rate", "epochs")}
    shown["epsilon"] = f"{rounded_up(planned.guarantee.epsilon, 6)} under {planned.guarantee.adjacency}"
    named = [(name.replace("_", " "), value) for name, value in shown.items()]
    print_columns([(name, value, "<- solved" if name == planned.solved_for else "") for name, value in named])
    for note in planned.notes:
        print(f"({note})")
    print()
    console = Console(highlight=False, markup=False)
    console.print(planned.guarantee.statement, soft_wrap=not console.is_terminal)  # one line if written to a file


_SHOWN = (
    *("examples", "batch_size", "sample_rate", "epochs", "steps", "noise_multiplier", "epsilon", "delta"),
    *("sampler", "adjacency", "unit", "view", "accountant"),
)


def _print_comparison(planned: PlanAnswer, as_json: bool) -> None:
    compared = compare(planned.question)
    delta, multiplier = planned.guarantee.delta, planned.question.noise_multiplier
    headings = ("sampler", "adjacency", "accountant", "epsilon")
    if as_json:
        values = ((name, adjacency, answer.accountant, answer.epsilon) for name, adjacency, answer in compared)
        rows = [dict(zip(headings, row, strict=True)) for row in values]
        print(json.dumps({"delta": delta, "noise_multiplier": multiplier, "rows": rows}, indent=2))
        return
    print(f"epsilon at delta {delta} with noise multiplier {multiplier}, every step seen")
    print()
    texts = [
        (name, adjacency, answer.accountant, rounded_up(answer.epsilon, 6)) for name, adjacency, answer in compared
    ]
    print_columns([headings, *texts])
