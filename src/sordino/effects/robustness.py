"""Accuracy under attack, over the radius: curves for both norms, on pictures with pixels from 0 to 1."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from sordino.data import Facts
from sordino.effects.attacks import L2, Attack, LInfinity, pgd
from sordino.effects.masking import MaskingSigns, masking_signs
from sordino.effects.victim import Prepare, Victim
from sordino.errors import DataError
from sordino.models import Built
from sordino.training.evaluation import correctness, evaluating

STEPS = 20
_GREY = {LInfinity: (0.02, 0.05, 0.1, 0.2, 0.3), L2: (0.25, 0.5, 1.0, 1.5, 2.0)}
_COLOUR = {LInfinity: (1 / 255, 2 / 255, 4 / 255, 8 / 255), L2: (0.1, 0.25, 0.5, 1.0)}


@dataclass(frozen=True)
class Curve:
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
class Pictures:
    """Pictures to attack, with pixels from 0 to 1."""

    pixels: Tensor = field(repr=False)
    target: Tensor = field(repr=False)
    facts: Facts
    prepare: FromUnit

    def curves(self, model: nn.Module, *, seed: int) -> tuple[Curve, ...]:
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


def usual_attacks(facts: Facts) -> dict[str, tuple[Attack, ...]]:
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
    attacks: Sequence[Attack],
    *,
    seed: int,
    prepare: Prepare | None = None,
) -> Curve:
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
    return Curve(norm, (0.0, *(attack.radius for attack in attacks)), shares, len(target))
