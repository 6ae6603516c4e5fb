"""HTML in which text stays text: what is not marked as markup is escaped on its way in."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence


class Html(str):
    """Text that is markup already. Only this package makes it; names, paths and values are plain text."""


def escaped(text: str) -> Html:
    """Plain text as markup. Characters that cannot be seen, such as one that turns the writing around, are spelled out.

    >>> escaped("<script>"), escaped("a\\u202eb")
    ('&lt;script&gt;', 'a\\\\u202eb')
    """
    if isinstance(text, Html):
        return text
    return Html(html.escape(visible(text)))


def visible(text: str) -> str:
    """The text with every character that cannot be seen spelled out."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape", "backslashreplace").decode() for c in text)


def shortened(text: str, length: int) -> str:
    """The text, visible and cut to so many characters.

    >>> shortened("a rather long name", 9)
    'a rather…'
    """
    shown = visible(text)
    return shown if len(shown) <= length else shown[: length - 1].rstrip() + "…"


def joined(parts: Iterable[str]) -> Html:
    """One after the other."""
    return Html("".join(escaped(part) for part in parts))


def element(name: str, *children: str, **attributes: str) -> Html:
    """An element with children, each escaped unless it is markup. An attribute may end in an underscore.

    >>> element("p", "a < b, ", element("b", "really"), class_="note")
    '<p class="note">a &lt; b, <b>really</b></p>'
    """
    named = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{html.escape(visible(value))}"' for key, value in attributes.items()
    )
    return Html(f"<{name}{named}>{joined(children)}</{name}>")


def paragraphs(*texts: str) -> Html:
    """Each text as a paragraph."""
    return joined(element("p", text) for text in texts)


def bullets(texts: Iterable[str]) -> Html:
    """A list with dots."""
    return element("ul", *(element("li", text) for text in texts))


def pairs(rows: Iterable[tuple[str, str]], *, class_: str = "pairs") -> Html:
    """A table of names and values."""
    lines = (element("tr", element("th", name, scope="row"), element("td", value)) for name, value in rows)
    return element("table", element("tbody", *lines), class_=class_)


def table(headings: Sequence[str], rows: Iterable[Sequence[str]], *, class_: str = "grid") -> Html:
    """A table with a row of headings. A narrow screen scrolls it sideways."""
    head = element("thead", element("tr", *(element("th", heading, scope="col") for heading in headings)))
    body = element("tbody", *(element("tr", *(element("td", cell) for cell in row)) for row in rows))
    return element("div", element("table", head, body, class_=class_), class_="scroll")
