"""Keys of results: the settings that decide a measurement, written as JSON.

A run is found again by its key, so a key must outlive the code:

* It names fields, never Python classes. Where values of several classes can stand in one place, each class declares a
  short `kind`; classes of the library have theirs in `KINDS`. A class can be renamed or moved and keeps its results.
* A field that equals its default is left out. A field that is added later, with a default that does what was done
  before, changes no key.
* So a default must not change once results are kept, nor the name of a field: rewrite `results/` if it has to. A test
  compares the defaults with those that results were kept with.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, Field, fields, is_dataclass
from enum import Enum
from typing import Any

from sordino.attacks.reconstruction import GradientInversion
from sordino.attacks.reconstruction.gallery import Sent
from sordino.convex import Linear, NoisyCGD
from sordino.convex.random_features import GatedFeatures, RandomFourier, RandomReLU
from sordino.effects.input_attacks import LInfinity
from sordino.encodings import ConstantRate, Cooling, Neurons, Weights
from sordino.kernel.augmentation import Crop, Flip, Views
from sordino.kernel.sampling import Cyclic, Shuffled
from sordino.optimized_noise.costs import AbsoluteCost
from sordino.optimized_noise.sources import Flat, FromReleases
from sordino.recipes import Recipe
from sordino.training.transfer import AllParameters, BiasOnly, EmbeddingPerturbation, LinearProbe

KINDS: dict[type, str | None] = {
    LInfinity: "l-infinity",
    Cooling: "cooling",
    ConstantRate: "constant",
    Weights: "weights",
    Neurons: "neurons",
    Views: None,
    Flip: "flip",
    Crop: "crop",
    Shuffled: "shuffled",
    Cyclic: "cyclic",
    NoisyCGD: None,
    Linear: "linear",
    GatedFeatures: "gated",
    RandomReLU: "random-relu",
    RandomFourier: "random-fourier",
    LinearProbe: "linear-probe",
    BiasOnly: "biases",
    AllParameters: "everything",
    EmbeddingPerturbation: None,
    Flat: "flat",
    FromReleases: "past-releases",
    AbsoluteCost: "absolute",
    GradientInversion: None,
    Sent: None,
    Recipe: None,
}
"""Kinds of the library's classes; None where no other class can stand in the same place."""


def as_key(value: object) -> Any:
    """Writes a value as JSON. A dataclass becomes its kind, if it has one, and the fields that differ from their
    defaults.

    >>> from sordino.kernel.augmentation import Crop, Flip, Views
    >>> as_key(Views(4, (Flip(), Crop(4))))
    {'number': 4, 'transforms': [{'kind': 'flip'}, {'kind': 'crop', 'padding': 4}]}
    >>> as_key({"rate": 0.5, "wires": ("dense",), "seed": None})
    {'rate': 0.5, 'wires': ['dense'], 'seed': None}
    """
    if isinstance(value, Enum):
        return as_key(value.value)
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Mapping):
        return {str(name): as_key(each) for name, each in value.items()}
    if isinstance(value, Sequence):
        return [as_key(each) for each in value]
    if is_dataclass(value) and not isinstance(value, type):
        kind = kind_of(type(value))
        named = {} if kind is None else {"kind": kind}
        found = {field.name: (getattr(value, field.name), default_of(field)) for field in fields(value)}
        return named | {name: as_key(each) for name, (each, default) in found.items() if each != default}
    raise TypeError(f"a key is made of numbers, strings, sequences, mappings and dataclasses, got {value!r:.80}.")


def kind_of(cls: type) -> str | None:
    """The kind that a class declares. A subclass must declare its own, so that it is not taken for its base class."""
    if cls in KINDS:
        return KINDS[cls]
    if "kind" in vars(cls):
        return str(vars(cls)["kind"])
    if hasattr(cls, "kind"):
        raise TypeError(f"{cls.__name__} must declare a `kind` of its own: it would pass for another class in a key.")
    if cls.__module__.startswith("sordino."):
        raise TypeError(f"{cls.__name__} must be in KINDS before a key can hold it.")
    return None


def default_of(field: Field[Any]) -> Any:
    """The default of a field, or `MISSING`, which equals no value."""
    return field.default if field.default_factory is MISSING else field.default_factory()
