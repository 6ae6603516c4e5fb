"""A model as somebody sees it who moves its inputs: logits, losses, and gradients by the inputs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from sordino.errors import UsageError
from sordino.training.evaluation import correctness

Prepare = Callable[[Tensor], Tensor]

ROWS = 512  # at a time


@dataclass(frozen=True)
class Victim:
    """A model that gives logits, and what stands between inputs and model.

    >>> losses, right, gradient = Victim(nn.Identity()).losses(torch.tensor([[0.0, 0.0]]), torch.tensor([0]))
    >>> losses, right, gradient
    (tensor([0.]), tensor([True]), tensor([[-1.,  1.]]))
    """

    model: nn.Module
    prepare: Prepare | None = None

    def outputs(self, inputs: Tensor) -> Tensor:
        with torch.no_grad():
            return torch.cat([self._logits(rows) for rows in torch.split(inputs, ROWS)])

    def losses(self, inputs: Tensor, target: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Of each row the loss, whether it is right, and the gradient by its input."""
        moved = inputs.detach().requires_grad_()
        outputs = self._logits(moved)
        if not outputs.requires_grad:
            raise UsageError(self._no_gradient(moved))
        losses = log_odds_of_a_mistake(outputs, target)
        (gradient,) = torch.autograd.grad(losses.sum(), moved, allow_unused=True)
        if gradient is None:
            raise UsageError(self._no_gradient(moved))
        return losses.detach(), correctness(outputs.detach(), target) == 1, gradient

    def _logits(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.model(inputs if self.prepare is None else self.prepare(inputs))
        if outputs.ndim != 2:
            raise UsageError(f"the model must give a row of logits for each input, got shape {tuple(outputs.shape)}.")
        return outputs

    def _no_gradient(self, inputs: Tensor) -> str:
        if self.prepare is not None and not self.prepare(inputs).requires_grad:
            return f"{_name(self.prepare)} has no gradient, and an attack on inputs follows gradients."
        return f"{type(self.model).__name__} has no gradient by its inputs, and an attack follows gradients."


def log_odds_of_a_mistake(outputs: Tensor, target: Tensor) -> Tensor:
    """L with cross-entropy = log(1 + e^L): its gradient has the same direction, and never rounds to zero.

    The gradient of cross-entropy does where a model is sure, and an attack by it would stand still.

    >>> log_odds_of_a_mistake(torch.tensor([[200.0, 0.0]]), torch.tensor([0]))
    tensor([-200.])
    """
    answer = target[:, None]
    wrong = outputs.scatter(1, answer, -torch.inf).logsumexp(dim=1)
    return wrong - outputs.gather(1, answer).squeeze(1)


def _name(prepare: Prepare) -> str:
    return getattr(prepare, "__name__", type(prepare).__name__)
