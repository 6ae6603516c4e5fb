"""What a linear layer is given in place of a picture: scattering coefficients on a logarithmic scale, normalised.

Each row is prepared from itself and from public constants, so the preparation costs no privacy.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from sordino.data.dataset import Facts
from sordino.errors import UsageError
from sordino.features.pixels import Pixels
from sordino.features.scattering import Scattering2D
from sordino.features.side_by_side import side_by_side

_SMALLEST = 0.02  # a coefficient below this counts as nearly none
_GROUPS = 27
_ROWS = 128  # what lies between pictures and features is never held for more, by each thread
# Means and standard deviations of colours in photographs at large: public, and not those of the data at hand.
_COLOUR_MEAN, _COLOUR_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


@dataclass(frozen=True)
class ScatteringFeatures:
    """Pictures [n, C, M, N] -> features [n, 81 C, M', N'] as float16, whose rounding is far below any private noise.

    Pixels are brought to [0, 1] by their public range, colours are normalised by public constants. Then: scattering,
    sign(S) log(1 + |S| / 0.02), and a normalisation of each row over 27 groups of channels.

    >>> features = ScatteringFeatures(input_shape=(1, 28, 28))
    >>> features(torch.zeros(2, 1, 28, 28, dtype=torch.uint8)).shape, features.output_shape
    (torch.Size([2, 81, 7, 7]), (81, 7, 7))
    """

    version: ClassVar[int] = 1  # raised with any change of the values: a cache of another version is not used
    input_shape: tuple[int, ...]
    input_range: tuple[float, float] | None = None

    def __post_init__(self) -> None:
        if len(self.input_shape) != 3 or self.input_shape[0] not in (1, 3) or min(self.input_shape[1:]) < 5:
            raise UsageError(
                "scattering needs pictures of 1 or 3 channels and at least 5 by 5 pixels, "
                f"got inputs of shape {self.input_shape}."
            )

    @property
    def transform(self) -> Scattering2D:
        return Scattering2D(J=2, L=8, shape=(self.input_shape[1], self.input_shape[2]))

    @property
    def output_shape(self) -> tuple[int, int, int]:
        return self.input_shape[0] * self.transform.channels, *self.transform.places

    def __call__(self, inputs: Tensor) -> Tensor:
        if tuple(inputs.shape[1:]) != self.input_shape:
            raise UsageError(f"inputs must be rows of shape {self.input_shape}, got {tuple(inputs.shape[1:])}.")
        features = torch.empty(len(inputs), *self.output_shape, dtype=torch.float16)

        def prepare_rows(start: int) -> None:
            features[start : start + _ROWS] = self._prepare(inputs[start : start + _ROWS].detach())

        side_by_side(prepare_rows, range(0, len(inputs), _ROWS))
        return features

    def _prepare(self, inputs: Tensor) -> Tensor:
        colours = (_COLOUR_MEAN, _COLOUR_STD) if self.input_shape[0] == 3 else (None, None)
        coefficients = self.transform(Pixels(self.input_range, *colours)(inputs)).flatten(1, 2)
        logarithms = coefficients.sign() * torch.log1p(coefficients.abs() / _SMALLEST)
        return F.group_norm(logarithms, _GROUPS)


def scattering_features(inputs: Tensor, facts: Facts) -> Tensor:
    """The features of pictures: bytes, or numbers in the public range (0..1 where none is declared).

    >>> facts = Facts("pictures", input_shape=(1, 28, 28), num_classes=10)
    >>> scattering_features(torch.zeros(2, 1, 28, 28), facts).dtype
    torch.float16
    """
    return ScatteringFeatures(facts.input_shape, facts.input_range)(inputs)
