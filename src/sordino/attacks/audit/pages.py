"""An audit written down: a page and its numbers, which say of themselves that they are not private."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes

from sordino._input.files import write_atomically
from sordino.accounting.guarantee import rounded_up
from sordino.attacks.audit.audit import NOT_PRIVATE, Audit
from sordino.errors import DataError
from sordino.report.markup import Html, element, joined, pairs, paragraphs, table
from sordino.report.page import page
from sordino.report.pictures import ACCENT, FAINT, INK, gallery, picture
from sordino.report.sections import Section
from sordino.training.not_private import refuse_in_run

HEADINGS = ("method", "epsilon at least", "at fixed guesses", "ceiling", "assumes")
_BINS = 40


def check_place(folder: Path) -> None:
    """Refuses the folder of a run before anything is trained."""
    refuse_in_run(folder / "audit.json", NOT_PRIVATE)


def write_audit(audit: Audit, folder: Path) -> Path:
    """audit.html and audit.json. The folder of a run is refused: its files may leave."""
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        audit.write(folder / "audit.json")  # refuses first
        os.chmod(folder / "audit.json", 0o600)
        write_atomically(folder / "audit.html", audit_page(audit).encode(), private=True)
    except OSError as error:
        raise DataError(f"{str(folder)!r} cannot be written to: {error.strerror}.") from None
    return folder / "audit.html"


def bound_rows(audit: Audit) -> list[tuple[str, ...]]:
    """One line for each method. Bounds from below are rounded down."""
    return [
        (
            bound.method,
            _down(bound.epsilon),
            "-" if bound.at_fixed_guesses is None else _down(bound.at_fixed_guesses),
            _down(bound.ceiling),
            bound.assumes,
        )
        for bound in audit.bounds
    ]


def facts(audit: Audit) -> list[tuple[str, str]]:
    """What a verdict has to be read with."""
    return [
        ("epsilon in theory", f"{rounded_up(audit.epsilon, 4)} at delta {audit.delta:g} under {audit.adjacency}"),
        ("epsilon by attack", f"at least {_down(audit.bound.epsilon)} by {audit.method}"),
        ("confidence", f"{audit.confidence:.12g}"),
        ("canaries", f"{audit.canaries}, of which {len(audit.inside)} were in; trainings: {audit.trainings}"),
        ("box", audit.box),
        ("score", audit.score),
    ]


def audit_page(audit: Audit) -> str:
    """The verdict, theory above and attack below, and the scores."""
    said = joined((paragraphs(f"{audit.says}.", *audit.notes), pairs(facts(audit))))
    warning = element("div", paragraphs(f"This page is {audit.warning}."), class_="warning")
    about = (
        "A bound is too large with a chance of at most one less the confidence, if what it assumes holds. What has to "
        "be chosen was chosen on half of the canaries, and the bound is of the other half. An audit can refute a "
        "guarantee; it cannot confirm one, because a better attack may exist."
    )
    sections = [
        Section("verdict", "What was found", said, {}, 10),
        Section("bounds", "Theory above, attack below", gallery([_bounds(audit), _scores(audit)]), {}, 20),
        Section("methods", "By method", joined((table(HEADINGS, bound_rows(audit)), paragraphs(about))), {}, 30),
    ]
    return page("Internal", f"Audit of {audit.title}", warning, sections)


def _bounds(audit: Audit) -> Html:
    names = [bound.method for bound in audit.bounds]

    def draw(axes: Axes) -> None:
        axes.axhline(audit.epsilon, color=INK, linewidth=1.4)
        axes.annotate("theory", (len(names) - 0.8, audit.epsilon), (0, 3), textcoords="offset points", ha="right")
        axes.bar(names, [bound.epsilon for bound in audit.bounds], color=ACCENT, width=0.5)
        axes.plot(names, [bound.ceiling for bound in audit.bounds], "_", color=FAINT, markersize=16)
        axes.set(ylabel="epsilon", ylim=(0, 1.15 * max(audit.epsilon, *(bound.epsilon for bound in audit.bounds))))
        axes.tick_params(axis="x", labelsize=7)

    words = "; ".join(f"{bound.method} at least {_down(bound.epsilon)}" for bound in audit.bounds)
    caption = "Bars: shown by attack. Line: promised. Grey: the most that so many canaries could show."
    return picture("bounds", draw, caption=caption, words=f"Theory {rounded_up(audit.epsilon, 3)}; {words}.")


def _scores(audit: Audit) -> Html:
    values = np.array([*audit.inside, *audit.outside])
    low, high = np.quantile(values[np.isfinite(values)], (0.002, 0.998))
    edges = np.linspace(low, max(high, low + 1e-9), _BINS).tolist()

    def draw(axes: Axes) -> None:
        axes.hist(np.clip(audit.outside, low, high), edges, histtype="step", color=FAINT, linestyle="--", label="out")
        axes.hist(np.clip(audit.inside, low, high), edges, histtype="step", color=ACCENT, label="in")
        axes.set(xlabel="score", ylabel="canaries")

    words = f"Mean score {np.mean(audit.inside):.3g} of those in, {np.mean(audit.outside):.3g} of those out."
    return picture("scores", draw, caption="Scores of canaries that were in and out.", words=words, legend=True)


def _down(epsilon: float) -> str:
    return f"{np.floor(epsilon * 1000) / 1000:.3f}"
