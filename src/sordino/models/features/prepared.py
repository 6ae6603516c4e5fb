"""Inputs prepared for a network by public facts: pixels, opponent colors, normalized scattering coefficients.

Colours by the axes along which they vary in photographs: brightness, red against blue, green against both.

Red, green and blue mostly rise and fall together, so that what sets a colour apart is lost beside its brightness. Along
these axes it is not (Ohta, Kanade and Sakai 1980). They are as public as the colours of photographs at large.

Pixels on the scale that networks are made for, by public facts alone.

What a linear layer is given in place of a picture: scattering coefficients on a logarithmic scale, normalised.

Each row is prepared from itself and from public constants, so the preparation costs no privacy.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from sordino._input import validate
from sordino.data.dataset import Facts
from sordino.data.synthetic import DeadLeaves
from sordino.errors import UsageError
from sordino.models.features.cache import side_by_side
from sordino.models.features.scattering import Scattering2D

_MEAN = (0.485, 0.456, 0.406)  # of red, green and blue in photographs at large, on the scale from 0 to 1
_AXES = ((1.0, 1.0, 1.0), (1.0, 0.0, -1.0), (-1.0, 2.0, -1.0))
# Of colours along the axes, in that of brightness: the roots of the variances that are published for ImageNet along
# its principal axes of colour, which are nearly these (0.2175, 0.0188 and 0.0045), rounded.
_SPREAD = (1.0, 0.3, 0.15)


def opponent(pixels: Tensor) -> Tensor:
    """Red, green and blue [n, 3, ...] on the scale from 0 to 1, along the three axes, about as wide along each.

    >>> grey, red = torch.full((3, 1), 0.5), torch.tensor([[1.0], [0.0], [0.0]])
    >>> opponent(torch.stack([grey, red])).squeeze().round(decimals=1)
    tensor([[ 0.1000, -0.2000, -0.1000],
            [-0.2000,  2.2000, -2.8000]])
    """
    axes = torch.tensor(_AXES)
    axes = axes / axes.norm(dim=1, keepdim=True) / torch.tensor(_SPREAD)[:, None]
    mean = torch.tensor(_MEAN).reshape(3, *(1,) * (pixels.ndim - 2))
    return torch.einsum("ac,nc...->na...", axes, pixels - mean)


_BYTES = (0.0, 255.0)


@dataclass(frozen=True)
class Pixels:
    """Inputs brought from their public range to [0, 1], then normalised by public constants, as float32.

    Bytes without a declared range are from 0 to 255; other inputs without one stay as they are. `mean` and `std` are on
    the scale from 0 to 1, one for each channel or one for all.

    >>> Pixels(mean=(0.5,), std=(0.25,))(torch.tensor([[0, 255]], dtype=torch.uint8))
    tensor([[-2.,  2.]])
    """

    input_range: tuple[float, float] | None = None
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        if self.input_range is not None:
            validate.interval(-3e38, 3e38, input_range=self.input_range)
        validate.instance((tuple, list, type(None)), mean=self.mean, std=self.std)
        validate.positive(**{f"std[{channel}]": std for channel, std in enumerate(self.std or ())})

    def __call__(self, inputs: Tensor) -> Tensor:
        low, high = self.input_range or (_BYTES if inputs.dtype == torch.uint8 else (0.0, 1.0))
        pixels = inputs.to(torch.float32, copy=True)
        if self.input_range is not None:
            pixels.clamp_(low, high)  # the range is public, whatever a record holds
        pixels.sub_(low).div_(high - low)
        if self.mean is not None:
            pixels.sub_(_by_channel(self.mean, pixels))
        if self.std is not None:
            pixels.div_(_by_channel(self.std, pixels))
        return pixels


def _by_channel(constants: tuple[float, ...], pixels: Tensor) -> Tensor:
    """[1, channels, 1, ...]"""
    if len(constants) not in (1, pixels.shape[1]):
        raise UsageError(f"there must be a constant for each of {pixels.shape[1]} channels, got {len(constants)}.")
    return torch.tensor(constants).reshape(1, -1, *(1,) * (pixels.ndim - 2))


_SMALLEST = 0.02  # a coefficient below this counts as nearly none
_GROUPS = 27
_DRAWN = 1000  # pictures that constants are taken from
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
        needed = "scattering needs pictures of 1 or 3 channels and at least 5 by 5 pixels"
        if not isinstance(self.input_shape, tuple) or len(self.input_shape) != 3:
            raise UsageError(f"{needed}, got input_shape of {validate.described(self.input_shape)}.")
        validate.axes(3, input_shape=self.input_shape)
        if self.input_shape[0] not in (1, 3) or min(self.input_shape[1:]) < 5:
            raise UsageError(f"{needed}, got inputs of shape {self.input_shape}.")

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
        normalised = self._normalisation()  # before threads begin: its constants may take seconds

        def prepare_rows(start: int) -> None:
            features[start : start + _ROWS] = normalised(self._coefficients(inputs[start : start + _ROWS].detach()))

        side_by_side(prepare_rows, range(0, len(inputs), _ROWS))
        return features

    def _coefficients(self, inputs: Tensor) -> Tensor:
        colours = (_COLOUR_MEAN, _COLOUR_STD) if self.input_shape[0] == 3 else (None, None)
        return self.transform(Pixels(self.input_range, *colours)(inputs)).flatten(1, 2)

    def _normalisation(self) -> Callable[[Tensor], Tensor]:
        return _of_rows


@dataclass(frozen=True)
class GroupedScattering(ScatteringFeatures):
    """The same without the logarithm, as Tramèr and Boneh (2021) have it: large coefficients keep their weight.

    >>> features = GroupedScattering(input_shape=(1, 28, 28))
    >>> features(torch.zeros(2, 1, 28, 28, dtype=torch.uint8)).shape
    torch.Size([2, 81, 7, 7])
    """

    def _normalisation(self) -> Callable[[Tensor], Tensor]:
        return lambda coefficients: F.group_norm(coefficients, _GROUPS)


@dataclass(frozen=True)
class StandardisedScattering(ScatteringFeatures):
    """Scattering of colours along the axes of `opponent`, each channel with mean 0 and variance 1: in drawn pictures.

    Tramèr and Boneh (2021) scatter red, green and blue, and take the moments of the private pictures, with noise. Those
    of dead leaves cost nothing, and are near those of photographs, channel by channel.

    >>> features = StandardisedScattering(input_shape=(3, 32, 32))
    >>> features(torch.zeros(2, 3, 32, 32, dtype=torch.uint8)).shape
    torch.Size([2, 243, 8, 8])
    """

    version: ClassVar[int] = 2

    def _coefficients(self, inputs: Tensor) -> Tensor:
        pixels = Pixels(self.input_range)(inputs)
        return self.transform(opponent(pixels) if self.input_shape[0] == 3 else pixels).flatten(1, 2)

    def _normalisation(self) -> Callable[[Tensor], Tensor]:
        mean, std = _moments_of_drawn(self.input_shape)
        return lambda coefficients: (coefficients - mean) / std


class _Coefficients(StandardisedScattering):
    """As the transform gives them."""

    def _normalisation(self) -> Callable[[Tensor], Tensor]:
        return lambda coefficients: coefficients


def _of_rows(coefficients: Tensor) -> Tensor:
    logarithms = coefficients.sign() * torch.log1p(coefficients.abs() / _SMALLEST)
    return F.group_norm(logarithms, _GROUPS)


@lru_cache(maxsize=8)
def _moments_of_drawn(input_shape: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """Means and standard deviations by channel, shape (1, channels, 1, 1), rounded so that all machines agree.

    They are those of brightness, and serve for all axes, along which photographs are about as wide. Colours of drawn
    pictures are not those of photographs.
    """
    pictures = DeadLeaves(input_shape).draw(_DRAWN, torch.Generator().manual_seed(0)).pictures
    coefficients = _Coefficients(input_shape)
    of_brightness = coefficients(pictures)[:, : coefficients.transform.channels]
    std, mean = torch.std_mean(of_brightness.double(), dim=(0, 2, 3), keepdim=True)
    return _rounded(mean).repeat(1, input_shape[0], 1, 1), _rounded(std).repeat(1, input_shape[0], 1, 1)


def _rounded(numbers: Tensor) -> Tensor:
    return torch.tensor([float(f"{number:.3g}") for number in numbers.flatten().tolist()]).reshape(numbers.shape)


def scattering_features(inputs: Tensor, facts: Facts) -> Tensor:
    """The features of pictures: bytes, or numbers in the public range (0..1 where none is declared).

    >>> facts = Facts("pictures", input_shape=(1, 28, 28), num_classes=10)
    >>> scattering_features(torch.zeros(2, 1, 28, 28), facts).dtype
    torch.float16
    """
    return ScatteringFeatures(facts.input_shape, facts.input_range)(inputs)
