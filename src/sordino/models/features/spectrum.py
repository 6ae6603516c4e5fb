"""`Spectrum`: weighted cosine coefficients of images, with which convex models on pixels learn in fewer steps.

Neighboring pixels are nearly equal, so a few low frequencies have most of the norm of an image, and gradient descent
learns the others only after thousands of steps, each of which adds noise. In natural images the amplitude falls about
like 1 / frequency (Field 1987). Multiplying by a power of the frequency and removing the mean compensates for this. All
constants are public: nothing is fitted to the dataset.

Color channels of one pixel are nearly equal too. So they are replaced by their sum and two differences (red - blue, and
green against both), which may be weighted because they are small.
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
_MIDDLE_GRAY = 0.5
_SMALLEST = 1e-3  # smallest norm that is divided by; a single pixel that differs by one level has norm 4e-3


@dataclass(frozen=True)
class Spectrum:
    """Cosine coefficients of images [n, C, M, N] at frequencies below `below`, times frequency^`power`, of norm 1.

    Frequencies are in half waves per image. The coefficient of frequency 0, the mean minus middle gray, is multiplied
    by `mean_weight`. Differences of color channels are multiplied by `colour_weight`. A constant image becomes zero.

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
            raise UsageError(f"below must be above 1 half wave per image, got {validate.shown(self.below)}.")

    @property
    def output_shape(self) -> tuple[int]:
        return (self.input_shape[0] * int(self._kept.sum()),)

    @property
    def _squares(self) -> NDArray[np.int64]:
        """Squared frequencies [M, N] as integers, so that the comparison with a limit is exact."""
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
        """Orthonormal basis of brightness, red - blue, and green against both, with weighted differences."""
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
        pixels = Pixels(self.input_range)(inputs).double().numpy() - _MIDDLE_GRAY
        if self.input_shape[0] == 3:
            pixels = np.einsum("oc,ncij->noij", self._opponents, pixels)
        waves = dctn(pixels, axes=(-2, -1), norm="ortho")
        evened = (waves * self._weights)[:, :, self._kept].reshape(len(inputs), -1)
        lengths = np.linalg.norm(evened, axis=1, keepdims=True)
        return torch.from_numpy(evened / np.maximum(lengths, _SMALLEST)).to(torch.float16)
