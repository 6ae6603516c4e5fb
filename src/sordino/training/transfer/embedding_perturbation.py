"""Gradient embedding perturbation with the settings of its authors, and synthetic images as public rows.

Yu, Zhang, Chen and Liu, "Do not let privacy overbill utility: gradient embedding perturbation for private learning"
(ICLR 2021). They use photographs from the internet as public rows. Labels of public rows are random there and here.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from sordino._input import validate
from sordino.data import Facts
from sordino.encodings import Combined, Project, PublicGradients, Subspace
from sordino.errors import UsageError
from sordino.kernel.clipping import ClipPerLayer
from sordino.kernel.encoding import Encoding
from sordino.models import Built
from sordino.training.evaluation import Evaluation, Public
from sordino.training.fit import Fitted, fit
from sordino.training.schedules import Step
from sordino.training.transfer.pretraining import made_up_rows


@dataclass(frozen=True)
class EmbeddingPerturbation:
    """Settings of training in the subspace of public gradients. The defaults are those published for ResNet-20.

    A basis has `directions` vectors of the size of the network, and is computed anew in every step. With fewer
    directions and public rows a step is faster, and a larger part of a gradient is in the residual.
    """

    batch_size: int = 1000
    epochs: float = 200
    learning_rate: float = 0.1
    momentum: float = 0.9
    weight_decay: float = 2e-4
    public_rows: int = 2000
    directions: int = 1000
    groups: int = 3
    embedding_norm: float = 5.0
    residual_norm: float = 2.0

    def __post_init__(self) -> None:
        validate.count(batch_size=self.batch_size, public_rows=self.public_rows, directions=self.directions)
        validate.positive(epochs=self.epochs, learning_rate=self.learning_rate)
        validate.between(0, 1, high_open=True, momentum=self.momentum)
        validate.between(0, 1, weight_decay=self.weight_decay)

    def encoding(self, built: Built, facts: Facts, *, seed: int) -> Project:
        """Encoding as embedding and residual, with gradients of `public_rows` synthetic images in each step."""
        if facts.num_classes is None:
            raise UsageError(f"gradient embedding perturbation needs classes, but {facts.name!r} has none.")
        public = made_up_rows(built, facts, self.public_rows, seed=seed)
        anchors = PublicGradients(built.module, public, classes=facts.num_classes)
        return Project(Subspace(anchors, self.directions, self.groups), self.embedding_norm, self.residual_norm)

    def optimizer(self, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        rate, momentum, decay = self.learning_rate, self.momentum, self.weight_decay
        return torch.optim.SGD(parameters, lr=rate, momentum=momentum, weight_decay=decay)


def fit_embedded(
    built: Built,
    data: tuple[Tensor, Tensor],
    facts: Facts,
    settings: EmbeddingPerturbation,
    *,
    epsilon: float,
    delta: float,
    sparsify: Encoding | None = None,
    test: Public | None = None,
    seed: int | None = None,
    progress: bool = True,
) -> Fitted:
    """Trains `built.module` in place on prepared rows. With `sparsify`, gradients are masked before the projection.

    >>> from sordino import models
    >>> facts = Facts("pictures", (1, 28, 28), 10)
    >>> built, data = models.build("dp-cnn-s", facts, seed=0), (torch.zeros(40, 1, 28, 28), torch.arange(40) % 10)
    >>> few = EmbeddingPerturbation(batch_size=20, epochs=1, public_rows=8, directions=6)
    >>> fitted = fit_embedded(built, data, facts, few, epsilon=8.0, delta=1e-3, seed=0, progress=False)
    >>> fitted.guarantee.epsilon <= 8.0
    True
    """
    project = settings.encoding(built, facts, seed=seed or 0)
    return fit(
        built.module,
        data,
        epsilon=epsilon,
        delta=delta,
        batch_size=settings.batch_size,
        epochs=settings.epochs,
        clip=ClipPerLayer((1.0, 1.0)),  # the projection divides both parts by their clipping norms
        encoding=project if sparsify is None else Combined(sparsify, project),
        optimizer=settings.optimizer,
        schedule=Step(at=(0.5, 0.75), by=0.1),
        evaluation=Evaluation(at_end=test),
        seed=seed,
        progress=progress,
    )
