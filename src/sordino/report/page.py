"""One HTML file that needs nothing else: no script, no font, no picture from anywhere."""

from __future__ import annotations

from collections.abc import Iterable
from importlib.resources import files

from sordino.report.markup import Html, element, escaped, joined
from sordino.report.sections import Section

# Even if a text got past the escaping, a browser would neither run nor fetch it. Photographs are part of the page.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"


def page(kind: str, title: str, headline: Html, sections: Iterable[Section]) -> str:
    """The whole page. `kind` says what it is, `title` of what.

    >>> "&lt;b&gt;" in page("Privacy card", "<b>", Html(""), [])
    True
    """
    style = files("sordino.report").joinpath("page.css").read_text(encoding="utf-8")
    head = joined(
        (
            Html('<meta charset="utf-8">'),
            Html(f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'),
            Html('<meta name="viewport" content="width=device-width, initial-scale=1">'),
            element("title", f"{kind}: {title}"),
            element("style", Html(style)),
        )
    )
    header = element("header", element("p", kind, class_="kind"), element("h1", title), headline)
    parts = (element("section", element("h2", section.title), section.html, id=section.name) for section in sections)
    body = element("body", element("main", header, *parts))
    return f'<!doctype html>\n<html lang="en">{element("head", head)}\n{escaped(body)}</html>\n'
