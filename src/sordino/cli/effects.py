"""`sordino effects`: accuracy by group, calibration and robustness of a trained model, and the cost of privacy."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sordino._input import validate
from sordino.cli.options import LossFunction, ModelFunction, print_columns, whole_number

if TYPE_CHECKING:
    from sordino.effects.measurements import Effects
    from sordino.effects.twin import TwinEffects


def effects(
    run: Annotated[Path, typer.Argument(help="Folder of a finished run.")],
    data: Annotated[str | None, typer.Option(help="Dataset whose public rows are used [that of the run].")] = None,
    group: Annotated[
        list[str] | None,
        typer.Option(help="Column of groups; may be repeated [all declared groups]."),
    ] = None,
    twin: Annotated[
        bool, typer.Option("--twin", help="Compare with a model trained without privacy; not private, kept apart.")
    ] = False,
    attacked: Annotated[int, whole_number("Number of public images to attack; 0 for none.")] = 500,
    seed: Annotated[int, whole_number("Seed for attacks, intervals and public networks.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    out: Annotated[Path | None, typer.Option(help="Output folder [the run folder].")] = None,
    model: ModelFunction = None,
    loss: LossFunction = None,
) -> None:
    """Measure accuracy by group and robustness on public rows.

    Calibration is measured too. With --twin, the cost of privacy is measured by training without it.
    """
    from sordino.effects.measurements import Subject, measure, public_ensemble
    from sordino.effects.pages import write_internal, write_public
    from sordino.effects.twin import compare, train_twin
    from sordino.recipes import read_run

    validate.count(at_least=0, attacked=attacked)
    validate.count(at_least=0, at_most=2**32, seed=seed)
    subject = Subject.of(read_run(run, model=model, loss=loss, data=data), data=data, columns=group or ())
    folder = run if out is None else out
    real = folder.resolve()
    inside = real.with_name(f"{real.name}.internal")  # beside the run folder, which may be published
    ensemble = public_ensemble(subject, seed=seed)
    found = measure(subject, ensemble, attacked=attacked, seed=seed)
    written = [write_public(found, subject, folder)]
    beside = None
    if twin:
        trained = train_twin(subject.saved, seed=seed)
        beside = compare(subject, trained, ensemble, attacked=attacked, seed=seed)
        written.append(write_internal(beside, found, subject, inside))
    if as_json:
        print(json.dumps(found.as_dict() | ({} if beside is None else {"internal": asdict(beside)}), indent=2))
        return
    _print(found, beside)
    print("\n".join(str(path) for path in written))


def _print(found: Effects, beside: TwinEffects | None) -> None:
    """Prints the headline, then tables. Losses of accuracy refer to the twin if there is one, or to public networks."""
    from sordino.report.effects import HEADINGS, group_cells

    shown = found if beside is None else beside
    print(shown.headline, end="\n\n")
    rows = [group_cells(asdict(group)) for group in (*shown.groups, *shown.deciles)]
    print_columns([HEADINGS, *rows])
    print()
    if found.calibration is not None:
        print(found.calibration.words)
    for disparity in found.disparities:
        print(f"By {disparity.by}, {disparity.words}")
    for curve in found.curves:
        left = zip(curve.radii, curve.accuracies, strict=True)
        print(
            f"Under attack, {curve.norm}: "
            + ", ".join(f"{100 * accuracy:.1f} % at {radius:.3g}" for radius, accuracy in left)
        )
    for sign in () if found.masking is None else found.masking.found:
        print(f"The model may only look robust: {sign}.")
    for note in found.notes:
        print(note)
    if beside is not None:
        print(f"The comparison with the twin is {beside.warning}.")
    print()
