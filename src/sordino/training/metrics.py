"""How right a model's outputs are: functions of outputs and targets, rows in front."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from scipy.stats import binomtest
from torch import Tensor

from sordino._input import validate
from sordino.errors import UsageError


def correctness(outputs: Tensor, target: Tensor) -> Tensor:
    """The share of each row's labels that is right, float64, shape (rows,). A row with an output like NaN has none.

    Outputs (rows, classes, ...) against labels (rows, ...) name the largest; outputs as many as labels are logits of
    yes or no, right if their sign is.

    >>> correctness(torch.tensor([[0.1, 0.9], [0.8, 0.2]]), torch.tensor([1, 1]))
    tensor([1., 0.], dtype=torch.float64)
    """
    return _right(outputs, target).reshape(len(target), -1).double().mean(dim=1)


def correctness_by_class(outputs: Tensor, target: Tensor) -> dict[int, float]:
    """Of the labels of each class that occurs, the share that is right.

    >>> correctness_by_class(torch.eye(3), torch.tensor([0, 1, 1]))
    {0: 1.0, 1: 0.5}
    """
    right = _right(outputs, target).flatten()
    classes, which = torch.unique(target.to(torch.int64).flatten(), return_inverse=True)
    shares = torch.bincount(which, weights=right.double()) / torch.bincount(which)
    return dict(zip(classes.tolist(), shares.tolist(), strict=True))


@dataclass(frozen=True)
class Regression:
    """The mean squared error, and the share of the target's variance that the model explains.

    >>> Regression.of(torch.tensor([[1.0], [2.0]]), torch.tensor([1.0, 3.0]))
    Regression(mse=0.5, r2=0.5)
    """

    mse: float
    r2: float

    @classmethod
    def of(cls, outputs: Tensor, target: Tensor) -> Regression:
        if outputs.numel() != target.numel():
            raise UsageError(_unlike(outputs, target))  # (n, 1) less (n,) would be (n, n)
        target = target.double()
        mse = float((outputs.double().reshape(target.shape) - target).square().mean())
        variance = float((target - target.mean(dim=0)).square().mean())
        return cls(mse, 1 - mse / variance if variance > 0 else math.nan)


def wilson(successes: float, trials: int, *, confidence: float = 0.95) -> tuple[float, float]:
    """Wilson's (1927) confidence interval for a share: it stays in [0, 1] and holds near the ends too.

    >>> [round(end, 4) for end in wilson(9850, 10_000)]
    [0.9824, 0.9872]
    """
    validate.count(trials=trials)
    validate.between(0, trials, successes=successes)
    if successes != round(successes):
        raise UsageError(f"successes must be a whole number, got {successes}.")
    validate.between(0, 1, low_open=True, high_open=True, confidence=confidence)
    found = binomtest(round(successes), trials).proportion_ci(confidence, method="wilson")
    return float(found.low), float(found.high)


def _right(outputs: Tensor, target: Tensor) -> Tensor:
    if outputs.numel() == target.numel():
        right = (outputs > 0).reshape(target.shape).to(target.dtype) == target
    elif outputs.ndim == target.ndim + 1 and outputs.shape[:1] + outputs.shape[2:] == target.shape:
        right = outputs.argmax(dim=1) == target
    else:
        raise UsageError(_unlike(outputs, target))
    finite = outputs.reshape(len(outputs), -1).isfinite().all(dim=1)
    return right & finite.reshape(-1, *[1] * (target.ndim - 1))


def _unlike(outputs: Tensor, target: Tensor) -> str:
    return f"outputs of shape {tuple(outputs.shape)} do not go with targets of shape {tuple(target.shape)}."
