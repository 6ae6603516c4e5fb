"""What each accountant may see of a mechanism under an adjacency: the one place where the two meet.

An accountant handed the wrong pair answers without complaint: asked for ten Gaussians of multiplier 5 under
replace-one, dp_accounting's RDP ignores the relation and says 2.81 where 5.76 is right. The whole table is in
docs/accounting.md.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from numbers import Real

from dp_accounting.dp_event import (
    DpEvent,
    GaussianDpEvent,
    LaplaceDpEvent,
    NonPrivateDpEvent,
    PoissonSampledDpEvent,
    SampledWithoutReplacementDpEvent,
    TruncatedSubsampledGaussianDpEvent,
)
from dp_accounting.privacy_accountant import NeighboringRelation

from sordino._input import validate
from sordino.accounting.adjacency import Adjacency
from sordino.accounting.events import HiddenStateDpEvent, PureDpEvent, RandomAllocationDpEvent, named
from sordino.accounting.randomized_response import epsilon_of_replacing, log_mixed
from sordino.errors import UnsupportedEvent, UsageError

ADD_OR_REMOVE, REPLACE_ONE = NeighboringRelation.ADD_OR_REMOVE_ONE, NeighboringRelation.REPLACE_ONE
REPLACE_SPECIAL = NeighboringRelation.REPLACE_SPECIAL

PlainNoise = GaussianDpEvent | LaplaceDpEvent | PureDpEvent


@dataclass(frozen=True)
class Sight:
    """An event, and the relation under which an accountant may read it."""

    event: DpEvent
    relation: NeighboringRelation = ADD_OR_REMOVE


@dataclass(frozen=True)
class Plain(Sight):
    """Noise without sampling."""

    event: PlainNoise


@dataclass(frozen=True)
class Visible:
    """One mechanism as the accountants see it.

    `plain` is the mechanism with its sampling forgotten: always valid, and what an accountant without a sight of its
    own falls back to.
    """

    plain: Plain
    pld: Sight | None = None
    rdp: Sight | None = None

    @property
    def is_sampled(self) -> bool:
        return self.plain != self.pld


def visible(mechanism: DpEvent, adjacency: Adjacency) -> Visible:
    """The sights of one mechanism, or `UnsupportedEvent`.

    >>> visible(GaussianDpEvent(5.0), Adjacency.REPLACE_ONE).rdp.event
    GaussianDpEvent(noise_multiplier=2.5)
    """
    # Under replace-one a neighbour moves the sum by two norms, which is as if the noise were half as large.
    share = 0.5 if adjacency is Adjacency.REPLACE_ONE else 1.0
    amplifies_absence = adjacency in (Adjacency.ZERO_OUT, Adjacency.ADD_OR_REMOVE)
    match mechanism:
        case NonPrivateDpEvent():
            return _bare(GaussianDpEvent(0.0))
        case GaussianDpEvent(noise_multiplier=multiplier):
            return _bare(_gaussian(multiplier, share))
        case HiddenStateDpEvent(noise_multiplier=multiplier):
            if adjacency is Adjacency.ADD_OR_REMOVE:
                raise UnsupportedEvent(f"a hidden state takes the places of units as public, got {adjacency}.")
            return _bare(_gaussian(multiplier, share))
        case LaplaceDpEvent(noise_multiplier=multiplier):
            return _bare(_laplace(multiplier, share))
        case PureDpEvent(noise_multiplier=multiplier):
            return _bare(_pure(multiplier, share))
        case PoissonSampledDpEvent(event=GaussianDpEvent(noise_multiplier=multiplier)):
            # The replace-one pair of the PLD is q N(-1) + (1-q) N(0) against q N(1) + (1-q) N(0): it doubles the
            # distance itself, so that the multiplier stays. RDP has no such pair.
            plain = Plain(_gaussian(multiplier, share))
            both = Sight(mechanism)
            return Visible(plain, both, both) if amplifies_absence else Visible(plain, Sight(mechanism, REPLACE_ONE))
        case PoissonSampledDpEvent(event=LaplaceDpEvent(noise_multiplier=multiplier)):
            return Visible(Plain(_laplace(multiplier, share)), Sight(mechanism) if amplifies_absence else None)
        case PoissonSampledDpEvent(sampling_probability=rate, event=PureDpEvent(noise_multiplier=multiplier)):
            pure = _pure(multiplier, share)
            if pure.noise_multiplier == 0:
                return _bare(pure)
            if amplifies_absence:
                return Visible(Plain(pure), Sight(mechanism), Sight(mechanism))
            return _amplified(pure, epsilon_of_replacing(rate, 1 / multiplier))
        case TruncatedSubsampledGaussianDpEvent(noise_multiplier=multiplier):
            if adjacency is Adjacency.ADD_OR_REMOVE:
                raise UnsupportedEvent(
                    f"truncated Poisson sampling takes the number of units as public, got adjacency {adjacency}."
                )
            validate.between(0, 1, sampling_probability=mechanism.sampling_probability)
            relation = REPLACE_ONE if adjacency is Adjacency.REPLACE_ONE else REPLACE_SPECIAL
            return Visible(Plain(_gaussian(multiplier, share)), Sight(mechanism, relation))
        case SampledWithoutReplacementDpEvent(event=GaussianDpEvent(noise_multiplier=multiplier)):
            _refuse_unless_replaced(adjacency)
            halved = _gaussian(multiplier, share)
            if mechanism.sample_size == mechanism.source_dataset_size:
                return _bare(halved)
            sampled = SampledWithoutReplacementDpEvent(mechanism.source_dataset_size, mechanism.sample_size, halved)
            sight = Sight(sampled, REPLACE_ONE)
            return Visible(Plain(halved), sight, sight)
        case SampledWithoutReplacementDpEvent(event=PureDpEvent(noise_multiplier=multiplier)):
            _refuse_unless_replaced(adjacency)
            pure, rate = _pure(multiplier, share), mechanism.sample_size / mechanism.source_dataset_size
            if pure.noise_multiplier == 0 or rate == 1:
                return _bare(pure)
            return _amplified(pure, log_mixed(rate, 2 / multiplier))
        case RandomAllocationDpEvent(noise_multiplier=multiplier, bins=bins):
            if bins == 1:
                return _bare(_gaussian(multiplier, share))
            allocated = Sight(mechanism) if amplifies_absence else None
            return Visible(Plain(_gaussian(multiplier, share)), allocated, allocated)
        case _:
            raise UnsupportedEvent(f"no accountant covers {named(mechanism)} under {adjacency}.")


def _bare(event: PlainNoise) -> Visible:
    sight = Plain(event)
    return Visible(sight, sight, sight)


def _amplified(plain: PureDpEvent, epsilon: float) -> Visible:
    """A sampled step that is pure itself, of this epsilon, which is rounded up before it is inverted."""
    sight = Sight(PureDpEvent(1 / (epsilon * (1 + 1e-14))))
    return Visible(Plain(plain), sight, sight)


def _refuse_unless_replaced(adjacency: Adjacency) -> None:
    if adjacency is not Adjacency.REPLACE_ONE:
        raise UnsupportedEvent(f"batches of a fixed size are covered under replace-one only, got {adjacency}.")


def _gaussian(multiplier: object, share: float) -> GaussianDpEvent:
    return GaussianDpEvent(_multiplier(multiplier) * share)


def _laplace(multiplier: object, share: float) -> LaplaceDpEvent:
    return LaplaceDpEvent(_multiplier(multiplier) * share)


def _pure(multiplier: object, share: float) -> PureDpEvent:
    halved = _multiplier(multiplier) * share
    return PureDpEvent(halved if halved > 1e-100 else 0.0)  # of which the inverse is no epsilon


def _multiplier(value: object) -> float:
    multiplier = float(value) if isinstance(value, Real) else math.nan
    if not 0 <= multiplier < math.inf:
        raise UsageError(f"noise_multiplier must be a finite number of at least 0, got {validate.shown(value)}.")
    return multiplier
