"""Events of sampled and repeated steps with pure differential privacy, for tests of accountants."""

from dp_accounting.dp_event import PoissonSampledDpEvent, SelfComposedDpEvent
from hypothesis import settings
from hypothesis import strategies as st

from sordino.accounting import Adjacency, PureDpEvent, privacy_of

ZERO_OUT, REPLACE_ONE = Adjacency.ZERO_OUT, Adjacency.REPLACE_ONE

epsilons = st.floats(1e-3, 6.0)
rates = st.floats(1e-4, 0.99)
steps = st.integers(1, 2000)
deltas = st.sampled_from([1e-2, 1e-5, 1e-12, 1e-40])
quickly = settings(max_examples=25)


def sampled(epsilon, rate, count=1):
    release = PureDpEvent(1 / epsilon)
    return SelfComposedDpEvent(release if rate == 1 else PoissonSampledDpEvent(rate, release), count)


def cost(event, delta, adjacency=ZERO_OUT):
    return privacy_of(event, adjacency).epsilon(delta)
