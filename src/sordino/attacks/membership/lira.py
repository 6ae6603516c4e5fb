"""LiRA, the likelihood-ratio attack (Carlini, Chien, Nasr, Song, Terzis and Tramer 2022), and the logits that it uses.

The logit of an example's label is modeled as normal, with one mean over models trained with the example and another
over models trained without it. References are few, so the variance is pooled over all examples: a single example would
give an estimate from two values.

Arrays `references` and `included` have shape (reference models, examples); `included` is True where the reference was
trained on the example.
"""

from __future__ import annotations

from math import sqrt

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import stats
from torch import Tensor, nn

from sordino.effects.rare_examples import as_input
from sordino.errors import UsageError
from sordino.training.evaluation import evaluating

Numbers = NDArray[np.float64]

_ROWS_AT_A_TIME = 1024


def outputs_of(model: nn.Module, inputs: Tensor) -> Tensor:
    """The model's outputs for `inputs` in eval mode, as float64."""
    with evaluating(model), torch.inference_mode():
        return torch.cat([model(as_input(rows)).double() for rows in torch.split(inputs, _ROWS_AT_A_TIME)])


def logits_of_labels(outputs: Tensor, target: Tensor) -> Numbers:
    """log(p / (1 - p)) for the probability p of each row's label. It is nearly normal over trainings.

    Computed as the label's output minus the log-sum-exp of the others, which does not cancel when p is nearly 1.

    >>> logits_of_labels(torch.tensor([[200.0, 0.0], [0.0, 0.0]]), torch.tensor([0, 1]))
    array([200.,   0.])
    """
    own = outputs.gather(1, target[:, None])
    others = outputs.scatter(1, target[:, None], -torch.inf).logsumexp(dim=1, keepdim=True)
    logits: Numbers = (own - others).squeeze(1).double().numpy()
    return logits


def likelihoods_of_labels(outputs: Tensor, target: Tensor) -> Numbers:
    """The probability of each row's label.

    >>> likelihoods_of_labels(torch.tensor([[0.0, 0.0]]), torch.tensor([1]))
    array([0.5])
    """
    likelihoods: Numbers = outputs.softmax(dim=1).gather(1, target[:, None]).squeeze(1).double().numpy()
    return likelihoods


Membership = NDArray[np.bool_]


def online(target: Numbers, references: Numbers, included: Membership) -> Numbers:
    """Log-likelihood ratio of the target's logit, with the example against without it. Large for members.

    >>> included = np.array([[True], [True], [False], [False]])
    >>> online(np.array([2.0]), np.array([[1.0], [3.0], [-1.0], [1.0]]), included)  # N(2, 2) against N(0, 2)
    array([1.])
    """
    _check(target, references, included)
    if min(_fewest(included), _fewest(~included)) < 2:
        raise UsageError(
            "online LiRA needs, for each row, at least two references trained on it and two references that were not."
        )
    present, absent = _mean(references, included), _mean(references, ~included)
    spread_in = _pooled_std(references, included, present)
    spread_out = _pooled_std(references, ~included, absent)
    return _log_density(target, present, spread_in) - _log_density(target, absent, spread_out)


def offline(target: Numbers, references: Numbers, included: Membership) -> Numbers:
    """How many standard deviations the target's logit is above the mean of models trained without the example.

    The published score is the normal distribution function of this value, so it ranks examples in the same order.

    >>> included = np.zeros((2, 1), dtype=bool)
    >>> offline(np.array([3.0]), np.array([[-1.0], [1.0]]), included).round(3)
    array([2.121])
    """
    _check(target, references, included)
    if _fewest(~included) < 1:
        raise UsageError("offline LiRA needs, for each row, at least one reference that was not trained on it.")
    absent = _mean(references, ~included)
    scores: Numbers = (target - absent) / _pooled_std(references, ~included, absent)
    return scores


def _log_density(values: Numbers, mean: Numbers, std: float) -> Numbers:
    log_density: Numbers = np.asarray(stats.norm.logpdf(values, mean, std))
    return log_density


def _check(target: Numbers, references: Numbers, included: Membership) -> None:
    if references.ndim != 2 or references.shape != included.shape or target.shape != references.shape[1:]:
        shapes = f"{target.shape}, {references.shape} and {included.shape}"
        raise UsageError(
            "target, references and included must have shapes (rows,), (references, rows) and (references, rows), "
            f"got {shapes}."
        )
    if not (np.isfinite(target).all() and np.isfinite(references).all()):
        raise UsageError("logits must be finite numbers, got NaN or infinity.")


def _fewest(chosen: Membership) -> int:
    return int(chosen.sum(axis=0).min()) if chosen.size else 0


def _mean(references: Numbers, chosen: Membership) -> Numbers:
    mean: Numbers = np.where(chosen, references, 0.0).sum(axis=0) / chosen.sum(axis=0)
    return mean


def _pooled_std(references: Numbers, chosen: Membership, mean: Numbers) -> float:
    """Standard deviation within rows, pooled over all rows.

    With one reference for each row it cannot be estimated; 1 is returned, since a constant does not change the ranks.
    """
    freedom = int(chosen.sum()) - chosen.shape[1]
    squares = float((np.where(chosen, references - mean, 0.0) ** 2).sum())
    return max(sqrt(squares / freedom), 1e-12) if freedom else 1.0
