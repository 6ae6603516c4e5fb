"""Sections of a report, and the self-contained HTML page that they form: no script, external font or external image.

`register_section` adds a section of your own to every privacy card.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from sordino.report.evidence import Evidence
from sordino.report.markup import Html, rendered


@dataclass(frozen=True)
class Section:
    """A part of a report: `html` for people, and `facts` with the same content for programs.

    `name` is its key in report.json. Sections are sorted by `order`: 10 is the guarantee, 90 the signature.
    """

    name: str
    title: str
    html: Html = field(repr=False)
    facts: Mapping[str, object] = field(repr=False)
    order: int


Maker = Callable[[Evidence], Section | None]

_makers: list[Maker] = []


def register_section(maker: Maker) -> Maker:
    """Adds a section to every card. `maker` returns None for a run to which the section does not apply.

    >>> @register_section
    ... def notes(run):
    ...     return None
    >>> notes in _makers
    True
    >>> _makers.remove(notes)
    """
    _makers.append(maker)
    return maker


def sections_of(run: Evidence, makers: Iterable[Maker] = ()) -> list[Section]:
    """The sections of `makers` and of all registered makers, in order."""
    sections = (maker(run) for maker in (*makers, *_makers))
    return sorted((section for section in sections if section is not None), key=lambda section: section.order)


def page(kind: str, title: str, headline: Html, sections: Iterable[Section]) -> str:
    """The whole page. `kind` is the kind of report, `title` its subject.

    >>> "&lt;b&gt;" in page("Privacy card", "<b>", Html(""), [])
    True
    """
    return str(rendered("page.html", kind=kind, title=title, headline=headline, sections=sections)) + "\n"
