"""The gate for releases: what it charges, how it numbers releases, and that no two sums get the same noise."""

from __future__ import annotations

import copy
import os
import pickle
import re
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from dp_accounting import GaussianDpEvent
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import sordino as so
from sordino.convex import GatedReLU, NoisyCGD, fit_hidden_state
from sordino.convex.least_squares import fit_adassp
from sordino.convex.random_features import RandomReLU
from sordino.convex.sufficient_statistics import release_statistics
from sordino.errors import BudgetError, Interrupted, StateError, UsageError
from sordino.kernel.budget import Address, Release, RunIdentity
from sordino.kernel.randomness import Key
from sordino.kernel.records import as_records
from sordino.kernel.run import PrivateRun
from sordino.kernel.states import BoundedSum, Layout
from sordino.opacus import PrivacyEngine
from sordino.releases.gradient_sizes import release_sensitivity
from sordino.releases.moments import release_moments
from sordino.releases.vector import release
from sordino.sklearn import ConvexReLUClassifier, NoisyAccuracy, PrivateClassifier
from sordino.sklearn.estimator import OneFit
from sordino.training.checkpoint import Checkpoints, Progress
from sordino.training.communication.fed_sgd import federated_sgd
from sordino.training.evaluation import Charged
from sordino.training.fit import Fitted
from sordino.training.run_folder import RunFolder
from sordino.training.run_writer import RunWriter
from sordino.tuning import Candidate, Clips, Compose, Prepaid, PrivateAccuracy, Sgd, Task, tune
from sordino.tuning.search_state import SearchCheckpoint

ROWS = torch.rand(60, 4, generator=torch.Generator().manual_seed(0))
LABELS = torch.arange(60) % 3
DATA = (ROWS, LABELS)
NOISE = so.Gaussian(8.0)
LAYOUT = Layout(("sum",), ((2,),))


def budget_of(**limit) -> so.Budget:
    return so.Budget(as_records(DATA, input_range=(0.0, 1.0)), **limit)


def plan(steps=3, noise=NOISE) -> so.Plan:
    return so.Plan(so.Poisson(0.5, steps), so.LossGradient(F.cross_entropy), so.ClipByNorm(1.0), noise)


def linear() -> nn.Linear:
    model = nn.Linear(4, 3)
    for parameter in model.parameters():
        nn.init.zeros_(parameter)
    return model


def nobody() -> BoundedSum:
    return BoundedSum(torch.zeros(2, dtype=torch.float64), 1.0, LAYOUT)


def hidden_plan() -> NoisyCGD:
    settings = {"clip": 0.5, "noise_multiplier": 6.0, "learning_rate": 0.5, "trailing_steps": 2}
    return NoisyCGD(so.Cyclic(3, 2), GatedReLU(5), **settings)


TARGET = {"epsilon": 4.0, "delta": 1e-3}  # of one release, whatever its budget holds


def tuned(budget: so.Budget) -> object:
    task = Task(linear, plan(), Sgd(0.5), PrivateAccuracy(30.0), divisor=30)
    found = tune(task, budget, (Clips((2.0,)),), Candidate(0.5, 0.5), payment=Compose(), seed=0, **TARGET)
    return found.scores


def federated(budget: so.Budget) -> torch.Tensor:
    def optimizer(parameters):
        return torch.optim.SGD(parameters, lr=0.1)

    return federated_sgd(plan(), linear(), budget, clients=3, delta=1e-3, optimizer=optimizer, seed=0).model.weight


def estimated(budget: so.Budget) -> object:
    classifier = PrivateClassifier(epsilon=15.0, delta=1e-3, batch_size=20, epochs=1, classes=[0, 1, 2], budget=budget)
    return clone(classifier.set_params(random_state=0)).fit(ROWS.numpy(), LABELS.numpy()).module_.weight


def convex(budget: so.Budget) -> object:
    classifier = ConvexReLUClassifier(gates=4, epsilon=10.0, delta=1e-3, classes=[0, 1, 2], budget=budget)
    return next(clone(classifier.set_params(random_state=0)).fit(ROWS.numpy(), LABELS.numpy()).module_.parameters())


def least_squares(budget: so.Budget) -> object:
    return fit_adassp(budget, RandomReLU(width=5), num_classes=3, seed=0, **TARGET).model(ROWS)


# Everything that releases something, with the seed 0. Each gives what was released.
RELEASES: dict[str, Callable[[so.Budget], object]] = {
    "moments": lambda budget: release_moments(budget, noise_multiplier=4.0, seed=0),
    "sizes of gradients": lambda budget: release_sensitivity(budget, linear(), noise=NOISE, seed=0).weights,
    "vector": lambda budget: release([1.0, 2.0], 1.0, 1.0, delta=1e-6, budget=budget, seed=0).value,
    "validation": lambda budget: Charged(budget, 8.0, evaluations=1, seed=0).accuracy(linear()),
    "statistics": lambda budget: (
        release_statistics(budget, RandomReLU(width=5), num_classes=3, noise_multiplier=8.0, seed=0).gram
    ),
    "adaptive statistics": least_squares,
    "run": lambda budget: next(so.PrivateRun(plan(), linear(), budget, seed=0)).value,
    "fit": lambda budget: (
        so.fit(linear(), budget, batch_size=20, steps=3, seed=0, progress=False, **TARGET).model.weight
    ),
    "hidden state": lambda budget: next(
        fit_hidden_state(hidden_plan(), budget, outputs=3, delta=1e-3, seed=0, progress=False).model.parameters()
    ),
    "tuning": tuned,
    "federated": federated,
    "estimator": estimated,
    "convex estimator": convex,
}


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> Counter:
    """The number of times that each address was used for noise."""
    addresses: Counter = Counter()
    add = so.Gaussian.add

    def noted(self, total, at):
        addresses[at.stream.secret, at.step] += 1
        return add(self, total, at)

    monkeypatch.setattr(so.Gaussian, "add", noted)
    return addresses


@pytest.mark.parametrize("name", RELEASES)
def test_two_releases_with_one_seed_on_one_budget_share_no_noise(name: str, drawn: Counter) -> None:
    budget = budget_of()
    for _ in range(2):
        RELEASES[name](budget)
    assert drawn.total() >= 2 or name == "vector"  # whose noise need not be normal
    assert set(drawn.values()) <= {1}


def test_all_that_is_released_with_one_seed_on_one_budget_has_noise_of_its_own(drawn: Counter) -> None:
    budget = budget_of()
    for released in RELEASES.values():
        released(budget)
    assert set(drawn.values()) == {1}


@pytest.mark.parametrize("name", RELEASES)
def test_the_same_script_gives_the_same_bits(name: str) -> None:
    one, other = (RELEASES[name](budget_of()) for _ in range(2))
    assert torch.equal(one, other) if isinstance(one, torch.Tensor) else one == other


def test_two_runs_of_one_seed_share_neither_batches_nor_masks_nor_dropout() -> None:
    budget = budget_of()
    one, other = (so.PrivateRun(plan(), linear(), budget, seed=0) for _ in range(2))
    for name in ("sampling", "coding", "dropout", "rows"):
        assert getattr(one._streams, name) != getattr(other._streams, name)


def test_the_difference_of_two_runs_with_one_seed_has_noise() -> None:
    """With all units in each batch and equal noise, it would be the difference of two sums, which is zero here."""
    budget, everybody = budget_of(), so.Plan(so.Poisson(1.0, 1), plan().contribution, plan().clip, NOISE)
    one, other = (next(so.PrivateRun(everybody, linear(), budget, seed=0)).value for _ in range(2))
    assert float((one - other).norm()) > 8.0  # of 15 coordinates, each with a standard deviation of 11


def test_two_calls_of_one_engine_have_noise_of_their_own(drawn: Counter) -> None:
    engine = PrivacyEngine(seed=0)
    for _ in range(2):
        model = linear()
        loader = DataLoader(TensorDataset(*DATA), batch_size=20)
        model, optimizer, loader = engine.make_private(
            module=model,
            optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
            data_loader=loader,
            noise_multiplier=8.0,
            max_grad_norm=1.0,
        )
        for inputs, labels in loader:
            F.cross_entropy(model(inputs), labels).backward()
            optimizer.step()
    assert drawn.total() >= 6 and set(drawn.values()) == {1}
    assert "used once" in engine.guarantee(1e-5).statement


def test_a_search_over_one_budget_has_noise_of_its_own_in_every_fit(drawn: Counter) -> None:
    budget = budget_of()
    classifier = PrivateClassifier(
        epsilon=15.0, delta=1e-3, batch_size=20, epochs=1, classes=[0, 1, 2], budget=budget, random_state=0
    )
    search = GridSearchCV(classifier, {"learning_rate": [0.1, 0.5]}, cv=2, scoring=NoisyAccuracy(budget, 8.0))
    search.fit(ROWS.numpy(), LABELS.numpy())
    assert budget.releases.count("training run") == 5 and set(drawn.values()) == {1}


def test_an_estimator_without_a_budget_is_fitted_again_to_the_same_bits() -> None:
    classifier = PrivateClassifier(epsilon=15.0, delta=1e-3, batch_size=20, epochs=1, random_state=0)
    weights = [classifier.fit(ROWS.numpy(), LABELS.numpy()).module_.weight.clone() for _ in range(2)]
    assert torch.equal(*weights)


def test_a_guarantee_with_a_seed_assumes_that_it_is_used_once() -> None:
    assert "the seed stays secret and is used once" in so.PrivateRun(plan(), linear(), DATA, seed=0).assumptions[1]


@pytest.mark.parametrize("name", RELEASES)
def test_the_guarantee_of_a_budget_assumes_of_every_seed_that_it_is_used_once(name: str) -> None:
    budget = budget_of()
    RELEASES[name](budget)
    (assumed,) = [each for each in budget.guarantee(delta=1e-3).assumptions if "seed" in each]
    assert "used once" in assumed
    secret = budget_of()
    release_moments(secret, noise_multiplier=4.0)
    assert not secret.guarantee(delta=1e-3).assumptions


def test_threads_that_release_at_once_get_numbers_of_their_own() -> None:
    budget = budget_of()
    with ThreadPoolExecutor(8) as threads:
        opened = list(
            threads.map(
                lambda _: budget.open("sum", noise=NOISE, adjacency=so.Adjacency.ZERO_OUT, key=Key.from_seed(0)),
                range(40),
            )
        )
    assert sorted(each.number for each in opened) == list(range(40)) == sorted(range(len(budget.releases)))


def test_nothing_is_computed_before_it_is_charged() -> None:
    budget = budget_of(epsilon=0.1, delta=1e-5)
    with pytest.raises(BudgetError, match=r"the sum would bring epsilon to .*allowed is 0.1, of which 0 is spent"):
        budget.release(
            "sum", noise=so.Gaussian(1.0), adjacency=so.Adjacency.ZERO_OUT, key=Key.fresh(), total_of=pytest.fail
        )
    assert budget.releases == ()


def test_a_refusal_says_what_is_spent_and_what_would_fit() -> None:
    budget = budget_of(epsilon=1.0, delta=1e-5)
    budget.charge(GaussianDpEvent(8.0), so.Adjacency.ZERO_OUT, what="sum")
    with pytest.raises(BudgetError) as refused:
        budget.charge(GaussianDpEvent(2.0), so.Adjacency.ZERO_OUT, what="sum")
    said = r"of which ([\d.]+) is spent: one Gaussian release of noise multiplier ([\d.]+) would fit"
    spent, enough = map(float, re.search(said, str(refused.value)).groups())
    assert budget.guarantee(delta=1e-5).epsilon <= spent < 0.5
    budget.charge(GaussianDpEvent(enough), so.Adjacency.ZERO_OUT, what="what would fit")
    assert 0.99 < budget.guarantee(delta=1e-5).epsilon <= 1.0


class Ending(so.Gaussian):
    """A user-defined noise whose finite range may be seen."""

    def tail_risk(self, sensitivity: float, steps: int) -> float:
        return 1e-6


def test_so_little_noise_that_its_end_would_be_seen_is_refused_wherever_a_promise_is_made() -> None:
    budget = budget_of()
    so.PrivateRun(plan(noise=Ending(0.1)), linear(), budget)
    with pytest.raises(UsageError, match="noise_multiplier is too small"):
        budget.guarantee(delta=1e-6)
    with pytest.raises(UsageError, match="noise_multiplier is too small"):
        so.PrivateRun(plan(noise=Ending(0.1)), linear(), budget_of(epsilon=1e6, delta=1e-6))


def opened() -> Release:
    return Release(NOISE, Address(0, Key.from_seed(0)))


def test_the_noise_of_a_step_is_drawn_once() -> None:
    one = opened()
    one.add(nobody(), step=3)
    for step in (3, 2):
        with pytest.raises(UsageError, match=f"the noise of step {step} has been drawn"):
            one.add(nobody(), step=step)
    one.add(nobody(), step=4)


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, pickle.dumps])
def test_a_release_is_not_copied(copied) -> None:
    with pytest.raises(UsageError, match="both would draw the same noise"):
        copied(opened())


def test_threads_that_evaluate_at_once_draw_noise_of_their_own(drawn: Counter) -> None:
    charged = Charged(budget_of(), 8.0, evaluations=16, seed=0)
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda _: charged.accuracy(linear()), range(16)))
    assert drawn.total() == 16 and set(drawn.values()) == {1}


# Runs that are taken up again.


def trained(data: object, out: Path, **changes) -> Fitted:
    given = {"epsilon": 4.0, "delta": 1e-3, "batch_size": 20, "steps": 6, "seed": 7, "progress": False, "resume": True}
    return so.fit(linear(), data, out=out, **(given | changes))


def stopped(monkeypatch: pytest.MonkeyPatch, data: object, out: Path, *, at: int = 3, **changes) -> None:
    """Training is asked to stop after step `at`."""
    before_step = RunWriter.before_step

    def interrupted(self, training):
        if training.run.steps == at:
            self.at_rest(training)
            raise Interrupted("stopped")
        before_step(self, training)

    with monkeypatch.context() as patch, pytest.raises(Interrupted):
        patch.setattr(RunWriter, "before_step", interrupted)
        trained(data, out, **changes)


def test_a_finished_run_is_charged_to_a_budget_that_does_not_hold_it(tmp_path: Path) -> None:
    first = trained(budget_of(), tmp_path / "run")
    budget = budget_of()
    again = trained(budget, tmp_path / "run")
    assert budget.releases == ("training run",)
    assert budget.guarantee(delta=1e-3).epsilon == again.guarantee.epsilon == first.guarantee.epsilon
    assert torch.equal(again.model.weight, first.model.weight)
    assert again.guarantee.assumptions == first.guarantee.assumptions


def test_a_script_that_is_run_again_cannot_release_two_and_four_and_four_from_a_budget_of_four(tmp_path: Path) -> None:
    trained(DATA, tmp_path / "two", epsilon=2.0)
    trained(DATA, tmp_path / "four")
    budget = budget_of(epsilon=4.0, delta=1e-3)
    trained(budget, tmp_path / "two", epsilon=2.0)
    with pytest.raises(
        BudgetError, match=r"training run would bring epsilon to 4\.\d+ .*allowed is 4, of which 2.000 is spent"
    ):
        trained(budget, tmp_path / "four")
    assert budget.releases == ("training run",)
    with pytest.raises(BudgetError, match=r"2\.00 of 4 are spent at delta 0.001. Ask for at most 3.4\d*"):
        trained(budget, tmp_path / "rest", epsilon=4.0)
    trained(budget, tmp_path / "rest", epsilon=3.406)
    assert 3.9 < budget.guarantee(delta=1e-3).epsilon <= 4.0


def test_a_budget_that_holds_a_finished_run_is_not_charged_again(tmp_path: Path) -> None:
    budget = budget_of(epsilon=4.0, delta=1e-3)
    first = trained(budget, tmp_path / "run")
    for _ in range(2):
        assert torch.equal(trained(budget, tmp_path / "run").model.weight, first.model.weight)
    assert budget.releases == ("training run",)


def test_a_stopped_run_that_goes_on_in_the_budget_that_holds_it_is_charged_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = trained(budget_of(epsilon=4.0, delta=1e-3), tmp_path / "whole")
    budget = budget_of(epsilon=4.0, delta=1e-3)
    stopped(monkeypatch, budget, tmp_path / "run")
    again = trained(budget, tmp_path / "run")
    assert budget.releases == ("training run",) and torch.equal(again.model.weight, whole.model.weight)


def test_a_stopped_run_keeps_its_number_in_a_budget_that_holds_other_releases(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, drawn: Counter
) -> None:
    def begun(budget: so.Budget) -> so.Budget:
        budget.charge(GaussianDpEvent(30.0), so.Adjacency.ZERO_OUT, what="sum")
        return budget

    whole = trained(begun(budget_of()), tmp_path / "whole")
    stopped(monkeypatch, begun(budget_of()), tmp_path / "run")
    budget = budget_of()
    again = budget.open("other", noise=so.Gaussian(30.0), adjacency=so.Adjacency.ZERO_OUT, key=Key.from_seed(7))
    found = trained(budget, tmp_path / "run")
    assert again.number == 0 and torch.equal(found.model.weight, whole.model.weight)
    later = budget.open("later", noise=so.Gaussian(90.0), adjacency=so.Adjacency.ZERO_OUT, key=Key.from_seed(7))
    assert later.number == 2  # that of the run is 1


def test_a_run_whose_address_another_release_has_used_is_refused() -> None:
    """Both would be release 0 of one seed: one in this budget, the other in the budget in which it began."""
    for seed in (7, 8):
        budget, run = budget_of(), RunIdentity("begun elsewhere", 0)
        so.PrivateRun(plan(), linear(), budget, seed=7)
        if seed == 7:
            with pytest.raises(UsageError, match="both would have the same noise"):
                so.PrivateRun(plan(), linear(), budget, seed=seed, identity=run)
        else:
            so.PrivateRun(plan(), linear(), budget, seed=seed, identity=run)
        assert len(budget.releases) == (1 if seed == 7 else 2)


def test_steps_drawn_again_are_charged_with_the_finished_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch, pytest.raises(Interrupted):
        patch.setattr("sordino.training.loop.Training.step", lambda self: stop())
        trained(budget_of(), tmp_path / "run")
    with monkeypatch.context() as patch:
        patch.setattr(
            "sordino.training.checkpoint.surroundings", lambda *device: {"processor": "another", "sums": "in order"}
        )
        dearer = trained(budget_of(), tmp_path / "run", draw_again=True)
    budget = budget_of()
    assert trained(budget, tmp_path / "run").guarantee.epsilon == dearer.guarantee.epsilon > 4.0
    assert budget.releases == ("training run", "steps drawn again")


def stop() -> None:
    raise Interrupted("stopped")


def test_a_finished_folder_of_another_plan_is_refused_before_it_is_charged(tmp_path: Path) -> None:
    trained(budget_of(), tmp_path / "run")
    budget = budget_of()
    with pytest.raises(StateError, match="had another plan"):
        trained(budget, tmp_path / "run", steps=5)
    assert budget.releases == ()


def test_a_finished_folder_that_does_not_say_which_run_it_is_is_refused(tmp_path: Path) -> None:
    trained(budget_of(), tmp_path / "run")
    folder = RunFolder(tmp_path / "run")
    promised = folder.privacy()
    folder.write_privacy({name: value for name, value in promised.items() if name != "identity"})
    with pytest.raises(StateError, match="has no identity"):
        trained(budget_of(), tmp_path / "run")
    folder.write_privacy({**promised, "identity": {"name": 3}})
    with pytest.raises(StateError, match=r"privacy\.json .* is damaged"):
        trained(budget_of(), tmp_path / "run")


def test_a_finished_hidden_run_is_charged_unless_the_budget_holds_it(tmp_path: Path) -> None:
    def hidden(budget: so.Budget, plan: NoisyCGD) -> object:
        given = {"outputs": 3, "delta": 1e-3, "out": tmp_path / "run", "resume": True, "seed": 0, "progress": False}
        return fit_hidden_state(plan, budget, **given)

    first, budget = budget_of(), budget_of()
    found = hidden(first, hidden_plan())
    assert hidden(first, hidden_plan()).guarantee == found.guarantee and first.releases == ("training run",)
    assert hidden(budget, hidden_plan()).guarantee.epsilon == found.guarantee.epsilon
    assert budget.releases == ("training run",)
    small = budget_of(epsilon=found.guarantee.epsilon / 2, delta=1e-3)
    with pytest.raises(BudgetError, match="would bring epsilon to"):
        hidden(small, hidden_plan())
    with pytest.raises(StateError, match="had another plan"):
        hidden(small, replace(hidden_plan(), clip=0.25))


class Asked:
    """The tuning is asked to stop between two trials."""

    to_stop = False


def test_a_stopped_tuning_that_goes_on_in_the_budget_that_holds_it_is_charged_once(tmp_path: Path) -> None:
    def tuned_by(checkpoints: Checkpoints, budget: so.Budget, stop: bool) -> object:
        asked = Asked()
        task = Task(linear, plan(), Sgd(0.5), PrivateAccuracy(30.0), divisor=30)

        def stop_now() -> None:
            asked.to_stop = stop

        keeper, key = SearchCheckpoint(checkpoints, asked), checkpoints.key(Progress())
        given = {"payment": Compose(), "epsilon": 3.9, "delta": 1e-3, "key": key, "keeper": keeper}
        return tune(task, budget, (Clips((2.0,)),), Candidate(0.5, 0.5), on_trial=stop_now, **given).scores

    def sum_before() -> so.Budget:
        budget = budget_of(epsilon=4.0, delta=1e-3)
        budget.charge(GaussianDpEvent(9.0), so.Adjacency.ZERO_OUT, what="sum")
        return budget

    with Checkpoints.begin(tmp_path / "whole", Key.from_seed(0)) as checkpoints:
        whole = tuned_by(checkpoints, sum_before(), stop=False)
    budget = sum_before()
    with Checkpoints.begin(tmp_path / "stopped", Key.from_seed(0)) as checkpoints, pytest.raises(Interrupted):
        tuned_by(checkpoints, budget, stop=True)
    for again in (budget, sum_before()):  # in the same process, and in another
        with Checkpoints.open(tmp_path / "stopped") as checkpoints:
            assert tuned_by(checkpoints, again, stop=False) == whole
        assert again.releases == ("sum", "tuning")


def test_a_budget_counts_another_event_of_a_run_that_it_holds() -> None:
    budget, run = budget_of(), RunIdentity.fresh()
    for multiplier in (8.0, 8.0, 7.0):
        budget.charge(GaussianDpEvent(multiplier), so.Adjacency.ZERO_OUT, what="training run", run=run)
    assert len(budget.releases) == 2 and budget.holds(run) and not budget.holds(RunIdentity.fresh())


# Forked processes.


def in_children(work: Callable[[], object], children: int = 4) -> list[str]:
    """The result of `work` in several forked processes: the name of its error, or "" if there is none."""
    found = []
    for _ in range(children):
        reading, writing = os.pipe()
        if (child := os.fork()) == 0:
            said = ""
            try:
                work()
            except BaseException as error:
                said = f"{type(error).__name__}: {error}"
            os.write(writing, said.encode())
            os._exit(0)
        os.close(writing)
        end = time.monotonic() + 20
        while os.waitpid(child, os.WNOHANG) == (0, 0):
            if time.monotonic() > end:
                os.kill(child, 9)
                os.waitpid(child, 0)
                break
            time.sleep(0.01)
        with os.fdopen(reading, "rb") as pipe:
            found.append(pipe.read().decode())
    return found


SPENT: dict[str, Callable[[so.Budget], object]] = {
    "a charge": lambda budget: budget.charge(GaussianDpEvent(8.0), so.Adjacency.ZERO_OUT, what="sum"),
    "a run": lambda budget: PrivateRun(plan(), linear(), budget),
    "moments": lambda budget: release_moments(budget, noise_multiplier=4.0),
    "a fit of scikit-learn": lambda budget: OneFit(budget.records, budget).charge(
        GaussianDpEvent(8.0), so.Adjacency.ZERO_OUT, what="training run"
    ),
    "a trial": lambda budget: Prepaid(budget, GaussianDpEvent(8.0)).charge(
        GaussianDpEvent(8.0), so.Adjacency.ZERO_OUT, what="training run"
    ),
}


@pytest.mark.parametrize("name", SPENT)
def test_forked_processes_do_not_spend_a_budget_again(name: str) -> None:
    budget = budget_of()
    for said in in_children(lambda: SPENT[name](budget)):
        assert said.startswith("UsageError") and "forked process" in said
    assert budget.releases == ()


def test_forked_processes_do_not_go_on_with_what_is_charged() -> None:
    run, charged = so.PrivateRun(plan(), linear(), DATA), Charged(budget_of(), 8.0, evaluations=1)
    for work in (lambda: next(run), lambda: charged.accuracy(linear())):
        for said in in_children(work, children=2):
            assert said.startswith("UsageError") and "forked process" in said


def test_a_process_that_is_forked_while_a_thread_charges_is_refused_and_does_not_wait() -> None:
    budget, may_end = budget_of(), threading.Event()

    def holding() -> None:
        with budget._charging:
            may_end.wait()

    thread = threading.Thread(target=holding)
    thread.start()
    try:
        (said,) = in_children(lambda: SPENT["a charge"](budget), children=1)
    finally:
        may_end.set()
        thread.join()
    assert said.startswith("UsageError")
