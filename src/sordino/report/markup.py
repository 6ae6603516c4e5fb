"""HTML of reports from Jinja templates with autoescape, and figures as inline SVG.

Everything that is not markup already is escaped. Figures fetch nothing, are readable without color, and have a text
alternative.
"""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from typing import Any

import matplotlib
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

Html = Markup
"""Markup, which is not escaped again. Only this package creates it; names, paths and values are plain strings."""


def visible(text: str) -> str:
    """`text` with an escape sequence for each unprintable character, such as one that reverses the direction."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape", "backslashreplace").decode() for c in text)


def shortened(text: str, length: int) -> str:
    """`text` without unprintable characters, cut to at most `length` characters.

    >>> shortened("a rather long name", 9)
    'a rather…'
    """
    shown = visible(text)
    return shown if len(shown) <= length else shown[: length - 1].rstrip() + "…"


def escaped(text: str) -> Html:
    """A plain string as markup, escaped.

    >>> escaped("<script>"), escaped("a\\u202eb")
    (Markup('&lt;script&gt;'), Markup('a\\\\u202eb'))
    """
    return escape(_finalized(text))


def rendered(template: str, **values: object) -> Html:
    """Renders a template of this package."""
    return Markup(_environment().get_template(template).render(**values))


def joined(parts: Iterable[str]) -> Html:
    """Concatenates the parts."""
    return Markup("").join(escaped(part) for part in parts)


def element(name: str, *children: str, **attributes: str) -> Html:
    """An element with children, each escaped unless it is markup. Write `class_` for the attribute `class`.

    >>> print(element("p", "a < b, ", element("b", "really"), class_="note"))
    <p class="note">a &lt; b, <b>really</b></p>
    """
    named = {key.rstrip("_").replace("_", "-"): visible(value) for key, value in attributes.items()}
    return _part("element", name, children, named)


def paragraphs(*texts: str) -> Html:
    """A paragraph for each string."""
    return _part("paragraphs", texts)


def bullets(texts: Iterable[str]) -> Html:
    """An unordered list."""
    return _part("bullets", texts)


def pairs(rows: Iterable[tuple[str, str]], *, class_: str = "pairs") -> Html:
    """A table of names and values."""
    return _part("pairs", rows, class_)


def table(headings: Sequence[str], rows: Iterable[Sequence[str]], *, class_: str = "grid") -> Html:
    """A table with a row of headings. It scrolls sideways on a narrow screen."""
    return _part("table", headings, rows, class_)


def _part(name: str, *values: object) -> Html:
    macro: Any = getattr(_environment().get_template("parts.html").module, name)
    return Markup(macro(*values))


@cache
def _environment() -> Environment:
    loader = PackageLoader("sordino.report", "templates")
    return Environment(loader=loader, autoescape=True, undefined=StrictUndefined, finalize=_finalized)


def _finalized(value: Any) -> Any:
    """Jinja calls this on each value before it escapes it."""
    return visible(value) if isinstance(value, str) and not isinstance(value, Markup) else value


ACCENT, INK, FAINT = "#1d4e6b", "#1c1c1c", "#8a8a8a"
DASHES = ("--", ":", "-.", (0, (5, 1, 1, 1, 1, 1)), (0, (8, 3)), (0, (1, 4)))  # distinct without color

_WIDTH, _HEIGHT = 3.5, 2.45  # inches: the width of a phone, or half a page
_STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",  # keep text as text, in the fonts of the page
    "svg.hashsalt": "sordino",  # deterministic identifiers
    "text.parse_math": False,  # do not parse dollar signs in names
    "axes.unicode_minus": False,
    "font.family": "DejaVu Sans",
    "font.size": 8,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "axes.linewidth": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "xtick.color": INK,
    "ytick.color": INK,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "xtick.minor.width": 0.4,
    "ytick.minor.width": 0.4,
    "legend.frameon": False,
    "legend.handlelength": 3.2,
    "legend.fontsize": 8,
}
_NOTHING = {"Creator": None, "Date": None, "Format": None, "Type": None}


def picture(
    name: str, draw: Callable[[Axes], None], *, caption: str, words: str, height: float = _HEIGHT, legend: bool = False
) -> Html:
    """A figure drawn by `draw`. `name` must be unique on its page; `words` is the text alternative.

    >>> drawn = picture("line", lambda axes: None, caption="A line.", words="It rises.")
    >>> "<svg" in drawn and "<script" not in drawn
    True
    """
    with matplotlib.rc_context(_STYLE), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph")  # missing glyphs are drawn by the reader's fonts
        figure = Figure(figsize=(_WIDTH, height), layout="constrained")
        axes = figure.add_subplot()
        draw(axes)
        if legend:
            figure.legend(loc="outside lower left", ncols=1)
        buffer = io.StringIO()
        FigureCanvasSVG(figure)
        figure.savefig(buffer, format="svg", metadata=_NOTHING)
    return element("figure", _inline(buffer.getvalue(), name, words), element("figcaption", caption))


def decimal_logarithmic(axis: Axis) -> None:
    """A logarithmic axis with ticks at 1, 2, 5 times powers of ten, as plain decimals."""
    axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_formatter(NullFormatter())


def in_percent(axis: Axis) -> None:
    """Shows the fractions of an axis as percentages."""
    axis.set_major_formatter(FuncFormatter(lambda fraction, _: f"{100 * fraction:g} %"))
    axis.set_minor_formatter(NullFormatter())


def gallery(figures: Iterable[Html]) -> Html:
    """Figures side by side where there is room."""
    return element("div", *figures, class_="gallery")


def _inline(svg: str, name: str, words: str) -> Html:
    """The svg element alone, with identifiers prefixed by `name` and a text alternative, without a fixed width."""
    body = svg[svg.index("<svg") :]
    body = re.sub(r"<!--.*?-->", "", body, flags=re.DOTALL)
    body = re.sub(r'( id="|url\(#|href="#)', rf"\g<1>{name}-", body)
    opening = body[: body.index(">")]
    box = re.search(r'viewBox="[^"]*"', opening)
    start = element("svg", role="img", aria_label=words).removesuffix("></svg>")
    return Html(f"{start} {box.group() if box else ''}{body[len(opening) :]}")
