"""What sparsification, or something else, gains over none, seed by seed, with its interval: whichever way it falls."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from sordino.report.markup import ACCENT, FAINT
from sordino_papers.harness.drawing import drawing
from sordino_papers.harness.entry import Entry
from sordino_papers.harness.ledger import Ledger
from sordino_papers.harness.origin import write_numbers
from sordino_papers.harness.page import NOT_COMPARABLE
from sordino_papers.harness.paired import Gain, gain
from sordino_papers.harness.scale import Scale
from sordino_papers.harness.side import Side


def gains(
    pairs: Sequence[tuple[Entry, Entry]],
    folder: Path,
    scale: Scale,
    seeds: int,
    command: str,
    *,
    what: str = "sparsification",
) -> Side:
    """A line and a bar for each pair of entries, without and with sparsification, or whatever else is compared."""
    ledger = Ledger(folder / "runs.jsonl")
    found = [gain(one, other, ledger, seeds=seeds) for one, other in pairs]
    picture, numbers = folder / f"gains-{scale}.svg", folder / f"gains-{scale}.json"
    write_numbers(numbers, {"gains": [_plain(one) for one in found]}, command)
    _draw([one for one in found if one.mean is not None], picture)
    head = ("trained", "data", "epsilon", "paper", "ours", "seeds")
    title = f"What {what} gains, paired by seed, with Student's 95 % interval:"
    return Side(title, (head, *(_line(one, scale) for one in found)), (picture, numbers))


def _line(found: Gain, scale: Scale) -> tuple[str, ...]:
    first, second = found.first, found.second
    printed = None if first.paper is None or second.paper is None else second.paper - first.paper
    return (
        second.method,
        second.data,
        f"{second.epsilon:g}",
        "-" if printed is None else NOT_COMPARABLE if scale is Scale.QUICK else f"{printed:+.1f}",
        found.shown,
        str(found.seeds),
    )


def _plain(found: Gain) -> dict[str, object]:
    second = found.second
    return {
        "method": second.method,
        "data": second.data,
        "epsilon": second.epsilon,
        "mean": found.mean,
        "half_width": found.half_width,
        "seeds": found.seeds,
    }


def _draw(found: Sequence[Gain], path: Path) -> None:
    with drawing(path, width=5.0, height=0.8 + 0.28 * len(found)) as figure:
        axes = figure.subplots()
        names = [f"{one.second.method}, {one.second.data}, epsilon {one.second.epsilon:g}" for one in found]
        means, widths = [one.mean or 0.0 for one in found], [one.half_width or 0.0 for one in found]
        axes.errorbar(means, names, xerr=widths, fmt="o", color=ACCENT, capsize=3)
        axes.axvline(0.0, color=FAINT, linewidth=0.8)
        axes.invert_yaxis()
        axes.set_xlabel("gain in points of accuracy")
