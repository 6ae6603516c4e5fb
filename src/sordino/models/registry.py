"""Networks by name: the input shapes that each accepts, its feature transform, and its weights from a seed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from difflib import get_close_matches
from math import prod
from typing import Protocol

import torch
from torch import Tensor, nn

from sordino._input import validate
from sordino.data.dataset import Facts
from sordino.errors import UsageError
from sordino.models.features import GroupedScattering, Pixels, ScatteringFeatures, StandardisedScattering, cached
from sordino.models.resnet import resnet18, resnet20, resnet34
from sordino.models.small_networks import (
    ScatterLinear,
    cnn,
    dp_cnn,
    dp_cnn_small,
    h_cnn,
    h_cnn_small,
    lenet,
    linear,
    table_network,
    two_layer,
)
from sordino.models.transformer import PATCH, vit, vit_small

Shape = tuple[int, ...]
Features = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Built:
    """A network with its initial weights, and the public feature transform of its inputs, or None."""

    module: nn.Module
    features: Features | None

    def prepare(self, inputs: Tensor, *, progress: bool = True) -> Tensor:
        """Inputs of the network for raw rows. Scattering features are cached on disk."""
        if self.features is None:
            return inputs
        if isinstance(self.features, ScatteringFeatures):
            return cached(self.features, inputs, progress=progress)
        return self.features(inputs)


def build(name: str, facts: Facts, *, seed: int) -> Built:
    """Builds the network `name` for data with these facts. The same seed gives the same weights.

    >>> built = build("scatter-linear", Facts("mnist", (1, 28, 28), 10, (0.0, 255.0)), seed=0)
    >>> pictures = torch.zeros(2, 1, 28, 28, dtype=torch.uint8)
    >>> built.module(built.features(pictures)).shape
    torch.Size([2, 10])
    """
    if name not in _MODELS:
        close = get_close_matches(str(name), _MODELS, n=1)
        hint = f"did you mean {close[0]!r}?" if close else f"there are {', '.join(_MODELS)}."
        raise UsageError(f"there is no model {validate.option(name)}: {hint}")
    validate.count(at_least=0, at_most=2**63 - 1, seed=seed)
    model = _MODELS[name]
    if not model.needs.holds(facts.input_shape):
        found = f"the inputs of {facts.name!r} have shape {facts.input_shape}"
        raise UsageError(f"{name!r} needs {model.needs.what}, but {found}.")
    if facts.num_classes is None and not model.is_for_regression:
        raise UsageError(f"{name!r} needs classes, but the target of {facts.name!r} is a number.")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        module = model.make(facts.input_shape, 1 if facts.num_classes is None else facts.num_classes)
    if facts.num_classes is None:
        module = nn.Sequential(module, nn.Flatten(0))  # one output per row, in the shape of the target
    return Built(module, model.prepared(facts))


def names() -> tuple[tuple[str, str], ...]:
    """Names of all networks, each with a description.

    >>> [name for name, _ in names()][:4]
    ['linear', 'two-layer', 'mlp', 'scatter-linear']
    """
    return tuple((name, model.description) for name, model in _MODELS.items())


@dataclass(frozen=True)
class _Needs:
    """The input shapes that a network accepts, in words and as a predicate."""

    what: str
    holds: Callable[[Shape], bool]


class _Make(Protocol):
    def __call__(self, input_shape: Shape, outputs: int, /) -> nn.Module: ...


@dataclass(frozen=True)
class _Model:
    description: str
    needs: _Needs
    make: _Make
    prepared: Callable[[Facts], Features | None]
    is_for_regression: bool = False


def pixels(facts: Facts) -> Features | None:
    """Scaling of images to the usual range of networks, or None for tables, whose columns are scaled by the schema."""
    is_image = len(facts.input_shape) == 3
    if not is_image and facts.mean is None and facts.std is None:
        return None
    return Pixels(facts.input_range, facts.mean, facts.std)


def _scattering(facts: Facts) -> ScatteringFeatures:
    return ScatteringFeatures(facts.input_shape, facts.input_range)


def _grouped(facts: Facts) -> GroupedScattering:
    return GroupedScattering(facts.input_shape, facts.input_range)


def _standardised(facts: Facts) -> StandardisedScattering:
    return StandardisedScattering(facts.input_shape, facts.input_range)


def _is_image(shape: Shape) -> bool:
    return len(shape) == 3 and shape[0] in (1, 3)


_ANY = _Needs("inputs of any shape", lambda shape: True)
_GRAY_28 = _Needs("gray images of shape (1, 28, 28)", lambda shape: shape == (1, 28, 28))
_COLOR_32 = _Needs("color images of shape (3, 32, 32)", lambda shape: shape == (3, 32, 32))
_28_OR_32 = _Needs(
    "images of 28x28 or 32x32 pixels with 1 or 3 channels",
    lambda shape: _is_image(shape) and shape[1:] in ((28, 28), (32, 32)),
)
_IMAGES = _Needs(
    "images with 1 or 3 channels and at least 8x8 pixels",
    lambda shape: _is_image(shape) and min(shape[1:]) >= 8,
)
_PATCHES = _Needs(
    f"images with 1 or 3 channels and sides divisible by {PATCH}",
    lambda shape: _is_image(shape) and min(shape[1:]) >= PATCH and shape[1] % PATCH == shape[2] % PATCH == 0,
)

_MODELS = {
    "linear": _Model(
        "linear layer (logistic or linear regression)",
        _ANY,
        lambda shape, outputs: linear(prod(shape), outputs),
        pixels,
        is_for_regression=True,
    ),
    "two-layer": _Model(
        "ReLU network with one hidden layer of width 512",
        _ANY,
        lambda shape, outputs: two_layer(prod(shape), outputs),
        pixels,
        is_for_regression=True,
    ),
    "mlp": _Model(
        "two hidden layers of width 64 with tanh, for tables",
        _ANY,
        lambda shape, outputs: table_network(prod(shape), outputs),
        pixels,
        is_for_regression=True,
    ),
    "scatter-linear": _Model(
        "linear layer on scattering features of images: 39,700 parameters at 1x28x28, 155,530 at 3x32x32",
        _IMAGES,
        lambda shape, outputs: ScatterLinear(ScatteringFeatures(shape).output_shape, outputs),
        _scattering,
    ),
    "h-cnn-s": _Model(
        "two convolutions on scattering features, for gray 28x28 images: 33,066 parameters",
        _GRAY_28,
        lambda shape, outputs: h_cnn_small(outputs),
        _grouped,
    ),
    "h-cnn": _Model(
        "two convolutions on scattering features, for color 32x32 images: 187,210 parameters",
        _COLOR_32,
        lambda shape, outputs: h_cnn(outputs),
        _standardised,
    ),
    "dp-cnn-s": _Model(
        "two convolutions with tanh, for gray 28x28 images: 26,010 parameters",
        _GRAY_28,
        lambda shape, outputs: dp_cnn_small(outputs),
        pixels,
    ),
    "dp-cnn": _Model(
        "six convolutions with tanh, for color 32x32 images: 550,570 parameters",
        _COLOR_32,
        lambda shape, outputs: dp_cnn(outputs),
        pixels,
    ),
    "cnn": _Model(
        "two convolutions with tanh, for small images, such as 16x16: 21,546 parameters in gray",
        _IMAGES,
        lambda shape, outputs: cnn(shape[0], shape[1], shape[2], outputs),
        pixels,
    ),
    "lenet": _Model(
        "LeNet-5 with tanh, for 28x28 or 32x32 images: 61,706 parameters in gray, 62,006 in color",
        _28_OR_32,
        lambda shape, outputs: lenet(shape[0], shape[1], outputs),
        pixels,
    ),
    "vit-s": _Model(
        "vision transformer, two blocks of width 64, for gray 28x28 images: 104,970 parameters",
        _GRAY_28,
        lambda shape, outputs: vit_small(outputs),
        pixels,
    ),
    "vit": _Model("vision transformer, four blocks of width 128 on patches of 4x4 pixels", _PATCHES, vit, pixels),
    "resnet-20": _Model(
        "ResNet-20 with GroupNorm, 16 to 64 channels: 269,722 parameters in color",
        _IMAGES,
        lambda shape, outputs: resnet20(shape[0], outputs),
        pixels,
    ),
    "resnet-18": _Model(
        "ResNet-18 with GroupNorm, 64 to 512 channels: 11,173,962 parameters in color",
        _IMAGES,
        lambda shape, outputs: resnet18(shape[0], outputs),
        pixels,
    ),
    "resnet-34": _Model(
        "ResNet-34 with GroupNorm, 64 to 512 channels: 21,282,122 parameters in color",
        _IMAGES,
        lambda shape, outputs: resnet34(shape[0], outputs),
        pixels,
    ),
}
