"""What an attack reads off a model: how sure it is of each row's own label."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from sordino.effects.plain_training import as_input
from sordino.training.evaluation import evaluating

Numbers = NDArray[np.float64]

_ROWS_AT_A_TIME = 1024


def outputs_of(model: nn.Module, inputs: Tensor) -> Tensor:
    """What the model says about each row, in eval mode, float64."""
    with evaluating(model), torch.inference_mode():
        return torch.cat([model(as_input(rows)).double() for rows in torch.split(inputs, _ROWS_AT_A_TIME)])


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
