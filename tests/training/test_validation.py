"""Models are measured on rows declared public, or on private ones after the price is charged."""

import math

import pytest
import torch
import torch.nn.functional as F
from dp_accounting import GaussianDpEvent
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binomtest
from torch import nn

import sordino as so
from sordino.errors import BudgetError, DataError, UsageError
from sordino.kernel.randomness import Key
from sordino.training.evaluation import (
    Charged,
    Public,
    Regression,
    accuracy,
    correctness,
    correctness_by_class,
    evaluating,
    mean_loss,
    per_class_accuracy,
    regression,
    scores_of_units,
    wilson,
)

CLASSES = 3


def linear():
    return nn.Linear(4, CLASSES)


def rows(number=30):
    return torch.randn(number, 4), torch.randint(CLASSES, (number,))


def right(model, inputs, target):
    return (model.eval()(inputs).argmax(1) == target).double()


# --- public rows ---


@pytest.mark.parametrize("batch_size", [1, 7, 30, 1000])
def test_accuracy_is_the_share_of_right_labels_whatever_the_batches(batch_size):
    model, (inputs, target) = linear(), rows()
    assert accuracy(model, Public((inputs, target)), batch_size=batch_size) == right(model, inputs, target).mean()


def test_accuracy_by_class_is_that_of_the_rows_of_each_class():
    model, (inputs, target) = linear(), rows()
    found = per_class_accuracy(model, Public((inputs, target)), batch_size=7)
    of_each = right(model, inputs, target)
    assert found == {label: float(of_each[target == label].mean()) for label in range(CLASSES)}


def test_the_mean_loss_is_torchs_own():
    model, (inputs, target) = linear(), rows()
    expected = F.cross_entropy(model(inputs), target).item()
    assert math.isclose(mean_loss(model, Public((inputs, target)), batch_size=7), expected, rel_tol=1e-5)


def test_a_loss_that_averages_what_it_is_given_is_taken_row_by_row():
    model, (inputs, target) = linear(), rows(5)

    def averaging(outputs, target):
        return (outputs.logsumexp(1) - outputs.gather(1, target[:, None])[:, 0]).mean()

    public = Public((inputs, target))
    assert math.isclose(mean_loss(model, public, averaging), mean_loss(model, public), rel_tol=1e-5)


def test_a_regression_has_the_error_and_the_explained_variance_of_its_formula():
    inputs, target = torch.randn(40, 4), torch.randn(40)
    model = nn.Linear(4, 1)
    found = regression(model, Public((inputs, target)), batch_size=9)
    errors = model(inputs)[:, 0].detach().double() - target.double()
    assert math.isclose(found.mse, float(errors.square().mean()), rel_tol=1e-5)
    assert math.isclose(found.r2, 1 - found.mse / float(target.double().var(correction=0)), rel_tol=1e-5)


def test_a_target_that_never_changes_has_no_variance_to_explain():
    assert math.isnan(Regression.of(torch.zeros(3), torch.ones(3)).r2)


@pytest.mark.parametrize(
    ("outputs", "target", "expected"),
    [
        (torch.tensor([-1.0, 2.0]), torch.tensor([0, 0]), [1, 0]),
        (torch.tensor([[-1.0], [2.0]]), torch.tensor([0.0, 1.0]), [1, 1]),
        (torch.tensor([[1.0, -1.0], [1.0, 1.0]]), torch.tensor([[1, 1], [1, 1]]), [0.5, 1]),
        (torch.tensor([[[0.0, 1.0], [1.0, 0.0]]]), torch.tensor([[1, 1]]), [0.5]),
        (torch.tensor([[0.0, math.nan], [0.0, math.inf]]), torch.tensor([1, 1]), [0, 0]),
        (torch.tensor([[0.0, 1.0, 0.0]]), torch.tensor([7]), [0]),
    ],
)
def test_what_counts_as_right(outputs, target, expected):
    assert correctness(outputs, target).tolist() == expected


def test_an_output_that_is_not_finite_is_right_for_no_class():
    assert correctness_by_class(torch.tensor([[0.0, math.nan], [0.0, 1.0]]), torch.tensor([1, 1])) == {1: 0.5}


def test_each_module_gets_its_own_mode_back_even_after_an_error():
    model = nn.Sequential(nn.Dropout(), nn.Sequential(nn.Dropout(), nn.Dropout().eval()).train())
    model[1][1].eval()
    before = [module.training for module in model.modules()]
    with pytest.raises(RuntimeError), evaluating(model):
        assert not any(module.training for module in model.modules())
        raise RuntimeError
    assert [module.training for module in model.modules()] == before


def test_dropout_is_off_and_its_mode_is_kept():
    model = nn.Sequential(linear(), nn.Dropout(0.9))
    public = Public(rows())
    assert mean_loss(model, public) == mean_loss(model, public)
    assert model.training and model[1].training


@pytest.mark.parametrize(
    ("measure", "error", "message"),
    [
        (lambda model: accuracy(model, rows()), UsageError, "public must be a Public, got tuple"),
        (lambda model: accuracy(model, Public(rows()), batch_size=0), UsageError, "batch_size must be a whole"),
        (
            lambda model: accuracy(model, Public((torch.full((2, 4), math.nan), torch.zeros(2)))),
            DataError,
            "2 of the public rows are not finite or cannot be read",
        ),
        (
            lambda model: mean_loss(model, Public((torch.zeros(2, 4), torch.tensor([0, 3])))),
            DataError,
            "1 public rows have a label outside the model's classes",
        ),
        (
            lambda model: regression(model, Public((torch.zeros(2, 4), torch.zeros(2)))),
            UsageError,
            r"outputs of shape \(2, 3\) do not match targets of shape \(2,\)",
        ),
        (
            lambda model: accuracy(model, Public((torch.zeros(2, 4), torch.zeros(2, 5)))),
            UsageError,
            r"outputs of shape \(2, 3\) do not match targets of shape \(2, 5\)",
        ),
    ],
)
def test_rows_that_cannot_be_measured_are_refused(measure, error, message):
    with pytest.raises(error, match=message):
        measure(linear())


@given(trials=st.integers(1, 5000), share=st.floats(0, 1), confidence=st.sampled_from([0.8, 0.95, 0.999]))
def test_wilsons_interval_is_scipys(trials, share, confidence):
    successes = round(share * trials)
    expected = binomtest(successes, trials).proportion_ci(confidence, method="wilson")
    assert wilson(successes, trials, confidence=confidence) == pytest.approx((expected.low, expected.high), abs=1e-12)


# --- private rows ---


class Watched(torch.utils.data.Dataset):
    """Counts how often a row is read."""

    def __init__(self):
        self.reads = 0

    def __len__(self):
        return 40

    def __getitem__(self, index):
        self.reads += 1
        return torch.full((4,), float(index)), torch.tensor(index % CLASSES)


def test_all_evaluations_are_charged_before_the_data_is_touched():
    data = Watched()
    budget = so.Budget(data)
    declared = data.reads
    charged = Charged(budget, noise_multiplier=20.0, evaluations=3)
    assert budget.releases == ("validation",) and data.reads == declared
    charged.accuracy(linear())
    assert data.reads == declared + 40


def test_a_price_beyond_the_budget_is_refused_before_the_data_is_touched():
    data = Watched()
    budget = so.Budget(data, epsilon=1.0, delta=1e-3)
    declared = data.reads
    with pytest.raises(BudgetError, match="the validation would bring epsilon to"):
        Charged(budget, noise_multiplier=1.0, evaluations=5)
    assert budget.releases == () and data.reads == declared


def test_evaluations_compose_with_a_training_run():
    data = rows(50)
    plan = so.Plan(so.Poisson(0.2, 10), so.LossGradient(F.cross_entropy), so.ClipByNorm(1.0), so.Gaussian(2.0))
    trained, both, measured = so.Budget(data), so.Budget(data), so.Budget(data)
    so.PrivateRun(plan, linear(), trained)
    so.PrivateRun(plan, linear(), both)
    for budget in (both, measured):
        Charged(budget, noise_multiplier=10.0, evaluations=4)
    epsilons = [budget.guarantee(delta=1e-3).epsilon for budget in (trained, measured, both)]
    assert max(epsilons[:2]) < epsilons[2] < sum(epsilons[:2]) + 1e-9


def test_evaluations_cost_as_much_as_one_with_less_noise():
    # Four Gaussians of multiplier 10 are one of multiplier 5.
    several, one = so.Budget(rows()), so.Budget(rows())
    Charged(several, noise_multiplier=10.0, evaluations=4)
    one.charge(GaussianDpEvent(5.0), so.Adjacency.ZERO_OUT, what="one release")
    assert math.isclose(several.guarantee(delta=1e-5).epsilon, one.guarantee(delta=1e-5).epsilon, rel_tol=1e-6)


def test_more_evaluations_than_charged_are_refused():
    charged = Charged(so.Budget(rows()), noise_multiplier=5.0, evaluations=2)
    for remaining in (1, 0):
        charged.accuracy(linear())
        assert charged.remaining == remaining
    with pytest.raises(BudgetError, match="all 2 evaluations that were charged have been used"):
        charged.accuracy(linear())


def test_a_released_accuracy_is_the_true_one_plus_noise_of_the_stated_size():
    # 300 releases: their mean within 5 standard errors, their variance within 5 of its own (false alarm below 1e-6).
    inputs, target = rows(50)
    model = linear()
    truth = float(right(model, inputs, target).mean())
    charged = Charged(so.Budget((inputs, target)), noise_multiplier=3.0, evaluations=300, seed=1)
    errors = torch.tensor([charged.accuracy(model) - truth for _ in range(300)], dtype=torch.float64) / charged.std
    assert charged.std == pytest.approx(3.0 / 50)
    assert abs(float(errors.mean())) < 5 / 300**0.5
    assert abs(float(errors.square().mean()) - 1) < 5 * (2 / 300) ** 0.5
    assert len(errors.unique()) == 300


def test_noise_differs_between_two_validations_of_one_budget_and_one_seed():
    budget, model = so.Budget(rows()), linear()
    first, second = (Charged(budget, 5.0, 1, seed=4) for _ in range(2))
    assert first.accuracy(model) != second.accuracy(model)


def test_a_resumed_validation_draws_the_noise_of_the_uninterrupted_one():
    data, model, key = rows(), linear(), Key.fresh()
    whole = Charged(so.Budget(data), 5.0, 3, key=key)
    uninterrupted = [whole.accuracy(model) for _ in range(3)]
    resumed = Charged(so.Budget(data), 5.0, 3, key=key)
    resumed.continue_at(2)
    assert resumed.accuracy(model) == uninterrupted[2] and resumed.remaining == 0


class Mean(nn.Module):
    """A model that mixes the examples of a batch."""

    def __init__(self):
        super().__init__()
        self.layer = linear()

    def forward(self, x):
        return self.layer(x) - self.layer(x).mean(0)


class Table(nn.Module):
    """A model that fails on a number outside its table."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(4, CLASSES)

    def forward(self, x):
        return self.table(x[:, 0].round().abs().long())


def hostile(inputs, target, owners):
    inputs[3] = math.nan
    inputs[5, 2] = math.inf
    inputs[7] = 1e38
    target[9] = 10**9
    target[11] = -5
    return so.by_user((inputs, target), owners, rows_per_user=4, allow_single=True)


@settings(max_examples=15)
@given(unit=st.integers(0, 7), model=st.sampled_from([linear, Mean, Table]), seed=st.integers(0, 99))
def test_the_sum_moves_by_at_most_one_when_a_unit_is_replaced_by_nothing(unit, model, seed):
    torch.manual_seed(seed)
    model, (inputs, target), owners = model(), rows(24), torch.arange(24) % 8
    users = hostile(inputs, target, owners)
    whole = scores_of_units(model, users.gather(torch.arange(8)))
    emptied = inputs.clone()
    emptied[owners == unit] = math.nan
    replaced = scores_of_units(model, so.by_user((emptied, target), owners, rows_per_user=4).gather(torch.arange(8)))
    rest = torch.tensor([u for u in range(8) if u != unit])
    without = scores_of_units(model, users.gather(rest))
    for total in (replaced.sum(), without.sum()):
        assert 0 <= whole.sum() - total <= 1
    assert torch.equal(replaced[rest], whole[rest]) and torch.equal(without, whole[rest])
    assert whole.min() >= 0 and whole.max() <= 1 and replaced[unit] == 0


def test_a_user_counts_by_the_share_of_their_rows_that_is_right():
    model, (inputs, target) = linear(), rows(7)
    owners = torch.tensor([0, 1, 0, 1, 1, 2, 2])
    users = so.by_user((inputs, target), owners, rows_per_user=3)
    of_rows = right(model, inputs, target)
    expected = [float(of_rows[owners == user].mean()) for user in range(3)]
    assert scores_of_units(model, users.gather(torch.arange(3))).tolist() == pytest.approx(expected, abs=2**-20)


def test_rows_that_are_not_finite_and_rows_that_fail_count_nothing():
    model, (inputs, target) = Table(), rows(6)
    inputs[:, 0] = torch.tensor([0.0, 1.0, math.nan, 99.0, 2.0, 1e30])
    with torch.no_grad():
        target = model.table.weight.argmax(1)[torch.tensor([0, 1, 0, 0, 2, 0])]
    batch = so.as_records((inputs, target)).gather(torch.arange(6))
    assert scores_of_units(model, batch).tolist() == [1, 1, 0, 0, 1, 0]


def test_scores_are_those_of_eval_mode_and_leave_the_model_as_it_was():
    model = nn.Sequential(linear(), nn.BatchNorm1d(CLASSES), nn.Dropout(0.5))
    inputs, target = rows()
    model(inputs)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    charged = Charged(so.Budget((inputs, target)), noise_multiplier=0.2, evaluations=1, seed=0)
    found = charged.accuracy(model)
    assert all(module.training for module in model.modules())
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert abs(found - float(right(model, inputs, target).mean())) < 13.4 * charged.std


def test_the_divisor_under_add_or_remove_is_said_and_not_counted():
    adjacency, model = so.Adjacency.ADD_OR_REMOVE, linear()
    with pytest.raises(UsageError, match="give a public expected_examples"):
        Charged(so.Budget(rows()), 5.0, 1, adjacency=adjacency)
    stds = {
        Charged(so.Budget(rows(number)), 5.0, 1, adjacency=adjacency, expected_examples=32).std for number in (30, 31)
    }
    assert len(stds) == 1 and stds.pop() == pytest.approx(5.0 / 32)
    released = Charged(so.Budget(rows()), 1.0, 1, adjacency=adjacency, expected_examples=10**6, seed=0)
    assert abs(released.accuracy(model)) < 1e-4


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"noise_multiplier": 0.0}, "noise_multiplier must be a finite number above 0"),
        ({"evaluations": 0}, "evaluations must be a whole number from 1"),
        ({"expected_examples": 0}, "expected_examples must be a whole number from 1"),
        ({"budget": (torch.zeros(2, 1), torch.zeros(2))}, "budget must be a Budget, got tuple"),
        ({"seed": 1, "key": Key.from_seed(1)}, "seed and key exclude each other"),
    ],
)
def test_settings_that_mean_nothing_are_refused_and_not_charged(arguments, message):
    budget = so.Budget(rows())
    with pytest.raises(UsageError, match=message):
        Charged(**{"budget": budget, "noise_multiplier": 5.0, "evaluations": 2, **arguments})
    assert budget.releases == ()


class Tossing(nn.Module):
    """A model that draws even when it is evaluated."""

    def __init__(self):
        super().__init__()
        self.layer = linear()

    def forward(self, x):
        return self.layer(x) + torch.randn(3)


@pytest.mark.parametrize("model", [Tossing(), nn.Linear(5, 3)])
def test_a_model_that_cannot_be_evaluated_is_refused_and_takes_no_evaluation(model):
    charged = Charged(so.Budget(rows()), noise_multiplier=5.0, evaluations=1)
    with pytest.raises(UsageError, match="the model cannot be evaluated on one example at a time"):
        charged.accuracy(model)
    assert charged.remaining == 1


def test_a_forked_process_cannot_evaluate(monkeypatch):
    charged = Charged(so.Budget(rows()), noise_multiplier=5.0, evaluations=1)
    monkeypatch.setattr("os.getpid", lambda: -1)
    with pytest.raises(UsageError, match="in a forked process"):
        charged.accuracy(linear())
