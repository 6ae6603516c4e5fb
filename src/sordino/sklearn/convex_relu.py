"""What the estimators of the convex ReLU network share: frozen gates, a convex problem, two ways to be private.

    f(x) = sum over the gates i that (x, 1) opens of V_i (x, 1) / |(x, 1)|

Nothing needs to be known of the inputs: each row is brought to norm 1 by itself, with a constant for a bias.
"""

# mypy: allow-untyped-calls

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from sordino._input import validate
from sordino.accounting import Adjacency
from sordino.convex.losses import CertifiedLoss
from sordino.errors import UsageError
from sordino.kernel.calibration import check_target
from sordino.sklearn.convex_relu_settings import Target, settings_for
from sordino.sklearn.convex_relu_training import Decided, method_named, network
from sordino.sklearn.estimator import PrivateFit, seed_of
from sordino.sklearn.one_fit import OneFit


class ConvexReLUEstimator(PrivateFit):
    """Trains a gated ReLU network on numbers. Parameters are kept as they were given, and looked at by `fit`."""

    method: str
    gates: int
    adjacency: str
    batch_size: int | None
    epochs: int | None
    learning_rate: float | None
    clip: float
    strength: float

    def _train(
        self,
        features: NDArray[Any],
        target: NDArray[np.float64],
        users: object,
        *,
        loss: CertifiedLoss,
        assumptions: tuple[str, ...] = (),
    ) -> None:
        """`target` has a column for each output. A row of NaN contributes nothing."""
        train, neighbours, seed = method_named(self.method), _adjacency(self.adjacency), seed_of(self.random_state)
        check_target(self.epsilon, self.delta)
        cost = Target(self.epsilon, self.delta, neighbours)
        budget = OneFit(self._records(features, target, users), self.budget)
        model = network(self.gates)
        settings = settings_for(
            cost,
            budget.records.num_units,
            curvature=loss.curvature(model.feature_bound, self.clip),
            clip=self.clip,
            learning_rate=self.learning_rate,
            batch_size=self.batch_size,
            epochs=self.epochs,
            strength=self.strength,
        )
        decided = Decided(model, loss, target.shape[1], cost, settings, self.strength, seed)
        module, promised = train(decided, budget)
        self._keep(module.double(), promised, budget, assumptions)

    def _outputs(self, X: object, dtype: type[np.floating[Any]] = np.float64) -> NDArray[np.float64]:
        return super()._outputs(flat(X), dtype)


def flat(X: Any) -> Any:
    """Pictures as vectors. Anything else is left for scikit-learn to look at."""
    return np.reshape(X, (len(X), -1)) if getattr(X, "ndim", 2) > 2 else X


def _adjacency(adjacency: object) -> Adjacency:
    offered = (Adjacency.ZERO_OUT, Adjacency.REPLACE_ONE)  # both with a public number of units, as scikit-learn has it
    if adjacency not in offered:
        raise UsageError(
            f"adjacency must be {' or '.join(repr(str(each)) for each in offered)}, got {validate.option(adjacency)}."
        )
    return Adjacency(str(adjacency))
