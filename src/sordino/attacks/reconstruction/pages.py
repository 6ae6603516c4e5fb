"""What an attack found, written down: a page with its gallery, and its numbers."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sordino._input.files import write_atomically
from sordino.attacks.reconstruction.gallery import draw_gallery
from sordino.attacks.reconstruction.reconstructed import Reconstructed, Sent, mean_error
from sordino.errors import DataError
from sordino.report.markup import element, joined, paragraphs, table
from sordino.report.page import page
from sordino.report.pictures import gallery, picture
from sordino.report.sections import Section

HEADINGS = ("row", "MSE", "of mean colours", "PSNR", "SSIM", "seconds")
NO_EPSILON = (
    "Public pictures only. No epsilon goes with this: the gradients of single rows are not clipped, and what an attack "
    "does not find, another may."
)


@dataclass(frozen=True)
class Outcome:
    """One attack on some public pictures."""

    model: str
    data: str
    attack: str
    sent: Sent
    seed: int
    found: tuple[Reconstructed, ...]

    @property
    def headline(self) -> str:
        """The mean error in a sentence."""
        mean = mean_error(self.found)
        number = f"{self.found[0].likeness.mse:.3g}" if mean is None else f"{mean.value:.3g}"
        interval = "" if mean is None else f" ({max(mean.low, 0):.3g} to {mean.high:.3g})"
        pictures = "1 picture" if mean is None else f"{len(self.found)} pictures"
        return f"Mean squared error {number}{interval} over {pictures}, {self.attack} on a {self.sent.words} gradient."

    @property
    def rows(self) -> list[tuple[str, ...]]:
        """Each picture under `HEADINGS`."""
        return [
            (
                str(one.row),
                f"{one.likeness.mse:.3g}",
                f"{one.likeness.flat_mse:.3g}",
                f"{one.likeness.psnr:.1f}",
                f"{one.likeness.ssim:.3f}",
                f"{one.seconds:.1f}",
            )
            for one in self.found
        ]

    def as_dict(self) -> dict[str, Any]:
        about = {"model": self.model, "data": self.data, "attack": self.attack, "seed": self.seed}
        seen = {"noise_std": self.sent.noise_std, "rate": self.sent.rate, "note": NO_EPSILON}
        return about | seen | {"pictures": [one.as_dict() for one in self.found]}


def write_outcome(outcome: Outcome, folder: Path) -> Path:
    """reconstruction.html and reconstruction.json. Gives the page's path."""
    shown = picture(
        "gallery",
        lambda axes: draw_gallery(axes, [outcome.found]),
        caption="Original above, reconstruction below, and its mean squared error.",
        words="; ".join(f"row {row}: error {error}" for row, error, *_ in outcome.rows),
        height=1.8,
    )
    said = paragraphs(
        "A picture of its own mean colours has the error in the third column: an attack that stays above it shows no "
        "shapes."
    )
    html = joined((said, gallery([shown, table(HEADINGS, outcome.rows)])))
    title = f"{outcome.model} on {outcome.data}"
    headline = element("div", paragraphs(outcome.headline, NO_EPSILON))
    text = page("Reconstruction", title, headline, [Section("pictures", "What the gradient shows", html, {}, 10)])
    numbers = json.dumps(outcome.as_dict(), indent=2, allow_nan=False) + "\n"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_atomically(folder / "reconstruction.json", numbers.encode())
        write_atomically(folder / "reconstruction.html", text.encode())
    except OSError as error:
        raise DataError(f"{str(folder)!r} cannot be written to: {error.strerror}.") from None
    return folder / "reconstruction.html"
