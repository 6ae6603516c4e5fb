"""Runs reconstruction attacks on public images, and reports errors with intervals, a gallery and a page."""

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
    """A mean with its 95 % interval (Student's t).

    >>> mean = MeanWithInterval.of([1.0, 2.0, 3.0])
    >>> mean.value, round(mean.low, 2), round(mean.high, 2)
    (2.0, -0.48, 4.48)
    """

    value: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> MeanWithInterval:
        """The mean of at least two values. It is infinite if one of them is not finite."""
        if len(values) < 2:
            raise UsageError(f"an interval needs at least 2 values, got {len(values)}.")
        if not np.isfinite(values).all():
            return cls(math.inf, math.inf, math.inf)
        mean = float(np.mean(values))
        reach = float(student.ppf(0.975, len(values) - 1)) * float(np.std(values, ddof=1)) / math.sqrt(len(values))
        return cls(mean, mean - reach, mean + reach)


@dataclass(frozen=True)
class Sent:
    """How a gradient is changed before it is observed: standard deviation of the noise, and rate of the mask."""

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
    """One image and its reconstruction `found`, both of shape (channels, height, width), pixels from 0 to 1."""

    row: int
    likeness: Likeness
    seconds: float
    picture: Tensor = field(repr=False)
    found: Tensor = field(repr=False)

    def as_dict(self) -> dict[str, Any]:
        """The scores, without images. PSNR is None if the error is zero."""
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
    """Attacks the gradient of each of `rows` separately, and yields each reconstruction when it is done.

    The attack gets the observed gradient only. Image and label serve to compute the gradient and to score the result.
    """
    attack.check(known)
    starts = Key.from_seed(seed).stream("starts")
    for row in rows:
        picture = pixels[row : row + 1]
        gradient = known.gradient(known.normalised(picture), target[row : row + 1])
        observed = observe(gradient, known.layout, noise_std=sent.noise_std, rate=sent.rate, seed=seed, row=row)
        begun = time.monotonic()
        reconstructed = attack.reconstruct(known, observed, starts.named(str(row)), tick)
        seconds = time.monotonic() - begun
        yield Reconstruction(row, Likeness.of(picture, reconstructed), seconds, picture[0], reconstructed[0])


def mean_error(found: Sequence[Reconstruction]) -> MeanWithInterval | None:
    """The mean squared error over images, with an interval; None for a single image."""
    return MeanWithInterval.of([one.likeness.mse for one in found]) if len(found) > 1 else None


_GAP = 2  # pixels between images
_NAMES = 2  # width of the names beside the lines, in widths of an image


def draw_gallery(axes: Axes, columns: Sequence[Sequence[Reconstruction]], names: Sequence[str] = ()) -> None:
    """Draws a line of originals, and below it a line of reconstructions with their errors for each entry of `columns`.

    All entries must be of the same images. `names` stand to the left of each line of reconstructions.
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


HEADINGS = ("row", "MSE", "MSE of mean colors", "PSNR", "SSIM", "seconds")
NO_EPSILON = (
    "Public images only. No epsilon applies: each gradient is of a single example and not clipped. A stronger attack "
    "may reconstruct more."
)


@dataclass(frozen=True)
class AttackOutcome:
    """Results of one attack on some public images."""

    model: str
    data: str
    attack: str
    sent: Sent
    seed: int
    found: tuple[Reconstruction, ...]

    @property
    def headline(self) -> str:
        """The mean error as a sentence."""
        mean = mean_error(self.found)
        number = f"{self.found[0].likeness.mse:.3g}" if mean is None else f"{mean.value:.3g}"
        interval = "" if mean is None else f" ({max(mean.low, 0):.3g} to {mean.high:.3g})"
        images = "1 image" if mean is None else f"{len(self.found)} images"
        return (
            f"Mean squared error {number}{interval} over {images} (attack: {self.attack}; gradient: {self.sent.words})."
        )

    @property
    def rows(self) -> list[tuple[str, ...]]:
        """One table row for each image, under `HEADINGS`."""
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
    """Writes reconstruction.html and reconstruction.json, and returns the page's path."""
    shown = picture(
        "gallery",
        lambda axes: draw_gallery(axes, [outcome.found]),
        caption="Original above, reconstruction below, and its mean squared error.",
        words="; ".join(f"row {row}: error {error}" for row, error, *_ in outcome.rows),
        height=1.8,
    )
    about = paragraphs(
        "The third column is the error of an image that has the original's mean colors and no shapes. A reconstruction "
        "with a larger error shows no shapes."
    )
    html = joined((about, gallery([shown, table(HEADINGS, outcome.rows)])))
    title = f"{outcome.model} on {outcome.data}"
    headline = element("div", paragraphs(outcome.headline, NO_EPSILON))
    text = page("Reconstruction", title, headline, [Section("pictures", "Reconstructed images", html, {}, 10)])
    numbers = json.dumps(outcome.as_dict(), indent=2, allow_nan=False) + "\n"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_atomically(folder / "reconstruction.json", numbers.encode())
        write_atomically(folder / "reconstruction.html", text.encode())
    except OSError as error:
        raise DataError(f"{str(folder)!r} cannot be written to: {error.strerror}.") from None
    return folder / "reconstruction.html"
