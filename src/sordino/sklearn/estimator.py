"""Base classes of the private scikit-learn estimators, and the budget of one fit (`OneFit`).

Several fits, for example those of a cross-validation, can share the budget of a dataset.

Theorem. Let each fold of a cross-validation be a subset of the units of one dataset, chosen without looking at their
values. A unit outside a fold does not affect its fit, so each fit is as private for the whole dataset as for its own
fold, and all fits together are their adaptive sequential composition.
"""

# mypy: allow-untyped-calls

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from numbers import Integral
from typing import Any

import numpy as np
import torch
from dp_accounting.dp_event import DpEvent
from numpy.typing import NDArray
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_consistent_length, check_is_fitted, column_or_1d, validate_data
from torch import Tensor, nn

from sordino._input import validate
from sordino.accounting import Adjacency, Guarantee
from sordino.errors import UsageError
from sordino.kernel.budget import Budget, RunIdentity
from sordino.kernel.clipping import Clip
from sordino.kernel.records import Records, as_records, by_user
from sordino.training.evaluation import evaluating
from sordino.training.fit import MakeOptimizer, fit


class OneFit(Budget):
    """The budget of the rows of one fit. Charges go to the `shared` budget first, which may refuse them.

    >>> import torch
    >>> from dp_accounting import GaussianDpEvent
    >>> from sordino.kernel.records import as_records
    >>> shared = Budget((torch.zeros(9, 2), torch.zeros(9)))
    >>> for fold in (range(0, 6), range(3, 9)):
    ...     rows = as_records((torch.zeros(len(fold), 2), torch.zeros(len(fold))))
    ...     OneFit(rows, shared).charge(GaussianDpEvent(5.0), Adjacency.ZERO_OUT, what="training run")
    0
    1
    >>> shared.releases
    ('training run', 'training run')
    """

    def __init__(self, records: Records, shared: Budget | None) -> None:
        super().__init__(records)
        if shared is not None:
            validate.instance(Budget, budget=shared)
            if shared.records.unit is not records.unit:
                raise UsageError(
                    f"all fits of a budget must have its privacy unit {shared.records.unit}, got {records.unit}."
                )
            self._addresses = shared._addresses
        self._shared = shared

    def charge(self, event: DpEvent, adjacency: Adjacency, *, what: str, run: RunIdentity | None = None) -> int:
        """Charges both budgets. The shared one numbers releases, so fits with equal `random_state` differ in noise."""
        if self._shared is None:
            return super().charge(event, adjacency, what=what, run=run)
        number = self._shared.charge(event, adjacency, what=what, run=run)
        super().charge(event, adjacency, what=what, run=run)
        return number

    def check_target(
        self,
        event_at: Callable[[float], DpEvent],
        noise_multiplier: float,
        adjacency: Adjacency,
        *,
        what: str,
        delta: float,
        epsilon: float | None = None,
        beside: DpEvent | None = None,
    ) -> None:
        """Asks the shared budget, which may have a limit."""
        check = super().check_target if self._shared is None else self._shared.check_target
        check(event_at, noise_multiplier, adjacency, what=what, delta=delta, epsilon=epsilon, beside=beside)

    @property
    def assumptions(self) -> tuple[str, ...]:
        """The assumptions that the shared budget adds to the guarantee of this fit."""
        if self._shared is None or len(self._shared.releases) == 1:
            return ()
        releases = len(self._shared.releases)
        return (f"this fit is counted alone: its budget holds {releases} releases, and has a guarantee",)


MakeModule = Callable[[int, int], nn.Module]

_CHOSEN_BLINDLY = "settings, folds and the preparation of features were chosen without looking at private rows"
_ROWS_AT_A_TIME = 4096


def linear(n_features: int, n_outputs: int) -> nn.Module:
    """A linear model initialized with zeros. Its loss is convex, so random initialization would gain nothing.

    >>> linear(4, 3)(torch.ones(1, 4)).tolist()
    [[0.0, 0.0, 0.0]]
    """
    layer = nn.Linear(n_features, n_outputs)
    nn.init.zeros_(layer.weight)
    nn.init.zeros_(layer.bias)
    return layer


class PrivateFit(BaseEstimator):
    """Base of all private estimators: validates inputs, makes records, stores the trained network and its guarantee.

    `fit` ignores rows with a value that is not finite. For predictions such values are replaced by 0.
    """

    epsilon: float
    delta: float
    rows_per_user: int | None
    budget: Budget | None
    random_state: int | np.random.RandomState | None

    n_features_in_: int
    module_: nn.Module
    privacy_: Guarantee

    def _validated(self, X: object, y: object, *, y_numeric: bool = False) -> tuple[NDArray[Any], NDArray[Any]]:
        """Validates X and y. A row with a missing value is kept here and ignored by training.

        Whether values are missing is private and must not cause an error. Only a target without any finite value does.
        """
        if y is None:
            validate_data(self, X, y)  # raises scikit-learn's error
        features = checked(self, X, dtype=np.float64, ensure_min_samples=2, ensure_all_finite=False)
        target = column_or_1d(y, warn=True)
        if target.dtype.kind == "c":
            raise UsageError("Complex data not supported: y must contain real numbers or class labels.")
        check_consistent_length(features, target)
        if y_numeric:
            target = np.array([_number(each) for each in target.tolist()]) if target.dtype.kind in "OUS" else target
            if not np.isfinite(target).any():
                raise UsageError("y must contain finite numbers, got none.")
        return features, target

    def _records(self, features: NDArray[Any], target: NDArray[Any], users: object) -> Records:
        if users is None:
            return as_records((features, target))
        if self.rows_per_user is None:
            raise UsageError("rows_per_user, the largest number of rows used per user, must be given with users.")
        user_ids = np.asarray(users)
        if user_ids.shape != (len(features),):
            raise UsageError(f"users must have one entry per row ({len(features)}), got shape {user_ids.shape}.")
        owners = np.unique(user_ids, return_inverse=True)[1].astype(np.int64)
        return by_user((features, target), owners, rows_per_user=self.rows_per_user)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        return tags

    def _keep(self, module: nn.Module, guarantee: Guarantee, budget: OneFit, assumptions: tuple[str, ...]) -> None:
        all_assumptions = (*guarantee.assumptions, _CHOSEN_BLINDLY, *assumptions, *budget.assumptions)
        self.module_, self.privacy_ = module, replace(guarantee, assumptions=all_assumptions)

    def _outputs(self, X: object, dtype: type[np.floating[Any]] = np.float32) -> NDArray[np.float64]:
        """The network's outputs for each row. Values that are not finite are replaced by 0."""
        check_is_fitted(self, "module_")
        values = checked(self, X, reset=False, dtype=dtype, ensure_all_finite=False)
        features = torch.from_numpy(np.where(np.isfinite(values), values, dtype(0)))
        with evaluating(self.module_), torch.inference_mode():
            outputs = [self.module_(rows) for rows in torch.split(features, _ROWS_AT_A_TIME)]
        return torch.cat(outputs).double().numpy()


class PrivateEstimator(PrivateFit):
    """Base of the estimators that train `module(n_features, n_outputs)`. `fit` checks the parameters."""

    module: MakeModule | None
    batch_size: int
    epochs: float
    learning_rate: float
    clip: Clip | float
    optimizer: MakeOptimizer | None

    def _train(
        self,
        features: NDArray[Any],
        target: NDArray[Any],
        users: object,
        *,
        n_outputs: int,
        loss: Callable[..., Tensor],
        assumptions: tuple[str, ...] = (),
    ) -> None:
        validate.count(batch_size=self.batch_size)
        seed = seed_of(self.random_state)
        budget = OneFit(self._records(features, target, users), self.budget)
        fitted = fit(
            _made(self.module or linear, features.shape[1], n_outputs, seed),
            budget,
            epsilon=self.epsilon,
            delta=self.delta,
            batch_size=min(self.batch_size, budget.records.num_units),
            epochs=self.epochs,
            loss=loss,
            clip=self.clip,
            learning_rate=self.learning_rate,
            optimizer=self.optimizer,
            seed=seed,
            progress=False,
        )
        self._keep(fitted.model, fitted.guarantee, budget, assumptions)


def checked(estimator: BaseEstimator, X: object, **options: object) -> NDArray[Any]:
    """Validates X with scikit-learn, but removes values of X from error messages."""
    try:
        features: NDArray[Any] = validate_data(estimator, X, **options)
    except (ValueError, TypeError) as error:
        raise type(error)(_without_cells(str(error))) from None
    return features


def _without_cells(message: str) -> str:
    """Replaces messages of scikit-learn that quote values of X."""
    if "could not convert string" in message:
        return "X must be numeric, got strings: encode them."
    if "Complex data" in message:
        return "Complex data not supported: X must contain real numbers."
    if "Expected 2D array" in message:
        return (
            "X must have two axes (rows and columns), got another number of axes. Reshape your data with "
            "X.reshape(-1, 1) or X.reshape(1, -1)."
        )
    return message


def _number(value: object) -> float:
    """The value as a float, or NaN if it is not a number."""
    try:
        return float(value)  # type: ignore[arg-type]
    except (ValueError, TypeError, OverflowError):
        return math.nan


def _made(make_module: MakeModule, n_features: int, n_outputs: int, seed: int | None) -> nn.Module:
    """Makes the module. With a seed its initialization is reproducible, and torch's global generator is restored."""
    with torch.random.fork_rng(devices=[], enabled=seed is not None):
        if seed is not None:
            torch.manual_seed(seed)
        return make_module(n_features, n_outputs)


def seed_of(random_state: object) -> int | None:
    """The seed of noise and initialization, or None for noise that is not reproducible."""
    match random_state:
        case None:
            return None
        case Integral():
            return int(random_state)
        case np.random.RandomState():
            return int(random_state.randint(2**31))
        case _:
            raise UsageError(
                f"random_state must be None, an integer or a RandomState, got {validate.shown(random_state)}."
            )
