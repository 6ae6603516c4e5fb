"""Results of verification: a measured value, the allowed range, and whether the value is in it."""

from __future__ import annotations

from dataclasses import dataclass
from math import log

FALSE_ALARM = 1e-6  # for each statistical test, so that about one in 20,000 verifications of correct code fails


@dataclass(frozen=True)
class Finding:
    """One comparison of a measured value with an assumption of the guarantee.

    `closeness` is 0 far below the limit, 1 at the limit, and larger beyond. It only decides which finding is shown.
    """

    check: str
    what: str
    measured: float
    allowed: str
    passed: bool
    closeness: float = 0.0

    def __str__(self) -> str:
        return f"{self.what} is {self.measured:.6g}, allowed {self.allowed}"


@dataclass(frozen=True)
class Check:
    """All findings of one kind."""

    name: str
    findings: tuple[Finding, ...]

    @property
    def passed(self) -> bool:
        return all(finding.passed for finding in self.findings)

    @property
    def closest(self) -> Finding:
        """The finding that is beyond its limit, or closest to it."""
        return max(self.findings, key=lambda finding: (not finding.passed, finding.closeness))

    @property
    def says(self) -> str:
        return "not refuted" if self.passed else "REFUTED"


@dataclass(frozen=True)
class Verdict:
    """All findings of a verification. "Not refuted" is its best result, because measurements prove nothing."""

    findings: tuple[Finding, ...]

    @property
    def passed(self) -> bool:
        return all(finding.passed for finding in self.findings)

    @property
    def says(self) -> str:
        return "not refuted" if self.passed else "REFUTED"

    @property
    def checks(self) -> tuple[Check, ...]:
        """The findings by check, in order.

        >>> verdict = Verdict((at_most("clip", "norm", 1.9, 2.0), at_most("clip", "norm alone", 1.0, 2.0)))
        >>> [(check.name, str(check.closest)) for check in verdict.checks]
        [('clip', 'norm is 1.9, allowed at most 2')]
        """
        names = dict.fromkeys(finding.check for finding in self.findings)
        return tuple(Check(name, tuple(each for each in self.findings if each.check == name)) for name in names)

    @property
    def failed_checks(self) -> tuple[str, ...]:
        """The names of the checks that failed, each once."""
        return tuple(check.name for check in self.checks if not check.passed)

    def __str__(self) -> str:
        failures = [finding for finding in self.findings if not finding.passed]
        if not failures:
            return f"not refuted: {len(self.findings)} comparisons agree with the plan."
        lines = [f"{each.check}: {each}" for each in failures]
        return "\n".join(["REFUTED: the guarantee does not hold for this run.", *lines])


def at_most(check: str, what: str, measured: float, limit: float) -> Finding:
    """A finding that passes if `measured` is at most `limit`. NaN fails."""
    closeness = measured / limit if limit > 0 else 0.0
    return Finding(check, what, measured, f"at most {limit:.6g}", measured <= limit, closeness)


def equal(check: str, what: str, measured: float, expected: float) -> Finding:
    """A finding that passes if `measured` is exactly `expected`."""
    return Finding(check, what, measured, f"exactly {expected:.6g}", measured == expected)


def probable(check: str, what: str, p_value: float) -> Finding:
    """A finding of a statistical test, which passes if its p-value is above `FALSE_ALARM`."""
    closeness = log(max(p_value, 1e-300)) / log(FALSE_ALARM)
    return Finding(check, f"{what} (p-value)", p_value, f"above {FALSE_ALARM:g}", p_value > FALSE_ALARM, closeness)
