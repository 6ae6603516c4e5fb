"""Base of the private scikit-learn estimators, and the budget of one fit.

The budget of one fit, within the budget of the data that several fits share.

Theorem. Let each fold of a cross-validation be some of the units of one data set, chosen without looking at their
values. A unit that a fold leaves out changes nothing there, so each fit is as private for the whole data set as for its
own fold, and all of them together are their sequential composition, in which each may depend on those before.

What the private estimators share: arrays in, a network trained with noise, and what that promises.
"""

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
    """Holds the rows of one fit. Whatever is charged here is charged to the `shared` budget first, which may refuse.

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
                    f"one budget has one unit: it protects each {shared.records.unit}, this fit each {records.unit}."
                )
            self._addresses = shared._addresses
        self._shared = shared

    def charge(self, event: DpEvent, adjacency: Adjacency, *, what: str, run: RunIdentity | None = None) -> int:
        """Numbered by the shared budget, so that fits with one `random_state` draw noise of their own."""
        if self._shared is None:
            return super().charge(event, adjacency, what=what, run=run)
        number = self._shared.charge(event, adjacency, what=what, run=run)
        super().charge(event, adjacency, what=what, run=run)
        return number

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What the guarantee of this fit leaves out."""
        if self._shared is None or len(self._shared.releases) == 1:
            return ()
        releases = len(self._shared.releases)
        return (f"this fit is counted alone: its budget holds {releases} releases, and has a guarantee",)


# mypy: allow-untyped-calls


MakeModule = Callable[[int, int], nn.Module]

_CHOSEN_BLINDLY = "settings, folds and the preparation of features were chosen without looking at private rows"
_ROWS_AT_A_TIME = 4096


def linear(n_features: int, n_outputs: int) -> nn.Module:
    """A linear model that starts at zero: its loss is convex, so that there is nothing to gain from a random start.

    >>> linear(4, 3)(torch.ones(1, 4)).tolist()
    [[0.0, 0.0, 0.0]]
    """
    layer = nn.Linear(n_features, n_outputs)
    nn.init.zeros_(layer.weight)
    nn.init.zeros_(layer.bias)
    return layer


class PrivateFit(BaseEstimator):
    """Rows checked and gathered, a network kept with its promise, and what it says of other rows.

    A row with a number that is not finite counts as absent in `fit`. To predict for it, the number is taken for 0.
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
        """Rows of numbers and a target for each. A row with a hole stays, and will count as absent.

        Whether there is a hole is private: an error would tell it. Only a target without a single number is refused.
        """
        if y is None:
            validate_data(self, X, y)  # which refuses it
        features = checked(self, X, dtype=np.float64, ensure_min_samples=2, ensure_all_finite=False)
        target = column_or_1d(y, warn=True)
        if target.dtype.kind == "c":
            raise UsageError("Complex data not supported: y must hold real numbers or names of classes.")
        check_consistent_length(features, target)
        if y_numeric:
            target = np.array([_number(each) for each in target.tolist()]) if target.dtype.kind in "OUS" else target
            if not np.isfinite(target).any():
                raise UsageError("y must hold finite numbers, got none.")
        return features, target

    def _records(self, features: NDArray[Any], target: NDArray[Any], users: object) -> Records:
        if users is None:
            return as_records((features, target))
        if self.rows_per_user is None:
            raise UsageError("users need rows_per_user, the most rows of one user that are used, got None.")
        names = np.asarray(users)
        if names.shape != (len(features),):
            raise UsageError(f"users must be one name per row ({len(features)}), got shape {names.shape}.")
        owners = np.unique(names, return_inverse=True)[1].astype(np.int64)
        return by_user((features, target), owners, rows_per_user=self.rows_per_user)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        return tags

    def _keep(self, module: nn.Module, promised: Guarantee, budget: OneFit, assumptions: tuple[str, ...]) -> None:
        assumed = (*promised.assumptions, _CHOSEN_BLINDLY, *assumptions, *budget.assumptions)
        self.module_, self.privacy_ = module, replace(promised, assumptions=assumed)

    def _outputs(self, X: object, dtype: type[np.floating[Any]] = np.float32) -> NDArray[np.float64]:
        """What the network says about each row. A number that is not finite is taken for 0."""
        check_is_fitted(self, "module_")
        known = checked(self, X, reset=False, dtype=dtype, ensure_all_finite=False)
        features = torch.from_numpy(np.where(np.isfinite(known), known, dtype(0)))
        with evaluating(self.module_), torch.inference_mode():
            outputs = [self.module_(rows) for rows in torch.split(features, _ROWS_AT_A_TIME)]
        return torch.cat(outputs).double().numpy()


class PrivateEstimator(PrivateFit):
    """Trains `module(n_features, n_outputs)`. Parameters are kept as they were given, and looked at by `fit`."""

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
    """Numbers in rows and columns as scikit-learn wants them, with messages that quote no cell."""
    try:
        features: NDArray[Any] = validate_data(estimator, X, **options)
    except (ValueError, TypeError) as error:
        raise type(error)(_without_cells(str(error))) from None
    return features


def _without_cells(message: str) -> str:
    """What scikit-learn says, without the rows that it prints."""
    if "could not convert string" in message:
        return "X must hold numbers, got text: encode it."
    if "Complex data" in message:
        return "Complex data not supported: X must hold real numbers."
    if "Expected 2D array" in message:
        return (
            "X must have rows and columns, got another number of axes. Reshape your data, X.reshape(-1, 1) or (1, -1)."
        )
    return message


def _number(value: object) -> float:
    """NaN for what is none."""
    try:
        return float(value)  # type: ignore[arg-type]
    except (ValueError, TypeError, OverflowError):
        return math.nan


def _made(make_module: MakeModule, n_features: int, n_outputs: int, seed: int | None) -> nn.Module:
    """With a seed the start is reproducible too, and torch's own generator is left as it was."""
    with torch.random.fork_rng(devices=[], enabled=seed is not None):
        if seed is not None:
            torch.manual_seed(seed)
        return make_module(n_features, n_outputs)


def seed_of(random_state: object) -> int | None:
    """What noise and start are drawn from; None where nobody is to repeat them."""
    match random_state:
        case None:
            return None
        case Integral():
            return int(random_state)
        case np.random.RandomState():
            return int(random_state.randint(2**31))
        case _:
            raise UsageError(
                f"random_state must be None, a whole number or a RandomState, got {validate.shown(random_state)}."
            )
