"""Pictures as frequencies, evened out: what a convex model on pixels needs to learn in few steps.

Neighbouring pixels are nearly equal, so most of a picture's length lies in a few slow waves, and descent sees the rest
only after thousands of steps, each of which adds noise. In pictures of all kinds the amplitude of a wave falls about
like 1 / frequency (Field 1987); raising it by a power of the frequency, and leaving out the mean, evens this out. The
law is public, and so are all numbers here: nothing is fitted to the data at hand.

Colours of one pixel are nearly equal too. Their sum and two differences (red and blue, green against both) are not, and
the differences are small, so they may be weighted.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.fft import dctn
from torch import Tensor

from sordino._input import validate
from sordino.errors import UsageError
from sordino.models.features.prepared import Pixels

_ROWS = 4096
_MIDDLE_GREY = 0.5
_SMALLEST = 1e-3  # the length of waves that a picture has at least; one pixel that differs by one level has 4e-3


@dataclass(frozen=True)
class Spectrum:
    """Pictures [n, C, M, N] -> cosine coefficients of frequency below `below`, times frequency^`power`, of norm 1.

    Frequencies are in half waves per picture. The mean, frequency 0, is that above or below middle grey, times
    `mean_weight`. Of three channels the differences count `colour_weight` times. A picture without any wave is zero.

    >>> spectrum = Spectrum(input_shape=(1, 28, 28))
    >>> spectrum(torch.zeros(2, 1, 28, 28)).shape, spectrum.output_shape
    (torch.Size([2, 166]), (166,))
    """

    version: ClassVar[int] = 1
    input_shape: tuple[int, ...]
    power: float = 0.5
    below: float = 14.0
    mean_weight: float = 0.0
    colour_weight: float = 1.0
    input_range: tuple[float, float] | None = None

    def __post_init__(self) -> None:
        validate.axes(3, input_shape=self.input_shape)
        validate.between(0, 4, power=self.power)
        validate.between(0, 1e3, mean_weight=self.mean_weight, colour_weight=self.colour_weight)
        validate.positive(below=self.below)
        if not self.below > 1:
            raise UsageError(f"below must be above 1 half wave per picture, got {validate.shown(self.below)}.")

    @property
    def output_shape(self) -> tuple[int]:
        return (self.input_shape[0] * int(self._kept.sum()),)

    @property
    def _squares(self) -> NDArray[np.int64]:
        """Of the frequencies, [M, N]: whole numbers, so that a limit is exact."""
        vertical, horizontal = (np.arange(size, dtype=np.int64) ** 2 for size in self.input_shape[1:])
        return np.add.outer(vertical, horizontal)

    @property
    def _kept(self) -> NDArray[np.bool_]:
        kept: NDArray[np.bool_] = self._squares < self.below**2
        return kept

    @property
    def _weights(self) -> NDArray[np.float64]:
        weights: NDArray[np.float64] = self._squares.astype(np.float64) ** (self.power / 2)
        weights[0, 0] = self.mean_weight
        return weights

    @property
    def _opponents(self) -> NDArray[np.float64]:
        """Brightness, red against blue, green against both: an orthonormal basis, with the differences weighted."""
        basis = np.array([[1.0, 1.0, 1.0], [1.0, 0.0, -1.0], [0.5, -1.0, 0.5]])
        basis /= np.linalg.norm(basis, axis=1, keepdims=True)
        basis[1:] *= self.colour_weight
        return basis

    def __call__(self, inputs: Tensor) -> Tensor:
        if tuple(inputs.shape[1:]) != self.input_shape:
            raise UsageError(f"inputs must be rows of shape {self.input_shape}, got {tuple(inputs.shape[1:])}.")
        return torch.cat(
            [self._prepare(rows) for rows in torch.split(inputs.detach(), _ROWS)] or [self._prepare(inputs)]
        )

    def _prepare(self, inputs: Tensor) -> Tensor:
        pixels = Pixels(self.input_range)(inputs).double().numpy() - _MIDDLE_GREY
        if self.input_shape[0] == 3:
            pixels = np.einsum("oc,ncij->noij", self._opponents, pixels)
        waves = dctn(pixels, axes=(-2, -1), norm="ortho")
        evened = (waves * self._weights)[:, :, self._kept].reshape(len(inputs), -1)
        lengths = np.linalg.norm(evened, axis=1, keepdims=True)
        return torch.from_numpy(evened / np.maximum(lengths, _SMALLEST)).to(torch.float16)
