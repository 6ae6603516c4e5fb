"""`fit`: a model, a data set and a target, and nothing else to know."""

import functools
import re

import pytest
import torch
import torch.nn.functional as F
from dp_accounting import GaussianDpEvent
from torch import nn

import sordino as so
from sordino.accounting import Unit
from sordino.errors import BudgetError, UsageError
from sordino.kernel.encoding import Unchanged
from sordino.training.evaluation import Charged

GENERATOR = torch.Generator().manual_seed(0)
LABELS = torch.randint(0, 2, (600,), generator=GENERATOR)
INPUTS = torch.randn(600, 4, generator=GENERATOR) + 3.0 * (2 * LABELS[:, None] - 1)
EASY = (INPUTS, LABELS)


def make_model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))


def fit(model=None, data=EASY, **changes):
    usual = dict(epsilon=8.0, delta=1e-4, batch_size=100, steps=3, seed=0, progress=False)
    return so.fit(model or make_model(), data, **(usual | changes))


def accuracy(model):
    with torch.no_grad():
        return (model(INPUTS).argmax(dim=1) == LABELS).float().mean().item()


def test_it_learns_an_easy_task_and_keeps_the_promise():
    model = make_model()
    with torch.no_grad():
        model[2].weight.zero_()
    before = accuracy(model)
    fitted = fit(model, steps=None, epochs=5, learning_rate=0.2)
    assert before < 0.6 and accuracy(model) > 0.97
    assert fitted.model is model
    assert 7.99 < fitted.guarantee.epsilon <= 8.0
    assert fitted.guarantee.delta == 1e-4


@pytest.mark.parametrize("epsilon", [0.3, 2.0])
def test_the_target_is_reached_closely_from_below(epsilon):
    fitted = fit(epsilon=epsilon)
    assert 0.999 * epsilon < fitted.guarantee.epsilon <= epsilon
    assert fitted.guarantee.epsilon == fitted.plan.guarantee(delta=1e-4).epsilon


def test_adam_an_optimizer_of_ones_own_and_a_function_that_makes_one_all_train():
    model = make_model()
    own = torch.optim.Adam(model.parameters(), lr=0.1)
    fit(model, optimizer=own, steps=10)
    made = make_model()
    fit(made, optimizer=functools.partial(torch.optim.Adam, lr=0.1), steps=10)
    assert accuracy(model) > 0.9
    for one, other in zip(model.parameters(), made.parameters(), strict=True):
        assert torch.equal(one, other)


def test_an_optimizer_that_lacks_a_parameter_is_refused():
    model = make_model()
    with pytest.raises(UsageError, match="does not hold all trainable parameters"):
        fit(model, optimizer=torch.optim.SGD(model[0].parameters(), lr=0.1))
    with pytest.raises(UsageError, match="does not hold all trainable parameters"):
        fit(model, optimizer=torch.optim.SGD(make_model().parameters(), lr=0.1))


@pytest.mark.parametrize("optimizer", ["adam", lambda parameters: None, torch.optim.LBFGS])
def test_what_is_no_optimizer_is_refused(optimizer):
    with pytest.raises(UsageError, match=r"optimizer must be|LBFGS"):
        fit(optimizer=optimizer)


def test_what_is_no_model_is_refused():
    with pytest.raises(UsageError, match="model must be a Module"):
        fit(model="resnet")


def test_the_stages_are_passed_through():
    class Seen(Unchanged):
        steps = 0

        def decode(self, released):
            Seen.steps += 1
            return super().decode(released)

    sampler, clip = so.Shuffled(4, 2), so.Normalise(2.0)
    fitted = fit(sampler=sampler, clip=clip, encoding=Seen(), steps=None, batch_size=150)
    assert fitted.plan.sampler is sampler and fitted.plan.clip is clip
    assert Seen.steps == 8
    assert fit(clip=0.5).plan.clip == so.ClipByNorm(0.5)
    assert fit(clip=so.ClipPerLayer((1.0,) * 4)).plan.clip.bound == 2.0


def test_a_callback_that_is_none_is_named_by_its_place_in_the_given_list():
    budget = so.Budget(EASY)
    with pytest.raises(UsageError, match=r"callbacks\[1\] must be a Callback, got int"):
        fit(data=budget, progress=True, callbacks=[so.Callback(), 3])
    assert budget.releases == ()


def test_a_clip_for_another_model_is_refused_before_anything_is_charged():
    budget = so.Budget(EASY)
    with pytest.raises(UsageError, match="norms must hold 4 clip norms, got 2"):
        fit(data=budget, clip=so.ClipPerLayer((1.0, 1.0)))
    assert budget.releases == ()


def test_the_progress_bar_can_be_switched_off_and_stays_out_of_the_output(capfd):
    fit(progress=False)
    silent = capfd.readouterr()
    assert (silent.out, silent.err) == ("", "")
    fit(progress=True)
    told = capfd.readouterr()
    assert told.out == "" and "training privately" in told.err


def test_the_target_is_that_of_this_fit_and_a_refusal_says_what_would_fit():
    budget = so.Budget(EASY, epsilon=8.0, delta=1e-4)
    budget.charge(GaussianDpEvent(2.0), so.Adjacency.ZERO_OUT, what="mean of the inputs")
    with pytest.raises(BudgetError, match=r"epsilon 8 .* does not fit .*: 1\.\d+ of 8 are spent") as refused:
        fit(data=budget)
    assert budget.releases == ("mean of the inputs",)
    largest = float(re.search(r"Ask for at most ([\d.]+\d)\.", str(refused.value)).group(1))
    fitted = fit(data=budget, epsilon=largest)
    assert budget.releases == ("mean of the inputs", "training run")
    assert largest - 0.01 < fitted.guarantee.epsilon <= largest
    assert 7.9 < budget.guarantee(delta=1e-4).epsilon <= 8.0
    with pytest.raises(BudgetError, match=r"8\.00 of 8 are spent .* at most 0\.0"):
        fit(data=budget, epsilon=1.0)
    assert len(budget.releases) == 2


@pytest.mark.parametrize(("asked", "is_measured"), [(3.0, False), pytest.param(3.36, True, marks=pytest.mark.slow)])
def test_the_largest_epsilon_that_a_refusal_names_fits_and_slightly_more_does_not(asked, is_measured):
    budget = so.Budget(EASY, epsilon=4.0, delta=1e-4)
    fit(
        data=budget, epsilon=3.36, batch_size=30, steps=40
    )  # its Renyi bound exceeds the limit, and its tight one leaves room
    evaluation = Charged(budget, 200.0, evaluations=40) if is_measured else None
    again = functools.partial(fit, data=budget, batch_size=30, steps=40, evaluation=evaluation)
    with pytest.raises(BudgetError, match=rf"epsilon {asked:g} for this .*: 3\.\d+ of 4 are spent") as refused:
        again(epsilon=asked)
    largest = float(re.search(r"Ask for at most ([\d.]+\d)\.", str(refused.value)).group(1))
    with pytest.raises(BudgetError, match=f"Ask for at most {largest}"):
        again(epsilon=largest + 0.01)
    assert 0.99 * largest < again(epsilon=largest).guarantee.epsilon <= largest
    assert 3.99 < budget.guarantee(delta=1e-4).epsilon <= 4.0


def test_epsilon_on_a_budget_is_that_of_the_fit_and_the_budget_counts_all_releases():
    budget = so.Budget(EASY, epsilon=8.0, delta=1e-4)
    budget.charge(GaussianDpEvent(2.0), so.Adjacency.ZERO_OUT, what="mean of the inputs")
    fitted = fit(data=budget, epsilon=4.0)
    assert budget.releases == ("mean of the inputs", "training run")
    assert 3.9 < fitted.guarantee.epsilon <= 4.0 < budget.guarantee(delta=1e-4).epsilon <= 8.0
    assert "this run is counted alone: its budget holds 2 releases" in str(fitted.guarantee.assumptions)


def test_a_plan_that_does_not_fit_into_a_budget_is_refused_with_what_would():
    budget = so.Budget(EASY, epsilon=1.0, delta=1e-4)
    plan = so.Plan(so.Poisson(0.1, 5), so.LossGradient(F.cross_entropy), so.ClipByNorm(1.0), so.Gaussian(0.5))
    with pytest.raises(BudgetError, match=r"does not fit into the budget: 0 of 1 are spent .* at most 0\.99"):
        so.fit(nn.Linear(EASY[0].shape[1], 2), budget, plan, progress=False)
    assert budget.releases == ()


@pytest.mark.parametrize("limit", [dict(epsilon=float("nan")), dict(epsilon=0), dict(delta=1.0), dict(delta=None)])
def test_a_limit_that_limits_nothing_is_refused(limit):
    with pytest.raises(UsageError):
        so.Budget(EASY, **(dict(epsilon=1.0, delta=1e-4) | limit))


def test_a_model_that_mixes_examples_leaves_the_budget_uncharged():
    class MinusMean(nn.Module):
        def forward(self, x):
            return x - x.mean(dim=0)

    budget = so.Budget(EASY)
    with pytest.raises(UsageError, match="mixes the examples"):
        fit(nn.Sequential(MinusMean(), nn.Linear(4, 2)), data=budget)
    assert budget.releases == ()


@pytest.mark.parametrize("wrong", [dict(seed=-1), dict(physical_batch_size=0), dict(physical_batch_size=2.5)])
def test_a_wrong_argument_leaves_the_budget_uncharged(wrong):
    budget = so.Budget(EASY)
    with pytest.raises(UsageError):
        fit(data=budget, **wrong)
    assert budget.releases == ()


def test_epochs_are_turned_into_steps():
    assert fit(steps=None, epochs=0.5).plan.steps == 3
    assert fit(steps=None, epochs=1.1, batch_size=60, epsilon=2.0).plan.steps == 11


@pytest.mark.parametrize("length", [dict(steps=3, epochs=1), dict(steps=None), dict(sampler=so.Poisson(0.1, 3))])
def test_the_length_is_said_exactly_once(length):
    with pytest.raises(UsageError, match=r"epochs and steps|either epochs or steps"):
        fit(**length)


def test_a_batch_larger_than_the_data_is_refused():
    with pytest.raises(UsageError, match="batch_size must be a whole number from 1 to 600, got 601"):
        fit(batch_size=601)


def test_a_delta_of_one_over_the_examples_has_to_be_asked_for():
    with pytest.raises(UsageError, match=r"delta must be below 1 / examples = 0\.0017"):
        fit(delta=1 / 600)
    assert fit(delta=1 / 600, allow_large_delta=True).guarantee.delta == 1 / 600


@pytest.mark.parametrize("weighted", [functools.partial(F.cross_entropy), nn.CrossEntropyLoss])
def test_class_weights_that_are_public_count(weighted):
    def one_step(weight):
        model, plain = make_model(), {"lr": 1.0}
        loss = (
            weighted(weight=weight) if weighted is nn.CrossEntropyLoss else functools.partial(weighted, weight=weight)
        )
        fit(model, loss=loss, clip=100.0, epsilon=20.0, steps=1, optimizer=functools.partial(torch.optim.SGD, **plain))
        return model[2].bias.detach().clone()

    # The noise is the same, so that what differs is the gradient of the second class, which weighs three times as much.
    even, uneven = one_step(torch.tensor([1.0, 1.0])), one_step(torch.tensor([1.0, 3.0]))
    assert not torch.allclose(even, uneven)


def test_a_user_is_protected_with_all_of_their_rows():
    users = so.by_user(EASY, torch.arange(600) // 3, rows_per_user=3)
    fitted = fit(data=users, delta=1e-3, batch_size=50)
    assert fitted.guarantee.unit is Unit.USER
    assert "for every user" in fitted.guarantee.statement
    assert fitted.plan.sampler.rate == 50 / 200


def test_a_secret_size_needs_a_public_guess_and_is_not_looked_at():
    sampler = so.Poisson(0.2, 3, so.Adjacency.ADD_OR_REMOVE, expected_examples=1_000)
    fitted = fit(sampler=sampler, steps=None, batch_size=200)
    assert fitted.guarantee.adjacency is so.Adjacency.ADD_OR_REMOVE
    with pytest.raises(UsageError, match="from 1 to 1000"):
        fit(sampler=sampler, steps=None, batch_size=1_001)
    with pytest.raises(UsageError, match="expected_examples"):
        so.Poisson(0.2, 3, so.Adjacency.ADD_OR_REMOVE)


@pytest.mark.parametrize("training", [True, False])
def test_the_mode_of_the_model_is_left_as_it_was(training):
    model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 2)).train(training)
    model[0].train(not training)
    modes = [module.training for module in model.modules()]
    fit(model)
    assert [module.training for module in model.modules()] == modes


def test_a_seed_reproduces_a_training_and_is_named():
    one, other = make_model(), make_model()
    fitted = fit(one, seed=5)
    fit(other, seed=5)
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))
    assert any("seed" in assumption for assumption in fitted.guarantee.assumptions)
