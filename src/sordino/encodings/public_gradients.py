"""Gradients of public inputs with random or public labels, for a public subspace or for public noise weights."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sordino._input import validate
from sordino.errors import UsageError
from sordino.gradients.row_loss import Loss
from sordino.kernel.contribution import LossGradient
from sordino.kernel.randomness import Stream
from sordino.kernel.records import Records, as_records
from sordino.kernel.states import Layout


@dataclass(frozen=True, repr=False)
class PublicGradients:
    """Gradients of public rows at the current parameters of `model`, which should be the model that the run trains.

    Parameters are post-processing of releases. By passing `inputs` and `labels` here you declare them public. Without
    `labels`, random labels are drawn in every step, as by Yu et al. (2021).

    >>> from sordino.kernel.randomness import Key
    >>> anchors = PublicGradients(nn.Linear(4, 3), torch.ones(5, 4), classes=3)
    >>> [rows.shape for rows in anchors(0, Key.from_seed(0).stream("anchors")).rows(chunk=2)]
    [torch.Size([2, 15]), torch.Size([2, 15]), torch.Size([1, 15])]
    """

    model: nn.Module
    inputs: Tensor
    classes: int
    loss: Loss = field(default=F.cross_entropy)
    labels: Tensor | None = None

    def __post_init__(self) -> None:
        validate.instance(nn.Module, model=self.model)
        validate.instance(Tensor, inputs=self.inputs)
        validate.count(at_least=2, classes=self.classes)
        if not bool(self.inputs.isfinite().all()):
            raise UsageError("inputs must be finite, got NaN or infinite values, whose gradients would be zero.")
        if self.labels is not None and not bool(((self.labels >= 0) & (self.labels < self.classes)).all()):
            raise UsageError(f"labels must be class indices from 0 to {self.classes - 1}, got others.")

    def __call__(self, step: int, randomness: Stream) -> GradientsOfRows:
        labels = self._random_labels(step, randomness) if self.labels is None else self.labels
        return GradientsOfRows(self.model, LossGradient(self.loss), as_records((self.inputs, labels)))

    def _random_labels(self, step: int, randomness: Stream) -> Tensor:
        words = randomness.words(len(self.inputs), step=step) % self.classes
        return torch.from_numpy(words.astype("int64"))


@dataclass(frozen=True, repr=False)
class GradientsOfRows:
    """Gradients of rows, computed a chunk at a time when they are read."""

    model: nn.Module
    gradient: LossGradient
    records: Records

    @property
    def layout(self) -> Layout:
        return Layout.of(self.model)

    def rows(self, chunk: int) -> Iterator[Tensor]:
        for units in torch.split(torch.arange(self.records.num_units), chunk):
            yield from self.gradient.of(self.model, self.records.gather(units), units).rows(chunk)
