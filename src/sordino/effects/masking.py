"""Signs that a model only looks robust, because its gradients mislead an attack and not because it is.

An unlucky clip and much noise can do this to a private network (Boenisch et al. 2021). Each sign is a comparison of
attacks that a model without masking passes (Athalye et al. 2018, Carlini et al. 2019). No sign is no proof.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from sordino.effects.attacks import Attack, LInfinity, pgd, robust_accuracy
from sordino.effects.victim import Prepare, Victim
from sordino.training.evaluation import correctness, evaluating

_TOLERANCE = 0.01  # a share: attacks with random starts differ by about as much
_MANY_STEPS = 100


@dataclass(frozen=True)
class MaskingSigns:
    """What is left right, as shares of the rows, under the attack in question and under others.

    `zero_gradients` is the share of the right rows at which no gradient points anywhere. `by_chance` is under as many
    random neighbours as the attack takes steps, `one_step` under a single step of the whole radius, `unbounded` where
    any input may become any other, and `transferred` under neighbours that were made for another model.
    """

    robust: float
    one_step: float
    by_chance: float
    unbounded: float
    transferred: float | None
    zero_gradients: float
    gives_probabilities: bool
    is_random: bool

    @property
    def found(self) -> tuple[str, ...]:
        """A sentence for each sign.

        >>> MaskingSigns(0.5, 0.6, 0.9, 0.0, None, 0.0, False, False).found
        ()
        >>> MaskingSigns(0.5, 0.4, 0.9, 0.0, None, 0.0, False, False).found
        ('one large step does more than many small ones',)
        """
        return tuple(self._signs())

    def _signs(self) -> Iterator[str]:
        if self.zero_gradients > _TOLERANCE:
            yield f"{100 * self.zero_gradients:.0f} % of the gradients are zero"
        if self.one_step < self.robust - _TOLERANCE:
            yield "one large step does more than many small ones"
        if self.by_chance < self.robust - _TOLERANCE:
            yield "random neighbours do more than gradients"
        if self.transferred is not None and self.transferred < self.robust - _TOLERANCE:
            yield "neighbours made for another model do more than its own"
        if self.unbounded > _TOLERANCE:
            yield f"an attack without a bound leaves {100 * self.unbounded:.0f} % right"
        if self.gives_probabilities:
            yield "the model gives probabilities, whose gradients vanish: attack its logits"
        if self.is_random:
            yield "the model answers differently each time"


def masking_signs(
    model: nn.Module,
    inputs: Tensor,
    target: Tensor,
    attack: Attack,
    *,
    seed: int,
    prepare: Prepare | None = None,
    other: nn.Module | None = None,
) -> MaskingSigns:
    """Compares the attack with a weaker, a blind and an unbounded one, and with neighbours made for an `other` model.

    >>> rows = torch.rand(20, 2, generator=torch.Generator().manual_seed(0))
    >>> masking_signs(nn.Identity(), rows, rows.argmax(dim=1), LInfinity(0.1, 0.02, 10), seed=0).found
    ()
    """
    spread = attack.high - attack.low
    reach = spread if isinstance(attack, LInfinity) else spread * inputs[0].numel() ** 0.5
    variants = {
        "robust": attack,
        "one_step": replace(attack, step=attack.radius, steps=1),
        "by_chance": replace(attack, steps=0, restarts=max(1, attack.steps)),
        "unbounded": replace(attack, radius=reach, step=reach / 20, steps=max(_MANY_STEPS, attack.steps)),
    }
    left = {
        name: robust_accuracy(model, inputs, target, each, seed=seed, prepare=prepare)
        for name, each in variants.items()
    }
    victim = Victim(model, prepare)
    transferred = None
    if other is not None:
        moved = pgd(other, inputs, target, attack, seed=seed, prepare=prepare)
        with evaluating(model):
            transferred = float(correctness(victim.outputs(moved), target).mean())
    with evaluating(model):
        outputs, again = victim.outputs(inputs), victim.outputs(inputs)
        zero_gradients = _share_of_zero_gradients(victim, inputs, target)
    return MaskingSigns(
        **left,
        transferred=transferred,
        zero_gradients=zero_gradients,
        gives_probabilities=bool((outputs >= 0).all() and torch.allclose(outputs.sum(1), torch.ones(len(outputs)))),
        is_random=not torch.equal(outputs, again),
    )


def _share_of_zero_gradients(victim: Victim, inputs: Tensor, target: Tensor) -> float:
    _, right, gradient = victim.losses(inputs, target)
    if not bool(right.any()):
        return 0.0
    return float((gradient[right].flatten(1) == 0).all(dim=1).double().mean())
