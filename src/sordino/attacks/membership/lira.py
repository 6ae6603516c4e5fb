"""LiRA, the likelihood-ratio attack (Carlini et al. 2022), and the scores that a model gives to labels.

What an attack reads off a model: how sure it is of each row's own label.

The likelihood-ratio attack LiRA (Carlini, Chien, Nasr, Song, Terzis and Tramer 2022).

A row's logit under models that learnt from it, and under models that did not, is taken as normal. References are few,
so the variance is pooled over all rows: one row alone would give it from two numbers.

Rows of `references` are reference models, columns are attacked rows; `included` says who learnt from whom.
"""

from __future__ import annotations

from math import sqrt

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import stats
from torch import Tensor, nn

from sordino.errors import UsageError
from sordino.training.evaluation import evaluating

Numbers = NDArray[np.float64]

_ROWS_AT_A_TIME = 1024


def outputs_of(model: nn.Module, inputs: Tensor) -> Tensor:
    """What the model says about each row, in eval mode, float64."""
    with evaluating(model), torch.inference_mode():
        return torch.cat([model(rows.float()).double() for rows in torch.split(inputs, _ROWS_AT_A_TIME)])


def logits_of_labels(outputs: Tensor, target: Tensor) -> Numbers:
    """log(p / (1 - p)) of the probability p of each row's label, nearly normal over trainings (Carlini et al. 2022).

    Computed as the label's output less the log-sum-exp of the others, which does not cancel when p is nearly 1.

    >>> logits_of_labels(torch.tensor([[200.0, 0.0], [0.0, 0.0]]), torch.tensor([0, 1]))
    array([200.,   0.])
    """
    own = outputs.gather(1, target[:, None])
    others = outputs.scatter(1, target[:, None], -torch.inf).logsumexp(dim=1, keepdim=True)
    found: Numbers = (own - others).squeeze(1).double().numpy()
    return found


def likelihoods_of_labels(outputs: Tensor, target: Tensor) -> Numbers:
    """The probability of each row's label.

    >>> likelihoods_of_labels(torch.tensor([[0.0, 0.0]]), torch.tensor([1]))
    array([0.5])
    """
    found: Numbers = outputs.softmax(dim=1).gather(1, target[:, None]).squeeze(1).double().numpy()
    return found


Membership = NDArray[np.bool_]


def online(target: Numbers, references: Numbers, included: Membership) -> Numbers:
    """The logarithm of the ratio of both densities at the target's logit: large for members.

    >>> seen = np.array([[True], [True], [False], [False]])
    >>> online(np.array([2.0]), np.array([[1.0], [3.0], [-1.0], [1.0]]), seen)  # N(2, 2) against N(0, 2)
    array([1.])
    """
    _check(target, references, included)
    if min(_fewest(included), _fewest(~included)) < 2:
        raise UsageError(
            "the online attack needs at least two references that learnt from each row, and two that did not."
        )
    present, absent = _mean(references, included), _mean(references, ~included)
    spread_in = _pooled_std(references, included, present)
    spread_out = _pooled_std(references, ~included, absent)
    return _log_density(target, present, spread_in) - _log_density(target, absent, spread_out)


def offline(target: Numbers, references: Numbers, included: Membership) -> Numbers:
    """How many standard deviations the target's logit lies above that of models that did not learn from the row.

    One minus the chance that an absent row has so high a logit is the published score, and rises with this one.

    >>> seen = np.zeros((2, 1), dtype=bool)
    >>> offline(np.array([3.0]), np.array([[-1.0], [1.0]]), seen).round(3)
    array([2.121])
    """
    _check(target, references, included)
    if _fewest(~included) < 1:
        raise UsageError("the offline attack needs a reference that did not learn from each row.")
    absent = _mean(references, ~included)
    found: Numbers = (target - absent) / _pooled_std(references, ~included, absent)
    return found


def _log_density(values: Numbers, mean: Numbers, std: float) -> Numbers:
    found: Numbers = np.asarray(stats.norm.logpdf(values, mean, std))
    return found


def _check(target: Numbers, references: Numbers, included: Membership) -> None:
    if references.ndim != 2 or references.shape != included.shape or target.shape != references.shape[1:]:
        shapes = f"{target.shape}, {references.shape} and {included.shape}"
        raise UsageError(f"scores must be (rows,), (references, rows) and (references, rows), got {shapes}.")
    if not (np.isfinite(target).all() and np.isfinite(references).all()):
        raise UsageError("scores must be finite numbers, got NaN or an infinite one.")


def _fewest(chosen: Membership) -> int:
    return int(chosen.sum(axis=0).min()) if chosen.size else 0


def _mean(references: Numbers, chosen: Membership) -> Numbers:
    found: Numbers = np.where(chosen, references, 0.0).sum(axis=0) / chosen.sum(axis=0)
    return found


def _pooled_std(references: Numbers, chosen: Membership, mean: Numbers) -> float:
    """Within rows, over all rows. With one reference for each row it cannot be told, and is as good as any number."""
    freedom = int(chosen.sum()) - chosen.shape[1]
    squares = float((np.where(chosen, references - mean, 0.0) ** 2).sum())
    return max(sqrt(squares / freedom), 1e-12) if freedom else 1.0
