"""The random data model of the utility law, and two private trainings on it.

X_ij ~ N(0, 1) in d = n / 10 dimensions, labels relu(a . x) for a random unit vector a, and P = (n log n) / d gates: the
gated model has n log n parameters and can fit every label, so that its least risk is 0. A linear model cannot.

Step lengths come from a sweep over draws of this model at n = 500 and 1000, which are nobody's data. Both shrink with
the noise, as they do in the proofs.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor, nn

from sordino.convex import GatedReLU, Linear, NoisyCGD, Squared, fit_hidden_state
from sordino.convex.model import bounded
from sordino.kernel.sampling import Cyclic
from sordino.training.fit import fit

ROWS_PER_DIMENSION = 10
DELTA = 1e-5
_LONGEST_CONTRACTING_STEP = 1.9


@dataclass(frozen=True)
class RandomDataset:
    """One draw of the data model, with the batch size and epochs for its size.

    A unit-norm row changes its own prediction by at most 2 / b per epoch, so that fitting takes about b / 2 epochs; b /
    2 epochs on batches of b = sqrt(2 n) have about the hidden-state epsilon of two epochs with visible iterates.

    >>> drawn = RandomDataset(200, seed=0)
    >>> drawn.rows.shape, drawn.gates, drawn.batch_size, drawn.epochs
    (torch.Size([200, 20]), 53, 20, 10)
    """

    examples: int
    seed: int

    @cached_property
    def rows(self) -> Tensor:
        return torch.randn(self.examples, self.dimensions, generator=self._generator(0))

    @cached_property
    def labels(self) -> Tensor:
        direction = torch.randn(self.dimensions, generator=self._generator(1))
        labels: Tensor = (self.rows @ (direction / direction.norm())).relu()
        return labels

    @property
    def dimensions(self) -> int:
        return self.examples // ROWS_PER_DIMENSION

    @property
    def gates(self) -> int:
        return math.ceil(self.examples * math.log(self.examples) / self.dimensions)

    @property
    def batch_size(self) -> int:
        return round(math.sqrt(2 * self.examples))

    @property
    def epochs(self) -> int:
        return round(math.sqrt(self.examples / 2))

    @property
    def gate_seed(self) -> int:
        return 3 * self.seed + 2  # apart from those of rows and labels, or gates would be rows

    def _generator(self, what: int) -> torch.Generator:
        return torch.Generator().manual_seed(3 * self.seed + what)


@dataclass(frozen=True)
class TrainedModel:
    """A model, the smallest squared risk of its class on these rows, and the norms of its features before scaling."""

    model: nn.Module
    least_risk: float
    feature_norms: Tensor


def _gated(drawn: RandomDataset, epsilon: float) -> TrainedModel:
    """Trains the gated model with NoisyCGD, under zero-out."""
    batches = Cyclic(drawn.examples // drawn.batch_size, drawn.epochs)
    gated = GatedReLU(drawn.gates, drawn.gate_seed)
    plan = NoisyCGD(batches, gated, clip=1.0, noise_multiplier=1.0, learning_rate=1.0)
    plan = plan.calibrated(epsilon=epsilon, delta=DELTA)
    plan = replace(plan, learning_rate=min(_LONGEST_CONTRACTING_STEP, 0.9 / plan.noise_multiplier))
    data = (drawn.rows, drawn.labels)
    model = fit_hidden_state(plan, data, outputs=1, delta=DELTA, seed=drawn.seed, progress=False).model
    gates: Tensor = model.get_buffer("gates")
    open_gates = (drawn.rows @ gates.T >= 0).sum(dim=1)
    return TrainedModel(model, 0.0, drawn.rows.norm(dim=1) * open_gates.sqrt())


def _linear(drawn: RandomDataset, epsilon: float) -> TrainedModel:
    """Trains the linear model with DP-SGD, with Poisson batches of the same size and as many epochs, under zero-out."""
    model = Linear().build(drawn.dimensions, outputs=1)
    trained = fit(
        model,
        (drawn.rows, drawn.labels),
        epsilon=epsilon,
        delta=DELTA,
        batch_size=drawn.batch_size,
        epochs=drawn.epochs,
        loss=Squared(),
        clip=1.0,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.15 * epsilon**0.6),
        seed=drawn.seed,
        progress=False,
    ).model
    features = bounded(drawn.rows.double())
    labels = drawn.labels.double()[:, None]
    least = features @ torch.linalg.lstsq(features, labels).solution - labels
    return TrainedModel(trained, float(least.square().mean()) / 2, drawn.rows.norm(dim=1))


METHODS: dict[str, Callable[[RandomDataset, float], TrainedModel]] = {
    "NoisyCGD, gated": _gated,
    "DP-SGD, linear": _linear,
}
