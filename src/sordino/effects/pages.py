"""Pages of `sordino effects`: a public page with effects.json, and an internal one that carries a warning."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from matplotlib.axes import Axes
from torch import Tensor

from sordino._input.files import write_atomically
from sordino.effects.groups import GroupAccuracy
from sordino.effects.measurements import Effects, Subject
from sordino.effects.rare_examples import HarmedExample
from sordino.effects.robustness import unit_pixels
from sordino.effects.twin import TwinEffects
from sordino.errors import DataError
from sordino.report import effects as shown
from sordino.report.markup import Html, element, gallery, joined, paragraphs, picture, table
from sordino.report.sections import Section, page

_COLUMNS = 4


def write_public(effects: Effects, subject: Subject, folder: Path) -> Path:
    """Writes effects.html and effects.json, which contain public quantities only. Returns the page's path."""
    facts = effects.as_dict()
    *coarser, _ = dict.fromkeys(group.by for group in effects.groups)  # the finest are in the summary
    sections = [Section("effects", shown.TITLE, shown.summary(facts), {}, 10)]
    sections += [_groups(name, [group for group in effects.groups if group.by == name]) for name in coarser]
    if effects.disparities:
        disparities = paragraphs(*(f"By {each.by}, {each.words}" for each in effects.disparities))
        sections.append(Section("parity", "Parity between groups", disparities, {}, 30))
    sections += _most_harmed(effects.harmed, subject, "networks trained on other public rows")
    title = f"{subject.saved.model_name} on {effects.data}"
    headline = element("div", paragraphs(f"Accuracy {effects.overall.percent} on {effects.rows:,} public rows."))
    _write(folder / "effects.json", json.dumps(facts, indent=2, allow_nan=False) + "\n")
    return _write(folder / "effects.html", page("Effects", title, headline, sections))


def write_internal(effects: TwinEffects, public: Effects, subject: Subject, folder: Path) -> Path:
    """Writes effects-internal.html and effects-internal.json, and returns the page's path.

    The folder of a run is refused, because its files may be published.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise DataError(f"{str(folder)!r} cannot be written to: {error.strerror}.") from None
    effects.write(folder / "effects-internal.json")  # first, because it refuses the folder of a run
    facts = asdict(effects)
    about = paragraphs(
        f"On the same public rows the twin has accuracy {effects.twin.percent}. The model loses {effects.lost.points} "
        "points.",
        "The twin is the same network with the same first weights, trained on the private rows without clipping and "
        f"noise: {effects.trained}. The loss is due to clipping, noise, and the settings that they require. Intervals "
        "are over rows; another training of either model would give other results.",
    )
    by = dict.fromkeys(group.by for group in effects.groups)
    sections = [Section("twin", "Accuracy lost to privacy", joined((paragraphs(effects.headline), about)), {}, 10)]
    sections += [_groups(name, [group for group in effects.groups if group.by == name]) for name in by]
    sections.append(_groups("tenth", effects.deciles))
    if effects.curves:
        both = {"this model": asdict(public)["curves"], "twin": facts["curves"]}
        sections.append(Section("attack", "Accuracy under attack", gallery([shown.under_attack(both)]), {}, 40))
    sections += _most_harmed(effects.harmed, subject, "the twin")
    warning = element("div", paragraphs(f"This page is {effects.warning}."), class_="warning")
    title = f"{subject.saved.model_name} on {public.data}, compared with its twin"
    return _write(folder / "effects-internal.html", page("Internal", title, warning, sections), private=True)


def _groups(by: str, groups: Sequence[GroupAccuracy]) -> Section:
    rows = [shown.group_cells(asdict(group)) for group in groups]
    return Section(f"by-{by.replace(' ', '-')}", f"Accuracy by {by}", table(shown.HEADINGS, rows), {}, 20)


def _most_harmed(harmed: Sequence[HarmedExample], subject: Subject, reference: str) -> list[Section]:
    """The section with the most harmed public examples, if they are images."""
    facts = subject.saved.facts
    if len(facts.input_shape) != 3 or not harmed:
        return []
    names = facts.class_names or tuple(str(label) for label in range(facts.num_classes or 0))
    labels = [names[int(subject.rows.target[each.row])] for each in harmed]
    pixels = unit_pixels(subject.rows.inputs[[each.row for each in harmed]], facts)
    cells = [
        (str(place), label, str(each.row), f"{each.reference:.2f}", f"{each.model:.2f}")
        for place, (label, each) in enumerate(zip(labels, harmed, strict=True), start=1)
    ]
    words = (
        f"Public images that the model misclassifies, sorted by how much more probable their class is under "
        f"{reference} than under the model."
    )
    headings = ("", "class", "row", "probability, reference", "probability, model")
    html = joined((paragraphs(words), gallery([_images(pixels, labels), table(headings, cells)])))
    return [Section("harmed", "Examples that lost most", html, {}, 50)]


def _images(pixels: Tensor, labels: Sequence[str]) -> Html:
    """All images in one figure, numbered row by row."""
    size = pixels.shape[-1] + 2
    rows = -(-len(pixels) // _COLUMNS)

    def draw(axes: Axes) -> None:
        for place, image in enumerate(pixels):
            top, left = divmod(place, _COLUMNS)
            extent = (left * size, (left + 1) * size - 2, (top + 1) * size - 2, top * size)
            axes.imshow(image.movedim(0, -1).squeeze(-1).numpy(), cmap="gray", vmin=0, vmax=1, extent=extent)
            axes.text(left * size, top * size, str(place + 1), verticalalignment="bottom")
        axes.set(xlim=(0, _COLUMNS * size), ylim=(rows * size, -size / 4))
        axes.set_axis_off()

    words = "; ".join(f"{place}: {label}" for place, label in enumerate(labels, start=1))
    return picture("harmed", draw, caption="Numbers refer to the table.", words=words, height=1.0 * rows)


def _write(path: Path, text: str, *, private: bool = False) -> Path:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, text.encode(), private=private)
    except OSError as error:
        raise DataError(f"{str(path.parent)!r} cannot be written to: {error.strerror}.") from None
    return path
