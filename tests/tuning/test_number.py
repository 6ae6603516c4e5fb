import math

import numpy as np
import pytest
from scipy.stats import logser, nbinom, poisson

from sordino.accounting.selection import halting_probability
from sordino.errors import UsageError
from sordino.kernel.randomness import Key
from sordino.tuning import NegativeBinomialNumber, PoissonNumber

STREAM = Key.from_seed(5).stream("trials")
DRAWS = 4000


def expected(number, k):
    """The probability of k, from scipy."""
    if math.isinf(number.shape):
        return poisson.pmf(k, number.mean)
    gamma = halting_probability(number.mean, number.shape)
    if number.shape == 0:
        return logser.pmf(k, 1 - gamma)
    return nbinom.pmf(k, number.shape, gamma) / nbinom.sf(0, number.shape, gamma) * (k > 0)


@pytest.mark.parametrize(
    "number",
    [
        PoissonNumber(6.0),
        NegativeBinomialNumber(6.0, 0.0),
        NegativeBinomialNumber(6.0, 0.5),
        NegativeBinomialNumber(6.0, 1.0),
        NegativeBinomialNumber(1.0, 0.0),
        NegativeBinomialNumber(30.0, 100.0),
    ],
)
def test_numbers_follow_their_law(number):
    drawn = np.array([number.draw(STREAM, step) for step in range(DRAWS)])
    for k in range(12):
        share = expected(number, k) if number.mean > 1 else float(k == 1)
        assert np.mean(drawn == k) == pytest.approx(share, abs=5 * math.sqrt(max(share * (1 - share), 1e-4) / DRAWS))
    assert drawn.mean() == pytest.approx(number.mean, abs=5 * drawn.std() / math.sqrt(DRAWS) + 1e-9)


@pytest.mark.parametrize(("mean", "shape"), [(100.0, 100.0), (500.0, 100.0), (5000.0, 1000.0)])
def test_numbers_of_a_large_shape_have_their_mean_and_their_spread(mean, shape):
    number, gamma = NegativeBinomialNumber(mean, shape), halting_probability(mean, shape)
    drawn = np.array([number.draw(STREAM, step) for step in range(300)])
    spread = nbinom.std(shape, gamma)  # what is cut off at 0 is next to nothing here
    assert drawn.mean() == pytest.approx(mean, abs=5 * spread / math.sqrt(300))
    assert drawn.std() == pytest.approx(spread, rel=0.25)  # six standard errors


@pytest.mark.parametrize("shape", [-1.0, math.inf, math.nan])
def test_shapes_of_no_negative_binomial_are_refused(shape):
    with pytest.raises(UsageError, match="shape must be in"):
        NegativeBinomialNumber(6.0, shape)


def test_the_same_address_gives_the_same_number():
    assert PoissonNumber(6.0).draw(STREAM, 3) == PoissonNumber(6.0).draw(STREAM, 3)


@pytest.mark.parametrize("make", [PoissonNumber, NegativeBinomialNumber])
@pytest.mark.parametrize("mean", [0.9, math.nan, math.inf, "6"])
def test_means_that_no_theorem_is_about_are_refused(make, mean):
    with pytest.raises(UsageError, match="mean must be in"):
        make(mean)
