"""`Guarantee`: what is proved, in a form to print. Each value is proved, and none is rounded down."""

from __future__ import annotations

import math
from dataclasses import dataclass
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal
from enum import StrEnum
from functools import cached_property
from importlib.metadata import PackageNotFoundError, version

from dp_accounting.dp_event import DpEvent, RepeatAndSelectDpEvent

from sordino._input import validate
from sordino.accounting.adjacency import Adjacency
from sordino.accounting.curves import best_true_positive_rate
from sordino.accounting.events import HiddenStateDpEvent, flatten
from sordino.accounting.group import epsilon_for_group
from sordino.accounting.tightest import TightestCurve, privacy_of

SEED_STAYS_SECRET = (
    "the seed stays secret and is used once: whoever knows it can remove the noise, and releases that share a seed "
    "without sharing a budget have the same noise"
)


class Unit(StrEnum):
    """The privacy unit: whose data a guarantee protects."""

    EXAMPLE = "example"
    USER = "user"


class View(StrEnum):
    """What the observer sees against whom the guarantee holds."""

    EVERY_STEP = "every-step"
    FINAL_MODEL = "final-model"


_VIEWS = {
    View.EVERY_STEP: "sees every step of the training, and anything computed from it",
    View.FINAL_MODEL: "sees the final model only, and none of the steps before",
}


@dataclass(frozen=True)
class Guarantee:
    """(epsilon, delta)-differential privacy, with all that an epsilon needs to have a meaning.

    Delta may be 0 if all releases are purely differentially private, which Gaussian noise never is.

    >>> from dp_accounting.dp_event import GaussianDpEvent
    >>> guarantee = Guarantee.of(GaussianDpEvent(1.0), Adjacency.ZERO_OUT, delta=1e-5)
    >>> round(guarantee.epsilon, 6), guarantee.accountant
    (4.377178, 'exact-gaussian')
    >>> round(guarantee.best_true_positive_rate(0.01), 3)
    0.092
    >>> from sordino.accounting import PureDpEvent
    >>> Guarantee.of(PureDpEvent(1.0), Adjacency.ZERO_OUT, delta=0.0).epsilon
    1.0
    """

    epsilon: float
    delta: float
    unit: Unit
    adjacency: Adjacency
    view: View
    accountant: str
    assumptions: tuple[str, ...]
    event: DpEvent

    @classmethod
    def of(
        cls,
        event: DpEvent,
        adjacency: Adjacency,
        *,
        delta: float,
        unit: Unit = Unit.EXAMPLE,
        view: View = View.EVERY_STEP,
        assumptions: tuple[str, ...] = (),
        tight: bool = False,
    ) -> Guarantee:
        """The guarantee that the accountants prove for `event`.

        If the event hides its steps or trials, the guarantee is against an observer of the final model.
        """
        validate.instance(Unit, unit=unit)
        validate.instance(View, view=view)
        validate.instance(tuple, assumptions=assumptions)
        if any(isinstance(part.mechanism, HiddenStateDpEvent | RepeatAndSelectDpEvent) for part in flatten(event)):
            view = View.FINAL_MODEL
        answer = privacy_of(event, adjacency, tight=tight).answer(delta)
        return cls(answer.epsilon, delta, unit, adjacency, view, answer.accountant, tuple(assumptions), event)

    def for_group(self, size: int) -> float:
        """The epsilon for groups of `size` units at the same delta. Infinite if none is proved."""
        return epsilon_for_group(self.event, self.adjacency, size, self.delta)

    def best_true_positive_rate(self, false_positive_rate: float = 0.01) -> float:
        """Upper bound on the true positive rate of any membership attack with at most this false positive rate."""
        validate.between(0, 1, false_positive_rate=false_positive_rate)
        return best_true_positive_rate(self._curve, false_positive_rate)

    @cached_property
    def statement(self) -> str:
        """The guarantee as one paragraph of plain text."""
        if math.isinf(self.epsilon):
            return (
                f"There is no privacy guarantee (epsilon is infinite under {self.adjacency} adjacency): what was "
                f"released may reveal everything about any {self.unit}."
            )
        return " ".join([self._meaning, self._neighbors, self._family, self._attack, self._proof])

    def __str__(self) -> str:
        return self.statement

    def as_dict(self) -> dict[str, object]:
        """All fields and derived values, ready for JSON. An infinite epsilon becomes `None`."""
        return {
            "epsilon": _finite(self.epsilon),
            "delta": self.delta,
            "unit": str(self.unit),
            "adjacency": str(self.adjacency),
            "view": str(self.view),
            "accountant": self.accountant,
            "assumptions": list(self.assumptions),
            "statement": self.statement,
            "group_of_four_epsilon": _finite(self._epsilon_of_four),
            "best_true_positive_rate_at_1_percent": self._best_rate_at_1_percent,
            "event": repr(self.event),
            "versions": {name: _version(name) for name in ("sordino", "dp-accounting")},
        }

    @property
    def _meaning(self) -> str:
        epsilon, is_pure = rounded_up(self.epsilon), self.delta == 0
        numbers = f"epsilon = {epsilon}" + (" (pure: delta = 0)" if is_pure else f" and delta = {float(self.delta)!r}")
        return (
            f"The output is differentially private for every {self.unit} with {numbers} under "
            f"{self.adjacency} adjacency: whether or not one {self.unit}'s data is used, no outcome becomes more than "
            f"{_factor(self.epsilon)} times as likely{'' if is_pure else ', apart from a probability of delta'}."
        )

    @property
    def _neighbors(self) -> str:
        words = self.adjacency.in_words.replace("unit", str(self.unit))
        return f"Datasets are neighbors if {words}. The guarantee holds for an observer who {_VIEWS[self.view]}."

    @property
    def _family(self) -> str:
        if math.isinf(self._epsilon_of_four):
            return f"For a group of four {self.unit}s, such as a family, nothing is proved at this delta."
        together = rounded_up(self._epsilon_of_four)
        return f"For a group of four {self.unit}s, such as a family, epsilon is {together} at the same delta."

    @property
    def _attack(self) -> str:
        rate = self._best_rate_at_1_percent
        if rate >= 1:
            return "At 1 % false alarms the bound rules out no membership attack."
        return (
            f"At 1 % false alarms no membership attack finds more than {rounded_up(100 * rate, 3)} % of those present."
        )

    @property
    def _proof(self) -> str:
        assumed = "; ".join(self.assumptions) or "none beyond those of the mechanism"
        return f"Accountant: {self.accountant}. Assumptions: {assumed}."

    @cached_property
    def _curve(self) -> TightestCurve:
        return privacy_of(self.event, self.adjacency)

    @cached_property
    def _epsilon_of_four(self) -> float:
        return self.for_group(4)

    @cached_property
    def _best_rate_at_1_percent(self) -> float:
        return self.best_true_positive_rate(0.01)


def rounded_up(value: float, digits: int = 4) -> str:
    """The value with `digits` significant digits, rounded up.

    >>> rounded_up(2.3816860), rounded_up(0.00012341), rounded_up(24.0)
    ('2.382', '0.0001235', '24')
    """
    return _rounded(value, digits, ROUND_CEILING)


def rounded_down(value: float, digits: int = 4) -> str:
    """The value with `digits` significant digits, rounded down: at most so much fits.

    >>> rounded_down(2.3816860), rounded_down(0.00012341), rounded_down(24.0)
    ('2.381', '0.0001234', '24')
    """
    return _rounded(value, digits, ROUND_FLOOR)


def _rounded(value: float, digits: int, rounding: str) -> str:
    if not math.isfinite(value):
        return str(value)
    return f"{Context(prec=digits, rounding=rounding).create_decimal(Decimal(value)):f}"


def _factor(epsilon: float) -> str:
    return rounded_up(math.exp(epsilon), 3) if epsilon < 12 else f"exp({rounded_up(epsilon)})"


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
