"""A hidden-state run agrees with a direct implementation, releases its last iterate only, and can stop at any step."""

import json
import os

import pytest
import torch

import sordino as so
from sordino.convex.hidden_run import fit_hidden_state, kernel_plan
from sordino.convex.model import GatedReLU
from sordino.convex.noisy_cgd import NoisyCGD
from sordino.errors import BudgetError, Interrupted, StateError, UsageError
from sordino.kernel.clipping import SCALED_TO, ClipByNorm
from sordino.kernel.lattice import spacing_of
from sordino.kernel.randomness import Key
from sordino.training import checkpoint
from sordino.training.evaluation import Public
from sordino.training.schedules import Constant, Cosine, Step

GENERATOR = torch.Generator().manual_seed(0)
INPUTS, LABELS = torch.randn(42, 5, generator=GENERATOR), torch.randint(0, 3, (42,), generator=GENERATOR)


def make(**changes):
    settings = {"clip": 0.3, "noise_multiplier": 3.0, "learning_rate": 1.0, "strength": 0.05, "trailing_steps": 3}
    settings |= {"schedule": Cosine(final=0.5), "noise_schedule": Step((0.5,), 2.0)}
    return NoisyCGD(so.Cyclic(4, 3), GatedReLU(6), **(settings | changes))


def fitted(plan=None, data=(INPUTS, LABELS), **arguments):
    named = {"outputs": 3, "delta": 1e-3, "seed": 5, "progress": False}
    return fit_hidden_state(plan or make(), data, **(named | arguments))


def weights(found):
    return torch.cat([x.detach().flatten() for x in found.model.parameters()])


def by_hand(plan):
    """A direct implementation: cyclic batches, example by example, descent with ridge, projection, trailing noise."""
    model, noise = plan.model.build(5, 3), Key.from_seed(5).of_release(0).of_release(0).stream("noise")
    parameter = model.maps.weight
    batch_size = 11  # the largest of 42 examples in 4 batches
    for step in range(plan.steps):
        total = torch.zeros_like(parameter, dtype=torch.float64)
        if step < plan.sampler.steps:
            for i in torch.arange(42).tensor_split(4)[step % 4].tolist():
                model.zero_grad()
                plan.loss(model(INPUTS[i : i + 1]), LABELS[i : i + 1]).backward()
                gradient = parameter.grad.double()
                total += gradient * min(1.0, plan.clip * SCALED_TO / float(gradient.norm()))
        std = plan.noise_multiplier_at(step) * plan.clip
        total += std * torch.from_numpy(noise.normals(parameter.numel(), step=step)).reshape(parameter.shape)
        with torch.no_grad():
            parameter -= plan.learning_rate_at(step) * ((total / batch_size).float() + plan.strength * parameter)
            if plan.radius is not None and parameter.norm() > plan.radius:
                parameter *= plan.radius / parameter.norm()
    return parameter.detach().flatten()


@pytest.mark.parametrize("changes", [{}, {"radius": 0.4, "examples": 42}, {"trailing_steps": 0, "strength": 0.0}])
def test_the_run_is_the_algorithm_as_written(changes):
    plan = make(**changes)
    assert torch.allclose(weights(fitted(plan)), by_hand(plan), atol=1e-4)


def test_the_budget_is_charged_for_the_end_and_for_nothing_else():
    budget = so.Budget((INPUTS, LABELS))
    found = fitted(data=budget)
    assert budget.releases == ("training run",)
    assert found.guarantee.epsilon == make().guarantee(delta=1e-3).epsilon
    assert any("nobody sees more of the run" in text for text in found.guarantee.assumptions)
    assert any("seed" in text for text in found.guarantee.assumptions)


def test_the_folder_shows_the_end_only(tmp_path):
    fitted(out=tmp_path / "run", evaluation=Public((INPUTS, LABELS)))
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == [
        "metrics.jsonl",
        "model.safetensors",
        "privacy.json",
        "training.json",
    ]
    (row,) = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_bytes().splitlines()]
    assert row.keys() >= {"step", "epsilon", "delta", "test_accuracy", "test_auc"}
    assert json.loads((tmp_path / "run" / "privacy.json").read_bytes())["view"] == "final-model"
    assert not (tmp_path / "run.private").exists()


class Killed(BaseException):
    pass


def killed(step, monkeypatch, **arguments):
    take = so.PrivateRun.next_from

    def ending(run, start):
        if run.steps == step:
            raise Killed
        return take(run, start)

    with monkeypatch.context() as patch:
        patch.setattr(so.PrivateRun, "next_from", ending)
        with pytest.raises(Killed):
            fitted(**arguments)


def test_a_run_that_is_killed_ends_as_if_it_had_not_been(tmp_path, monkeypatch):
    for step in (0, 5, 11):
        killed(step, monkeypatch, out=tmp_path / str(step))
        found = fitted(out=tmp_path / str(step), resume=True)
        assert torch.equal(weights(found), weights(fitted()))
        assert torch.equal(weights(fitted(out=tmp_path / str(step), resume=True)), weights(found))


def test_on_other_hardware_the_hidden_steps_are_drawn_again_for_free(tmp_path, monkeypatch):
    killed(5, monkeypatch, out=tmp_path / "run")
    here = checkpoint.surroundings()
    monkeypatch.setattr(checkpoint, "surroundings", lambda *_: here | {"torch": "9.9"})
    found = fitted(out=tmp_path / "run", resume=True)
    assert found.guarantee.epsilon == make().guarantee(delta=1e-3).epsilon
    assert not torch.equal(weights(found), weights(fitted()))


def test_being_asked_to_stop_loses_nothing(tmp_path, monkeypatch):
    take = so.PrivateRun.next_from

    def signalled(run, start):
        if run.steps == 3:
            os.kill(os.getpid(), 15)
        return take(run, start)

    with monkeypatch.context() as patch:
        patch.setattr(so.PrivateRun, "next_from", signalled)
        with pytest.raises(Interrupted, match="stopped after step 4 of 12"):
            fitted(out=tmp_path / "run")
    assert torch.equal(weights(fitted(out=tmp_path / "run", resume=True)), weights(fitted()))


def test_being_asked_to_stop_in_the_last_step_passes_the_question_on(tmp_path, monkeypatch):
    take = so.PrivateRun.next_from

    def signalled(run, start):
        if run.steps == len(run) - 1:
            os.kill(os.getpid(), 2)
        return take(run, start)

    with monkeypatch.context() as patch:
        patch.setattr(so.PrivateRun, "next_from", signalled)
        with pytest.raises(KeyboardInterrupt):
            fitted(out=tmp_path / "run")
    assert torch.equal(weights(fitted(out=tmp_path / "run", resume=True)), weights(fitted()))


def test_a_run_is_not_continued_as_another(tmp_path, monkeypatch):
    killed(5, monkeypatch, out=tmp_path / "run")
    for changes in ({"plan": make(strength=0.04)}, {"data": (INPUTS + 1, LABELS)}, {"outputs": 4}):
        with pytest.raises(StateError, match="belongs to another run"):
            fitted(out=tmp_path / "run", resume=True, **changes)


def test_iterates_are_shown_only_where_the_plan_pays_for_them():
    shown = []
    plan = make(shown_after=(1, 2))
    found = fitted(plan, on_shown=lambda epoch, state: shown.append((epoch, state["maps.weight"])))
    assert [epoch for epoch, _ in shown] == [1, 2]
    assert not torch.equal(shown[0][1], shown[1][1])
    assert found.guarantee.epsilon > make().guarantee(delta=1e-3).epsilon
    with pytest.raises(UsageError, match="on_shown must be given"):
        fitted(plan)


def test_a_record_that_is_not_finite_is_a_constant_and_moves_nothing():
    broken = INPUTS.clone()
    broken[7] = float("nan")
    without = LABELS.clone()
    without[7] = -1
    assert torch.equal(weights(fitted(data=(broken, LABELS))), weights(fitted(data=(broken, without))))
    assert weights(fitted(data=(broken, LABELS))).isfinite().all()


def test_one_record_moves_a_step_by_no_more_than_the_bound():
    """The sensitivity of one step from a fixed iterate is the clip norm divided by the largest batch size."""
    plan = make(trailing_steps=0, strength=0.0, schedule=Step((0.5,), 1.0), noise_schedule=Step((0.5,), 1.0))
    plan = NoisyCGD(so.Cyclic(1, 1), plan.model, clip=plan.clip, noise_multiplier=3.0, learning_rate=1.0)
    other = LABELS.clone()
    for i in range(0, 42, 7):
        other[i] = -1
        moved = weights(fitted(plan)) - weights(fitted(plan, data=(INPUTS, other)))
        assert float(moved.norm()) <= ClipByNorm(plan.clip).norm / 42 * (1 + 1e-3)
        other[i] = LABELS[i]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"resume": True}, "resume needs out"),
        ({"plan": make(radius=1.0, examples=41)}, "for 41 examples, but the dataset has 42"),
        ({"outputs": 0}, "outputs"),
        ({"plan": "noisy"}, "plan must be a NoisyCGD"),
    ],
)
def test_wrong_arguments_are_refused_before_anything_is_charged(arguments, message):
    budget = so.Budget((INPUTS, LABELS))
    with pytest.raises(UsageError, match=message):
        fitted(data=budget, **arguments)
    assert budget.releases == ()


def test_an_iterate_is_rounded_together_with_the_noise_of_its_step():
    """If the release were rounded alone and added to the iterate, the sum would reveal the iterate's last bits."""
    plan = make(noise_schedule=Constant())
    module = plan.model.build(5, 3)
    run = so.PrivateRun(kernel_plan(plan), module, (INPUTS, LABELS), seed=0)
    spacing = spacing_of(run.plan.noise.std(plan.clip))
    start = torch.linspace(-100, 100, run.layout.size, dtype=torch.float64) / 3
    assert not torch.equal(start / spacing, (start / spacing).round())
    for private in [run.next_from(start), *(run.next_from(start) for _ in range(11)), run.noise_from(start, 12)]:
        assert torch.equal(private.value / spacing, (private.value / spacing).round())
        assert (private.value - start).abs().max() < 11 * plan.clip + 6 * run.plan.noise.std(plan.clip)


def test_every_iterate_is_a_function_of_one_rounded_release(monkeypatch):
    released = []
    honest = so.Gaussian.add

    def add(self, total, at):
        released.append(honest(self, total, at))
        return released[-1]

    monkeypatch.setattr(so.Gaussian, "add", add)
    plan = make(trailing_steps=0)
    last = plan.learning_rate_at(plan.steps - 1) / 11
    assert torch.equal(weights(fitted(plan)), (-last * released[-1].value).float())


def test_the_target_is_that_of_this_fit_and_a_refusal_says_what_would_fit():
    budget = so.Budget((INPUTS, LABELS), epsilon=4.0, delta=1e-3)
    budget.charge(so.Gaussian(2.0).event, so.Adjacency.ZERO_OUT, what="mean")
    with pytest.raises(BudgetError, match=r"epsilon 3.9 .* does not fit .*: 1\.\d\d of 4 are spent .* at most 3\.\d"):
        fitted(make().calibrated(epsilon=3.9, delta=1e-3), data=budget)
    assert budget.releases == ("mean",)
    found = fitted(make().calibrated(epsilon=1.0, delta=1e-3), data=budget)
    assert found.guarantee.epsilon <= 1.0 < budget.guarantee(delta=1e-3).epsilon
    assert any("counted alone: its budget holds 2 releases" in each for each in found.guarantee.assumptions)
