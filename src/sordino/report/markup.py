"""HTML of reports from Jinja templates that escape by themselves, and figures as inline SVG.

HTML of reports, from Jinja templates that escape whatever is not markup already.

Pictures in the style of the page: inline SVG that fetches nothing, reads without colour, and has words for it.
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


ACCENT, INK, FAINT = "#1d4e6b", "#1c1c1c", "#8a8a8a"
DASHES = ("--", ":", "-.", (0, (5, 1, 1, 1, 1, 1)), (0, (8, 3)), (0, (1, 4)))  # told apart on a grey printer too

_WIDTH, _HEIGHT = 3.5, 2.45  # inches: as wide as a phone, or half a page
_STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",  # text stays text, in the fonts of the page
    "svg.hashsalt": "sordino",  # the same run gives the same bytes
    "text.parse_math": False,  # a dollar sign in a name is a dollar sign
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
    """A figure that `draw` fills. `name` is unique on its page; `words` are for whoever cannot see it.

    >>> drawn = picture("line", lambda axes: None, caption="A line.", words="It rises.")
    >>> "<svg" in drawn and "<script" not in drawn
    True
    """
    with matplotlib.rc_context(_STYLE), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph")  # of a name: the reader's own fonts draw it
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
    """Ticks at 1, 2, 5 and their multiples by ten, in plain figures."""
    axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_formatter(NullFormatter())


def in_percent(axis: Axis) -> None:
    """Shares as percentages."""
    axis.set_major_formatter(FuncFormatter(lambda share, _: f"{100 * share:g} %"))
    axis.set_minor_formatter(NullFormatter())


def gallery(figures: Iterable[Html]) -> Html:
    """Pictures side by side where there is room."""
    return element("div", *figures, class_="gallery")


def _inline(svg: str, name: str, words: str) -> Html:
    """Only the element, with identifiers of its own, as wide as it is given room."""
    body = svg[svg.index("<svg") :]
    body = re.sub(r"<!--.*?-->", "", body, flags=re.DOTALL)
    body = re.sub(r'( id="|url\(#|href="#)', rf"\g<1>{name}-", body)
    opening = body[: body.index(">")]
    box = re.search(r'viewBox="[^"]*"', opening)
    start = element("svg", role="img", aria_label=words).removesuffix("></svg>")
    return Html(f"{start} {box.group() if box else ''}{body[len(opening) :]}")
