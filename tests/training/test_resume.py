"""A training that is stopped anywhere goes on as if nothing had happened, and never forgets what it spent."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import small_trainings
import torch
from killed_commands import Killed
from small_trainings import INPUTS, LABELS, killed, trained
from torch import nn
from training_commands import contents

import sordino as so
from sordino.errors import Interrupted, StateError, UsageError
from sordino.kernel.randomness import Key
from sordino.training import checkpoint as checkpoint_module
from sordino.training import run_writer as writer_module
from sordino.training.evaluation import Charged
from sordino.training.loop import Training
from sordino.training.run_folder import RunFolder
from sordino.training.schedules import Cosine


@pytest.fixture(scope="module", autouse=True)
def quick():
    """Few rows on the way and one thread: what is tested here is the order of things."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(writer_module, "_EVALUATIONS", 4)
        yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory) -> dict[str, bytes]:
    out = tmp_path_factory.mktemp("whole") / "run"
    trained(out)
    return contents(out)


def test_a_run_leaves_weights_measures_and_a_promise_and_nothing_else(uninterrupted: dict[str, bytes]) -> None:
    assert set(uninterrupted) == {"metrics.jsonl", "model.safetensors", "privacy.json", "training.json"}
    rows = [json.loads(line) for line in uninterrupted["metrics.jsonl"].splitlines()]
    assert rows[-1].keys() >= {"step", "epoch", "epsilon", "delta", "validation_accuracy", "test_accuracy"}
    assert 0 <= rows[-1]["test_accuracy"] <= 1
    assert [row["epsilon"] for row in rows] == sorted(row["epsilon"] for row in rows)
    assert rows[-1]["epsilon"] == json.loads(uninterrupted["privacy.json"])["epsilon"] <= 3.0


@pytest.mark.parametrize("calls", random.Random(0).sample(range(70), 5))
def test_a_run_that_is_killed_anywhere_ends_as_if_it_had_not_been(
    calls: int, uninterrupted: dict[str, bytes], tmp_path: Path
) -> None:
    out = tmp_path / "run"
    assert killed(out, calls)
    for again in (3, 20):  # and killed again, soon and later, on its way
        killed(out, again, resume=True)
    trained(out, resume=True)
    assert contents(out) == uninterrupted
    assert not RunFolder(out).private.exists()


def test_a_secure_run_that_is_killed_ends_as_one_with_its_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert killed(tmp_path / "killed", 30, seed=None)
    secret = bytes.fromhex(json.loads((tmp_path / "killed.private" / "key.json").read_bytes())["secret"])
    trained(tmp_path / "killed", seed=None, resume=True)
    monkeypatch.setattr(Key, "fresh", lambda: Key(secret))
    trained(tmp_path / "whole", seed=None)
    assert contents(tmp_path / "killed") == contents(tmp_path / "whole")


def test_two_secure_runs_are_not_alike(tmp_path: Path) -> None:
    for name in ("a", "b"):
        trained(tmp_path / name, seed=None, steps=3)
    weights = [contents(tmp_path / name)["model.safetensors"] for name in ("a", "b")]
    assert weights[0] != weights[1]


def test_what_is_promised_is_on_the_disk_before_the_first_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def first_step(training: Training) -> None:
        assert json.loads((tmp_path / "run" / "privacy.json").read_bytes())["epsilon"] <= 3.0
        raise Killed

    monkeypatch.setattr(Training, "step", first_step)
    with pytest.raises(Killed):
        trained(tmp_path / "run")


def test_no_step_begins_that_no_checkpoint_speaks_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    step = Training.step

    def watched(training: Training) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(checkpoint_module, "_locked", lambda folder: os.open(os.devnull, os.O_RDONLY))
            with checkpoint_module.Checkpoints.open(tmp_path / "run.private") as checkpoints:
                about = checkpoint_module.load_tensors(checkpoints._path).texts["about"]
        assert training.run.steps < json.loads(about)["progress"]["begun_until"]
        step(training)

    monkeypatch.setattr(Training, "step", watched)
    trained(tmp_path / "run")


def test_elsewhere_the_last_steps_are_refused_or_drawn_again_and_paid_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, uninterrupted: dict[str, bytes]
) -> None:
    monkeypatch.setattr(writer_module, "_STEPS_BETWEEN_CHECKPOINTS", 0.4)
    out = tmp_path / "run"
    assert killed(out, 18)
    here = checkpoint_module.surroundings()
    monkeypatch.setattr(checkpoint_module, "surroundings", lambda *_: here | {"torch": "9.9"})
    with pytest.raises(StateError, match="with torch"):
        trained(out, resume=True)
    fitted = trained(out, resume=True, draw_again=True)
    promised = json.loads((out / "privacy.json").read_bytes())["epsilon"]
    assert fitted.guarantee.epsilon == promised > 3.0
    assert json.loads((out / "metrics.jsonl").read_bytes().splitlines()[-1])["epsilon"] == promised
    assert contents(out)["model.safetensors"] != uninterrupted["model.safetensors"]


def twice_the_loss(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return 2 * nn.functional.cross_entropy(outputs, labels, reduction="sum")


def same_name(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(outputs, labels, reduction="sum")


same_name.__qualname__ = twice_the_loss.__qualname__


@pytest.mark.parametrize(
    ("begun_with", "changes"),
    [
        ({}, {"between": (nn.ReLU(), nn.Dropout(0.3))}),  # the same shapes, another function of them
        ({}, {"between": (nn.Tanh(), nn.Dropout(0.4))}),
        ({"loss": same_name}, {"loss": twice_the_loss}),
    ],
)
def test_steps_of_a_model_that_does_something_else_are_not_repeated_under_their_noise(
    begun_with, changes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer_module, "_STEPS_BETWEEN_CHECKPOINTS", 0.4)
    assert killed(tmp_path / "run", 18, **begun_with)
    with pytest.raises(
        StateError, match=r"with model, loss and optimizer on synthetic rows .*cannot be repeated exactly"
    ):
        trained(tmp_path / "run", resume=True, **changes)
    fitted = trained(tmp_path / "run", resume=True, draw_again=True, **changes)
    assert fitted.guarantee.epsilon > 3.0  # what may have been drawn twice is paid for twice


@pytest.fixture(scope="module")
def stopped(tmp_path_factory) -> Path:
    """A folder with a run that was killed. Tests take a copy."""
    folder = tmp_path_factory.mktemp("stopped")
    assert killed(folder / "run", 30)
    return folder


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"data": (INPUTS + 1, LABELS)}, "data"),
        ({"data": (INPUTS, LABELS.roll(1))}, "data"),
        ({"epsilon": 2.0}, "plan"),
        ({"steps": 13}, "plan"),
        ({"clip": 2.0}, "plan"),
        ({"schedule": Cosine()}, "schedule"),
        ({"averaging": None}, "schedule"),
        ({"views": None}, "views"),
        ({"autocast": torch.bfloat16}, "precision"),  # its sums are others, and must not get the same noise
        ({"optimizer": None}, "optimizer"),
        ({"loss": nn.functional.multi_margin_loss}, "loss"),
    ],
)
def test_a_run_is_not_continued_as_another(changes, named: str, stopped: Path, tmp_path: Path) -> None:
    shutil.copytree(stopped, tmp_path, dirs_exist_ok=True)
    with pytest.raises(StateError, match=f"its {named} differs"):
        trained(tmp_path / "run", resume=True, **changes)


def in_groups(kind=torch.optim.AdamW, last=2, first=None, **changes):
    """An optimizer of two groups: all but the `last` parameters, and those. `changes` are of the second group."""

    def make(parameters):
        *begin, end = torch.tensor_split(torch.arange(len(parameters)), [len(parameters) - last])
        of_first, of_second = ([parameters[i] for i in places] for places in (*begin, end))
        second = {"params": of_second, "lr": 0.01, "weight_decay": 0.1} | changes
        return kind([{"params": of_first} | (first or {}), second], lr=0.05)

    return make


class Adam(torch.optim.Adam):
    """Not torch's own, by the same name."""


@pytest.fixture(scope="module")
def stopped_in_groups(tmp_path_factory) -> Path:
    """A folder with a killed run whose optimizer has two groups. Tests take a copy."""
    folder = tmp_path_factory.mktemp("stopped_in_groups")
    assert killed(folder / "run", 30, optimizer=in_groups())
    return folder


@pytest.mark.parametrize(
    "changed",
    [
        in_groups(lr=0.02),
        in_groups(weight_decay=0.2),
        in_groups(betas=(0.8, 0.999)),
        in_groups(foreach=True),
        in_groups(fused=False),
        in_groups(maximize=True),
        in_groups(last=1),
        in_groups(first={"eps": 1e-6}),
        in_groups(torch.optim.NAdam),
        lambda parameters: torch.optim.AdamW(parameters, lr=0.05),
    ],
)
def test_a_run_is_not_continued_with_other_groups_of_parameters(
    changed, stopped_in_groups: Path, tmp_path: Path
) -> None:
    shutil.copytree(stopped_in_groups, tmp_path, dirs_exist_ok=True)
    with pytest.raises(StateError, match="its optimizer differs"):
        trained(tmp_path / "run", resume=True, optimizer=changed)


def test_a_run_is_continued_with_the_same_groups_of_parameters_after_others_were_refused(
    stopped_in_groups: Path, tmp_path: Path
) -> None:
    shutil.copytree(stopped_in_groups, tmp_path, dirs_exist_ok=True)
    with pytest.raises(StateError, match="its optimizer differs"):
        trained(tmp_path / "run", resume=True, optimizer=in_groups(lr=0.02))
    trained(tmp_path / "run", resume=True, optimizer=in_groups())


def test_a_class_of_the_same_name_is_another_optimizer(tmp_path: Path) -> None:
    assert killed(tmp_path / "run", 30, optimizer=lambda parameters: torch.optim.Adam(parameters, lr=0.05))
    with pytest.raises(StateError, match="its optimizer differs"):
        trained(tmp_path / "run", resume=True, optimizer=lambda parameters: Adam(parameters, lr=0.05))


class Counting(torch.optim.SGD):
    """Goes more slowly from step to step, by a count of its own, in its groups or as an attribute."""

    def __init__(self, parameters, where, power=0.5):
        super().__init__(parameters, lr=0.05)
        self.in_group, self.power, self.taken = where == "group", power, 0
        self.param_groups[0]["taken"] = 0

    def step(self, closure=None):
        self.taken += 1
        group = self.param_groups[0]
        group["taken"] += 1
        before = group["lr"]
        group["lr"] = before / (group["taken"] if self.in_group else self.taken) ** self.power
        super().step(closure)
        group["lr"] = before


@pytest.mark.parametrize("where", ["group", "attribute"])
def test_what_an_optimizer_counts_outside_its_state_is_gone_on_with(where: str, tmp_path: Path) -> None:
    def optimizer(parameters):
        return Counting(parameters, where)

    trained(tmp_path / "whole", optimizer=optimizer)
    assert killed(tmp_path / "killed", 30, optimizer=optimizer)
    trained(tmp_path / "killed", optimizer=optimizer, resume=True)
    assert contents(tmp_path / "killed") == contents(tmp_path / "whole")


class Slower(Counting):
    """Of the same name as the next one, and not the same."""

    step = torch.optim.SGD.step


class Other(Counting):
    step = Counting.step


Other.__qualname__ = Slower.__qualname__


def test_steps_of_an_optimizer_that_does_something_else_are_not_repeated_under_their_noise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer_module, "_STEPS_BETWEEN_CHECKPOINTS", 0.4)
    assert killed(tmp_path / "run", 18, optimizer=lambda parameters: Slower(parameters, "group"))
    with pytest.raises(StateError, match=r"loss and optimizer on synthetic rows .*cannot be repeated exactly"):
        trained(tmp_path / "run", resume=True, optimizer=lambda parameters: Other(parameters, "group"))


def scheduled(parameters):
    optimizer = torch.optim.SGD(parameters, lr=0.05)
    torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.1, total_steps=20)
    return optimizer


def hooked(parameters):
    optimizer = torch.optim.SGD(parameters, lr=0.05)
    optimizer.register_step_post_hook(lambda *_: None)
    return optimizer


def with_memory_of_its_own(parameters):
    optimizer = torch.optim.SGD(parameters, lr=0.05)
    optimizer.slow_weights = [parameter.detach().clone() for parameter in parameters]
    return optimizer


@pytest.mark.parametrize(
    ("optimizer", "said"),
    [
        (scheduled, r"step of the SGD is changed by hooks.*train without out"),
        (hooked, "step of the SGD is changed by hooks"),
        (with_memory_of_its_own, r"SGD keeps 'slow_weights' \(list\) outside its state"),
    ],
)
def test_an_optimizer_whose_steps_no_checkpoint_can_repeat_has_no_folder(optimizer, said: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=said):
        trained(tmp_path / "run", optimizer=optimizer)
    assert not list(tmp_path.iterdir())
    trained(None, optimizer=optimizer, steps=3)


def test_a_folder_that_holds_a_run_is_not_overwritten(tmp_path: Path) -> None:
    assert killed(tmp_path / "run", 30)
    with pytest.raises(UsageError, match="has a run already"):
        trained(tmp_path / "run")
    trained(tmp_path / "run", resume=True)
    with pytest.raises(UsageError, match="has a run already"):
        trained(tmp_path / "run")


def test_a_run_without_its_key_is_not_begun_again_for_free(tmp_path: Path) -> None:
    assert killed(tmp_path / "run", 30)
    for path in (tmp_path / "run.private").iterdir():
        path.unlink()
    (tmp_path / "run.private").rmdir()
    with pytest.raises(StateError, match="and the key with it"):
        trained(tmp_path / "run", resume=True)


def test_resuming_a_finished_run_gives_what_it_gave(tmp_path: Path, uninterrupted: dict[str, bytes]) -> None:
    first = trained(tmp_path / "run")
    again = trained(tmp_path / "run", resume=True)
    assert contents(tmp_path / "run") == uninterrupted
    assert all(torch.equal(a, b) for a, b in zip(first.model.parameters(), again.model.parameters(), strict=True))
    assert again.metrics == first.metrics


def test_resuming_needs_a_folder() -> None:
    with pytest.raises(UsageError, match="resume and draw_again need out"):
        trained(None, resume=True)


def test_being_asked_to_stop_ends_the_step_and_loses_nothing(
    tmp_path: Path, uninterrupted: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    step = Training.step

    def signalled(training: Training) -> None:
        if training.run.steps == 4:
            os.kill(os.getpid(), signal.SIGTERM)
        step(training)

    with monkeypatch.context() as patch:
        patch.setattr(Training, "step", signalled)
        with pytest.raises(Interrupted, match="stopped after step 5 of 12"):
            trained(tmp_path / "run")
    here = checkpoint_module.surroundings()
    monkeypatch.setattr(checkpoint_module, "surroundings", lambda *_: here | {"torch": "9.9"})  # at rest: anywhere
    trained(tmp_path / "run", resume=True)
    assert contents(tmp_path / "run") == uninterrupted


def test_being_asked_to_stop_in_the_last_step_finishes_it_and_passes_the_question_on(
    tmp_path: Path, uninterrupted: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    step = Training.step

    def signalled(training: Training) -> None:
        if training.run.steps == len(training.run) - 1:
            os.kill(os.getpid(), signal.SIGINT)
        step(training)

    monkeypatch.setattr(Training, "step", signalled)
    with pytest.raises(KeyboardInterrupt):
        trained(tmp_path / "run")
    assert contents(tmp_path / "run") == uninterrupted


def test_training_in_another_thread_leaves_signals_alone(tmp_path: Path) -> None:
    thread = threading.Thread(target=trained, args=(tmp_path / "run",), kwargs={"steps": 3})
    thread.start()
    thread.join()
    assert (tmp_path / "run" / "model.safetensors").exists()


def test_a_training_that_diverges_says_so(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"training diverged.*smaller learning rate"):
        trained(tmp_path / "run", optimizer=lambda parameters: torch.optim.SGD(parameters, lr=1e38), clip=1e4)


def charged(budget: so.Budget, **changes) -> Charged:
    return Charged(budget, **({"noise_multiplier": 30.0, "evaluations": 4, "key": Key.from_seed(9)} | changes))


def test_a_charged_validation_is_part_of_what_is_promised_and_repeated_exactly(tmp_path: Path) -> None:
    for name in ("whole", "killed"):
        budget = so.Budget((INPUTS, LABELS))
        arguments = {"data": budget, "evaluation": charged(budget)}
        if name == "whole":
            fitted = trained(tmp_path / name, **arguments)
            assert 2.9 < fitted.guarantee.epsilon == budget.guarantee(delta=1e-3).epsilon <= 3.0
            assert len(fitted.metrics) == 4
        else:
            assert killed(tmp_path / name, 40, **arguments)
            again = so.Budget((INPUTS, LABELS))
            trained(tmp_path / name, data=again, evaluation=charged(again), resume=True)
    assert contents(tmp_path / "killed") == contents(tmp_path / "whole")


@pytest.mark.parametrize(
    ("changes", "arguments", "error", "said"),
    [
        ({"evaluations": 3}, {}, UsageError, "evaluations_needed must be a whole number from 1 to 3, got 4"),
        ({}, {"draw_again": True}, UsageError, "draw_again must be False with a charged evaluation"),
        ({"key": Key.from_seed(8)}, {"resume": True}, StateError, "its validation differs"),
    ],
)
def test_a_charged_validation_never_says_more_than_was_paid_for(
    changes, arguments, error: type[Exception], said: str, tmp_path: Path
) -> None:
    budget = so.Budget((INPUTS, LABELS))
    if "resume" in arguments:
        killed(tmp_path / "run", 30, data=budget, evaluation=charged(budget))
        budget = so.Budget((INPUTS, LABELS))
    with pytest.raises(error, match=said):
        trained(tmp_path / "run", data=budget, evaluation=charged(budget, **changes), **arguments)


SCRIPT = """
import sys
from pathlib import Path
sys.path.insert(0, {tests!r})
from small_trainings import trained
from sordino.training import run_writer
run_writer._EVALUATIONS = 4
trained(Path(sys.argv[1]), steps=400, resume=True, seed={seed!r})
"""


@pytest.mark.slow
@pytest.mark.parametrize("seed", [5, None])
def test_a_process_that_is_killed_at_twenty_random_moments_ends_as_if_it_had_not_been(
    seed: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = [sys.executable, "-c", SCRIPT.format(tests=str(Path(small_trainings.__file__).parent), seed=seed)]
    secret, kills, moments = None, 0, random.Random(1)
    while kills < 20:
        process = subprocess.Popen([*command, str(tmp_path / "killed")])
        key = tmp_path / "killed.private" / "key.json"
        while not key.exists() and process.poll() is None:
            time.sleep(0.05)
        time.sleep(moments.uniform(0, 0.4))
        process.kill()
        if process.wait() == 0:
            break
        kills += 1
        secret = secret or json.loads(key.read_bytes())["secret"]
    subprocess.run([*command, str(tmp_path / "killed")], check=True)
    assert kills >= 5
    if secret is not None:
        key = Key(bytes.fromhex(secret), reproducible=seed is not None)
        monkeypatch.setattr(Key, "fresh", lambda: key)
    trained(tmp_path / "whole", steps=400, seed=seed)
    assert contents(tmp_path / "killed") == contents(tmp_path / "whole")
