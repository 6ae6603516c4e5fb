"""HTML of reports, from Jinja templates that escape whatever is not markup already."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

Html = Markup
"""Text that is markup already. Only this package makes it; names, paths and values are plain text."""


def visible(text: str) -> str:
    """The text with every character that cannot be seen spelled out, such as one that reverses the writing."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape", "backslashreplace").decode() for c in text)


def shortened(text: str, length: int) -> str:
    """The text, visible and cut to so many characters.

    >>> shortened("a rather long name", 9)
    'a rather…'
    """
    shown = visible(text)
    return shown if len(shown) <= length else shown[: length - 1].rstrip() + "…"


def escaped(text: str) -> Html:
    """Plain text as markup.

    >>> escaped("<script>"), escaped("a\\u202eb")
    (Markup('&lt;script&gt;'), Markup('a\\\\u202eb'))
    """
    return escape(_finalized(text))


def rendered(template: str, **values: object) -> Html:
    """A template of this package with these values."""
    return Markup(_environment().get_template(template).render(**values))


def joined(parts: Iterable[str]) -> Html:
    """The parts one after the other."""
    return Markup("").join(escaped(part) for part in parts)


def element(name: str, *children: str, **attributes: str) -> Html:
    """An element with children, each escaped unless it is markup. An attribute may end in an underscore.

    >>> print(element("p", "a < b, ", element("b", "really"), class_="note"))
    <p class="note">a &lt; b, <b>really</b></p>
    """
    named = {key.rstrip("_").replace("_", "-"): visible(value) for key, value in attributes.items()}
    return _part("element", name, children, named)


def paragraphs(*texts: str) -> Html:
    """Each text as a paragraph."""
    return _part("paragraphs", texts)


def bullets(texts: Iterable[str]) -> Html:
    """A list with dots."""
    return _part("bullets", texts)


def pairs(rows: Iterable[tuple[str, str]], *, class_: str = "pairs") -> Html:
    """A table of names and values."""
    return _part("pairs", rows, class_)


def table(headings: Sequence[str], rows: Iterable[Sequence[str]], *, class_: str = "grid") -> Html:
    """A table with a row of headings. A narrow screen scrolls it sideways."""
    return _part("table", headings, rows, class_)


def _part(name: str, *values: object) -> Html:
    macro: Any = getattr(_environment().get_template("parts.html").module, name)
    return Markup(macro(*values))


@cache
def _environment() -> Environment:
    loader = PackageLoader("sordino.report", "templates")
    return Environment(loader=loader, autoescape=True, undefined=StrictUndefined, finalize=_finalized)


def _finalized(value: Any) -> Any:
    """Called on each value before it is escaped."""
    return visible(value) if isinstance(value, str) and not isinstance(value, Markup) else value
