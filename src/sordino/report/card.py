"""The privacy card of one run: a page to read, print and sign, and report.json with the same facts."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path

from sordino._input.files import write_atomically
from sordino.errors import DataError
from sordino.report import accuracy, effects, promise, provenance, spending
from sordino.report.evidence import Evidence
from sordino.report.markup import shortened
from sordino.report.sections import Maker, page, sections_of

FORMAT = 1
SECTIONS: tuple[Maker, ...] = (
    promise.guarantee,
    promise.limits,
    spending.spending,
    accuracy.measured,
    effects.effects,
    promise.inference,
    provenance.settings,
    provenance.data,
    provenance.origin,
    provenance.signature,
)

_LONGEST_NAME = 60


def write_card(run: Path, out: Path | None = None, *, model: str | None = None, data: str | None = None) -> Path:
    """Writes report.html and report.json into the folder of a finished run, or into `out`. Returns the page's path.

    For a run of the user's own model, `model` (MODULE:FUNCTION) and `data` (public rows) fill the sections that need
    both. The output is deterministic. Nothing is written if any part of the run is damaged.
    """
    evidence = Evidence.read(run, model=model, data=data)
    sections = sections_of(evidence, SECTIONS)
    title = f"{evidence.saved.model_name} on {shortened(evidence.saved.facts.name, _LONGEST_NAME)}"
    text = page("Privacy card", title, promise.headline(evidence.guarantee), sections)
    facts = {"format": FORMAT, "kind": "privacy card"} | {section.name: section.facts for section in sections}
    return write_report(run if out is None else out, text, facts)


def write_report(folder: Path, text: str, facts: Mapping[str, object], *, name: str = "report") -> Path:
    """Writes a page and its facts as JSON. Numbers that JSON cannot represent, such as infinity, become null."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_atomically(folder / f"{name}.json", (facts_as_json(facts) + "\n").encode())
        write_atomically(folder / f"{name}.html", text.encode())
    except OSError as error:
        raise DataError(f"{str(folder)!r} cannot be written to: {error.strerror}.") from None
    return folder / f"{name}.html"


def facts_as_json(facts: Mapping[str, object]) -> str:
    """Facts as JSON, with null for numbers that are not finite.

    >>> facts_as_json({"epsilon": math.inf})
    '{\\n  "epsilon": null\\n}'
    """
    return json.dumps(_finite(facts), indent=2, allow_nan=False)


def _finite(value: object) -> object:
    match value:
        case Mapping():
            return {str(name): _finite(inner) for name, inner in value.items()}
        case list() | tuple():
            return [_finite(inner) for inner in value]
        case float() if not math.isfinite(value):
            return None
        case _:
            return value
