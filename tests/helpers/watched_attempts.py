"""Attempts on a dataset that counts reads, and checks that they fail with a one-line error and in time."""

import contextlib
import io
import signal

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import sordino as so
from sordino import cli
from sordino.errors import UsageError
from sordino.recipes.planning import Question, solve

NAN, INF = float("nan"), float("inf")
ENOUGH_SECONDS = 20  # detects hanging; not a test of speed

INPUTS = torch.randn(100, 4, generator=torch.Generator().manual_seed(0))
LABELS = torch.randint(0, 3, (100,), generator=torch.Generator().manual_seed(1))


class Watched(torch.utils.data.Dataset):
    """A dataset that counts reads of rows. The first row declares the structure, so one read is public."""

    def __init__(self, labels=LABELS):
        self.labels = labels
        self.reads = 0

    def __len__(self):
        return len(INPUTS)

    def __getitem__(self, index):
        self.reads += 1
        return INPUTS[index], self.labels[index]


@contextlib.contextmanager
def in_time():
    def out_of_time(signum, frame):
        raise TimeoutError(f"no answer after {ENOUGH_SECONDS} seconds")

    before = signal.signal(signal.SIGALRM, out_of_time)
    signal.alarm(ENOUGH_SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


# Attempts: functions of a dataset, whose reads `refuses` counts.


def fitting(model=None, **changes):
    arguments = dict(epsilon=3.0, delta=1e-3, batch_size=20, steps=3, progress=False) | changes
    return lambda data: so.fit(model or nn.Linear(4, 3), data, **arguments)


def running(model=None, loss=F.cross_entropy, clip=None, **arguments):
    stages = so.LossGradient(loss), clip or so.ClipByNorm(1.0), so.Gaussian(2.0)
    return lambda data: so.PrivateRun(so.Plan(so.Poisson(0.2, 3), *stages), model or nn.Linear(4, 3), data, **arguments)


def planning(**changes):
    known = dict(examples=1000, batch_size=100, steps=10, noise_multiplier=1.0, delta=1e-5) | changes
    return lambda data: solve(Question(**known))


def targeting(**changes):
    return planning(noise_multiplier=None, **({"epsilon": 1.0} | changes))


def making(kind, *arguments, **named):
    return lambda data: kind(*arguments, **named)


def limiting(**limit):
    return lambda data: so.Budget(data, **({"epsilon": 1.0, "delta": 1e-3} | limit))


# Checks.


def refuses(*attempts, error=UsageError, saying="."):
    """Checks that each attempt raises a one-line error of this library, in time, before a second row is read."""

    def check():
        for attempt in attempts:
            data = Watched()
            with in_time(), pytest.raises(error, match=saying) as refusal:
                attempt(data)
            assert isinstance(refusal.value, so.SordinoError)
            assert "\n" not in str(refusal.value)
            assert data.reads <= 9  # rows that are read for their structure

    return check


def command(**options):
    """Runs `sordino plan` with these options. Returns exit code, standard output and standard error."""
    usual = dict(examples="1000", batch_size="100", steps="10", noise_multiplier="1", delta="1e-5")
    if "epsilon" in options:
        del usual["noise_multiplier"]
    if "epochs" in options and options.get("steps") is None:
        del usual["steps"]
    given = {name: value for name, value in (usual | options).items() if value is not None}
    flags = [f"--{name.replace('_', '-')}" + ("" if value is True else f"={value}") for name, value in given.items()]
    out, err = io.StringIO(), io.StringIO()
    with in_time(), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        with pytest.raises(SystemExit) as ended:
            cli.main(["plan", *flags])
    return ended.value.code, out.getvalue(), err.getvalue()


def exits(*attempts, saying="", code=2):
    """Checks that each command ends with this exit code, one line on standard error and no other output."""

    def check():
        for options in attempts:
            ended, out, err = command(**options)
            assert (ended, out) == (code, ""), err
            assert err.startswith("sordino: ") and err.count("\n") == 1 and err.endswith("\n")
            assert saying in err

    return check


def answers(**options):
    """Checks that the command line accepts these options."""

    def check():
        assert command(**options)[0] == 0

    return check
