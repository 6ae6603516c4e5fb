"""A loop of one's own is saved, killed and continued: what is paid for is what was begun, and no noise comes twice."""

from __future__ import annotations

import gc
import io
import json
import random
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from dp_accounting.dp_event import ComposedDpEvent
from torch import nn

import sordino as so
from sordino.encodings import RankedSparsify
from sordino.errors import BudgetError, StateError, UsageError
from sordino.kernel.budget import Release
from sordino.kernel.sampling import BallsInBins, FixedSize, Shuffled
from sordino.kernel.step_log import StepLog

INPUTS = torch.randn(40, 5, generator=torch.Generator().manual_seed(0))
LABELS = torch.randint(0, 3, (40,), generator=torch.Generator().manual_seed(1))


def plan_of(sampler=None, **stages) -> so.Plan:
    return so.Plan(
        sampler or so.Poisson(0.3, 12),
        so.LossGradient(F.cross_entropy),
        stages.pop("clip", so.ClipByNorm(0.5)),
        stages.pop("noise", so.Gaussian(2.0)),
        **stages,
    )


def run_of(plan=None, data=None, **arguments) -> so.PrivateRun:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 3))
    return so.PrivateRun(plan or plan_of(), model, data or (INPUTS, LABELS), **arguments)


def take(run: so.PrivateRun, steps: int) -> list[torch.Tensor]:
    return [next(run).value for _ in range(steps)]


def test_a_run_goes_on_at_its_step_with_what_it_has_learned() -> None:
    plan = plan_of(encoding=RankedSparsify(0.5, epochs=3, steps_per_epoch=4))
    run = run_of(plan)
    take(run, 5)
    again = run_of(plan)
    again.load_state_dict(run.state_dict())
    assert again.steps == 5 and again.coding_state.keys() == run.coding_state.keys()
    assert all(torch.equal(x, run.coding_state[name]) for name, x in again.coding_state.items())
    assert len(list(again)) == 7
    with pytest.raises(UsageError, match="all 12 steps"):
        again.begin()


@pytest.mark.parametrize("given", [{}, {"seed": 3}])
def test_no_noise_and_no_batch_comes_twice_not_even_with_a_seed(given, tmp_path: Path) -> None:
    for log in ({}, {"step_log": tmp_path / "steps.log"}):
        run = run_of(**given, **log)
        saved, first = run.state_dict(), take(run, 1)
        del run
        for loads in (True, False) if log else (True,):
            again = run_of(**given, **log)
            if loads:
                again.load_state_dict(saved)
            assert not torch.equal(take(again, 1)[0], first[0])
            assert (so.accounting.SEED_STAYS_SECRET in again.assumptions) == bool(given)
            del again


def periods_by_hand(segments: list[tuple[int, int]], period: int) -> int:
    """Counts for each process the periods in which it has a step."""
    return sum(len({step // period for step in range(first, end)}) * period for first, end in segments)


@pytest.mark.parametrize(
    "sampler", [so.Poisson(0.3, 12), BallsInBins(4, 3), Shuffled(4, 3), FixedSize(9, 40, 12)], ids=lambda s: s.name
)
def test_what_is_charged_is_what_all_processes_begin(sampler, tmp_path: Path) -> None:
    draw, plan = random.Random(0), plan_of(sampler)
    for trial in range(4):
        log, segments, saved = tmp_path / f"{trial}.log", list[tuple[int, int]](), None
        for last in (False, False, True):
            run = run_of(plan, step_log=log)
            if saved is not None:
                run.load_state_dict(saved)
            start, end = run.steps, 12 if last else draw.randint(run.steps, 12)
            before = periods_by_hand(segments, sampler.period)
            for _ in range(start, end):
                next(run)
                if draw.random() < 0.3:
                    saved = run.state_dict()
            segments.append((start, end))
            total = before + periods_by_hand([(start, 12)], sampler.period)
            assert run.plan.steps + run.steps_drawn_again == total
            again = sampler.compose(plan.noise.event, total - 12)
            assert run.event == (ComposedDpEvent([plan.event, again]) if total > 12 else plan.event)
            del run


def test_a_stop_right_after_a_save_is_free_with_a_log_and_dear_without(tmp_path: Path) -> None:
    whole = plan_of().guarantee(delta=1e-3)
    run = run_of(step_log=tmp_path / "steps.log")
    take(run, 3)
    saved = run.state_dict()
    del run
    counted = run_of(step_log=tmp_path / "steps.log")
    counted.load_state_dict(saved)
    assert counted.steps_drawn_again == 0
    assert counted.guarantee(delta=1e-3).epsilon == pytest.approx(whole.epsilon)
    assert any("step log" in line for line in counted.assumptions)
    blind = run_of()
    blind.load_state_dict(saved)
    assert blind.steps_drawn_again == 9  # the other process may have gone on to the end
    assert blind.guarantee(delta=1e-3).epsilon > whole.epsilon
    assert any("no other process went on" in line for line in blind.assumptions)
    third = run_of()
    third.load_state_dict(blind.state_dict())
    assert third.steps_drawn_again == 18


def test_a_run_that_was_killed_before_its_first_save_begins_again_and_pays_for_both(tmp_path: Path) -> None:
    take(run_of(step_log=tmp_path / "steps.log"), 4)
    gc.collect()
    again = run_of(step_log=tmp_path / "steps.log")
    before = again.guarantee(delta=1e-3).epsilon
    take(again, 12)
    assert again.steps_drawn_again == 4 and again.guarantee(delta=1e-3).epsilon == before


def test_a_budget_has_room_for_what_is_drawn_again_or_refuses_it(tmp_path: Path) -> None:
    run = run_of()
    take(run, 3)
    epsilon = plan_of().guarantee(delta=1e-3).epsilon
    budget = so.Budget((INPUTS, LABELS), epsilon=1.05 * epsilon, delta=1e-3)
    again = run_of(data=budget)
    with pytest.raises(BudgetError, match="steps drawn again would bring epsilon"):
        again.load_state_dict(run.state_dict())
    roomy = so.Budget((INPUTS, LABELS), epsilon=3 * epsilon, delta=1e-3)
    again = run_of(data=roomy)
    again.load_state_dict(run.state_dict())
    assert roomy.guarantee(delta=1e-3).epsilon == again.guarantee(delta=1e-3).epsilon > epsilon
    assert not any("counted alone" in line for line in again.guarantee(delta=1e-3).assumptions)


def test_the_state_is_plain_and_holds_no_key(tmp_path: Path) -> None:
    run = run_of(step_log=tmp_path / "steps.log")
    take(run, 2)
    file = io.BytesIO()
    torch.save({"run": run.state_dict()}, file)
    secrets = [run._release.key.secret, *(stream.secret for stream in vars(run._streams).values())]
    for content in (file.getvalue(), (tmp_path / "steps.log").read_bytes()):
        assert all(secret not in content and secret.hex().encode() not in content for secret in secrets)
    file.seek(0)
    again = run_of()
    again.load_state_dict(torch.load(file, weights_only=True)["run"])
    assert again.steps == 2


def test_a_step_is_on_the_disk_before_its_noise_is_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    add, path = Release.add_and_learn, tmp_path / "steps.log"

    def watched(release, total, step, *others):
        assert json.loads(path.read_bytes().splitlines()[-1]) == [0, step + 1]
        return add(release, total, step, *others)

    monkeypatch.setattr(Release, "add_and_learn", watched)
    take(run_of(step_log=path), 3)


def test_a_line_that_a_crash_cut_off_counts_nothing(tmp_path: Path) -> None:
    path = tmp_path / "steps.log"
    take(run_of(step_log=path), 3)
    gc.collect()
    path.write_bytes(path.read_bytes()[:-3])
    log = StepLog(path, plan=json.loads(path.read_bytes().splitlines()[0])["plan"])
    assert log.begun == ((0, 2),)
    log.count(2)
    assert path.read_bytes().endswith(b"[0, 2]\n[2, 3]\n")


@pytest.mark.parametrize("content", [b"hello\n", b"[]\n", b'{"format": 1}\n', b"[0, 4]\n[0, 9]\n"])
def test_a_file_that_is_no_step_log_is_refused(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "steps.log").write_bytes(content)
    with pytest.raises(StateError, match="not a step log, or it is damaged"):
        run_of(step_log=tmp_path / "steps.log")


def test_a_log_counts_one_run_at_a_time_and_no_other(tmp_path: Path) -> None:
    run = run_of(step_log=tmp_path / "steps.log")
    take(run, 2)
    with pytest.raises(StateError, match="another run takes the steps"):
        run_of(step_log=tmp_path / "steps.log")
    saved = run.state_dict()
    del run
    with pytest.raises(StateError, match="counts the steps of another plan"):
        run_of(plan_of(so.Poisson(0.3, 13)), step_log=tmp_path / "steps.log")
    for path in ("empty.log", "steps.log"):
        other = run_of(step_log=tmp_path / path)
        with pytest.raises(StateError, match="does not count the steps that led to this state"):
            other.load_state_dict(saved if path == "empty.log" else saved | {"step": 9})


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"plan": "another"}, "another plan"),
        ({"step": -1}, "the state is damaged"),
        ({"spent": 3}, "the state is damaged"),
        ({"format": 7}, "has format 7"),
        ({"coding": None}, "coding must be Mapping, got NoneType"),
    ],
)
def test_another_state_is_refused(changes, said: str) -> None:
    with pytest.raises(StateError, match=said):
        run_of().load_state_dict(run_of().state_dict() | changes)


def test_a_state_is_loaded_before_the_first_step_and_once() -> None:
    run = run_of()
    saved = run.state_dict()
    take(run, 1)
    with pytest.raises(UsageError, match="before the first step of a run; this one is at 1"):
        run.load_state_dict(saved)


LOOP = """
import os, sys, torch, torch.nn.functional as F
import sordino as so
torch.manual_seed(0)
model = torch.nn.Linear(5, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=12)
plan = so.Plan(so.Poisson(0.3, 12), so.LossGradient(F.cross_entropy), so.ClipByNorm(0.5), so.Gaussian(2.0))
run = so.PrivateRun(plan, model, (torch.zeros(40, 5), torch.zeros(40, dtype=torch.int64)), step_log="steps.log")
parts = {"model": model, "optimizer": optimizer, "scheduler": scheduler, "run": run}
if os.path.exists("saved.pt"):
    for name, state in torch.load("saved.pt").items():
        parts[name].load_state_dict(state)
for private in run:
    if run.steps == int(sys.argv[1]):
        os._exit(9)  # as a kill would: nothing is closed, nothing is flushed
    private.divide(12).write_to(model)
    optimizer.step()
    scheduler.step()
    if run.steps % 4 == 0:
        torch.save({name: part.state_dict() for name, part in parts.items()}, "saved.pt")
assert scheduler.last_epoch == 12
print(run.steps_drawn_again, run.guarantee(delta=1e-3).epsilon)
"""


@pytest.mark.slow
def test_processes_that_are_killed_pay_for_the_steps_that_were_lost(tmp_path: Path) -> None:
    for killed_at in (3, 7, 10, 99):
        ended = subprocess.run(
            [sys.executable, "-c", LOOP, str(killed_at)], cwd=tmp_path, capture_output=True, text=True, check=False
        )
        assert ended.returncode == (0 if killed_at == 99 else 9), ended.stderr
    lost = 3 + 3 + 2  # from 0 to 3, from 4 to 7, from 8 to 10
    again, epsilon = ended.stdout.split()
    assert int(again) == lost
    expected = plan_of(so.Poisson(0.3, 12 + lost)).guarantee(delta=1e-3).epsilon
    assert float(epsilon) == pytest.approx(expected, rel=1e-3)
