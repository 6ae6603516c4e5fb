"""Sections of the card on provenance: settings, public facts of the data, versions, and a place to sign."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from sordino.data.columns import Category, DateColumn, NumberColumn
from sordino.data.schema import Schema
from sordino.data.standard import adult_schema
from sordino.data.table_readers import is_table
from sordino.errors import SordinoError, StateError
from sordino.recipes import OwnRun
from sordino.report.evidence import Evidence
from sordino.report.markup import Html, element, joined, pairs, shortened
from sordino.report.sections import Section

_PACKAGES = ("sordino", "dp-accounting", "torch", "numpy", "scipy")
_SEEDS = ("seed", "initial_seed")
SAID_ELSEWHERE = ("epsilon", "delta", "adjacency")
_MOST_COLUMNS = 24  # on the page; report.json has all
_TO_SIGN = ("name", "role", "date", "signature")


def settings(run: Evidence) -> Section:
    """The section with all settings of the training."""
    chosen = settings_of(run)
    rows = [(name.replace("_", " "), _shown(value)) for name, value in chosen.items() if name not in SAID_ELSEWHERE]
    return Section("settings", "Settings", pairs(rows, class_="pairs flow"), chosen, 60)


def _shown(value: object) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def settings_of(run: Evidence) -> dict[str, Any]:
    """The recipe with the values that were solved for. A seed is never shown: with it the noise can be removed."""
    if isinstance(run.saved, OwnRun):
        chosen = run.saved.description.settings()
    else:
        chosen = {name: value for name, value in run.saved.recipe.entries().items() if value not in (None, False)}
    numbers = {name: run.promised[name] for name in ("examples", "batch_size")}
    solved = numbers | {
        "steps": run.num_steps,
        "noise_multiplier": run.promised["noise_multiplier"],
        "adjacency": str(run.guarantee.adjacency),
    }
    shown = {name: value for name, value in (chosen | solved).items() if name not in _SEEDS}
    return shown | {"seed": "fixed, and not shown here" if run.has_seed else "fresh randomness"}


def data(run: Evidence) -> Section:
    """The section with the public facts of the data, which are declared and never computed from private rows."""
    if isinstance(run.saved, OwnRun):
        return _own_data(run.saved)
    facts, columns = run.saved.facts, _columns(run)
    rows = [("name", facts.name), ("shape of an input", " x ".join(map(str, facts.input_shape)))]
    if facts.input_range is not None:
        rows.append(("range of inputs", "{:g} to {:g}".format(*facts.input_range)))
    if facts.num_classes is not None:
        names = ", ".join(shortened(name, 24) for name in facts.class_names[:_MOST_COLUMNS])
        more = ", …" if len(facts.class_names) > _MOST_COLUMNS else ""
        rows.append(("classes", f"{facts.num_classes}" + (f": {names}{more}" if names else "")))
    if facts.target_range is not None:
        rows.append(("range of the target", "{:g} to {:g}".format(*facts.target_range)))
    if columns:
        shown = [
            f"{shortened(name, 24)} ({shortened(kind, 40)})" for name, kind in list(columns.items())[:_MOST_COLUMNS]
        ]
        rows.append(("columns", ", ".join(shown) + (", …" if len(columns) > _MOST_COLUMNS else "")))
    declaration = run.declaration
    if declaration is not None:
        rows.append(("declared public", declaration.in_words))
    said = None if declaration is None else asdict(declaration)
    return Section("data", "Data", pairs(rows), asdict(facts) | {"columns": columns, "declaration": said}, 70)


def _own_data(own: OwnRun) -> Section:
    """Shapes and unit of the rows that a model of one's own was trained on. The folder has no name for them."""
    description = own.description
    several = len(description.inputs) > 1
    rows = [
        (f"input {place}" if several else "one input", str(each))
        for place, each in enumerate(description.inputs, start=1)
    ]
    rows.append(("target of a row", str(description.target)))
    many = f", the first {description.rows_per_unit} rows of each" if description.rows_per_unit > 1 else ""
    rows.append(("unit", f"{description.unit}{many}"))
    if description.input_range is not None:
        rows.append(("range of inputs", "{:g} to {:g}".format(*description.input_range)))
    facts: dict[str, Any] = {
        "inputs": [str(each) for each in description.inputs],
        "target": str(description.target),
        "unit": str(description.unit),
        "rows_per_unit": description.rows_per_unit,
        "input_range": description.input_range,
        "measured_on": own.data,
    }
    return Section("data", "Data", pairs(rows), facts, 70)


def _columns(run: Evidence) -> dict[str, str]:
    """The name and kind of each column of a table, from its public schema."""
    if run.recipe is None:
        return {}
    path, source = run.saved.folder.schema, run.recipe.data
    if source == "adult":
        schema = adult_schema()
    elif path is not None and is_table(Path(source)):
        try:
            schema = Schema.read(path)
        except SordinoError as error:
            raise StateError(str(error)) from None
    else:
        return {}
    return {name: _kind(column) for name, column in schema.columns.items()}


def _kind(column: object) -> str:
    match column:
        case NumberColumn(low=low, high=high):
            return f"number, {low:g} to {high:g}"
        case DateColumn(earliest=earliest, latest=latest):
            return f"date, {earliest} to {latest}"
        case Category(categories=categories):
            return f"one of {len(categories)} categories"
        case _:
            return type(column).__name__.lower()


def origin(run: Evidence) -> Section:
    """The section that identifies the model file and the software."""
    trained = run.versions
    here = {name: _version(name) for name in _PACKAGES}
    rows = [
        ("run", run.path.absolute().name),
        ("model.safetensors", Html(element("code", f"SHA-256 {run.model_sha256}"))),
        ("trained with", _listed(trained)),
        ("this card made with", _listed(here)),
    ]
    facts = {
        "run": run.path.absolute().name,
        "model_sha256": run.model_sha256,
        "trained_with": trained,
        "made_with": here,
    }
    return Section("origin", "Origin", pairs(rows), facts, 80)


def _listed(versions: Mapping[str, object]) -> str:
    return ", ".join(f"{name} {value}" for name, value in versions.items() if value) or "not recorded"


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def signature(run: Evidence) -> Section:
    """The section to be signed by the person who releases the model."""
    words = "I have read this card, and I release the model with this hash under this guarantee."
    lines = (element("div", element("span", what), class_=f"line {what}") for what in _TO_SIGN)
    html = joined((element("p", words), element("div", *lines, class_="signatures")))
    return Section("signature", "Signature", html, {"statement": words, "to_fill_in": list(_TO_SIGN)}, 90)
