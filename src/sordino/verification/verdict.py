"""What a check found: a number, what it was allowed to be, and whether it was."""

from __future__ import annotations

from dataclasses import dataclass

FALSE_ALARM = 1e-6  # of each statistical test, so that a clean system is accused once in about 20,000 verifications


@dataclass(frozen=True)
class Finding:
    """One comparison of something measured with what the guarantee leans on."""

    check: str
    what: str
    measured: float
    allowed: str
    passed: bool


@dataclass(frozen=True)
class Verdict:
    """All findings. "Not refuted" is the best that measuring can say; the proof is the plan's."""

    findings: tuple[Finding, ...]

    @property
    def passed(self) -> bool:
        return all(finding.passed for finding in self.findings)

    @property
    def failed_checks(self) -> tuple[str, ...]:
        """The names of the checks that found something, each once."""
        return tuple(dict.fromkeys(finding.check for finding in self.findings if not finding.passed))

    def __str__(self) -> str:
        failures = [finding for finding in self.findings if not finding.passed]
        if not failures:
            return f"not refuted: {len(self.findings)} comparisons agree with the plan."
        lines = [f"{each.check}: {each.what} is {each.measured:.6g}, allowed {each.allowed}" for each in failures]
        return "\n".join(["REFUTED: the guarantee does not hold for this run.", *lines])


def at_most(check: str, what: str, measured: float, limit: float) -> Finding:
    """Measured is at most the limit; a NaN is not."""
    return Finding(check, what, measured, f"at most {limit:.6g}", measured <= limit)


def equal(check: str, what: str, measured: float, expected: float) -> Finding:
    """Measured is exactly the expected number."""
    return Finding(check, what, measured, f"exactly {expected:.6g}", measured == expected)


def probable(check: str, what: str, p_value: float) -> Finding:
    """A statistical test: its p-value is not absurdly small."""
    return Finding(check, f"{what} (p-value)", p_value, f"above {FALSE_ALARM:g}", p_value > FALSE_ALARM)
