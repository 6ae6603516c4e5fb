"""Which event each accountant may read for a mechanism under an adjacency. No other file combines the two.

An accountant that gets the wrong pair returns a wrong epsilon without an error. For example, for ten Gaussians of
multiplier 5 under replace-one, dp_accounting's RDP accountant ignores the adjacency and returns 2.81 instead of 5.76.
docs/accounting.md has the whole table.
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
class AccountantView:
    """An event, and the neighboring relation under which an accountant may read it."""

    event: DpEvent
    relation: NeighboringRelation = ADD_OR_REMOVE


@dataclass(frozen=True)
class PlainView(AccountantView):
    """The view of a mechanism as noise without sampling."""

    event: PlainNoise


@dataclass(frozen=True)
class MechanismViews:
    """The views of one mechanism by accountant.

    `plain` is the mechanism without its sampling, and so without amplification. It is always valid, and used by an
    accountant that has no view of its own.
    """

    plain: PlainView
    pld: AccountantView | None = None
    rdp: AccountantView | None = None

    @property
    def is_sampled(self) -> bool:
        return self.plain != self.pld


def views_of(mechanism: DpEvent, adjacency: Adjacency) -> MechanismViews:
    """The views of one mechanism under an adjacency. Raises `UnsupportedEvent` if no accountant covers it.

    >>> views_of(GaussianDpEvent(5.0), Adjacency.REPLACE_ONE).rdp.event
    GaussianDpEvent(noise_multiplier=2.5)
    """
    # Under replace-one a neighbor moves the sum by two norms, which is equivalent to half of the noise.
    factor = 0.5 if adjacency is Adjacency.REPLACE_ONE else 1.0
    amplifies_absence = adjacency in (Adjacency.ZERO_OUT, Adjacency.ADD_OR_REMOVE)
    match mechanism:
        case NonPrivateDpEvent():
            return _bare(GaussianDpEvent(0.0))
        case GaussianDpEvent(noise_multiplier=multiplier):
            return _bare(_gaussian(multiplier, factor))
        case HiddenStateDpEvent(noise_multiplier=multiplier):
            if adjacency is Adjacency.ADD_OR_REMOVE:
                raise UnsupportedEvent(
                    f"a hidden-state guarantee needs public positions of units, got {adjacency}: "
                    "use zero-out or replace-one."
                )
            return _bare(_gaussian(multiplier, factor))
        case LaplaceDpEvent(noise_multiplier=multiplier):
            return _bare(_laplace(multiplier, factor))
        case PureDpEvent(noise_multiplier=multiplier):
            return _bare(_pure(multiplier, factor))
        case PoissonSampledDpEvent(event=GaussianDpEvent(noise_multiplier=multiplier)):
            # The replace-one pair of the PLD is q N(-1) + (1-q) N(0) against q N(1) + (1-q) N(0). The pair doubles the
            # distance, so the multiplier is not halved. RDP has no such pair.
            plain = PlainView(_gaussian(multiplier, factor))
            both = AccountantView(mechanism)
            return (
                MechanismViews(plain, both, both)
                if amplifies_absence
                else MechanismViews(plain, AccountantView(mechanism, REPLACE_ONE))
            )
        case PoissonSampledDpEvent(event=LaplaceDpEvent(noise_multiplier=multiplier)):
            return MechanismViews(
                PlainView(_laplace(multiplier, factor)), AccountantView(mechanism) if amplifies_absence else None
            )
        case PoissonSampledDpEvent(sampling_probability=rate, event=PureDpEvent(noise_multiplier=multiplier)):
            pure = _pure(multiplier, factor)
            if pure.noise_multiplier == 0:
                return _bare(pure)
            if amplifies_absence:
                return MechanismViews(PlainView(pure), AccountantView(mechanism), AccountantView(mechanism))
            return _amplified(pure, epsilon_of_replacing(rate, 1 / multiplier))
        case TruncatedSubsampledGaussianDpEvent(noise_multiplier=multiplier):
            if adjacency is Adjacency.ADD_OR_REMOVE:
                raise UnsupportedEvent(
                    f"truncated Poisson sampling needs a public number of units, got {adjacency}: "
                    "use zero-out or replace-one."
                )
            validate.between(0, 1, sampling_probability=mechanism.sampling_probability)
            relation = REPLACE_ONE if adjacency is Adjacency.REPLACE_ONE else REPLACE_SPECIAL
            return MechanismViews(PlainView(_gaussian(multiplier, factor)), AccountantView(mechanism, relation))
        case SampledWithoutReplacementDpEvent(event=GaussianDpEvent(noise_multiplier=multiplier)):
            _refuse_unless_replaced(adjacency)
            halved = _gaussian(multiplier, factor)
            if mechanism.sample_size == mechanism.source_dataset_size:
                return _bare(halved)
            sampled = SampledWithoutReplacementDpEvent(mechanism.source_dataset_size, mechanism.sample_size, halved)
            view = AccountantView(sampled, REPLACE_ONE)
            return MechanismViews(PlainView(halved), view, view)
        case SampledWithoutReplacementDpEvent(event=PureDpEvent(noise_multiplier=multiplier)):
            _refuse_unless_replaced(adjacency)
            pure, rate = _pure(multiplier, factor), mechanism.sample_size / mechanism.source_dataset_size
            if pure.noise_multiplier == 0 or rate == 1:
                return _bare(pure)
            return _amplified(pure, log_mixed(rate, 2 / multiplier))
        case RandomAllocationDpEvent(noise_multiplier=multiplier, bins=bins):
            if bins == 1:
                return _bare(_gaussian(multiplier, factor))
            allocated = AccountantView(mechanism) if amplifies_absence else None
            return MechanismViews(PlainView(_gaussian(multiplier, factor)), allocated, allocated)
        case _:
            raise UnsupportedEvent(f"no accountant covers {named(mechanism)} under {adjacency}.")


def _bare(event: PlainNoise) -> MechanismViews:
    """The views of noise without sampling: all accountants read it."""
    view = PlainView(event)
    return MechanismViews(view, view, view)


def _amplified(plain: PureDpEvent, epsilon: float) -> MechanismViews:
    """The views of a sampled step that is itself pure with this epsilon, which is rounded up before it is inverted."""
    view = AccountantView(PureDpEvent(1 / (epsilon * (1 + 1e-14))))
    return MechanismViews(PlainView(plain), view, view)


def _refuse_unless_replaced(adjacency: Adjacency) -> None:
    if adjacency is not Adjacency.REPLACE_ONE:
        raise UnsupportedEvent(f"batches of a fixed size have a bound under replace-one only, got {adjacency}.")


def _gaussian(multiplier: object, factor: float) -> GaussianDpEvent:
    return GaussianDpEvent(_multiplier(multiplier) * factor)


def _laplace(multiplier: object, factor: float) -> LaplaceDpEvent:
    return LaplaceDpEvent(_multiplier(multiplier) * factor)


def _pure(multiplier: object, factor: float) -> PureDpEvent:
    halved = _multiplier(multiplier) * factor
    return PureDpEvent(halved if halved > 1e-100 else 0.0)  # the inverse of a smaller value would not be finite


def _multiplier(value: object) -> float:
    multiplier = float(value) if isinstance(value, Real) else math.nan
    if not 0 <= multiplier < math.inf:
        raise UsageError(f"noise_multiplier must be a finite number of at least 0, got {validate.shown(value)}.")
    return multiplier
