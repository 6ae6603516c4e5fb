"""Planning without data: one number is solved for, on the safe side, and putting it back gives the others."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import sordino as so
from sordino.accounting import Unit
from sordino.errors import UsageError
from sordino.recipes.planning import SMALLEST_DELTA, Question, SamplerName, compare, make_sampler, solve

KNOWN = dict(examples=5_000, batch_size=250, steps=200, noise_multiplier=1.5, delta=1e-6)


def question(**changes):
    return Question(**(KNOWN | changes))


def epsilon(**changes):
    return solve(question(**changes)).guarantee.epsilon


@settings(max_examples=5)
@given(target=st.floats(0.05, 15), batch_size=st.integers(1, 5_000), steps=st.integers(1, 3_000))
def test_solved_noise_meets_the_target_closely(target, batch_size, steps):
    open_noise = question(noise_multiplier=None, epsilon=target, batch_size=batch_size, steps=steps)
    noise_multiplier = solve(open_noise).question.noise_multiplier
    again = epsilon(noise_multiplier=noise_multiplier, batch_size=batch_size, steps=steps)
    assert again <= target
    assert again > 0.995 * target or noise_multiplier == 0.01


@pytest.mark.parametrize("sampler", [SamplerName.TRUNCATED_POISSON, SamplerName.SHUFFLED, SamplerName.FIXED_SIZE])
def test_solved_noise_meets_the_target_for_other_samplers(sampler):
    planned = solve(question(noise_multiplier=None, epsilon=2.0, steps=20, sampler=sampler))
    assert 1.99 < planned.guarantee.epsilon <= 2.0
    assert planned.solved_for == "noise multiplier"
    again = epsilon(noise_multiplier=planned.question.noise_multiplier, steps=20, sampler=sampler)
    assert again == planned.guarantee.epsilon


def test_solved_steps_are_allowed_and_some_more_are_not():
    steps = solve(question(steps=None, epsilon=1.0)).question.steps
    assert epsilon(steps=steps) <= 1.0 < epsilon(steps=steps + max(1, steps // 500))


def test_a_solved_batch_is_allowed_and_a_larger_one_is_not():
    size = solve(question(batch_size=None, epsilon=1.0)).question.batch_size
    assert epsilon(batch_size=size) <= 1.0 < epsilon(batch_size=size + max(1, size // 500))


def test_the_whole_data_is_the_largest_batch():
    planned = solve(question(batch_size=None, epsilon=19.0, steps=10, noise_multiplier=10.0))
    assert planned.question.batch_size == 5_000


def test_a_solved_delta_gives_the_epsilon_back():
    delta = solve(question(delta=None, epsilon=2.0)).question.delta
    assert 1.97 < epsilon(delta=delta) <= 2.0


def test_a_delta_below_all_numbers_is_rounded_up_to_the_smallest_there_is():
    planned = solve(question(delta=None, epsilon=20.0, noise_multiplier=100.0))
    assert planned.question.delta == pytest.approx(SMALLEST_DELTA, rel=1e-3)
    assert planned.guarantee.epsilon <= 20.0


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (dict(steps=None, epsilon=1e-3), "even one step exceeds epsilon 0.001"),
        (dict(batch_size=None, epsilon=1e-5, noise_multiplier=0.3), "even a batch of one exceeds epsilon 1e-05"),
        (dict(delta=None, epsilon=1e-9), "delta must be below 1 / examples = 0.0002, got 0.[0-9]+;"),
    ],
)
def test_what_cannot_be_reached_is_said(changes, said):
    with pytest.raises(UsageError, match=said):
        solve(question(**changes))


def test_epsilon_grows_with_steps_and_batch_and_shrinks_with_noise_and_delta():
    middle = epsilon()
    assert epsilon(steps=400) > middle > epsilon(steps=100)
    assert epsilon(batch_size=500) > middle > epsilon(batch_size=100)
    assert epsilon(noise_multiplier=1.0) > middle > epsilon(noise_multiplier=2.0)
    assert epsilon(delta=1e-8) > middle > epsilon(delta=1e-5)


def test_epochs_mean_the_same_training_as_their_steps():
    assert epsilon(steps=None, epochs=10) == epsilon(steps=200)
    assert question(steps=None, epochs=0.1 * 3, batch_size=15).num_steps == 100  # 0.1 * 3 is a little above 0.3


@pytest.mark.parametrize("sampler", list(SamplerName))
def test_what_is_planned_is_what_a_run_would_be_worth(sampler):
    asked = question(sampler=sampler)
    made = make_sampler(asked)
    assert made.name == sampler and made.steps == asked.num_steps
    noise = so.Gaussian(1.5)
    event = made.compose(noise.event, made.steps)
    assert so.Guarantee.of(event, made.adjacency, delta=1e-6).epsilon == solve(asked).guarantee.epsilon


def test_users_are_named_as_the_unit():
    assert solve(question(unit=Unit.USER)).guarantee.unit is Unit.USER


@pytest.mark.parametrize("examples", [1, 2, 9, 10, 11, 999, 1000, 60_000, 10**9])
def test_the_usual_delta_is_the_largest_power_of_ten_below_one_over_the_examples(examples):
    planned = solve(Question(examples, 1, steps=1, noise_multiplier=5.0))
    assert planned.guarantee.delta < 1 / examples <= 10 * planned.guarantee.delta * (1 + 1e-12)
    assert planned.notes and "delta was not given" in planned.notes[0]


def test_every_sampler_is_compared_and_none_beats_its_own_best_bound():
    rows = compare(question())
    assert {name for name, _, _ in rows} == set(SamplerName)
    for name in SamplerName:
        own = solve(question(sampler=name)).guarantee
        listed = [answer.epsilon for found, adjacency, answer in rows if (found, adjacency) == (name, own.adjacency)]
        assert min(listed) == pytest.approx(own.epsilon, rel=1e-9)


def test_replace_one_never_costs_less_than_zero_out():
    best = {}
    for name, adjacency, answer in compare(question()):
        best[name, adjacency] = min(answer.epsilon, best.get((name, adjacency), float("inf")))
    for name in SamplerName:
        if (name, so.Adjacency.ZERO_OUT) in best:
            assert best[name, so.Adjacency.REPLACE_ONE] >= best[name, so.Adjacency.ZERO_OUT]


def test_an_adjacency_asked_for_is_the_one_compared():
    adjacencies = {(name, adjacency) for name, adjacency, _ in compare(question(adjacency=so.Adjacency.ADD_OR_REMOVE))}
    assert len(adjacencies) == len(SamplerName)
    assert (SamplerName.POISSON, so.Adjacency.ADD_OR_REMOVE) in adjacencies
    assert (SamplerName.SHUFFLED, so.Adjacency.ZERO_OUT) in adjacencies
