"""Accuracy under attack as a function of the radius, and signs of masked gradients.

Signs that a model only looks robust, because its gradients mislead an attack and not because it is.

An unlucky clip and much noise can do this to a private network (Boenisch et al. 2021). Each sign is a comparison of
attacks that a model without masking passes (Athalye et al. 2018, Carlini et al. 2019). No sign is no proof.

Accuracy under attack, over the radius: curves for both norms, on pictures with pixels from 0 to 1.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn

from sordino.data import Facts
from sordino.effects.input_attacks import L2, LInfinity, PgdAttack, Prepare, Victim, pgd, robust_accuracy
from sordino.errors import DataError
from sordino.models import Built
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
    attack: PgdAttack,
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


STEPS = 20
_GREY = {LInfinity: (0.02, 0.05, 0.1, 0.2, 0.3), L2: (0.25, 0.5, 1.0, 1.5, 2.0)}
_COLOUR = {LInfinity: (1 / 255, 2 / 255, 4 / 255, 8 / 255), L2: (0.1, 0.25, 0.5, 1.0)}


@dataclass(frozen=True)
class RobustnessCurve:
    """The share of rows that stays right at each radius; the first radius is 0."""

    norm: str
    radii: tuple[float, ...]
    accuracies: tuple[float, ...]
    rows: int


@dataclass(frozen=True)
class FromUnit:
    """Pixels from 0 to 1 brought to their public range, and then whatever the network is given."""

    built: Built
    input_range: tuple[float, float]

    def __call__(self, pixels: Tensor) -> Tensor:
        low, high = self.input_range
        raw = low + (high - low) * pixels
        return raw if self.built.features is None else self.built.features(raw)

    @property
    def __name__(self) -> str:
        return type(self.built.features).__name__


@dataclass(frozen=True)
class ImagesToAttack:
    """Pictures to attack, with pixels from 0 to 1."""

    pixels: Tensor = field(repr=False)
    target: Tensor = field(repr=False)
    facts: Facts
    prepare: FromUnit

    def curves(self, model: nn.Module, *, seed: int) -> tuple[RobustnessCurve, ...]:
        """For both norms."""
        return tuple(
            curve(model, self.pixels, self.target, norm, attacks, seed=seed, prepare=self.prepare)
            for norm, attacks in usual_attacks(self.facts).items()
        )

    def signs(self, model: nn.Module, *, seed: int, other: nn.Module | None = None) -> MaskingSigns:
        """Of masking, at the radius in the middle."""
        attacks = usual_attacks(self.facts)["L-infinity"]
        middle = attacks[len(attacks) // 2]
        return masking_signs(model, self.pixels, self.target, middle, seed=seed, prepare=self.prepare, other=other)


def unit_pixels(raw: Tensor, facts: Facts) -> Tensor:
    """Pictures with pixels from 0 to 1. Rows of anything else are refused: their columns cannot all be moved a little.

    >>> unit_pixels(torch.full((1, 1, 2, 2), 51.0), Facts("dots", (1, 2, 2), 2, (0.0, 255.0))).unique()
    tensor([0.2000])
    """
    if len(facts.input_shape) != 3:
        raise DataError("attacks move the pixels of pictures, and these rows are none.")
    low, high = range_of(facts)
    return ((raw.float() - low) / (high - low)).clamp(0, 1)


def range_of(facts: Facts) -> tuple[float, float]:
    """The public range of pixels."""
    if facts.input_range is None:
        raise DataError(f"{facts.name!r} declares no range of its pixels, and an attack keeps to one.")
    return facts.input_range


def usual_attacks(facts: Facts) -> dict[str, tuple[PgdAttack, ...]]:
    """For each norm attacks of rising radius: 20 steps that add up to two and a half times the radius.

    >>> [attack.radius for attack in usual_attacks(Facts("digits", (1, 8, 8), 10))["L-infinity"]]
    [0.02, 0.05, 0.1, 0.2, 0.3]
    """
    radii = _GREY if facts.input_shape[0] == 1 else _COLOUR
    names = {LInfinity: "L-infinity", L2: "L2"}
    return {names[kind]: tuple(kind(r, 2.5 * r / STEPS, STEPS) for r in radii[kind]) for kind in radii}


def curve(
    model: nn.Module,
    inputs: Tensor,
    target: Tensor,
    norm: str,
    attacks: Sequence[PgdAttack],
    *,
    seed: int,
    prepare: Prepare | None = None,
) -> RobustnessCurve:
    """What stays right as the radius rises. A row that fell at a smaller radius has fallen at a larger one."""
    victim = Victim(model, prepare)

    def right(moved: Tensor, labels: Tensor) -> Tensor:
        with evaluating(model):
            return correctness(victim.outputs(moved), labels) == 1

    standing = torch.arange(len(target))[right(inputs, target)]
    left = [len(standing)]
    for attack in attacks:
        if len(standing):
            moved = pgd(model, inputs[standing], target[standing], attack, seed=seed, prepare=prepare)
            standing = standing[right(moved, target[standing])]
        left.append(len(standing))
    shares = tuple(each / len(target) for each in left)
    return RobustnessCurve(norm, (0.0, *(attack.radius for attack in attacks)), shares, len(target))
