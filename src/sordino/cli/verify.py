"""`sordino verify`: tries to refute what a training would promise, before a private row is looked at."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sordino._input import validate
from sordino.cli.options import number, print_columns, whole_number


def verify(
    recipe: Annotated[Path | None, typer.Argument(help="A recipe, as TOML. Options override it.")] = None,
    data: Annotated[str | None, typer.Option(help="A name from `sordino data list`, or a path.")] = None,
    schema: Annotated[str | None, typer.Option(help="The public facts of a table or of arrays, as TOML.")] = None,
    model: Annotated[str | None, typer.Option(help="A name from `sordino models`.")] = None,
    method: Annotated[str | None, typer.Option(help="dp-sgd, or noisy-cgd for convex networks.")] = None,
    epsilon: Annotated[float | None, number("Target epsilon.")] = None,
    delta: Annotated[float | None, number("Target delta, below 1 / examples.")] = None,
    seed: Annotated[int, whole_number("Of the synthetic run.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    out: Annotated[Path | None, typer.Option(help="A folder for verification.html and verification.json.")] = None,
) -> None:
    """Replay a recipe's steps on neighbours, and look at its noise, batches and accounting. Exit code 1 is refuted."""
    from sordino.cli.train import recipe_of
    from sordino.recipes.verified import verify_recipe
    from sordino.report.card import facts_as_json
    from sordino.report.verdict import check_rows, verdict_facts, write_verdict

    validate.count(at_least=0, at_most=2**32, seed=seed)
    said = {"data": data, "schema": schema, "model": model, "method": method, "epsilon": epsilon, "delta": delta}
    settings = {name: value for name, value in said.items() if value is not None}
    found = verify_recipe(recipe_of(recipe, settings), seed=seed)
    verdict = found.verdict
    page = None if out is None else write_verdict(out, found.title, verdict, found.noise, found.not_checked)
    if as_json:
        print(facts_as_json(verdict_facts(found.title, verdict, found.noise, found.not_checked)))
    else:
        print_columns(check_rows(verdict))
        print()
        for what in found.not_checked:
            print(f"Not checked: {what}")
        print(f"{found.title}: {verdict.says}, {len(verdict.findings)} comparisons.")
        if page is not None:
            print(page)
    if not verdict.passed:
        raise typer.Exit(1)
