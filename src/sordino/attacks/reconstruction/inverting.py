"""Inverting Gradients (Geiping et al. 2020): optimizes an image until its gradient has the observed direction.

As in the paper: the cost is 1 - cosine similarity over all layers together, plus total variation; Adam on the signs of
gradients, with learning rate divided by ten after 3/8, 5/8 and 7/8 of the iterations; images are clamped to the range
of pixels and start from normal noise; the restart with the lowest cost counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod

import torch
from torch import Tensor, nn

from sordino._input import validate
from sordino.attacks.reconstruction.attack import KnownNetwork, ObservedGradient, Tick, unwatched
from sordino.errors import UsageError
from sordino.kernel.randomness import Stream

_DECAYS = (3 / 8, 5 / 8, 7 / 8)


@dataclass(frozen=True)
class GradientInversion:
    """Gradient inversion. The label is read from the gradient of the last layer, which must be linear."""

    iterations: int = 4800
    restarts: int = 1
    total_variation: float = 1e-2
    learning_rate: float = 0.1

    def __post_init__(self) -> None:
        validate.count(at_most=10**6, iterations=self.iterations)
        validate.count(at_most=1000, restarts=self.restarts)
        validate.between(0, 1e30, total_variation=self.total_variation)
        validate.positive(learning_rate=self.learning_rate)

    @property
    def ticks(self) -> int:
        return self.iterations * self.restarts

    def check(self, known: KnownNetwork) -> None:
        _last_weight(known)

    def reconstruct(
        self, known: KnownNetwork, observed: ObservedGradient, randomness: Stream, tick: Tick = unwatched
    ) -> Tensor:
        label = read_label(known, observed)
        starts = (self._start(known, randomness, restart) for restart in range(self.restarts))
        ends = [self._moved(known, observed, label, start, tick) for start in starts]
        _, best = min(ends, key=lambda end: end[0])
        return known.pixels(best)

    def _start(self, known: KnownNetwork, randomness: Stream, restart: int) -> Tensor:
        drawn = randomness.normals(prod(known.input_shape), step=restart)
        return torch.from_numpy(drawn).to(known.dtype).reshape(1, *known.input_shape)

    def _moved(
        self, known: KnownNetwork, observed: ObservedGradient, label: Tensor, start: Tensor, tick: Tick
    ) -> tuple[float, Tensor]:
        """The cost and the image that one start leads to."""
        (low, high), target = known.box, TargetDirection.of(observed)
        moved = start.clamp(low, high).requires_grad_()
        adam = torch.optim.Adam([moved], lr=self.learning_rate)
        decay = torch.optim.lr_scheduler.MultiStepLR(adam, [int(part * self.iterations) for part in _DECAYS])
        for _ in range(self.iterations):
            moved.grad = self._cost(known, target, moved, label)[1].sign()
            adam.step()
            decay.step()
            with torch.no_grad():
                moved.clamp_(low, high)
            tick()
        return self._cost(known, target, moved, label)[0], moved.detach()

    def _cost(self, known: KnownNetwork, target: TargetDirection, moved: Tensor, label: Tensor) -> tuple[float, Tensor]:
        """The cost of an image, and its gradient with respect to the pixels."""
        gradients = known.gradients(moved, label, differentiable=True)
        distance, slopes = target.distance(gradients)
        variation = total_variation(moved)
        dependent = [(g, s) for g, s in zip(gradients, slopes, strict=True) if g.requires_grad]
        outputs, weights = zip(*dependent, (variation, torch.full_like(variation, self.total_variation)), strict=True)
        (slope,) = torch.autograd.grad(outputs, moved, weights)
        return distance + self.total_variation * float(variation.detach()), slope


@dataclass(frozen=True)
class TargetDirection:
    """The direction of the observed gradient. Only coordinates that were sent are compared."""

    direction: tuple[Tensor, ...] = field(repr=False)
    kept: tuple[Tensor, ...] | None = field(repr=False)  # None if all coordinates were sent

    @classmethod
    def of(cls, observed: ObservedGradient) -> TargetDirection:
        length = observed.value.norm()
        if not length > 0:
            raise UsageError("the observed gradient must be finite and not zero, so that it has a direction.")
        direction = observed.layout.split(observed.value / length)
        kept = observed.layout.split(observed.keep.to(observed.value.dtype))
        return cls(tuple(direction.values()), None if observed.keep.all() else tuple(kept.values()))

    def distance(self, gradients: Sequence[Tensor]) -> tuple[float, list[Tensor]]:
        """1 - cosine similarity to `gradients`, and its derivative with respect to each of them.

        The derivative is (cosine * g / |g| - direction) / |g|, where |g| is the norm of the kept coordinates. It is
        computed in closed form, because autograd through millions of values would take longer than a convolution.

        >>> target = TargetDirection((torch.tensor([1.0, 0.0]),), (torch.tensor([1.0, 0.0]),))
        >>> target.distance([torch.tensor([2.0, 7.0])])
        (0.0, [tensor([0., 0.])])
        """
        detached = [g.detach() for g in gradients]
        kept = detached if self.kept is None else [g * k for g, k in zip(detached, self.kept, strict=True)]
        length = float(torch.stack([torch.linalg.vector_norm(g) for g in kept]).norm())
        if length == 0:
            return 1.0, [torch.zeros_like(g) for g in kept]
        along = sum(float((g * w).sum()) for g, w in zip(kept, self.direction, strict=True))
        cosine = along / length
        slopes = [(cosine / length * g - w) / length for g, w in zip(kept, self.direction, strict=True)]
        return 1 - cosine, slopes


def total_variation(pictures: Tensor) -> Tensor:
    """The mean absolute difference between neighboring pixels, to the right and below.

    >>> total_variation(torch.tensor([[[[0.0, 1.0], [0.0, 1.0]]]]))
    tensor(1.)
    """
    across, down = pictures.diff(dim=-1).abs().mean(), pictures.diff(dim=-2).abs().mean()
    return across + down


def read_label(known: KnownNetwork, observed: ObservedGradient) -> Tensor:
    """The class whose weights in the last layer have the lowest mean gradient (iDLG, Zhao et al. 2020), shape (1,).

    Row c of that gradient is (p_c - [c is the label]) times the features, which are not negative after a ReLU.
    """
    name = _last_weight(known)
    sums, sent = observed.tensors()[name].sum(dim=1), observed.kept()[name].sum(dim=1)
    return (sums / sent.clamp(min=1)).argmin()[None]


def _last_weight(known: KnownNetwork) -> str:
    """The name of the last layer's weight. The layer must be linear with an output for each class."""
    *_, (name, layer) = ((name, layer) for name, layer in known.model.named_modules() if not list(layer.children()))
    if not isinstance(layer, nn.Linear) or layer.out_features < 2:
        raise UsageError(f"gradient inversion needs a linear last layer with an output for each class, got {layer}.")
    return f"{name}.weight"
