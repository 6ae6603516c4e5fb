"""Sections of a card, and the self-contained page that they make up.

Sections of a privacy card. `register_section` adds one of your own to every card.

One HTML file that needs nothing else: no script, no font, no image from anywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from sordino.report.evidence import Evidence
from sordino.report.markup import Html, rendered


@dataclass(frozen=True)
class Section:
    """A part of a card: `html` for people and `facts` for programs, which say the same.

    `name` is its key in report.json. Sections stand in the order of `order`: 10 is the guarantee, 90 the signature.
    """

    name: str
    title: str
    html: Html = field(repr=False)
    facts: Mapping[str, object] = field(repr=False)
    order: int


Maker = Callable[[Evidence], Section | None]

_makers: list[Maker] = []


def register_section(maker: Maker) -> Maker:
    """Adds a section to every card. One that has nothing to say about a run, because a file is not there, gives None.

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
    """The sections of `makers`, and those that were registered, in order."""
    said = (maker(run) for maker in (*makers, *_makers))
    return sorted((section for section in said if section is not None), key=lambda section: section.order)


def page(kind: str, title: str, headline: Html, sections: Iterable[Section]) -> str:
    """The whole page. `kind` says what it is, `title` of what.

    >>> "&lt;b&gt;" in page("Privacy card", "<b>", Html(""), [])
    True
    """
    return str(rendered("page.html", kind=kind, title=title, headline=headline, sections=sections)) + "\n"
