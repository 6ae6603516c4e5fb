"""Inputs prepared for a network by public facts: pixels, opponent colors, normalized scattering coefficients.

Each row is prepared from itself and from public constants, so the preparation costs no privacy.

Opponent colors: red, green and blue are strongly correlated in photographs, so differences of color are small compared
with brightness. Along the axes brightness, red - blue and green - (red + blue) / 2 colors are almost uncorrelated
(Ohta, Kanade and Sakai 1980). The axes and their scales are public constants of photographs in general.
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

_MEAN = (0.485, 0.456, 0.406)  # mean of red, green and blue in ImageNet, on the scale from 0 to 1
_AXES = ((1.0, 1.0, 1.0), (1.0, 0.0, -1.0), (-1.0, 2.0, -1.0))
# Standard deviations along the axes, relative to brightness: the square roots of the published variances of ImageNet
# along its principal color axes (0.2175, 0.0188 and 0.0045), which are nearly these axes, rounded.
_SPREAD = (1.0, 0.3, 0.15)


def opponent(pixels: Tensor) -> Tensor:
    """Opponent colors of RGB pixels [n, 3, ...] on the scale from 0 to 1, with about the same variance in each channel.

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
    """Scales inputs from their public range to [0, 1], then normalizes by public `mean` and `std`, as float32.

    Without a declared range, bytes range from 0 to 255, and other inputs are not scaled. `mean` and `std` are on the
    scale from 0 to 1, one for each channel or one for all.

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
            pixels.clamp_(low, high)  # values outside the public range are not used
        pixels.sub_(low).div_(high - low)
        if self.mean is not None:
            pixels.sub_(_by_channel(self.mean, pixels))
        if self.std is not None:
            pixels.div_(_by_channel(self.std, pixels))
        return pixels


def _by_channel(constants: tuple[float, ...], pixels: Tensor) -> Tensor:
    """Constants per channel as a tensor [1, channels, 1, ...]."""
    if len(constants) not in (1, pixels.shape[1]):
        raise UsageError(f"mean and std must have 1 or {pixels.shape[1]} constants (channels), got {len(constants)}.")
    return torch.tensor(constants).reshape(1, -1, *(1,) * (pixels.ndim - 2))


_SMALLEST = 0.02  # scale of the logarithm: coefficients well below this have little effect
_GROUPS = 27
_DRAWN = 1000  # synthetic images from which constants are computed
_ROWS = 128  # images per call and thread, which bounds the memory of intermediate results
# Means and standard deviations of colors in ImageNet: public, and not computed from the dataset.
_COLOUR_MEAN, _COLOUR_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


@dataclass(frozen=True)
class ScatteringFeatures:
    """Scattering features of images, [n, C, M, N] -> [n, 81 C, M', N'], as float16.

    Pixels are scaled to [0, 1] by their public range, colors are normalized by public constants. Then: scattering
    coefficients S, sign(S) log(1 + |S| / 0.02), and group normalization of each row over 27 groups of channels.

    >>> features = ScatteringFeatures(input_shape=(1, 28, 28))
    >>> features(torch.zeros(2, 1, 28, 28, dtype=torch.uint8)).shape, features.output_shape
    (torch.Size([2, 81, 7, 7]), (81, 7, 7))
    """

    version: ClassVar[int] = 1  # increased with every change of the values: caches of other versions are not used
    input_shape: tuple[int, ...]
    input_range: tuple[float, float] | None = None

    def __post_init__(self) -> None:
        needed = "scattering needs images with 1 or 3 channels and at least 5x5 pixels"
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
        normalize = self._normalization()  # before threads begin: its constants may take seconds to compute

        def prepare_rows(start: int) -> None:
            features[start : start + _ROWS] = normalize(self._coefficients(inputs[start : start + _ROWS].detach()))

        side_by_side(prepare_rows, range(0, len(inputs), _ROWS))
        return features

    def _coefficients(self, inputs: Tensor) -> Tensor:
        colours = (_COLOUR_MEAN, _COLOUR_STD) if self.input_shape[0] == 3 else (None, None)
        return self.transform(Pixels(self.input_range, *colours)(inputs)).flatten(1, 2)

    def _normalization(self) -> Callable[[Tensor], Tensor]:
        return _of_rows


@dataclass(frozen=True)
class GroupedScattering(ScatteringFeatures):
    """Scattering features without the logarithm, as in Tramèr and Boneh (2021).

    >>> features = GroupedScattering(input_shape=(1, 28, 28))
    >>> features(torch.zeros(2, 1, 28, 28, dtype=torch.uint8)).shape
    torch.Size([2, 81, 7, 7])
    """

    def _normalization(self) -> Callable[[Tensor], Tensor]:
        return lambda coefficients: F.group_norm(coefficients, _GROUPS)


@dataclass(frozen=True)
class StandardisedScattering(ScatteringFeatures):
    """Scattering of opponent colors, with channels normalized by means and variances of synthetic images.

    Tramèr and Boneh (2021) use red, green and blue, and noisy moments of the private images. The moments of dead-leaves
    images cost no privacy, and are close to those of photographs.

    >>> features = StandardisedScattering(input_shape=(3, 32, 32))
    >>> features(torch.zeros(2, 3, 32, 32, dtype=torch.uint8)).shape
    torch.Size([2, 243, 8, 8])
    """

    version: ClassVar[int] = 2

    def _coefficients(self, inputs: Tensor) -> Tensor:
        pixels = Pixels(self.input_range)(inputs)
        return self.transform(opponent(pixels) if self.input_shape[0] == 3 else pixels).flatten(1, 2)

    def _normalization(self) -> Callable[[Tensor], Tensor]:
        mean, std = _moments_of_drawn(self.input_shape)
        return lambda coefficients: (coefficients - mean) / std


class _Coefficients(StandardisedScattering):
    """Scattering coefficients without normalization."""

    def _normalization(self) -> Callable[[Tensor], Tensor]:
        return lambda coefficients: coefficients


def _of_rows(coefficients: Tensor) -> Tensor:
    logarithms = coefficients.sign() * torch.log1p(coefficients.abs() / _SMALLEST)
    return F.group_norm(logarithms, _GROUPS)


@lru_cache(maxsize=8)
def _moments_of_drawn(input_shape: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """Means and standard deviations by channel, shape (1, channels, 1, 1), rounded so that they agree on all machines.

    The moments of brightness are used for all three axes: photographs have about equal variance along them, and colors
    of synthetic images differ from those of photographs.
    """
    pictures = DeadLeaves(input_shape).draw(_DRAWN, torch.Generator().manual_seed(0)).pictures
    coefficients = _Coefficients(input_shape)
    brightness = coefficients(pictures)[:, : coefficients.transform.channels]
    std, mean = torch.std_mean(brightness.double(), dim=(0, 2, 3), keepdim=True)
    return _rounded(mean).repeat(1, input_shape[0], 1, 1), _rounded(std).repeat(1, input_shape[0], 1, 1)


def _rounded(numbers: Tensor) -> Tensor:
    return torch.tensor([float(f"{number:.3g}") for number in numbers.flatten().tolist()]).reshape(numbers.shape)


def scattering_features(inputs: Tensor, facts: Facts) -> Tensor:
    """Scattering features of images, as bytes or as floats in the public range (0 to 1 if none is declared).

    >>> facts = Facts("pictures", input_shape=(1, 28, 28), num_classes=10)
    >>> scattering_features(torch.zeros(2, 1, 28, 28), facts).dtype
    torch.float16
    """
    return ScatteringFeatures(facts.input_shape, facts.input_range)(inputs)
