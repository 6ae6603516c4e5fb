"""Checks of wrong or weak targets, samplers, noise and keys. The name of a check is the statement that it tests."""

import inspect
import os
import subprocess
import sys

import pytest
import torch
from dp_accounting import GaussianDpEvent
from torch import nn
from watched_attempts import (
    INPUTS,
    LABELS,
    Watched,
    fitting,
    in_time,
    limiting,
    making,
    planning,
    refuses,
    running,
    targeting,
)

import sordino as so
from sordino import accounting
from sordino.accounting import Unit
from sordino.kernel.randomness import Key
from sordino.recipes.planning import Question, compare, solve


def every_epsilon(epsilon):
    attempts = (fitting(epsilon=epsilon), targeting(epsilon=epsilon), limiting(epsilon=epsilon))
    return refuses(*attempts, saying="epsilon must")


def every_delta(delta):
    return refuses(*trainings_at(delta), limiting(delta=delta), saying="delta must be in")


def trainings_at(delta):
    return fitting(delta=delta), planning(delta=delta), targeting(delta=delta)


def every_noise(multiplier):
    attempts = (making(so.Gaussian, multiplier), planning(noise_multiplier=multiplier))
    return refuses(*attempts, saying="noise_multiplier must be")


def every_clip(norm):
    made = (making(so.ClipByNorm, norm), making(so.ClipPerLayer, (1.0, norm)), making(so.Normalise, norm))
    return refuses(fitting(clip=norm), *made, saying=r"norm")


def every_steps(steps):
    attempts = (
        fitting(steps=steps),
        planning(steps=steps),
        making(so.Poisson, 0.1, steps),
        making(so.TruncatedPoisson, 0.1, steps, 10, 5),
        making(so.FixedSize, 5, 10, steps),
        making(so.BallsInBins, 5, steps),
        making(so.Shuffled, 5, steps),
        making(so.Cyclic, steps, 5),
    )
    return refuses(*attempts, saying="must be a whole number")


def a_weak_target_can_be_asked_for():
    with in_time():
        assert so.fit(nn.Linear(4, 3), (INPUTS, LABELS), epsilon=30.0, delta=1e-3, batch_size=20, steps=1,
                      progress=False, allow_weak=True).guarantee.epsilon <= 30  # fmt: skip


def a_large_delta_can_be_asked_for():
    with in_time():
        fitted = so.fit(nn.Linear(4, 3), (INPUTS, LABELS), epsilon=3.0, delta=0.02, batch_size=20, steps=1,
                        progress=False, allow_large_delta=True)  # fmt: skip
    assert fitted.guarantee.delta == 0.02


def a_tiny_delta_is_answered_without_a_jump():
    def epsilon(delta):
        return solve(Question(1000, 100, steps=10, noise_multiplier=1.0, delta=delta)).guarantee.epsilon

    smaller, small = epsilon(1e-18), epsilon(1e-17)
    assert small < smaller < 1.1 * small


def a_budget_without_a_delta_refuses_gaussian_noise(data):
    running()(so.Budget(data, epsilon=1.0, delta=0.0))


def a_secret_size_takes_no_part_in_any_error():
    """Under add-or-remove the expected number of examples is public, and the true number is not used."""
    sampler = so.Poisson(0.5, 1, so.Adjacency.ADD_OR_REMOVE, expected_examples=300)
    fitted = so.fit(nn.Linear(4, 3), (INPUTS, LABELS), epsilon=3.0, delta=1e-3, batch_size=150, sampler=sampler,
                    progress=False)  # fmt: skip
    assert fitted.guarantee.adjacency is so.Adjacency.ADD_OR_REMOVE
    refuses(fitting(batch_size=301, sampler=sampler, steps=None), saying="from 1 to 300, got 301")()
    refuses(fitting(delta=1 / 300, sampler=sampler, steps=None), saying="1 / examples = 0.0033")()


def no_central_limit_accountant_exists():
    names = {name for module in (so, accounting, accounting.tightest) for name in vars(module)}
    assert not [name for name in names if "gdp" in name.lower() or "clt" in name.lower() or "central" in name.lower()]
    proved = {answer.accountant for _, _, answer in compare(Question(1000, 100, steps=10, noise_multiplier=1.0))}
    assert proved == {"exact-gaussian", "pld", "rdp", "random-allocation", "composition-without-amplification"}


def shuffled_batches_cannot_be_called_poisson():
    """No accountant takes a sampling rate, and a run takes no batches: there is nothing to mispair."""
    entries = [
        so.Guarantee.of, so.Guarantee.for_group, accounting.privacy_of, accounting.all_answers, accounting.smallest,
        so.calibrate, so.Plan.guarantee, so.PrivateRun.guarantee, so.Budget.guarantee,
    ]  # fmt: skip
    for function in entries:
        names = " ".join(inspect.signature(function).parameters)
        assert not any(word in names for word in ("rate", "probability", "fraction", "batch")), function
    taken = set(inspect.signature(so.PrivateRun).parameters)
    settings = {"seed", "key", "identity", "physical_batch_size", "memory_mib", "step_log"}
    assert taken == {"plan", "model", "data"} | settings

    def drawn(data):
        """The batches of a run, with the data that it was given."""
        run = running(seed=1)(data)
        return [run.begin().indices.tolist() for _ in range(len(run))]

    loader = torch.utils.data.DataLoader(Watched(), batch_size=10, shuffle=True)
    assert drawn(loader) == drawn(Watched())  # a loader is a dataset here: its own batches are not used


def replacing_one_doubles_the_sensitivity():
    for make in (so.Shuffled, so.Cyclic):
        replaced = make(5, 10, so.Adjacency.REPLACE_ONE).compose(GaussianDpEvent(4.0), 50)
        absent = make(5, 10).compose(GaussianDpEvent(2.0), 50)
        one = so.Guarantee.of(replaced, so.Adjacency.REPLACE_ONE, delta=1e-5).epsilon
        assert one == pytest.approx(so.Guarantee.of(absent, so.Adjacency.ZERO_OUT, delta=1e-5).epsilon, rel=1e-9)


def a_bound_on_the_rows_of_a_user_has_no_default():
    assert inspect.signature(so.by_user).parameters["rows_per_user"].default is inspect.Parameter.empty
    owners = torch.arange(100) // 4
    refuses(*(lambda data, rows=rows: so.by_user(data, owners, rows_per_user=rows) for rows in (None, 0, -1, 2.0)))()
    users = so.by_user((INPUTS, LABELS), owners, rows_per_user=2)
    assert users.gather(torch.tensor([3])).inputs[0].shape == (2, 4)
    assert running()(users).guarantee(delta=1e-3).unit is Unit.USER


def a_seed_is_named_in_the_guarantee():
    seeded = running(seed=1)((INPUTS, LABELS)).guarantee(delta=1e-3)
    assert any("seed" in assumption for assumption in seeded.assumptions)
    assert "whoever knows it can remove the noise" in seeded.statement
    assert "seed" not in running()((INPUTS, LABELS)).guarantee(delta=1e-3).statement


def without_cryptography_nothing_can_be_imported():
    """There is no weaker generator as a fallback: the import of noise fails, and with it everything else."""
    blocked = "import sys; sys.modules['cryptography'] = None; from sordino import Gaussian"
    ended = subprocess.run([sys.executable, "-c", blocked], capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode != 0
    assert "cryptography" in ended.stderr.strip().splitlines()[-1]


def software_aes_draws_the_same_noise_silently():
    """OpenSSL's AES without the processor's instructions is bitsliced and takes the same time for every key.

    So there is no timing side channel, and nothing to refuse. The variable below switches the instructions off.
    """
    draw = (
        "from sordino.kernel.randomness import Key; "
        "print(Key.from_seed(7).stream('noise').words(64, step=3).tobytes().hex())"
    )
    ended = subprocess.run(
        [sys.executable, "-W", "error", "-c", draw], capture_output=True, text=True, timeout=120, check=True,
        env=os.environ | {"OPENSSL_ia32cap": "~0x200000200000000"},
    )  # fmt: skip
    assert ended.stdout.strip() == Key.from_seed(7).stream("noise").words(64, step=3).tobytes().hex()
    assert ended.stderr == ""


def nothing_is_spent_before_anything_is_released():
    budget = so.Budget((INPUTS, LABELS))
    assert budget.guarantee(delta=1e-5).epsilon == 0.0
    assert so.Guarantee.of(budget.event, so.Adjacency.REPLACE_ONE, delta=1e-300).epsilon == 0.0
