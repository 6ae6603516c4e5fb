"""The table of docs/accounting.md: which event each accountant may read under each adjacency."""

from pathlib import Path

import pytest
from dp_accounting.dp_event import (
    DiscreteLaplaceDpEvent,
    GaussianDpEvent,
    LaplaceDpEvent,
    NonPrivateDpEvent,
    PoissonSampledDpEvent,
    RandomizedResponseDpEvent,
    SampledWithoutReplacementDpEvent,
    SampledWithReplacementDpEvent,
    SelfComposedDpEvent,
    SingleEpochTreeAggregationDpEvent,
    TruncatedSubsampledGaussianDpEvent,
    UnsupportedDpEvent,
    ZCDpEvent,
)

from sordino.accounting import Adjacency, PureDpEvent, RandomAllocationDpEvent, privacy_of
from sordino.accounting.accountant_views import ADD_OR_REMOVE, REPLACE_ONE, REPLACE_SPECIAL, AccountantView, views_of
from sordino.errors import UnsupportedEvent, UsageError

EVENTS = {
    "Gaussian(s)": GaussianDpEvent(4.0),
    "Laplace(s)": LaplaceDpEvent(4.0),
    "Poisson(q, Gaussian(s))": PoissonSampledDpEvent(0.1, GaussianDpEvent(4.0)),
    "Poisson(q, Laplace(s))": PoissonSampledDpEvent(0.1, LaplaceDpEvent(4.0)),
    "TruncatedPoisson(n, q, cap, s)": TruncatedSubsampledGaussianDpEvent(100, 0.1, 20, 4.0),
    "FixedSize(n, b, Gaussian(s))": SampledWithoutReplacementDpEvent(100, 10, GaussianDpEvent(4.0)),
    "RandomAllocation(s, bins, epochs)": RandomAllocationDpEvent(4.0, 10, 1),
    "Pure(s)": PureDpEvent(4.0),
    "Poisson(q, Pure(s))": PoissonSampledDpEvent(0.1, PureDpEvent(4.0)),
    "FixedSize(n, b, Pure(s))": SampledWithoutReplacementDpEvent(100, 10, PureDpEvent(4.0)),
}
RELATIONS = {ADD_OR_REMOVE: "add/remove", REPLACE_ONE: "replace one", REPLACE_SPECIAL: "replace special"}
COLUMNS = [Adjacency.ZERO_OUT, Adjacency.ADD_OR_REMOVE, Adjacency.REPLACE_ONE]


def cell(event, adjacency):
    try:
        seen = views_of(event, adjacency)
    except UnsupportedEvent:
        return "refused"
    return "; ".join(
        f"{name}: {in_words(sight)}" for name, sight in [("PLD", seen.pld), ("RDP", seen.rdp), ("plain", seen.plain)]
    )


def in_words(sight: AccountantView | None) -> str:
    if sight is None:
        return "as plain"
    multiplier = {4.0: "s", 2.0: "s/2"}.get(multiplier_of(sight.event), "amplified")
    return f"{multiplier}, {RELATIONS[sight.relation]}"


def multiplier_of(event):
    return multiplier_of(event.event) if hasattr(event, "event") else event.noise_multiplier


def table() -> str:
    lines = ["| event | " + " | ".join(COLUMNS) + " |", "|---|---|---|---|"]
    for name, event in EVENTS.items():
        lines.append(f"| {name} | " + " | ".join(cell(event, adjacency) for adjacency in COLUMNS) + " |")
    return "\n".join(lines)


def test_the_documentation_shows_the_table_that_the_code_obeys():
    page = Path(__file__).parents[2] / "docs" / "accounting.md"
    assert table() in page.read_text(), f"docs/accounting.md should contain\n\n{table()}\n"


@pytest.mark.parametrize("adjacency", list(Adjacency))
@pytest.mark.parametrize(
    "event",
    [
        ZCDpEvent(1.0),
        DiscreteLaplaceDpEvent(1.0, 1),
        RandomizedResponseDpEvent(0.5, 2),
        SampledWithReplacementDpEvent(10, 2, GaussianDpEvent(1.0)),
        SingleEpochTreeAggregationDpEvent(1.0, 4),
        UnsupportedDpEvent(),
        PoissonSampledDpEvent(0.1, ZCDpEvent(1.0)),
    ],
)
def test_an_event_that_no_accountant_covers_raises_and_is_named(event, adjacency):
    with pytest.raises(UnsupportedEvent, match=type(event).__name__):
        privacy_of(SelfComposedDpEvent(event, 3), adjacency)


@pytest.mark.parametrize("multiplier", [-1.0, float("nan"), float("inf"), "1", None])
def test_a_multiplier_that_is_no_number_is_refused(multiplier):
    with pytest.raises(UsageError, match="noise_multiplier"):
        views_of(GaussianDpEvent(multiplier), Adjacency.ZERO_OUT)


def test_a_string_is_not_an_adjacency():
    with pytest.raises(UsageError, match="adjacency must be an Adjacency"):
        privacy_of(GaussianDpEvent(1.0), "zero-out")


def test_everything_is_seen_of_a_release_without_noise():
    assert views_of(NonPrivateDpEvent(), Adjacency.ZERO_OUT) == views_of(GaussianDpEvent(0.0), Adjacency.ZERO_OUT)
