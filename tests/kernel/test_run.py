"""The step and the run: what a run returns, and what it refuses."""

import copy
import os
import pickle

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from contracts import EncodingContract
from scipy import stats
from torch import nn

import sordino as so
from sordino.accounting import Unit
from sordino.encodings import RankedSparsify
from sordino.errors import UsageError
from sordino.kernel.clipping import SCALED_TO
from sordino.kernel.encoding import Unchanged
from sordino.kernel.randomness import Key
from sordino.kernel.records import Records
from sordino.kernel.states import Dense, Layout
from sordino.kernel.step import StepState, Streams
from sordino.kernel.step import step as step_of
from sordino.optimized_noise.sources import FromReleases

INPUTS = torch.randn(40, 5, generator=torch.Generator().manual_seed(0))
LABELS = torch.randint(0, 3, (40,), generator=torch.Generator().manual_seed(1))
DATA = (INPUTS, LABELS)


def make_model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 3))


def make_plan(sampler=None, clip=None, noise=None, **stages):
    sampler = sampler or so.Poisson(0.3, 6)
    return so.Plan(
        sampler, so.LossGradient(F.cross_entropy), clip or so.ClipByNorm(0.5), noise or so.Gaussian(1.0), **stages
    )


def released(plan=None, data=DATA, model=None, **arguments):
    run = so.PrivateRun(plan or make_plan(), model or make_model(), data, **({"seed": 0} | arguments))
    return torch.stack([private.value for private in run])


def clipped_sum_by_hand(model, indices, norm):
    """The oracle: one example at a time, plain autograd, clip, add up."""
    total = 0
    for index in indices:
        model.zero_grad()
        F.cross_entropy(model(INPUTS[index : index + 1]), LABELS[index : index + 1]).backward()
        gradient = torch.cat([parameter.grad.flatten() for parameter in model.parameters()]).double()
        total = total + gradient * min(1.0, norm * SCALED_TO / float(gradient.norm()))
    return total


def test_a_release_is_the_clipped_sum_of_single_examples_plus_noise():
    plan, model = make_plan(so.Poisson(0.3, 4)), make_model()
    run = so.PrivateRun(plan, model, DATA, seed=0)
    key = Key.from_seed(0).of_release(0)
    for step, indices in enumerate(plan.sampler.batches(40, key.stream("sampling"))):
        noise = 0.5 * torch.from_numpy(key.stream("noise").normals(run.layout.size, step=step)).double()
        expected = clipped_sum_by_hand(model, indices, 0.5) + noise
        torch.testing.assert_close(next(run).value, expected, atol=2e-5, rtol=0)


@pytest.mark.parametrize("physical", [1, 3, 7, 100])
def test_physical_micro_batches_change_nothing(physical):
    torch.testing.assert_close(
        released(physical_batch_size=physical), released(physical_batch_size=40), atol=2e-5, rtol=0
    )


def test_micro_batches_are_as_large_as_pays_and_no_larger_than_fits():
    model, data = nn.Sequential(nn.Flatten(), nn.Linear(1 << 14, 8)), (torch.zeros(9, 1 << 14), torch.zeros(9).long())
    wide = nn.Sequential(nn.ConstantPad1d((0, (1 << 18) - (1 << 14)), 0.0), nn.Flatten(), nn.Linear(1 << 18, 2))
    plan = make_plan(so.Poisson(0.5, 1))
    assert so.PrivateRun(plan, model, data).physical_batch_size == 1024
    chosen = [so.PrivateRun(plan, wide, data, memory_mib=mib).physical_batch_size for mib in (4096, 16, 1)]
    assert 32 >= chosen[0] > chosen[1] > chosen[2] == 1


@pytest.mark.parametrize(("physical", "sizes"), [(40, [40]), (39, [20, 20]), (16, [14, 13, 13]), (100, [40])])
def test_micro_batches_of_a_step_are_alike_and_no_larger_than_asked(physical, sizes, monkeypatch):
    seen, gather = [], Records.gather
    run = so.PrivateRun(make_plan(so.FixedSize(40, 40, 1)), make_model(), DATA, physical_batch_size=physical)
    monkeypatch.setattr(
        Records, "gather", lambda self, indices, at: seen.append(len(indices)) or gather(self, indices, at)
    )
    next(run)
    assert seen == sizes


def test_a_micro_batch_is_a_little_larger_if_that_saves_one():
    wide = nn.Sequential(nn.ConstantPad1d((0, (1 << 18) - 5), 0.0), nn.Flatten(), nn.Linear(1 << 18, 2))

    def physical(batch_size):
        data = torch.zeros(999, 5), torch.zeros(999).long()
        return so.PrivateRun(make_plan(so.FixedSize(batch_size, 999, 1)), wide, data).physical_batch_size

    assert [physical(batch_size) for batch_size in (1, 70, 78)] == [32, 32, 35]  # 78 + 27 or fewer units: three parts


def test_micro_batches_do_not_change_dropout_either():
    model = nn.Sequential(nn.Linear(5, 30), nn.Dropout(0.5), nn.Linear(30, 3))
    together, apart = (released(model=model, physical_batch_size=size) for size in (40, 3))
    torch.testing.assert_close(together, apart, atol=2e-5, rtol=0)


def test_a_seed_makes_a_run_reproducible_and_no_seed_does_not():
    assert torch.equal(released(seed=3), released(seed=3))
    assert not torch.equal(released(seed=3), released(seed=4))
    assert not torch.equal(released(seed=None), released(seed=None))


def test_a_run_draws_nothing_from_the_global_generators():
    torch.manual_seed(5)
    before, numpy_before = torch.get_rng_state(), np.random.get_state()[1].copy()
    released(model=nn.Sequential(nn.Linear(5, 8), nn.Dropout(0.5), nn.Linear(8, 3)), plan=make_plan())
    after = torch.get_rng_state()
    torch.manual_seed(5)
    nn.Sequential(nn.Linear(5, 8), nn.Dropout(0.5), nn.Linear(8, 3))  # the model's own initialisation
    assert torch.equal(after, torch.get_rng_state()) and not torch.equal(before, after)
    assert np.array_equal(numpy_before, np.random.get_state()[1])


def test_an_empty_batch_is_a_step_of_pure_noise():
    values = released(make_plan(so.Poisson(1e-6, 40), clip=so.ClipByNorm(2.0), noise=so.Gaussian(3.0)))
    assert len(values) == 40
    square = float((values / 6.0).square().sum())
    # chi-square with a false alarm in a million
    assert 1e-6 < 2 * min(stats.chi2.cdf(square, values.numel()), stats.chi2.sf(square, values.numel()))


def test_steps_taken_planned_and_accounted_are_one_number_for_any_sampler():
    samplers = (
        so.Poisson(0.01, 20),
        so.TruncatedPoisson(0.1, 20, 40, 5),
        so.BallsInBins(4, 5),
        so.Shuffled(4, 5),
        so.Cyclic(4, 5),
        so.FixedSize(10, 40, 20),
    )
    for sampler in samplers:
        run = so.PrivateRun(make_plan(sampler), make_model(), DATA, seed=0)
        assert sum(1 for _ in run) == run.steps == len(run) == 20


def test_stopping_early_does_not_make_the_guarantee_smaller():
    run = so.PrivateRun(make_plan(), make_model(), DATA, seed=0)
    before = run.guarantee(delta=1e-3).epsilon
    next(run)
    assert run.steps == 1
    assert run.guarantee(delta=1e-3).epsilon == before == make_plan().guarantee(delta=1e-3).epsilon


def test_two_loops_over_a_run_share_its_steps():
    run = so.PrivateRun(make_plan(), make_model(), DATA, seed=0)
    one, other = iter(run), iter(run)
    taken = [next(one), next(other), *one]
    assert len(taken) == len(run)
    assert next(other, None) is None


def test_the_same_loop_reports_more_for_shuffled_batches_than_for_poisson_batches():
    def train(sampler):
        run = so.PrivateRun(make_plan(sampler), make_model(), DATA, seed=0)
        for private in run:
            private.divide(run.expected_batch_size)
        return run.guarantee(delta=1e-3).epsilon

    assert train(so.Shuffled(10, 10)) > 1.5 * train(so.Poisson(0.1, 100))


def test_a_record_that_is_not_finite_is_as_if_absent():
    poisoned = INPUTS.clone()
    poisoned[7, 2] = float("inf")
    poisoned[8, 0] = float("nan")
    absent = LABELS.clone()
    absent[7] = absent[8] = -1
    torch.testing.assert_close(released(data=(poisoned, LABELS)), released(data=(INPUTS, absent)), atol=2e-5, rtol=0)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 1e38, 1e-42])
def test_weights_stay_finite_when_every_record_is_poisoned(value):
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for private in so.PrivateRun(make_plan(), model, (torch.full_like(INPUTS, value), LABELS), seed=0):
        private.divide(12).write_to(model)
        optimizer.step()
    assert all(parameter.isfinite().all() for parameter in model.parameters())


def test_nothing_but_private_values_leaves_a_run():
    public = {name for name in vars(so.PrivateRun(make_plan(), make_model(), DATA)) if not name.startswith("_")}
    assert public == {"plan", "layout", "physical_batch_size"}


def test_the_guarantee_says_that_a_seed_can_remove_the_noise():
    seeded = so.PrivateRun(make_plan(), make_model(), DATA, seed=0).guarantee(delta=1e-3)
    secret = so.PrivateRun(make_plan(), make_model(), DATA).guarantee(delta=1e-3)
    assert "seed" in seeded.statement and "remove the noise" in seeded.statement
    assert "seed" not in secret.statement


def test_a_seed_and_a_key_exclude_each_other():
    with pytest.raises(UsageError, match="seed and key exclude each other"):
        so.PrivateRun(make_plan(), make_model(), DATA, seed=0, key=Key.fresh())


def test_a_run_cannot_be_continued_in_a_forked_process(monkeypatch):
    run = so.PrivateRun(make_plan(), make_model(), DATA, seed=0)
    next(run)
    child = os.getpid() + 1
    monkeypatch.setattr(os, "getpid", lambda: child)
    with pytest.raises(UsageError, match="forked process"):
        next(run)


@pytest.mark.parametrize("stage", ["sampler", "contribution", "clip", "noise", "encoding"])
def test_a_stage_of_the_wrong_kind_is_refused(stage):
    stages = {
        "sampler": so.Poisson(0.3, 6),
        "contribution": so.LossGradient(F.cross_entropy),
        "clip": so.ClipByNorm(1.0),
        "noise": so.Gaussian(1.0),
        "encoding": Unchanged(),
    }
    with pytest.raises(UsageError, match=f"{stage} must be"):
        so.Plan(**(stages | {stage: 0.1}))


def test_the_user_is_protected_as_a_whole():
    owners = torch.arange(40) // 4
    users = so.by_user(DATA, owners, rows_per_user=3)
    run = so.PrivateRun(make_plan(so.Poisson(1.0, 1)), make_model(), users, seed=0)
    assert run.guarantee(delta=1e-2).unit is Unit.USER
    model, total = make_model(), 0
    for user in range(10):
        model.zero_grad()
        rows = slice(4 * user, 4 * user + 3)
        F.cross_entropy(model(INPUTS[rows]), LABELS[rows], reduction="sum").backward()
        gradient = torch.cat([parameter.grad.flatten() for parameter in model.parameters()]).double()
        total = total + gradient * min(1.0, 0.5 * SCALED_TO / float(gradient.norm()))
    noise = (
        0.5 * torch.from_numpy(Key.from_seed(0).of_release(0).stream("noise").normals(run.layout.size, step=0)).double()
    )
    torch.testing.assert_close(next(run).value, total + noise, atol=2e-5, rtol=0)


class KeepHalf:
    """An encoding that keeps every other coordinate."""

    def init(self, layout):
        self.layout = layout
        return {}

    def codec(self, state, step, randomness):
        return _KeepHalfCodec(self.layout)


class _KeepHalfCodec:
    def __init__(self, layout):
        self.layout = layout
        self.code = Layout(("kept",), ((layout.size // 2,),))

    def encode(self, each):
        rows = torch.cat(list(each.rows(16)))[:, : 2 * (self.layout.size // 2) : 2]
        return Dense(rows.contiguous(), self.code)

    def decode(self, released):
        return released.lift(self._spread, self.layout), {}

    def _spread(self, value):
        spread = torch.zeros(self.layout.size, dtype=value.dtype)
        spread[: 2 * (self.layout.size // 2) : 2] = value
        return spread


class TestUnchanged(EncodingContract):
    encoding = Unchanged()


class TestKeepHalf(EncodingContract):
    encoding = KeepHalf()


def test_noise_falls_only_on_kept_coordinates():
    values = released(make_plan(encoding=KeepHalf()))
    assert (values[:, 1::2] == 0).all()
    assert (values[:, 0:-1:2] != 0).double().mean() > 0.99


def test_an_encoding_learns_from_released_gradients_only():
    """Each step's codec is made from the state that the codec of the step before returned."""

    class Learning:
        def init(self, layout):
            return {"seen": torch.zeros(0, layout.size)}

        def codec(self, state, step, randomness):
            assert len(state["seen"]) == step
            return LearningCodec(state)

    class LearningCodec(Unchanged):
        def __init__(self, state):
            vars(self).update(state=state)

        def decode(self, released):
            return released, {"seen": torch.cat([self.state["seen"], released.value[None]])}

    run = so.PrivateRun(make_plan(encoding=Learning()), make_model(), DATA, seed=0)
    values = torch.stack([private.value for private in run])
    assert torch.equal(run.coding_state["seen"], values)


# --- the step as a function ---


def carried_out(plan, model, *, seed=0):
    """The releases of a run, each computed by one call of the function `step`."""
    budget = so.Budget(DATA)
    key = Key.from_seed(seed)
    release = budget.open("steps", noise=plan.noise, adjacency=plan.adjacency, key=key, steps=plan.steps)
    streams, state = Streams.of(release.key), so.PrivateRun(plan, model, DATA, seed=seed).state
    for number, joined in enumerate(plan.sampler.batches(40, streams.sampling)):
        arguments = {"streams": streams, "release": release, "units_at_a_time": 9}
        private, state = step_of(plan, model, budget.records, state, number, torch.from_numpy(joined), **arguments)
        yield private, state


@pytest.mark.parametrize(
    "stages",
    [
        {},
        {"encoding": RankedSparsify(0.5, epochs=2, steps_per_epoch=3)},
        {"noise": so.OptimizedNoise(0.03, FromReleases(0.8))},
    ],
    ids=["plain", "encoding that learns", "noise that learns"],
)
def test_a_run_releases_what_the_step_gives_for_its_arguments(stages):
    plan, model = make_plan(**stages), nn.Sequential(nn.Linear(5, 30), nn.Dropout(0.5), nn.Linear(30, 3))
    run = so.PrivateRun(plan, model, DATA, seed=0, physical_batch_size=9)
    states = [run.state]
    for private, state in carried_out(plan, model):
        assert torch.equal(private.value, next(run).value)
        states.append(state)
        saved = state.by_name()
        assert saved.keys() == run.coding_state.keys()
        assert all(torch.equal(saved[name], learnt) for name, learnt in run.coding_state.items())
    assert run.steps == len(run) == len(states) - 1


def test_a_step_changes_nothing_that_it_is_given():
    plan = make_plan(noise=so.OptimizedNoise(0.03, FromReleases(0.8)))
    model = make_model()
    run = so.PrivateRun(plan, model, DATA, seed=0)
    before = {name: x.clone() for name, x in run.state.by_name().items()}
    weights = [parameter.clone() for parameter in model.parameters()]
    held = run.state
    next(run)
    assert held.by_name().keys() == before.keys()
    assert all(torch.equal(held.by_name()[name], x) for name, x in before.items())
    assert all(torch.equal(one, other) for one, other in zip(weights, model.parameters(), strict=True))
    assert all(parameter.grad is None for parameter in model.parameters())


def test_a_state_that_was_saved_comes_back():
    state = StepState({"keep": torch.ones(2)}, {"sum": torch.zeros(1), "keep": torch.zeros(3)})
    again = StepState.of_names(state.by_name())
    assert (again.encoding.keys(), again.noise.keys()) == (state.encoding.keys(), state.noise.keys())
    assert torch.equal(again.noise["keep"], torch.zeros(3)) and torch.equal(again.encoding["keep"], torch.ones(2))


# --- going on after a stop ---

SAMPLERS = [
    so.Poisson(rate=0.3, steps=6),
    so.BallsInBins(bins=3, epochs=2),
    so.Shuffled(3, 2),
    so.Cyclic(3, 2),
    so.FixedSize(batch_size=7, examples=40, steps=6),
]


@pytest.mark.parametrize("sampler", SAMPLERS, ids=lambda sampler: sampler.name)
@pytest.mark.parametrize("stop", [0, 2, 3, 5])
def test_a_run_that_is_continued_releases_what_it_would_have_released(sampler, stop):
    plan = make_plan(sampler)
    later = so.PrivateRun(plan, make_model(), DATA, seed=0)
    later.continue_at(stop, {})
    rest = torch.stack([private.value for private in later])
    assert torch.equal(rest, released(plan)[stop:])


def test_a_run_that_has_begun_cannot_be_moved():
    run = so.PrivateRun(make_plan(), make_model(), DATA, seed=0)
    next(run)
    with pytest.raises(UsageError, match="before the first step of a run"):
        run.continue_at(0, {})


def test_steps_that_are_drawn_again_are_paid_for():
    budget = so.Budget(DATA)
    run = so.PrivateRun(make_plan(), make_model(), budget, seed=0)
    run.continue_at(2, {}, drawn_again=4)
    longer = make_plan(so.Poisson(0.3, 10)).guarantee(delta=1e-5).epsilon
    assert run.guarantee(delta=1e-5).epsilon == pytest.approx(longer, rel=1e-3)
    assert budget.guarantee(delta=1e-5).epsilon == pytest.approx(longer, rel=1e-3)
    assert len(list(run)) == 4


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, pickle.dumps])
def test_a_run_is_never_copied(copied):
    with pytest.raises(UsageError, match="would draw the same noise"):
        copied(so.PrivateRun(make_plan(), make_model(), DATA))
