"""Inputs of the methods: images after a public transform, computed once."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

from torch import Tensor

from sordino.data import Facts, load
from sordino.errors import DataError
from sordino.models.features import ScatteringFeatures, Spectrum, cached
from sordino.models.features.cache import FeatureTransform
from sordino.training.evaluation import Public
from sordino_papers.harness.rows import ExperimentRows


class InputTransform(ABC):
    """A public transform of images."""

    @abstractmethod
    def transform(self, facts: Facts) -> FeatureTransform: ...


@dataclass(frozen=True)
class SpectrumInputs(InputTransform):
    """Pixels, equalized by frequency (see `Spectrum`)."""

    kind: ClassVar[str] = "spectrum"
    power: float
    below: float
    mean_weight: float = 0.0
    colour_weight: float = 1.0

    def transform(self, facts: Facts) -> FeatureTransform:
        return Spectrum(
            facts.input_shape, self.power, self.below, self.mean_weight, self.colour_weight, facts.input_range
        )


@dataclass(frozen=True)
class ScatteringInputs(InputTransform):
    """Normalized scattering coefficients."""

    kind: ClassVar[str] = "scattering"

    def transform(self, facts: Facts) -> FeatureTransform:
        return ScatteringFeatures(facts.input_shape, facts.input_range)


@lru_cache(maxsize=1)  # entries that follow one another share their rows
def rows_of(data: str, inputs: InputTransform, examples: int | None) -> ExperimentRows:
    """A standard dataset after a transform, or its first `examples` private rows."""
    loaded = load(data)
    if loaded.test is None:
        raise DataError(f"{data} has no public rows, which a table of accuracies needs.")
    transform = inputs.transform(loaded.facts)
    prepared: Callable[[Tensor], Tensor] = lambda pictures: cached(transform, pictures, progress=False)  # noqa: E731
    return ExperimentRows(
        inputs=prepared(loaded.train.inputs[:examples]).flatten(1),
        target=loaded.train.target[:examples],
        test=Public((prepared(loaded.test.inputs).flatten(1), loaded.test.target)),
        facts=loaded.facts,
    )
