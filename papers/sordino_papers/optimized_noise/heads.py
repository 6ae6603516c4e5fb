"""Models of the table: a linear head on pixels, one on about sixty public directions, and a small CNN."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import ClassVar

import torch
from torch import Tensor, nn

from sordino import models
from sordino.data import Facts, load
from sordino.models.features import Spectrum, cached
from sordino.models.small_networks import ScatterLinear
from sordino_papers.harness.rows import ExperimentRows, network_rows, prepared_rows

DATA, PUBLIC_DATA = "mnist", "fashion-mnist"
PUBLIC_ROWS = 256


class Head(ABC):
    """A model with its rows. The preparation of the rows is public."""

    @abstractmethod
    def rows(self, *, examples: int | None, left_out: int) -> ExperimentRows: ...

    @abstractmethod
    def build(self, rows: ExperimentRows, seed: int) -> nn.Module: ...

    @abstractmethod
    def prepared(self, pictures: Tensor, facts: Facts) -> Tensor:
        """Inputs of the model for these images, with the facts of the dataset."""

    def public_inputs(self, rows: ExperimentRows) -> Tensor:
        """Images of Fashion-MNIST, declared public, prepared like digits."""
        return self.prepared(load(PUBLIC_DATA).train.inputs[:PUBLIC_ROWS], rows.facts)


@dataclass(frozen=True)
class NetworkHead(Head):
    """A network of `sordino.models` on pixels."""

    kind: ClassVar[str] = "network"
    name: str

    def rows(self, *, examples: int | None, left_out: int) -> ExperimentRows:
        return network_rows(DATA, self.name, examples=examples, left_out=left_out)

    def build(self, rows: ExperimentRows, seed: int) -> nn.Module:
        return models.build(self.name, rows.facts, seed=seed).module

    def prepared(self, pictures: Tensor, facts: Facts) -> Tensor:
        return models.build(self.name, facts, seed=0).prepare(pictures, progress=False)


@dataclass(frozen=True)
class SpectrumHead(Head):
    """A linear layer on low frequencies of each image: directions that do not depend on data (see `Spectrum`)."""

    kind: ClassVar[str] = "projected"
    power: float = 0.75
    below: float = 8.1

    def rows(self, *, examples: int | None, left_out: int) -> ExperimentRows:
        return _wave_rows(self, examples, left_out)

    def build(self, rows: ExperimentRows, seed: int) -> nn.Module:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return ScatterLinear(tuple(rows.inputs.shape[1:]), rows.num_classes)

    def prepared(self, pictures: Tensor, facts: Facts) -> Tensor:
        waves = Spectrum(facts.input_shape, self.power, self.below, input_range=facts.input_range)
        return cached(waves, pictures, progress=False)


@lru_cache(maxsize=1)
def _wave_rows(head: SpectrumHead, examples: int | None, left_out: int) -> ExperimentRows:
    loaded = load(DATA)
    return prepared_rows(loaded, partial(head.prepared, facts=loaded.facts), examples=examples, left_out=left_out)
