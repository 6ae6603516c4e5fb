"""Pictures of experiments, as SVG files. The same numbers give the same bytes."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

from sordino._input.files import write_atomically

_STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "sordino",
    "font.size": 8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "legend.frameon": False,
    "legend.handlelength": 3.2,
}


@contextmanager
def drawing(path: Path, *, width: float, height: float) -> Iterator[Figure]:
    """A figure of so many inches, written when it is filled.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "line.svg"
    >>> with drawing(path, width=3, height=2) as figure:
    ...     lines = figure.subplots().plot([0, 1], [0, 1])
    >>> path.read_bytes()[:5]
    b'<?xml'
    """
    with matplotlib.rc_context(_STYLE):
        figure = Figure(figsize=(width, height), layout="constrained")
        yield figure
        FigureCanvasSVG(figure)
        buffer = io.BytesIO()
        figure.savefig(buffer, format="svg", metadata={"Date": None})
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, buffer.getvalue())
