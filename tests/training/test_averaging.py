"""Averages of iterates, against the plain formula."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sordino.errors import StateError, UsageError
from sordino.training.averaging import Average, Averaging, Ema, Tail

EACH = [Ema(0.9), Ema(0.999), Ema(0.0), Tail(0.5), Tail(1.0), Tail(1e-6)]


def iterates(number, dtype=torch.float64):
    return [{"a": torch.randn(3, 2, dtype=dtype), "b": torch.randn((), dtype=dtype)} for _ in range(number)]


def averaged(averaging, start, weights):
    state = averaging.init(start)
    for step, value in enumerate(weights):
        state = averaging.update(state, value, step, len(weights))
    return averaging.weights(state)


@given(decay=st.floats(0, 0.9999), steps=st.integers(1, 60))
def test_an_exponential_average_is_the_weighted_sum_of_all_iterates(decay, steps):
    start, *weights = iterates(steps + 1)
    shares = [1 - min(decay, (1 + t) / (10 + t)) for t in range(steps)]
    left = [torch.tensor([1 - share for share in shares[t + 1 :]], dtype=torch.float64).prod() for t in range(steps)]
    first = torch.tensor([1 - share for share in shares], dtype=torch.float64).prod()
    for name, found in averaged(Ema(decay), start, weights).items():
        terms = [share * rest * value[name] for share, rest, value in zip(shares, left, weights, strict=True)]
        torch.testing.assert_close(found, first * start[name] + sum(terms))


@given(fraction=st.floats(0.001, 1), steps=st.integers(1, 60))
def test_a_tail_average_is_the_mean_of_the_last_iterates(fraction, steps):
    start, *weights = iterates(steps + 1)
    last = weights[-max(1, round(fraction * steps)) :]
    for name, found in averaged(Tail(fraction), start, weights).items():
        torch.testing.assert_close(found, torch.stack([value[name] for value in last]).mean(dim=0))


@pytest.mark.parametrize("averaging", EACH, ids=str)
def test_the_average_of_constant_weights_is_those_weights(averaging):
    assert isinstance(averaging, Averaging)
    (weights,) = iterates(1, torch.float32)
    for name, found in averaged(averaging, weights, [weights] * 50).items():
        assert torch.equal(found, weights[name])


def test_until_its_tail_begins_an_average_is_the_last_iterate():
    tail, (start, *weights) = Tail(0.25), iterates(9)
    state = tail.init(start)
    for step, value in enumerate(weights[:6]):
        state = tail.update(state, value, step, 8)
        assert all(torch.equal(found, value[name]) for name, found in tail.weights(state).items())


@pytest.mark.parametrize("averaging", EACH, ids=str)
def test_an_average_shares_no_memory_with_the_weights_it_was_given(averaging):
    (weights,) = iterates(1)
    before = {name: value.clone() for name, value in weights.items()}
    started = averaging.init(weights)
    updated = averaging.update(averaging.init(weights), weights, 0, 10)
    for value in weights.values():
        value.zero_()
    for state in (started, updated):
        assert all(torch.allclose(found, before[name]) for name, found in averaging.weights(state).items())


@pytest.mark.parametrize("averaging", EACH, ids=str)
@pytest.mark.parametrize("cut", [0, 3, 7, 10])
def test_an_average_that_was_saved_and_read_goes_on_as_if_nothing_had_happened(averaging, cut):
    start, *weights = iterates(11, torch.float32)
    state = averaging.init(start)
    for step, value in enumerate(weights):
        if step == cut:
            state = Average.from_tensors(state.state_tensors(), like=start)
        state = averaging.update(state, value, step, 10)
    whole = averaged(averaging, start, weights)
    assert all(torch.equal(found, whole[name]) for name, found in averaging.weights(state).items())


def test_trained_parameters_are_averaged_without_a_graph():
    layer = torch.nn.Linear(3, 2)
    ema, parameters = Ema(), dict(layer.named_parameters())
    state = ema.update(ema.init(parameters), parameters, 0, 5)
    assert not any(value.requires_grad for value in ema.weights(state).values())


def spoiled(**changes):
    tensors = Average({"a": torch.ones(2)}, 3).state_tensors()
    return {name: value for name, value in {**tensors, **changes}.items() if value is not None}


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        (spoiled(count=None), "other parameters"),
        (spoiled(count=torch.tensor(3.0)), "other parameters"),
        (spoiled(count=torch.tensor([3])), "other parameters"),
        (spoiled(count=torch.tensor(-1)), "a count of -1, which must be at least 0"),
        (spoiled(other=torch.ones(2)), "other parameters"),
        (spoiled(**{"average.a": None}), "other parameters"),
        (spoiled(**{"average.a": torch.ones(3)}), "other parameters"),
        (spoiled(**{"average.a": torch.ones(2).double()}), "other parameters"),
    ],
)
def test_a_saved_average_of_something_else_is_refused(tensors, message):
    with pytest.raises(StateError, match=message):
        Average.from_tensors(tensors, like={"a": torch.zeros(2)})


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Ema(1.0), r"decay must be in \[0, 1\), got 1.0"),
        (lambda: Ema(float("nan")), "decay must be in"),
        (lambda: Tail(0.0), r"fraction must be in \(0, 1\], got 0.0"),
        (lambda: Tail().update(Average({}, 0), {}, 5, 5), "step must be a whole number from 0 to 4, got 5"),
    ],
)
def test_settings_that_mean_nothing_are_refused(make, message):
    with pytest.raises(UsageError, match=message):
        make()
