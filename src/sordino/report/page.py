"""One HTML file that needs nothing else: no script, no font, no image from anywhere."""

from __future__ import annotations

from collections.abc import Iterable

from sordino.report.markup import Html, rendered
from sordino.report.sections import Section


def page(kind: str, title: str, headline: Html, sections: Iterable[Section]) -> str:
    """The whole page. `kind` says what it is, `title` of what.

    >>> "&lt;b&gt;" in page("Privacy card", "<b>", Html(""), [])
    True
    """
    return str(rendered("page.html", kind=kind, title=title, headline=headline, sections=sections)) + "\n"
