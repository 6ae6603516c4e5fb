"""An attack on members, written down: a page that says of itself it is inner, and its numbers."""

from __future__ import annotations

from pathlib import Path

from matplotlib.axes import Axes

from sordino._input.files import write_atomically
from sordino.attacks.membership.run_attack import MembershipAttack
from sordino.errors import DataError
from sordino.report.markup import Html, element, joined, paragraphs, table
from sordino.report.page import page
from sordino.report.pictures import ACCENT, DASHES, FAINT, INK, gallery, in_percent, picture
from sordino.report.sections import Section

_LOWEST = 1e-4


def lines(found: MembershipAttack) -> list[tuple[str, ...]]:
    """The table: a row for each attack, and one for what is allowed."""
    head = ("", *(f"found at {100 * rate:g} % false alarms" for rate in found.rates), "area under the curve")
    allowed = (*(f"{100 * rate:.2f} %" for rate in found.allowed.detections), f"{found.allowed.auc:.4f}")
    rows = [(each.name, *(at.percent for at in each.detections), each.auc.words) for each in found.attacks]
    return [head, ("allowed at most", *allowed), *rows]


def write_internal(found: MembershipAttack, folder: Path) -> Path:
    """members.html and members.json. The folder of a run is refused: its files may leave."""
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        found.write(folder / "members.json")  # refuses first
        write_atomically(folder / "members.html", _page(found).encode(), private=True)
    except OSError as error:
        raise DataError(f"{str(folder)!r} cannot be written to: {error.strerror}.") from None
    return folder / "members.html"


def _page(found: MembershipAttack) -> str:
    head, *rows = lines(found)
    about = (
        f"{found.members:,} members and {found.others:,} public rows were attacked, by {found.references} references "
        f"that were trained {found.trained}, on the rows of the run of which some were exchanged. RMIA compares with "
        f"{found.population:,} further public rows.",
        "Public rows stand for people who were absent. If they are of another kind, an attack tells the kinds apart, "
        "and may exceed what is allowed without the guarantee being wrong.",
        "Intervals are 95 %, over rows at this threshold: another training would differ. A weak attack is no proof.",
    )
    sections = [
        Section("attacks", "What was found", joined((table(head, rows), paragraphs(*about))), {}, 10),
        Section("curves", "At every threshold", gallery([_curves(found)]), {}, 20),
        Section("proof", "What is proved", paragraphs(found.guarantee), {}, 30),
    ]
    warning = element("div", paragraphs(f"This page is {found.warning}."), class_="warning")
    return page("Internal", f"{found.title}: members under attack", warning, sections)


def _curves(found: MembershipAttack) -> Html:
    def draw(axes: Axes) -> None:
        allowed = found.allowed.curve
        axes.plot(allowed.accused, allowed.found, color=INK, linewidth=1.8, label="allowed at most")
        for each, dashes in zip(found.attacks, DASHES, strict=False):
            axes.plot(each.curve.accused, each.curve.found, color=ACCENT, linestyle=dashes, label=each.name)
        axes.plot(allowed.accused, allowed.accused, color=FAINT, linewidth=1, label="guessing")
        axes.set(xscale="log", yscale="log", xlim=(_LOWEST, 1), ylim=(_LOWEST, 1.15))
        axes.set(xlabel="absent ones accused", ylabel="members found")
        for axis in (axes.xaxis, axes.yaxis):
            in_percent(axis)

    words = "; ".join(f"{each.name}: area {each.auc.words}" for each in found.attacks)
    caption = "Members found against absent ones accused, below what the guarantee allows."
    return picture("members", draw, caption=caption, words=words, height=3.6, legend=True)
