"""An attack on public pictures, one after the other: what it was, and what it made of each."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from torch import Tensor

from sordino._input import validate
from sordino.attacks.reconstruction.attack import Attack, Tick, unwatched
from sordino.attacks.reconstruction.estimated import Estimated
from sordino.attacks.reconstruction.known import Known
from sordino.attacks.reconstruction.likeness import Likeness
from sordino.attacks.reconstruction.observed import observe
from sordino.kernel.randomness import Key


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
class Reconstructed:
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
    attack: Attack,
    known: Known,
    pixels: Tensor,
    target: Tensor,
    sent: Sent,
    *,
    rows: Sequence[int],
    seed: int,
    tick: Tick = unwatched,
) -> Iterator[Reconstructed]:
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
        yield Reconstructed(row, Likeness.of(picture, found), seconds, picture[0], found[0])


def mean_error(found: Sequence[Reconstructed]) -> Estimated | None:
    """The mean squared error over pictures, with an interval; None for a single picture."""
    return Estimated.of([one.likeness.mse for one in found]) if len(found) > 1 else None
