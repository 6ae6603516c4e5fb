"""What a card is made of. Whoever has more to say about a run registers a section."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from sordino.report.evidence import Evidence
from sordino.report.markup import Html


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


def sections_of(run: Evidence) -> list[Section]:
    """All that can be said about a run, in order."""
    said = (maker(run) for maker in _makers)
    return sorted((section for section in said if section is not None), key=lambda section: section.order)
