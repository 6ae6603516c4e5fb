"""The feature-to-noise ratio of a group: how long its feature is, against the noise that privacy adds.

Xu and Chen (2026), Definition 3.3, names three things that decide what a group loses: the ratio, the clipping factor
and the group's share. Its formulas were lost; those below are our reading, derived for `PatchNetwork`.

In one step the output of the right class on a feature v_g grows by a_g = (eta / 2m) share_g h_g |v_g|^2 (1 - p), as
half of the m filters see it. Noise moves the same output by a standard deviation of b_g = eta sigma_n |v_g| / sqrt(2m).
The effective ratio is a_g / b_g where nothing is learnt yet (p = 0): share_g h_g |v_g| / (sigma_n sqrt(2m)).
"""

from __future__ import annotations

from dataclasses import dataclass
from math import hypot, sqrt

from sordino._input import validate
from sordino_papers.side_effects.two_patch_world.descent import PatchDescent
from sordino_papers.side_effects.two_patch_world.world import TwoPatches


@dataclass(frozen=True)
class FeatureToNoise:
    """Feature-to-noise ratio of a group: `plain` is |v| / sigma_n, `effective` includes clipping and the group's share.

    >>> group = FeatureToNoise("rare", plain=50.0, clipping_factor=0.5, share=0.1, filters=8)
    >>> group.effective
    0.625
    """

    group: str
    plain: float
    clipping_factor: float
    share: float
    filters: int

    @property
    def effective(self) -> float:
        return self.share * self.clipping_factor * self.plain / sqrt(2 * self.filters)


def feature_to_noise(world: TwoPatches, descent: PatchDescent, filters: int) -> tuple[FeatureToNoise, ...]:
    """Ratios of all groups by formula. Uses no data.

    >>> [round(one.effective, 2) for one in feature_to_noise(TwoPatches(), PatchDescent(noise_std=0.01), filters=20)]
    [6.32, 0.79, 5.06, 0.63]
    """
    validate.count(filters=filters)
    validate.positive(noise_std=descent.noise_std)
    return tuple(
        FeatureToNoise(
            group.name,
            group.feature_norm / descent.noise_std,
            clipping_factor(world, group.feature_norm, descent.clip_norm, filters),
            group.share,
            filters,
        )
        for group in world.groups
    )


def clipping_factor(world: TwoPatches, feature_norm: float, clip_norm: float, filters: int) -> float:
    """How much a clip leaves of a group's gradients at least: min(1, C sqrt(m / 2) / sqrt(|v|^2 + s^2 d)).

    No gradient is longer than sqrt(2 / m) (1 - p) |x_1 + x_2|, which is about sqrt(|v|^2 + s^2 d).

    >>> world = TwoPatches(dimension=400, patch_noise=0.1)
    >>> clipping_factor(world, 1.0, clip_norm=1.0, filters=20)
    1.0
    >>> round(clipping_factor(world, 1.0, clip_norm=0.1, filters=20), 3)
    0.141
    """
    validate.positive(feature_norm=feature_norm, clip_norm=clip_norm)
    row_norm = hypot(feature_norm, world.patch_noise * sqrt(world.dimension))
    return min(1.0, clip_norm * sqrt(filters / 2) / row_norm)
