"""Results of a reconstruction attack on public images: errors with intervals, a gallery and a page.

A mean with an interval, of errors or of pictures.

An attack on public pictures, one after the other: what it was, and what it made of each.

Pictures above, what was made of their gradients below, with the error under each.

What an attack found, written down: a page with its gallery, and its numbers.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from scipy.stats import t as student
from torch import Tensor

from sordino._input import validate
from sordino._input.files import write_atomically
from sordino.attacks.reconstruction.attack import KnownNetwork, ReconstructionAttack, Tick, observe, unwatched
from sordino.attacks.reconstruction.similarity import Likeness
from sordino.errors import DataError, UsageError
from sordino.kernel.randomness import Key
from sordino.report.markup import element, gallery, joined, paragraphs, picture, table
from sordino.report.sections import Section, page


@dataclass(frozen=True)
class MeanWithInterval:
    """A mean with the ends of its 95 % interval (Student's).

    >>> found = MeanWithInterval.of([1.0, 2.0, 3.0])
    >>> found.value, round(found.low, 2), round(found.high, 2)
    (2.0, -0.48, 4.48)
    """

    value: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> MeanWithInterval:
        """Of at least two values. One that is not known makes the mean infinite."""
        if len(values) < 2:
            raise UsageError(f"an interval needs at least 2 values, got {len(values)}.")
        if not np.isfinite(values).all():
            return cls(math.inf, math.inf, math.inf)
        mean = float(np.mean(values))
        reach = float(student.ppf(0.975, len(values) - 1)) * float(np.std(values, ddof=1)) / math.sqrt(len(values))
        return cls(mean, mean - reach, mean + reach)


@dataclass(frozen=True)
class Sent:
    """What is done to a gradient before somebody sees it: noise of a standard deviation, and a mask of a rate."""

    noise_std: float = 0.0
    rate: float = 0.0

    def __post_init__(self) -> None:
        validate.between(0, 1e30, noise=self.noise_std)
        validate.between(0, 1, high_open=True, rate=self.rate)

    @property
    def words(self) -> str:
        """
        >>> Sent().words, Sent(1e-3, 0.5).words
        ('plain', 'noise 0.001, rate 0.5')
        """
        return f"noise {self.noise_std:g}, rate {self.rate:g}" if self.noise_std or self.rate else "plain"


@dataclass(frozen=True)
class Reconstruction:
    """One picture and what was made of its gradient, shape (channels, height, width), pixels from 0 to 1."""

    row: int
    likeness: Likeness
    seconds: float
    picture: Tensor = field(repr=False)
    found: Tensor = field(repr=False)

    def as_dict(self) -> dict[str, Any]:
        """Numbers only. PSNR has no number for a picture without an error."""
        likeness = asdict(self.likeness)
        return {"row": self.row, "seconds": round(self.seconds, 2)} | likeness | {"psnr": self.likeness.psnr_or_none}


def reconstruct(
    attack: ReconstructionAttack,
    known: KnownNetwork,
    pixels: Tensor,
    target: Tensor,
    sent: Sent,
    *,
    rows: Sequence[int],
    seed: int,
    tick: Tick = unwatched,
) -> Iterator[Reconstruction]:
    """Attacks the gradients of these rows, each on its own, and gives each picture as soon as it is there.

    The attack gets the gradient as it was sent; picture and label serve to make it, and to compare.
    """
    attack.check(known)
    starts = Key.from_seed(seed).stream("starts")
    for row in rows:
        picture = pixels[row : row + 1]
        gradient = known.gradient(known.normalised(picture), target[row : row + 1])
        observed = observe(gradient, known.layout, noise_std=sent.noise_std, rate=sent.rate, seed=seed, row=row)
        begun = time.monotonic()
        found = attack.reconstruct(known, observed, starts.named(str(row)), tick)
        seconds = time.monotonic() - begun
        yield Reconstruction(row, Likeness.of(picture, found), seconds, picture[0], found[0])


def mean_error(found: Sequence[Reconstruction]) -> MeanWithInterval | None:
    """The mean squared error over pictures, with an interval; None for a single picture."""
    return MeanWithInterval.of([one.likeness.mse for one in found]) if len(found) > 1 else None


_GAP = 2  # pixels between pictures
_NAMES = 2  # widths of a picture, for what stands beside a line


def draw_gallery(axes: Axes, columns: Sequence[Sequence[Reconstruction]], names: Sequence[str] = ()) -> None:
    """A line of originals, and below it a line for each way in which the same pictures were attacked.

    `columns` are these ways, all of the same pictures; `names` stand to the left of each line.
    """
    first = columns[0]
    size = first[0].picture.shape[-1]
    step = size + _GAP
    tall = step + size // 3  # room for an error
    for place, one in enumerate(first):
        _show(axes, one.picture, place * step, 0)
    for line, found in enumerate(columns, start=1):
        for place, one in enumerate(found):
            top = step + (line - 1) * tall
            _show(axes, one.found, place * step, top)
            axes.text(
                place * step + size / 2, top + size + 1, f"{one.likeness.mse:.2g}", ha="center", va="top", fontsize=6
            )
        if names:
            axes.text(-_GAP, step + (line - 1) * tall + size / 2, names[line - 1], ha="right", va="center", fontsize=6)
    axes.set(xlim=(-_NAMES * size if names else 0, len(first) * step), ylim=(step + len(columns) * tall, 0))
    axes.set_axis_off()


def _show(axes: Axes, pixels: Tensor, left: float, top: float) -> None:
    height, width = pixels.shape[1:]
    extent = (left, left + width, top + height, top)
    shown = pixels.movedim(0, -1).squeeze(-1).numpy()
    axes.imshow(shown, cmap="gray", vmin=0, vmax=1, extent=extent, interpolation="none")


HEADINGS = ("row", "MSE", "of mean colours", "PSNR", "SSIM", "seconds")
NO_EPSILON = (
    "Public pictures only. No epsilon goes with this: the gradients of single rows are not clipped, and what an attack "
    "does not find, another may."
)


@dataclass(frozen=True)
class AttackOutcome:
    """One attack on some public pictures."""

    model: str
    data: str
    attack: str
    sent: Sent
    seed: int
    found: tuple[Reconstruction, ...]

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


def write_outcome(outcome: AttackOutcome, folder: Path) -> Path:
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
