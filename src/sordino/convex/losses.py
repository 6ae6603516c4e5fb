"""Certified losses: losses for which a proof shows that they stay convex and smooth after gradient clipping.

Hidden-state bounds need the map V -> V - eta * (mean of clipped gradients) to be a contraction. Clipping changes the
gradient field, so convexity of the loss alone is not enough. With features phi and residual r(z) at outputs
z = V^T phi, the gradient is phi r^T, and clipping it to norm C projects r to the ball of radius C / |phi|.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
import torch.nn.functional as F
from torch import Tensor

from sordino._input import validate
from sordino.errors import UsageError


@dataclass(frozen=True)
class Curvature:
    """The curvature of a clipped loss in V: its gradient is monotone and `smoothness`-Lipschitz."""

    smoothness: float

    def contraction(self, learning_rate: float, strength: float) -> float:
        """The Lipschitz constant of V -> V - learning_rate * (gradient + strength * V).

        For the gradient of a potential with curvature between m and M it is the larger of |1 - eta m| and |1 - eta M|.

        >>> Curvature(smoothness=1.0).contraction(learning_rate=0.5, strength=0.1)
        0.95
        """
        validate.positive(learning_rate=learning_rate)
        validate.between(0, 1e6, strength=strength)
        largest = self.smoothness + strength
        if learning_rate >= 2 / largest and not (strength == 0 and learning_rate == 2 / largest):
            raise UsageError(
                f"learning_rate must be below 2 / (smoothness + strength) = {2 / largest:.6g}, "
                f"got {validate.shown(learning_rate)}: "
                "longer steps do not contract, so there is no hidden-state guarantee."
            )
        return max(abs(1 - learning_rate * strength), abs(1 - learning_rate * largest))


@runtime_checkable
class CertifiedLoss(Protocol):
    """A loss of one example with a proven bound on the curvature of its clipped gradient."""

    def __call__(self, outputs: Tensor, target: Tensor) -> Tensor: ...

    def curvature(self, feature_bound: float, clip: float) -> Curvature:
        """Returns the curvature after clipping to norm `clip`. Raises an error that says why if there is none."""
        ...


@dataclass(frozen=True)
class Squared:
    """Half the squared distance of the outputs to the one-hot vector of the label, or to a real target.

    The projection of r = z - y to a ball is the gradient of the Moreau envelope of the norm, the radial Huber loss. It
    is convex, and as smooth as the square (Moreau 1965). So the clipped loss is convex and |phi|^2-smooth for every
    clip norm and any number of classes. An example whose label is out of range has a constant loss.

    >>> Squared()(torch.tensor([[0.5, 0.5]]), torch.tensor([0]))
    tensor(0.2500)
    """

    def __call__(self, outputs: Tensor, target: Tensor) -> Tensor:
        if target.is_floating_point():
            return (outputs.flatten() - target.flatten()).square().sum() / 2
        classes = torch.arange(outputs.shape[1], device=target.device)
        one_hot = (classes == target[:, None]).to(outputs.dtype)
        known = one_hot.sum(dim=1, keepdim=True)
        return (known * (outputs - one_hot)).square().sum() / 2

    def curvature(self, feature_bound: float, clip: float) -> Curvature:
        validate.positive(feature_bound=feature_bound, clip=clip)
        return Curvature(feature_bound**2)


@dataclass(frozen=True)
class Logistic:
    """Logistic loss of one output, for labels 0 and 1.

    Its residual is a scalar that increases with the output with slope at most 1/4, and so does the clipped residual.

    >>> round(float(Logistic()(torch.tensor([[0.0]]), torch.tensor([1]))), 4)
    0.6931
    """

    def __call__(self, outputs: Tensor, target: Tensor) -> Tensor:
        known = (target == 0) | (target == 1)
        truth = target.to(outputs.dtype).reshape(outputs.shape)
        losses = F.binary_cross_entropy_with_logits(outputs, truth.clamp(0, 1), reduction="none")
        return (known.reshape(outputs.shape) * losses).sum()

    def curvature(self, feature_bound: float, clip: float) -> Curvature:
        validate.positive(feature_bound=feature_bound, clip=clip)
        return Curvature(feature_bound**2 / 4)


@dataclass(frozen=True)
class CrossEntropy:
    """Softmax cross-entropy, certified only if the clip norm is so large that no gradient is clipped.

    Its residual softmax(z) - y has norm at most sqrt(2), so a clip norm of sqrt(2) times the feature bound never clips,
    and the loss is |phi|^2 / 2-smooth. With three or more classes a clipped residual is not monotone: a step can move
    two outputs apart. DP-SGD, whose guarantee counts every step, has no such limit.

    >>> CrossEntropy().curvature(feature_bound=1.0, clip=1.0)
    Traceback (most recent call last):
        ...
    sordino.errors.UsageError: clip must be at least sqrt(2) * feature_bound = 1.41422, got 1.0: the clipped gradient \
of cross-entropy is not the gradient of a convex loss, so there is no hidden-state guarantee.
    """

    def __call__(self, outputs: Tensor, target: Tensor) -> Tensor:
        classes = outputs.shape[1]
        known = (target >= 0) & (target < classes)
        losses = F.cross_entropy(outputs, torch.where(known, target, 0), reduction="none")
        return (known * losses).sum()

    def curvature(self, feature_bound: float, clip: float) -> Curvature:
        validate.positive(feature_bound=feature_bound, clip=clip)
        needed = math.sqrt(2) * feature_bound
        if clip < needed:
            raise UsageError(
                f"clip must be at least sqrt(2) * feature_bound = {needed + 5e-6:.5f}, "
                f"got {validate.shown(clip)}: the clipped gradient of "
                "cross-entropy is not the gradient of a convex loss, so there is no hidden-state guarantee."
            )
        return Curvature(feature_bound**2 / 2)
