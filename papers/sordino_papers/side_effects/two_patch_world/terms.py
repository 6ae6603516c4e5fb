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
from math import exp, log, sqrt

from sordino._input import validate
from sordino_papers.side_effects.two_patch_world.descent import Descent
from sordino_papers.side_effects.two_patch_world.ratio import FeatureToNoise, feature_to_noise
from sordino_papers.side_effects.two_patch_world.world import CLASSES, Group, TwoPatches

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


def upper_terms(world: TwoPatches, descent: Descent, *, filters: int, examples: int) -> tuple[LossTerms, ...]:
    """The three terms of each group, after all steps, from a loss of log 2.

    The gain is a_g, the disturbances are b_g for privacy (see `feature_to_noise`) and, for generalisation, what the
    noise patches of `examples` rows say together about a new one: (eta / 2m) h s^2 sqrt(d) / sqrt(n).

    >>> common, rare, *_ = upper_terms(TwoPatches(), Descent(noise_std=0.01), filters=20, examples=1000)
    >>> common.privacy < rare.privacy and common.vanishing < rare.vanishing
    True
    """
    validate.count(examples=examples)
    return tuple(
        _terms(world, descent, group, ratio, examples)
        for group, ratio in zip(world.groups, feature_to_noise(world, descent, filters), strict=True)
    )


def lower_terms(world: TwoPatches, descent: Descent, *, filters: int) -> tuple[float, ...]:
    """What noise leaves of each group's loss at least: no gradient clipped, and every filter seeing the feature.

    All filters instead of half of them double the gain and raise the noise by sqrt(2).

    >>> terms = lower_terms(TwoPatches(), Descent(noise_std=0.01), filters=20)
    >>> [round(term, 3) for term in terms]
    [0.112, 0.894, 0.14, 1.118]
    """
    unclipped = [replace(ratio, clipping_factor=1.0) for ratio in feature_to_noise(world, descent, filters)]
    return tuple(
        _learnt(2 * _gain(group, ratio, descent) * descent.steps) / (sqrt(2) * ratio.effective)
        for group, ratio in zip(world.groups, unclipped, strict=True)
    )


def _terms(world: TwoPatches, descent: Descent, group: Group, ratio: FeatureToNoise, examples: int) -> LossTerms:
    gain = _gain(group, ratio, descent)
    chance = world.patch_noise**2 * sqrt(world.dimension / examples)
    return LossTerms(
        group.name,
        vanishing=LOSS_OF_A_GUESS * exp(-gain * descent.steps),
        generalisation=_learnt(gain * descent.steps) * chance / (group.share * group.feature_norm**2),
        privacy=_learnt(gain * descent.steps) / ratio.effective,
    )


def _gain(group: Group, ratio: FeatureToNoise, descent: Descent) -> float:
    """a_g, where nothing is learnt yet."""
    rate = descent.learning_rate / (2 * ratio.filters)
    return rate * group.share * ratio.clipping_factor * group.feature_norm**2


def _learnt(exponent: float) -> float:
    return 1 - exp(-exponent)
