"""`sordino attack members`: who was in the training data of a finished run, by LiRA and RMIA."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from sordino.cli.options import number, print_columns, whole_number


class AttackName(StrEnum):
    """Which attacks are shown."""

    LIRA = "lira"
    RMIA = "rmia"
    BOTH = "both"


def members(
    run: Annotated[Path, typer.Argument(help="The folder of a finished run.")],
    data: Annotated[str | None, typer.Option(help="Where its rows lie now; as its recipe says unless said.")] = None,
    references: Annotated[int, whole_number("How many models are trained to compare with, an even number.")] = 4,
    attack: Annotated[AttackName, typer.Option(help="lira, rmia or both.")] = AttackName.BOTH,
    rows: Annotated[int, whole_number("How many members are attacked, and as many public rows.")] = 1000,
    epochs: Annotated[float | None, number("Of the references; those of the run unless said.")] = None,
    seed: Annotated[int, whole_number("Of the suspects and the references.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress bar.")] = False,
    out: Annotated[
        Path | None, typer.Option(help="Where to write; beside the run, in RUN.internal, unless said.")
    ] = None,
) -> None:
    """Attack a run's members, beside what its guarantee allows. Looks at private rows: not private, kept apart."""
    from sordino._input import validate
    from sordino.attacks.membership.pages import lines, write_internal
    from sordino.attacks.membership.run_attack import attack_run

    validate.count(at_least=0, at_most=2**32, seed=seed)
    found = attack_run(
        run, data=data, references=references, rows=rows, epochs=epochs, seed=seed, progress=not quiet and not as_json
    )
    wanted = tuple(each for each in found.attacks if attack in (AttackName.BOTH, each.name[:4].lower()))
    found = replace(found, attacks=wanted)
    real = run.resolve()
    written = write_internal(found, real.with_name(f"{real.name}.internal") if out is None else out)
    if as_json:
        print(json.dumps(asdict(found), indent=2))
        return
    print_columns(lines(found))
    print(f"\nThis is {found.warning}.\n{written}")
