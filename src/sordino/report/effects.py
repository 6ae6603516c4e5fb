"""The card's section on effects: accuracy by group and under attack, as measured by `sordino effects`.

It shows the run's effects.json, which contains public quantities only, and refuses one about other weights.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from sordino._input import strict_json
from sordino._input.files import read_bytes
from sordino.errors import DataError, StateError, UsageError
from sordino.report.evidence import Evidence
from sordino.report.markup import (
    ACCENT,
    INK,
    Html,
    element,
    gallery,
    in_percent,
    joined,
    paragraphs,
    picture,
    shortened,
    table,
)
from sordino.report.sections import Section

FILE = "effects.json"
FORMAT, KIND = 1, "effects on public rows"
HEADINGS = ("group", "public rows", "accuracy", "points lost")
TITLE = "Accuracy by group and under attack"


def effects(run: Evidence) -> Section | None:
    """The section, or None if the run has no effects.json. A file about other weights raises `StateError`."""
    path = run.path / FILE
    if not path.exists():
        return None
    what = repr(str(path))
    try:
        facts = strict_json.parse(read_bytes(path, at_most=strict_json.LARGEST_TEXT), what=what)
        if not isinstance(facts, dict) or (facts["format"], facts["kind"]) != (FORMAT, KIND):
            raise StateError(f"{what} does not have the format of `sordino effects`: run it again.")
        if facts["model_sha256"] != run.model_sha256:
            raise StateError(f"{what} is about other weights than model.safetensors: run `sordino effects` again.")
        return Section("effects", TITLE, summary(facts), facts, 45)
    except (KeyError, TypeError, IndexError, ValueError, DataError, UsageError) as error:
        raise StateError(f"{what} is damaged: {error}") from None


def summary(facts: Mapping[str, Any]) -> Html:
    """The headline, a table of the finest groups, figures, and notes."""
    figures = [deciles(facts["deciles"])] if facts["deciles"] else []
    if facts["curves"]:
        figures.append(under_attack({"this model": facts["curves"]}))
    finest = facts["groups"][-1]["by"]
    shown = [group for group in facts["groups"] if group["by"] == finest]
    small = f"On {facts['rows']:,} public rows of {shortened(facts['data'], 60)}. Intervals: {facts['intervals']}."
    return joined(
        (
            element("div", paragraphs(facts["headline"]), class_="lead"),
            group_table(shown),
            gallery(figures),
            element("p", " ".join((small, *notes(facts))), class_="small"),
        )
    )


def notes(facts: Mapping[str, Any]) -> list[str]:
    """Sentences on calibration, signs of gradient masking, and what was not measured."""
    sentences = [note[0].upper() + note[1:] for note in facts["notes"]]
    if facts["signs_of_masking"]:
        sentences.insert(0, f"The model may only look robust: {'; '.join(facts['signs_of_masking'])}.")
    if facts["calibration"] is not None:
        error = facts["calibration"]["error"]
        sentences.insert(0, f"Calibration error: {_points(error)} points ({facts['calibration_bins']} bins).")
    return sentences


def group_table(groups: Sequence[Mapping[str, Any]]) -> Html:
    """A table of groups with their number of rows, accuracy, and accuracy lost."""
    return table(HEADINGS, [group_cells(group) for group in groups])


def group_cells(group: Mapping[str, Any]) -> tuple[str, str, str, str]:
    """The cells of one group under `HEADINGS`.

    >>> accuracy = {"value": 0.9, "low": 0.85, "high": 0.94}
    >>> group_cells({"by": "sex", "name": "Female", "rows": 1200, "accuracy": accuracy, "lost": None})
    ('Female', '1,200', '90.0 % (85.0 to 94.0)', '')
    """
    name = f"class {group['name']}" if group["by"] == "class" else str(group["name"])
    accuracy, lost = group["accuracy"], group["lost"]
    right = f"{100 * accuracy['value']:.1f} % ({100 * accuracy['low']:.1f} to {100 * accuracy['high']:.1f})"
    return name, f"{group['rows']:,}", right, "" if lost is None else _points(lost)


def deciles(groups: Sequence[Mapping[str, Any]], name: str = "deciles") -> Html:
    """A figure of accuracy from the hardest tenth of the rows to the easiest."""
    places = range(1, len(groups) + 1)

    def draw(axes: Axes) -> None:
        for place, group in zip(places, groups, strict=True):
            accuracy = group["accuracy"]
            axes.plot((place, place), (accuracy["low"], accuracy["high"]), color=INK, linewidth=0.8)
            axes.plot(place, accuracy["value"], "o", color=ACCENT, markersize=3.8)
        axes.set(xlabel="tenth of the rows, hardest first", ylabel="accuracy", ylim=(-0.03, 1.03))
        axes.xaxis.set_major_locator(MaxNLocator(10, integer=True))
        in_percent(axes.yaxis)

    values = "; ".join(f"{group['name']}: {100 * group['accuracy']['value']:.0f} %" for group in groups)
    caption = "Rare rows: accuracy by tenths of the margin under an ensemble trained on other public rows."
    return picture(name, draw, caption=caption, words=f"Accuracy by tenth: {values}.")


def under_attack(models: Mapping[str, Sequence[Mapping[str, Any]]], name: str = "attack") -> Html:
    """A figure of accuracy against the radius of an attack, with radii scaled so that the largest of each norm is 1."""
    styles = {"L-infinity": "-", "L2": "--"}
    colors = dict(zip(models, (ACCENT, INK), strict=False))

    def draw(axes: Axes) -> None:
        for label, curves in models.items():
            for curve in curves:
                largest, norm = curve["radii"][-1], curve["norm"]
                radii = [radius / largest for radius in curve["radii"]]
                axes.plot(
                    radii,
                    curve["accuracies"],
                    color=colors[label],
                    linestyle=styles[norm],
                    marker="o",
                    markersize=2.5,
                    label=f"{label}, {norm}: 1 is {largest:.3g}",
                )
        axes.set(xlabel="radius", ylabel="accuracy", ylim=(-0.03, 1.03))
        in_percent(axes.yaxis)

    values = "; ".join(
        f"{label}, {curve['norm']}: "
        + ", ".join(f"{100 * a:.0f} % at {r:.3g}" for r, a in zip(curve["radii"], curve["accuracies"], strict=True))
        for label, curves in models.items()
        for curve in curves
    )
    rows = next(curve["rows"] for curves in models.values() for curve in curves)
    caption = f"Accuracy under attack (projected gradient descent, {rows:,} images with pixels from 0 to 1)."
    return picture(name, draw, caption=caption, words=f"Accuracy under attack: {values}.", legend=True, height=3.0)


def _points(lost: Mapping[str, Any]) -> str:
    value, low, high = (round(100 * lost[end], 1) + 0.0 for end in ("value", "low", "high"))  # no minus before 0.0
    return f"{value:.1f} ({low:.1f} to {high:.1f})"
