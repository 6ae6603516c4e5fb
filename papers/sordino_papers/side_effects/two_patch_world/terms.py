"""What the test loss of a group is made of: terms of Theorems 3.4 and 3.5 of Xu and Chen (2026), as we read them.

The theorems' formulas were lost; their text says that the loss is bounded by a term that vanishes with training, a
generalisation error that falls with the number of rows, and a privacy error that grows with noise and steps, and that
the expected loss is at least a term that is inverse to the feature-to-noise ratio. Derived here for `PatchNetwork`: a
step of gain a and of disturbance b takes a loss L to about (1 - a) L + b, so that after T steps

    L_T = L_0 e^(-aT) + (b / a) (1 - e^(-aT)).

Each term holds up to a constant, the same for all groups. They order groups and noise levels; they bound nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import cos, exp, log, log1p, radians, sin, sqrt

from scipy.optimize import brentq

from sordino._input import validate
from sordino_papers.side_effects.two_patch_world.descent import PatchDescent
from sordino_papers.side_effects.two_patch_world.ratio import FeatureToNoise, feature_to_noise
from sordino_papers.side_effects.two_patch_world.world import CLASSES, PatchGroup, TwoPatches

LOSS_OF_A_GUESS = log(CLASSES)


@dataclass(frozen=True)
class LossTerms:
    """Of one group, up to constants."""

    group: str
    vanishing: float
    generalisation: float
    privacy: float

    @property
    def total(self) -> float:
        return self.vanishing + self.generalisation + self.privacy


def upper_terms(world: TwoPatches, descent: PatchDescent, *, filters: int, examples: int) -> tuple[LossTerms, ...]:
    """The three terms of each group, after all steps, from a loss of log 2.

    The gain is a_g, the disturbances are b_g for privacy (see `feature_to_noise`) and, for generalisation, what the
    noise patches of `examples` rows say together about a new one: (eta / 2m) h s^2 sqrt(d) / sqrt(n).

    >>> common, rare, *_ = upper_terms(TwoPatches(), PatchDescent(noise_std=0.01), filters=20, examples=1000)
    >>> common.privacy < rare.privacy and common.vanishing < rare.vanishing
    True
    """
    validate.count(examples=examples)
    return tuple(
        _terms(world, descent, group, ratio, examples)
        for group, ratio in zip(world.groups, feature_to_noise(world, descent, filters), strict=True)
    )


def lower_terms(world: TwoPatches, descent: PatchDescent, *, filters: int) -> tuple[float, ...]:
    """What noise leaves of each group's loss at least: no gradient clipped, and every filter seeing the feature.

    All filters instead of half of them double the gain and raise the noise by sqrt(2).

    >>> terms = lower_terms(TwoPatches(), PatchDescent(noise_std=0.01), filters=20)
    >>> [round(term, 3) for term in terms]
    [0.112, 0.894, 0.14, 1.118]
    """
    unclipped = [replace(ratio, clipping_factor=1.0) for ratio in feature_to_noise(world, descent, filters)]
    return tuple(
        _learnt(2 * _gain(group, ratio, descent) * descent.steps) / (sqrt(2) * ratio.effective)
        for group, ratio in zip(world.groups, unclipped, strict=True)
    )


def _terms(
    world: TwoPatches, descent: PatchDescent, group: PatchGroup, ratio: FeatureToNoise, examples: int
) -> LossTerms:
    gain = _gain(group, ratio, descent)
    chance = world.patch_noise**2 * sqrt(world.dimension / examples)
    return LossTerms(
        group.name,
        vanishing=LOSS_OF_A_GUESS * exp(-gain * descent.steps),
        generalisation=_learnt(gain * descent.steps) * chance / (group.share * group.feature_norm**2),
        privacy=_learnt(gain * descent.steps) / ratio.effective,
    )


def _gain(group: PatchGroup, ratio: FeatureToNoise, descent: PatchDescent) -> float:
    """a_g, where nothing is learnt yet."""
    rate = descent.learning_rate / (2 * ratio.filters)
    return rate * group.share * ratio.clipping_factor * group.feature_norm**2


def _learnt(exponent: float) -> float:
    return 1 - exp(-exponent)


def starting_margins(degrees: float, *, strength: float) -> tuple[float, float]:
    """How sure the network is of each class before fine-tuning; below 0 it is wrong.

    >>> [round(margin, 2) for margin in starting_margins(60.0, strength=2.0)]
    [-0.73, 1.0]
    """
    validate.between(0, 90, degrees=degrees)
    validate.positive(strength=strength)
    angle = radians(degrees)
    return strength * (cos(angle) - sin(angle)), strength * cos(angle)


def starting_loss(degrees: float, *, strength: float) -> float:
    """The mean cross-entropy that fine-tuning begins with, of two classes of equal size. It rises with the angle.

    >>> round(starting_loss(0.0, strength=5.0), 3), round(starting_loss(90.0, strength=5.0), 3)
    (0.007, 2.85)
    """
    losses = [log1p(exp(-margin)) for margin in starting_margins(degrees, strength=strength)]
    return sum(losses) / len(losses)


def harmful_angle(strength: float) -> float:
    """Beyond this angle, in degrees, a pre-trained network begins with more loss than one that knows nothing.

    One class is harmed from 45 degrees on. The mean of both follows later, and sooner the surer the network is.

    >>> round(harmful_angle(0.1)), round(harmful_angle(10.0))
    (63, 49)
    """
    return float(brentq(lambda degrees: starting_loss(degrees, strength=strength) - LOSS_OF_A_GUESS, 0.0, 90.0))
