"""The page of a verification: every comparison, and figures of the noise.

*Guarantee:* nothing here is computed from records; the rows of a verification are synthetic.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from scipy import stats

from sordino.report.card import write_report
from sordino.report.markup import (
    ACCENT,
    FAINT,
    INK,
    Html,
    bullets,
    element,
    gallery,
    joined,
    paragraphs,
    picture,
    table,
)
from sordino.report.sections import Section, page
from sordino.verification.noise_histogram import NoisePicture
from sordino.verification.verdict import Verdict

_MOST_NAMES = 40


def check_rows(verdict: Verdict) -> list[tuple[str, str, str]]:
    """One table row for each check: its name, its result, and the comparison that is closest to its limit."""
    return [(check.name, check.says, f"{check.closest} ({len(check.findings)} compared)") for check in verdict.checks]


def write_verdict(
    folder: Path, title: str, verdict: Verdict, noise: NoisePicture | None = None, not_checked: Sequence[str] = ()
) -> Path:
    """Writes verification.html and verification.json. Returns the page's path."""
    text = verdict_page(title, verdict, noise, not_checked)
    return write_report(folder, text, verdict_facts(title, verdict, noise, not_checked), name="verification")


def verdict_facts(
    title: str, verdict: Verdict, noise: NoisePicture | None = None, not_checked: Sequence[str] = ()
) -> dict[str, object]:
    """The contents of verification.json."""
    return {
        "kind": "verification",
        "title": title,
        "verdict": verdict.says,
        "findings": [asdict(finding) for finding in verdict.findings],
        "not_checked": list(not_checked),
        "noise": None if noise is None else asdict(noise),
    }


def verdict_page(
    title: str, verdict: Verdict, noise: NoisePicture | None = None, not_checked: Sequence[str] = ()
) -> str:
    """The page: the verdict, the noise, and every comparison.

    >>> from sordino.verification.verdict import at_most
    >>> "not refuted" in verdict_page("a plan", Verdict((at_most("clip", "norm", 1.9, 2.0),)))
    True
    """
    rows = [(each.check, each.what, f"{each.measured:.6g}", each.allowed) for each in verdict.findings]
    sections = [Section("checks", "Checks", _checks(verdict, not_checked), {}, 10)]
    if noise is not None:
        sections.append(Section("noise", "The noise", _noise(noise), {}, 20))
    comparisons = table(("check", "quantity", "measured", "allowed"), rows)
    sections.append(Section("comparisons", "Every comparison", comparisons, {}, 30))
    return page("Verification", title, element("div", paragraphs(_headline(verdict))), sections)


def _headline(verdict: Verdict) -> str:
    if verdict.passed:
        return f"Not refuted: all {len(verdict.findings)} comparisons agree with the plan. This is evidence, not proof."
    return f"REFUTED by {', '.join(verdict.failed_checks)}: the guarantee does not hold for this code."


def _checks(verdict: Verdict, not_checked: Sequence[str]) -> Html:
    html = table(("check", "result", "closest to its limit"), check_rows(verdict))
    return joined((html, paragraphs("Not checked:"), bullets(not_checked))) if not_checked else html


def _noise(noise: NoisePicture) -> Html:
    words = (
        f"{noise.draws:,} draws of {noise.steps} steps: the release minus the sum without noise, in units of the "
        f"claimed standard deviation. The generator has no values beyond {noise.end:.1f}, too far for a sample to show."
    )
    return joined((paragraphs(words), gallery((_histogram(noise), _quantiles(noise), _scales(noise)))))


def _histogram(noise: NoisePicture) -> Html:
    def draw(axes: Axes) -> None:
        grid = np.linspace(noise.edges[0], noise.edges[-1], 200)
        axes.stairs(noise.densities, noise.edges, fill=True, color=FAINT, alpha=0.6, label="drawn")
        axes.plot(grid, stats.norm.pdf(grid), color=ACCENT, linewidth=1.4, label="claimed")
        axes.set(xlabel="noise, in claimed standard deviations", ylabel="density")

    words = "Histogram of the noise, with the density of the standard normal distribution."
    return picture("histogram", draw, caption="The noise and the claimed density.", words=words, legend=True)


def _quantiles(noise: NoisePicture) -> Html:
    normal = [each.normal for each in noise.quantiles]

    def draw(axes: Axes) -> None:
        low, high = [each.low for each in noise.quantiles], [each.high for each in noise.quantiles]
        axes.fill_between(normal, low, high, color=FAINT, alpha=0.5, linewidth=0)
        axes.plot(normal, normal, color=INK, linewidth=0.6)
        axes.plot(normal, [each.drawn for each in noise.quantiles], "o", color=ACCENT, markersize=2.5)
        axes.set(xlabel="normal quantile", ylabel="drawn")

    last = noise.quantiles[-1]
    words = f"Sorted draws against normal quantiles: the largest is {last.drawn:.2f}, expected is {last.normal:.2f}."
    caption = "Sorted draws against normal quantiles, out to the tail, with 95 % bands."
    return picture("quantiles", draw, caption=caption, words=words)


def _scales(noise: NoisePicture) -> Html:
    shown = noise.scales if len(noise.scales) <= _MOST_NAMES else noise.scales[:_MOST_NAMES]

    def draw(axes: Axes) -> None:
        places = range(len(shown))
        axes.axvline(1.0, color=FAINT, linestyle="--", linewidth=1)
        axes.hlines(places, [each.low for each in shown], [each.high for each in shown], color=ACCENT, linewidth=1.2)
        axes.plot([each.scale for each in shown], list(places), "o", color=ACCENT, markersize=3)
        axes.set_yticks(list(places), [each.name for each in shown])
        axes.invert_yaxis()
        axes.set(xlabel="standard deviation, relative to the claimed one")

    words = "; ".join(f"{each.name} {each.scale:.4f}" for each in shown)
    caption = "Standard deviation on each parameter, with 95 % intervals: by chance, one in twenty does not contain 1."
    return picture("scales", draw, caption=caption, words=words, height=max(1.6, 0.8 + 0.2 * len(shown)))
