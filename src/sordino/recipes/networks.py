"""Networks by name: those of `sordino.models`, and convex ones.

A convex network is linear in its trained weights, on features whose norm has a public bound. NoisyCGD needs such a
network; DP-SGD trains it like any other.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor, nn

from sordino import models
from sordino.convex.model import ConvexModel, PairedReLU
from sordino.data import Facts
from sordino.models import Built
from sordino.models.features import ScatteringFeatures, Spectrum
from sordino.models.registry import pixels

Features = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class WithConstant:
    """Clamps the rows of a table to their public range, and appends a constant 1, which gives gates and maps an offset.

    >>> WithConstant((-1.0, 1.0))(torch.tensor([[0.5, 7.0]]))
    tensor([[0.5000, 1.0000, 1.0000]])
    """

    input_range: tuple[float, float] | None = None

    def __call__(self, inputs: Tensor) -> Tensor:
        rows = inputs.flatten(1).to(torch.float32)
        if self.input_range is not None:
            rows = rows.clamp(*self.input_range)
        return torch.cat([rows, torch.ones(len(rows), 1)], dim=1)


@dataclass(frozen=True)
class OneNumber:
    """A convex regression model: one output per row, of shape (rows,) like its target.

    >>> OneNumber(PairedReLU(8)).build(inputs=5, outputs=1)(torch.randn(2, 5)).shape
    torch.Size([2])
    """

    model: ConvexModel

    @property
    def feature_bound(self) -> float:
        return self.model.feature_bound

    def build(self, inputs: int, outputs: int) -> nn.Module:
        return nn.Sequential(self.model.build(inputs, outputs), nn.Flatten(0))


@dataclass(frozen=True)
class _Convex:
    """A convex network: its description, and its feature transform with the number of features."""

    description: str
    prepared: Callable[[Facts], tuple[Features, int]]


def _waves_or_columns(facts: Facts) -> tuple[Features, int]:
    if len(facts.input_shape) != 3:
        return WithConstant(facts.input_range), prod(facts.input_shape) + 1
    spectrum = _color_spectrum(facts) if facts.input_shape[0] == 3 else _gray_spectrum(facts)
    return spectrum, prod(spectrum.output_shape)


# These constants were chosen with `sordino reproduce hidden-state`.
def _gray_spectrum(facts: Facts) -> Spectrum:
    return Spectrum(facts.input_shape, power=0.75, below=10.0, input_range=facts.input_range)


def _color_spectrum(facts: Facts) -> Spectrum:
    return Spectrum(facts.input_shape, 0.5, 6.0, mean_weight=0.5, colour_weight=4.0, input_range=facts.input_range)


def _scattering(facts: Facts) -> tuple[Features, int]:
    features = ScatteringFeatures(facts.input_shape, facts.input_range)
    return features, prod(features.output_shape)


_CONVEX = {
    "gated-relu": _Convex("a convex ReLU network: linear maps with fixed random gates", _waves_or_columns),
    "scatter-gated": _Convex("a convex ReLU network on scattering features of images", _scattering),
}
CONVEX_NAMES = tuple(_CONVEX)


def names() -> tuple[tuple[str, str], ...]:
    """Names of all networks, each with a description.

    >>> [name for name, _ in names()][-2:]
    ['gated-relu', 'scatter-gated']
    """
    return *models.names(), *((name, convex.description) for name, convex in _CONVEX.items())


def convex_model(facts: Facts, *, gates: int | None, seed: int) -> ConvexModel:
    """The convex model of a convex network. Its gates are drawn from the seed, and are public."""
    model = PairedReLU(seed=seed) if gates is None else PairedReLU(gates, seed)
    return OneNumber(model) if facts.num_classes is None else model


def build(name: str, facts: Facts, *, seed: int, gates: int | None = None) -> Built:
    """Builds the network `name` for data with these facts. `gates` is for convex networks, whose weights begin at 0.

    `MODULE:FUNCTION` and `timm:NAME` are networks of other code.

    >>> built = build("gated-relu", Facts("people", (4,), 2, (-1.0, 1.0)), seed=0, gates=8)
    >>> built.module(built.prepare(torch.zeros(3, 4))).shape
    torch.Size([3, 2])
    """
    if ":" in name:
        return _own(name, facts, seed)
    if name not in _CONVEX:
        return models.build(name, facts, seed=seed)
    features, size = _CONVEX[name].prepared(facts)
    model = convex_model(facts, gates=gates, seed=seed)
    return Built(model.build(size, facts.num_classes or 1), features)


def _own(name: str, facts: Facts, seed: int) -> Built:
    """A network that the user named, on images as all networks here get them: scaled by public constants."""
    from sordino.recipes.named_code import named_model

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Built(named_model(name, facts), pixels(facts))


def network_inputs(built: Built, facts: Facts, raw: Tensor, *, progress: bool = False) -> Tensor:
    """Prepared rows for a network: its features if it has any, otherwise rows clamped to their public range.

    Values that are not finite stay so: the row counts as absent.
    """
    if raw.dtype != torch.uint8:
        raw = raw.to(torch.float32)  # as all rows are that are not mapped from a file
    prepared = built.prepare(raw, progress=progress)
    if built.features is not None or facts.input_range is None:
        return prepared
    return prepared.clamp(*facts.input_range)


def prepared_by(built: Built) -> str:
    """Identity of the feature transform of a network: a string that changes whenever the features change.

    Weights load into any network of the right shapes, so nothing else detects a model that was trained on other
    features.

    >>> prepared_by(build("two-layer", Facts("digits", (1, 8, 8), 10, (0.0, 16.0)), seed=0))
    'Pixels(input_range=(0.0, 16.0), mean=None, std=None), version 1'
    """
    if built.features is None:
        return "nothing"
    return f"{built.features!r}, version {getattr(built.features, 'version', 1)}"
