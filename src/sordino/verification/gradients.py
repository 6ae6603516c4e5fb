"""Gradients by the fast way against autograd's, on synthetic rows.

A wrong rule is no leak, because norm and sum are of the same gradient; but a model would train on it without a word.
"""

from __future__ import annotations

from collections.abc import Iterator

from torch import nn

from sordino.kernel.contribution import LossGradient
from sordino.kernel.records import Records
from sordino.kernel.run import Plan
from sordino.verification.verdict import Finding, at_most

NAME = "gradients of rows"


def compare(plan: Plan, model: nn.Module, records: Records) -> Iterator[Finding]:
    """Nothing is found where gradients are not those of a loss, or are autograd's own."""
    if not isinstance(plan.contribution, LossGradient):
        return
    found = plan.contribution.agreement(model, records)
    if found is not None:
        yield at_most(NAME, f"relative difference from autograd in {found.parameter!r}", found.error, found.tolerance)
