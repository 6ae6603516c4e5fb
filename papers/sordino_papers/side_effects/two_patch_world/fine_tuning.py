"""What a pre-trained network is worth where features have turned: Proposition 4.4 of Xu and Chen (2026), as we read it.

The proposition's formula was lost. Its setting: filters of class j point along the feature u_j, and private rows have
features that are turned by an angle t (see `TwoPatches.features`). Derived from that, with a strength a for what the
filters say of their own feature: class 1 begins with a margin of a (cos t - sin t), because its feature has turned
towards the filters of class 2; class 2 with a cos t, as relu is deaf to what has turned away. The loss that fine-tuning
starts from is paid off by steps that all have noise in them.
"""

from __future__ import annotations

from math import cos, exp, log1p, radians, sin

from scipy.optimize import brentq

from sordino._input import validate
from sordino_papers.side_effects.two_patch_world.terms import LOSS_OF_A_GUESS


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
