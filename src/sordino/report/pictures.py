"""Pictures in the style of the page: inline SVG that fetches nothing, reads without colour, and has words for it."""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Callable, Iterable
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from sordino.report.markup import Html, element

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
