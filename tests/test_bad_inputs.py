"""What happens to inputs that are wrong, hostile or merely odd: one row each, and none of them leaks, hangs or guesses.

A wrong argument is refused with one line before data is touched. A bad record contributes nothing, without a message:
a message would tell that it was drawn. What nobody should be able to ask for has no name to ask with.
"""

import contextlib
import functools
import inspect
import io
import os
import signal
import subprocess
import sys
import warnings
from dataclasses import dataclass

import pytest
import torch
import torch.nn.functional as F
from dp_accounting import GaussianDpEvent
from torch import nn
from torch.nn.utils.parametrizations import spectral_norm

import sordino as so
from sordino import accounting, cli
from sordino.planning import Question, SamplerName, compare, solve

NAN, INF = float("nan"), float("inf")
ENOUGH_SECONDS = 20  # a guard against hanging, no measure of speed

INPUTS = torch.randn(100, 4, generator=torch.Generator().manual_seed(0))
LABELS = torch.randint(0, 3, (100,), generator=torch.Generator().manual_seed(1))


class Watched(torch.utils.data.Dataset):
    """Counts how often a row is read. The first row declares the structure, so one read is public."""

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


# Attempts: functions of the data, which `refuses` watches.


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


def refuses(*attempts, error=so.UsageError, saying="."):
    """Each attempt is refused with one line of our own family, in time, and before a second row is read."""

    def check():
        for attempt in attempts:
            data = Watched()
            with in_time(), pytest.raises(error, match=saying) as refusal:
                attempt(data)
            assert isinstance(refusal.value, so.SordinoError)
            assert "\n" not in str(refusal.value)
            assert data.reads <= 1

    return check


def command(**options):
    """`sordino plan` with these options in place of the usual ones: exit code, standard output, standard error."""
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
    """On the command line each attempt ends with this code, one line on standard error and nothing else."""

    def check():
        for options in attempts:
            ended, out, err = command(**options)
            assert (ended, out) == (code, ""), err
            assert err.startswith("sordino: ") and err.count("\n") == 1 and err.endswith("\n")
            assert saying in err

    return check


def answers(**options):
    """On the command line these options are accepted."""

    def check():
        assert command(**options)[0] == 0

    return check


def gradients(inputs=INPUTS[:6], labels=LABELS[:6], model=None, loss=F.cross_entropy, **records):
    """What each example would add, one row each."""
    batch = so.as_records((inputs, labels), **records).gather(torch.arange(len(inputs)))
    each = so.LossGradient(loss).of(model or fixed_model(), batch, torch.arange(len(inputs)))
    return torch.cat(list(each.rows(8)))


def fixed_model():
    model = nn.Linear(4, 3)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.linspace(-1, 1, parameter.numel()).reshape(parameter.shape))
    return model


def contributes_nothing(*, pixel=None, label=None, loss=F.cross_entropy):
    """The third example adds exact zeros and the others what they add without it; the training goes on, unharmed."""

    def check():
        inputs, labels = INPUTS.clone(), LABELS.clone()
        if pixel is not None:
            inputs[2, 1] = pixel
        if label is not None:
            labels[2] = label
        clean, poisoned = gradients(loss=loss), gradients(inputs[:6], labels[:6], loss=loss)
        assert (poisoned[2] == 0).all() and (clean[2] != 0).any()
        others = [0, 1, 3, 4, 5]
        torch.testing.assert_close(poisoned[others], clean[others])
        trains((inputs, labels))

    return check


def trains(data=(INPUTS, LABELS), model=None, loss=F.cross_entropy):
    """A run of all steps on everybody ends with finite weights. Returns the releases."""
    model = model or nn.Linear(4, 3)
    plan = so.Plan(so.Poisson(1.0, 3), so.LossGradient(loss), so.ClipByNorm(1.0), so.Gaussian(1.0))
    releases = []
    for private in so.PrivateRun(plan, model, data, seed=0):
        releases.append(private.value)
        private.divide(1000).write_to(model)
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.grad is not None:
                    parameter -= parameter.grad
    assert all(parameter.isfinite().all() for parameter in model.parameters())
    return torch.stack(releases)


@dataclass(frozen=True)
class Row:
    """One bad input, and what must hold of it."""

    number: int
    what: str
    checks: tuple

    def __init__(self, number, what, *checks):
        for name, value in (("number", number), ("what", what), ("checks", checks)):
            object.__setattr__(self, name, value)


# Checks that are longer than a line, named by what they say.


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


def a_secret_size_takes_no_part_in_any_error():
    """Under add-or-remove the public number of examples is the expected one, whatever the true one is."""
    sampler = so.Poisson(0.5, 1, so.Adjacency.ADD_OR_REMOVE, expected_examples=300)
    fitted = so.fit(nn.Linear(4, 3), (INPUTS, LABELS), epsilon=3.0, delta=1e-3, batch_size=150, sampler=sampler,
                    progress=False)  # fmt: skip
    assert fitted.guarantee.adjacency is so.Adjacency.ADD_OR_REMOVE
    refuses(fitting(batch_size=301, sampler=sampler, steps=None), saying="from 1 to 300, got 301")()
    refuses(fitting(delta=1 / 300, sampler=sampler, steps=None), saying="1 / examples = 0.0033")()


def no_central_limit_accountant_exists():
    names = {name for module in (so, accounting, accounting.answer) for name in vars(module)}
    assert not [name for name in names if "gdp" in name.lower() or "clt" in name.lower() or "central" in name.lower()]
    proved = {answer.accountant for _, _, answer in compare(Question(1000, 100, steps=10, noise_multiplier=1.0))}
    assert proved == {"exact-gaussian", "pld", "rdp", "random-allocation", "composition-without-amplification"}


def shuffled_batches_cannot_be_called_poisson():
    """No accountant takes a sampling rate, and a run takes no batches: there is nothing to mispair."""
    asked = [so.Guarantee.of, so.Guarantee.for_group, accounting.privacy_of, accounting.opinions, accounting.smallest,
             so.calibrate, so.Plan.guarantee, so.PrivateRun.guarantee, so.Budget.guarantee]  # fmt: skip
    for function in asked:
        names = " ".join(inspect.signature(function).parameters)
        assert not any(word in names for word in ("rate", "probability", "fraction", "batch")), function
    taken = set(inspect.signature(so.PrivateRun).parameters)
    assert taken == {"plan", "model", "data", "seed", "key", "physical_batch_size", "memory_mib"}
    loader = torch.utils.data.DataLoader(Watched(), batch_size=10, shuffle=True)
    refuses(lambda data: running()(loader), saying="DataLoader")()


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
    assert running()(users).guarantee(delta=1e-3).unit is so.Unit.USER


def a_seed_is_named_in_the_guarantee():
    seeded = running(seed=1)((INPUTS, LABELS)).guarantee(delta=1e-3)
    assert any("seed" in assumption for assumption in seeded.assumptions)
    assert "whoever knows it can remove the noise" in seeded.statement
    assert "seed" not in running()((INPUTS, LABELS)).guarantee(delta=1e-3).statement


def without_cryptography_nothing_can_be_imported():
    """There is no weaker generator to fall back to: the import fails, and with it everything else."""
    blocked = "import sys; sys.modules['cryptography'] = None; import sordino"
    ended = subprocess.run([sys.executable, "-c", blocked], capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode != 0
    assert "cryptography" in ended.stderr.strip().splitlines()[-1]


def software_aes_draws_the_same_noise_silently():
    """OpenSSL's AES without the processor's instructions is bitsliced and takes the same time for every key.

    So there is no cache timing to warn of, and nothing to refuse. The variable below switches the instructions off.
    """
    draw = "from sordino import Key; print(Key.from_seed(7).stream('noise').words(64, step=3).tobytes().hex())"
    ended = subprocess.run(
        [sys.executable, "-W", "error", "-c", draw], capture_output=True, text=True, timeout=120, check=True,
        env=os.environ | {"OPENSSL_ia32cap": "~0x200000200000000"},
    )  # fmt: skip
    assert ended.stdout.strip() == so.Key.from_seed(7).stream("noise").words(64, step=3).tobytes().hex()
    assert ended.stderr == ""


def an_overflowing_record_is_clipped_or_absent():
    inputs = INPUTS[:6].clone()
    inputs[2] = 1e38
    each = so.LossGradient(F.cross_entropy).of(
        fixed_model(), so.as_records((inputs, LABELS[:6])).gather(torch.tensor([2])), torch.tensor([0])
    )
    assert float(so.ClipByNorm(1.0)(each).value.norm()) <= 1.0
    trains((torch.where(torch.arange(100)[:, None] == 2, 1e38, INPUTS), LABELS))


def pixels_are_clamped_to_the_public_range():
    outside = torch.tensor([[-5.0, 0.5, 300.0, 1.0]]).expand(6, 4)
    inside = torch.tensor([[0.0, 0.5, 1.0, 1.0]]).expand(6, 4)
    torch.testing.assert_close(gradients(outside, input_range=(0.0, 1.0)), gradients(inside))


def with_every_record_poisoned_noise_is_all_there_is():
    poisoned = trains((torch.full_like(INPUTS, NAN), LABELS))
    nobody = trains((INPUTS, torch.full_like(LABELS, -1)))
    assert torch.equal(poisoned, nobody) and (poisoned != 0).any()


def a_denormal_record_is_a_record():
    inputs = torch.full((6, 4), 1e-42)
    torch.testing.assert_close(gradients(inputs), gradients(torch.zeros(6, 4)))
    assert (gradients(inputs) != 0).any(dim=1).all()


def an_ignored_label_contributes_nothing_whatever_its_number():
    contributes_nothing(label=-100)()
    ignoring = functools.partial(F.cross_entropy, ignore_index=int(LABELS[2]))
    assert (gradients(loss=ignoring)[LABELS[:6] == LABELS[2]] == 0).all()


def labels_must_be_whole_numbers(labels):
    in_memory, read_when_drawn = (INPUTS, labels), Watched(labels)
    return refuses(lambda _: running()(in_memory), lambda _: running()(read_when_drawn), error=so.DataError)


def classes_are_those_of_the_model():
    """Labels 0 to 2 in the data change nothing about a model of two classes: the third is outside, and absent."""
    narrow = gradients(model=nn.Linear(4, 2))
    assert ((narrow == 0).all(dim=1) == (LABELS[:6] == 2)).all() and (LABELS[:6] == 2).any()
    everything = inspect.signature(so.fit).parameters | inspect.signature(so.as_records).parameters
    assert not [name for name in everything if "class" in name or "label" in name]


def no_row_is_scaled_by_what_other_rows_hold():
    """A record arrives as it is, whoever else is in the data; only a public range can change it."""
    others = torch.cat([INPUTS[:1], 1000 * INPUTS[1:] + 50])
    first = torch.tensor([0])
    for inputs in (INPUTS, others):
        assert torch.equal(so.as_records((inputs, LABELS)).gather(first).inputs[0], INPUTS[:1])
    everything = inspect.signature(so.fit).parameters | inspect.signature(so.as_records).parameters
    assert not [name for name in everything if any(word in name for word in ("mean", "std", "scale", "normal"))]


def the_unit_is_named_and_joins_a_batch_once():
    """A person who owns two rows is two examples: the guarantee says whose it is, and `by_user` makes it the person."""
    twice = (INPUTS.repeat(2, 1), LABELS.repeat(2))
    assert "for every example" in running()(twice).guarantee(delta=1e-3).statement
    people = so.by_user(twice, torch.arange(100).repeat(2), rows_per_user=2)
    assert "for every user" in running()(people).guarantee(delta=1e-3).statement
    refuses(lambda data: so.as_records(data).gather(torch.tensor([4, 4])), saying="at most once")()


def weighted_samplers_have_no_place():
    weighted = torch.utils.data.WeightedRandomSampler([0.1, 0.9], num_samples=2)
    refuses(fitting(sampler=weighted, steps=None), making(so.Plan, weighted, so.LossGradient(F.cross_entropy),
            so.ClipByNorm(1.0), so.Gaussian(1.0)), saying="sampler must be a Sampler")()  # fmt: skip
    for sampler in (so.Poisson, so.BallsInBins, so.Shuffled, so.Cyclic, so.FixedSize, so.TruncatedPoisson):
        assert not [name for name in inspect.signature(sampler).parameters if "weight" in name or "class" in name]


def frozen_public_statistics_are_allowed():
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 3))
    model[1].eval()
    before = {name: buffer.clone() for name, buffer in model.named_buffers()}
    trains(model=model)
    assert all(torch.equal(before[name], buffer) for name, buffer in model.named_buffers())


class MinusMean(nn.Module):
    def forward(self, x):
        return x - x.mean(dim=0)


class Shifting(nn.Module):
    """Keeps a running mean of what it sees."""

    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(4))

    def forward(self, x):
        self.mean = 0.9 * self.mean + 0.1 * x.detach().mean(dim=0)
        return x


class Bare(nn.Module):
    """A parameter of its own, one that is used twice, and one that is not used."""

    def __init__(self):
        super().__init__()
        self.shift = nn.Parameter(torch.ones(4))
        self.tied = nn.Parameter(torch.eye(4))
        self.unused = nn.Parameter(torch.ones(5))

    def forward(self, x):
        return ((x + self.shift) @ self.tied.tanh() @ self.tied)[:, :3]


class Scaled(nn.Linear):
    """A parameter without axes, and one without entries."""

    def __init__(self):
        super().__init__(4, 3)
        self.scale = nn.Parameter(torch.tensor(2.0))
        self.empty = nn.Parameter(torch.zeros(0, 3))

    def forward(self, x):
        return self.scale * super().forward(x)


def gradients_by_hand(model, inputs=INPUTS[:6], labels=LABELS[:6]):
    rows = []
    for x, y in zip(inputs, labels, strict=True):
        loss = F.cross_entropy(model(x[None]), y[None])
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        parts = torch.autograd.grad(loss, trained, allow_unused=True)
        filled = [torch.zeros_like(p) if g is None else g for p, g in zip(trained, parts, strict=True)]
        rows.append(torch.cat([g.flatten() for g in filled]))
    return torch.stack(rows)


def exact_by_hand(make_model):
    def check():
        model = make_model()
        torch.testing.assert_close(gradients(model=model), gradients_by_hand(model), atol=1e-5, rtol=1e-4)
        trains(model=model)

    return check


def the_reduction_of_the_loss_changes_nothing():
    releases = [
        trains(model=fixed_model(), loss=loss)
        for loss in (
            F.cross_entropy,
            functools.partial(F.cross_entropy, reduction="sum"),
            functools.partial(F.cross_entropy, reduction="none"),
            nn.CrossEntropyLoss(reduction="mean"),
        )
    ]
    assert all(torch.equal(release, releases[0]) for release in releases)


def a_loss_that_is_not_a_number_counts_as_absent():
    def not_a_number_for_class_two(outputs, target):
        value = F.cross_entropy(outputs, target.clamp(min=0), reduction="none")
        return torch.where(target == 2, value * NAN, value).sum()

    trains(loss=not_a_number_for_class_two)


def half_frozen():
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 3))
    model[0].requires_grad_(False)
    return model


def frozen_parameters_get_no_noise():
    model = half_frozen()
    before = model[0].weight.clone()
    assert trains(model=model).shape == (3, 15)
    assert torch.equal(model[0].weight, before) and model[0].weight.grad is None


def an_unused_parameter_gets_noise():
    model, unused = Bare(), slice(4 + 16, 4 + 16 + 5)
    assert (gradients(model=model)[:, unused] == 0).all()
    assert (trains(model=model)[:, unused] != 0).all()


def dropout_is_drawn_for_each_example():
    model = nn.Sequential(nn.Dropout(0.5), nn.Linear(4, 3))
    rows = gradients(torch.ones(6, 4), torch.zeros(6, dtype=torch.int64), model=model)
    assert len(rows.unique(dim=0)) > 1
    trains(model=model)


def sparse_embedding():
    return nn.Sequential(nn.Embedding(5, 4, sparse=True), nn.Flatten(), nn.Linear(8, 3))


def with_dtype(dtype):
    model = nn.Linear(4, 3)
    model.weight = nn.Parameter(torch.zeros(3, 4, dtype=dtype))
    return model


def an_integer_parameter_cannot_be_trained_and_does_no_harm():
    class Shifted(nn.Linear):
        def __init__(self):
            super().__init__(4, 3)
            self.offset = nn.Parameter(torch.tensor([1, 2, 3]), requires_grad=False)

        def forward(self, x):
            return super().forward(x) + self.offset

    exact_by_hand(Shifted)()


def nothing_is_spent_before_anything_is_released():
    budget = so.Budget((INPUTS, LABELS))
    assert budget.guarantee(delta=1e-5).epsilon == 0.0
    assert so.Guarantee.of(budget.event, so.Adjacency.REPLACE_ONE, delta=1e-300).epsilon == 0.0


ids = (torch.randint(0, 5, (100, 2)), LABELS)
frozen = nn.Linear(4, 3).requires_grad_(False)
batchnorm = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 3))
replace_one, add_or_remove = so.Adjacency.REPLACE_ONE, so.Adjacency.ADD_OR_REMOVE


def contrastive(outputs, target):
    return -F.log_softmax(outputs @ outputs.T, dim=1).diagonal().sum()


def every_clip(norm):
    made = (making(so.ClipByNorm, norm), making(so.ClipPerLayer, (1.0, norm)), making(so.Normalise, norm))
    return refuses(fitting(clip=norm), *made, saying=r"norm")


def every_epsilon(epsilon):
    attempts = (fitting(epsilon=epsilon), targeting(epsilon=epsilon), limiting(epsilon=epsilon))
    return refuses(*attempts, saying="epsilon must")


def every_delta(delta):
    return refuses(*trainings_at(delta), limiting(delta=delta), saying="delta must be in")


def trainings_at(delta):
    return fitting(delta=delta), planning(delta=delta), targeting(delta=delta)


def a_budget_without_a_delta_refuses_gaussian_noise(data):
    running()(so.Budget(data, epsilon=1.0, delta=0.0))


def every_noise(multiplier):
    attempts = (making(so.Gaussian, multiplier), planning(noise_multiplier=multiplier))
    return refuses(*attempts, saying="noise_multiplier must be")


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


ROWS = [
    Row(1, "epsilon is 0", every_epsilon(0), exits(dict(epsilon="0"))),
    Row(2, "epsilon is negative", every_epsilon(-1.0), exits(dict(epsilon="-1"))),
    Row(3, "epsilon is not a number", every_epsilon(NAN), exits(dict(epsilon="nan"))),
    Row(4, "epsilon is infinite", every_epsilon(INF), exits(dict(epsilon="inf"))),
    Row(5, "epsilon is text", every_epsilon("1,0"), every_epsilon(""),
        exits(*(dict(epsilon=text) for text in ("1,0", "1e", "")), saying="must be a number, got")),
    Row(6, "epsilon promises next to nothing",
        refuses(fitting(epsilon=30.0), targeting(epsilon=30.0), saying="allow_weak"),
        a_weak_target_can_be_asked_for, exits(dict(epsilon="30"), saying="--allow-weak"),
        answers(epsilon="30", allow_weak=True)),
    Row(7, "epsilon needs absurd noise",
        refuses(fitting(epsilon=1e-7, delta=1e-12), targeting(epsilon=1e-6, delta=1e-12),
                saying=r"needs a noise multiplier of \d\.\d+e\+0\d, which is above"),
        exits(dict(epsilon="1e-6", delta="1e-12"), saying="needs a noise multiplier of 1.3")),
    Row(8, "delta is 0",
        refuses(*trainings_at(0), a_budget_without_a_delta_refuses_gaussian_noise, saying="delta must be in"),
        exits(dict(delta="0"))),
    Row(9, "delta is negative", every_delta(-1e-5), exits(dict(delta="-1e-5"))),
    Row(10, "delta is 1 or more", every_delta(1), every_delta(1.5), exits(dict(delta="1"), dict(delta="2"))),
    Row(11, "delta is not a number", every_delta(NAN), exits(dict(delta="nan"))),
    Row(12, "delta allows to publish one example",
        refuses(fitting(delta=0.01), planning(delta=1e-3), targeting(delta=0.5), saying="below 1 / examples"),
        a_large_delta_can_be_asked_for, exits(dict(delta="1e-3"), saying="--allow-large-delta"),
        answers(delta="1e-3", allow_large_delta=True), answers(delta="0.5", allow_large_delta=True)),
    Row(13, "delta is denormal", every_delta(1e-310), exits(dict(delta="1e-310"))),
    Row(14, "delta is tiny", a_tiny_delta_is_answered_without_a_jump, answers(delta="1e-18")),
    Row(15, "no noise", every_noise(0), exits(dict(noise_multiplier="0"))),
    Row(16, "negative noise", every_noise(-1.0), exits(dict(noise_multiplier="-1"))),
    Row(17, "noise is not a number", every_noise(NAN), exits(dict(noise_multiplier="nan"))),
    Row(18, "infinite noise", every_noise(INF), exits(dict(noise_multiplier="inf"))),
    Row(19, "noise that hides nothing", every_noise(1e-12), exits(dict(noise_multiplier="1e-12"))),
    Row(20, "clip norm 0", every_clip(0)),
    Row(21, "clip norm negative", every_clip(-1.0)),
    Row(22, "clip norm not a number", every_clip(NAN)),
    Row(23, "clip norm infinite", every_clip(INF)),
    Row(24, "clip norm underflows", every_clip(1e-30)),
    Row(25, "sample rate 0",
        refuses(making(so.Poisson, 0, 5), making(so.TruncatedPoisson, 0.0, 5, 10, 5), saying="rate"),
        refuses(fitting(batch_size=0), planning(batch_size=0), saying="batch_size"), exits(dict(batch_size="0"))),
    Row(26, "sample rate is no probability",
        refuses(*(making(so.Poisson, rate, 5) for rate in (1.5, -0.1, NAN)), saying="rate must be in"),
        refuses(fitting(batch_size=-5), planning(batch_size=-5)), exits(dict(batch_size="-5"))),
    Row(27, "batch larger than the data",
        refuses(fitting(batch_size=101), planning(batch_size=1001), saying="batch_size must be"),
        refuses(making(so.FixedSize, 11, 10, 5), making(so.TruncatedPoisson, 0.1, 5, 10, 11), saying="from 1 to 10"),
        exits(dict(batch_size="1001")), a_secret_size_takes_no_part_in_any_error),
    Row(28, "no steps", every_steps(0), exits(dict(steps="0"), dict(epochs="0"))),
    Row(29, "negative steps", every_steps(-1), exits(dict(steps="-1"), dict(epochs="-1"))),
    Row(30, "steps that are no count, or too many", every_steps(1.5), every_steps(10**18), every_steps(True),
        refuses(fitting(steps=None, epochs=1e18), planning(steps=None, epochs=NAN), saying="epochs"),
        exits(dict(steps="1.5"), dict(steps="1e18"), dict(steps="9" * 18), dict(epochs="inf"), dict(epochs="1e300"))),
    Row(31, "epochs and steps", refuses(fitting(epochs=1), planning(epochs=1.0)),
        refuses(fitting(sampler=so.Poisson(0.1, 3)), saying="are the sampler's"),
        exits(dict(epochs="3", steps="10"), saying="exclude each other")),
    Row(32, "a typo", refuses(fitting(sampler="poisson"), planning(sampler="poisson"), planning(adjacency="zero-out"),
                              planning(unit="example"), making(so.Poisson, 0.1, 5, "zero-out")),
        exits(dict(accountant="pld"), dict(unit="person")),
        exits(dict(sampler="poison"), saying="'poisson', 'truncated-poisson', 'balls-in-bins'"),
        exits(dict(noise_multiplyer="1"), saying="--noise-multiplier")),
    Row(33, "an accountant that is no bound", no_central_limit_accountant_exists, exits(dict(accountant="gdp"))),
    Row(34, "shuffled batches accounted as Poisson", shuffled_batches_cannot_be_called_poisson,
        exits(dict(sample_rate="0.1"))),
    Row(35, "batches of fixed size and a secret size",
        refuses(making(so.FixedSize, 5, 10, 3, add_or_remove), making(so.FixedSize, 5, 10, 3, so.Adjacency.ZERO_OUT),
                planning(sampler=SamplerName.FIXED_SIZE, adjacency=add_or_remove), saying="replace-one only"),
        exits(dict(sampler="fixed-size", adjacency="add-or-remove"), saying="replace-one only")),
    Row(36, "replace-one with noise for one norm", replacing_one_doubles_the_sensitivity),
    Row(37, "users with many rows", a_bound_on_the_rows_of_a_user_has_no_default, answers(unit="user")),
    Row(38, "a seed where a secret belongs", refuses(running(seed=1, key=so.Key.fresh()), saying="exclude each other"),
        refuses(running(seed=-1), running(seed="1"), running(key="secret")), a_seed_is_named_in_the_guarantee),
    Row(39, "no cryptographic generator", without_cryptography_nothing_can_be_imported),
    Row(40, "no AES instructions", software_aes_draws_the_same_noise_silently),
    Row(41, "learning rate",
        refuses(*(fitting(learning_rate=rate) for rate in (NAN, INF, 0, -0.1)), saying="learning_rate must be"),
        refuses(*(fitting(optimizer=functools.partial(torch.optim.SGD, lr=lr)) for lr in (NAN, INF, 0)), saying="lr")),
    Row(45, "a pixel that is not a number", contributes_nothing(pixel=NAN)),
    Row(46, "an infinite pixel", contributes_nothing(pixel=INF), contributes_nothing(pixel=-INF)),
    Row(47, "a pixel whose square overflows", an_overflowing_record_is_clipped_or_absent),
    Row(48, "a pixel outside the range", pixels_are_clamped_to_the_public_range),
    Row(49, "every record poisoned", with_every_record_poisoned_noise_is_all_there_is),
    Row(50, "a denormal record", a_denormal_record_is_a_record),
    Row(51, "a label above the classes", contributes_nothing(label=3), contributes_nothing(label=2**40)),
    Row(52, "label -1", contributes_nothing(label=-1)),
    Row(53, "the ignored label", an_ignored_label_contributes_nothing_whatever_its_number),
    Row(54, "labels that are no whole numbers", labels_must_be_whole_numbers(LABELS.float()),
        labels_must_be_whole_numbers(LABELS * NAN), labels_must_be_whole_numbers(LABELS > 0)),
    Row(55, "the number of classes read off the data", classes_are_those_of_the_model),
    Row(56, "normalising by the data", no_row_is_scaled_by_what_other_rows_hold),
    Row(57, "one person twice", the_unit_is_named_and_joins_a_batch_once),
    Row(58, "balancing classes by the data", weighted_samplers_have_no_place),
    Row(59, "BatchNorm",
        refuses(running(batchnorm), fitting(batchnorm), saying=r"layer '1' .* sordino.replace_batchnorm")),
    Row(60, "BatchNorm with frozen public statistics", frozen_public_statistics_are_allowed),
    Row(61, "a layer across examples",
        refuses(running(nn.Sequential(MinusMean(), nn.Linear(4, 3))), saying=r"'0' \(MinusMean\) mixes the examples")),
    Row(62, "a loss across examples", refuses(running(loss=contrastive), saying="the loss mixes the examples")),
    Row(63, "the reduction of the loss", the_reduction_of_the_loss_changes_nothing),
    Row(64, "a loss that is no number, or has no gradient",
        refuses(running(loss=lambda outputs, target: outputs.sum(dim=1)), saying="single number"),
        refuses(running(loss=lambda outputs, target: outputs.detach().sum()), saying="no gradient"),
        refuses(making(so.LossGradient, None), making(so.LossGradient, "cross_entropy")),
        a_loss_that_is_not_a_number_counts_as_absent),
    Row(65, "nothing to train",
        refuses(running(frozen), fitting(frozen), running(nn.Flatten()), saying="nothing to train")),
    Row(66, "some parameters frozen", frozen_parameters_get_no_noise, exact_by_hand(half_frozen)),
    Row(67, "a parameter that is not used", an_unused_parameter_gets_noise),
    Row(68, "tied weights", exact_by_hand(Bare)),
    Row(69, "a parameter outside any layer", exact_by_hand(Bare)),
    Row(70, "dropout", dropout_is_drawn_for_each_example),
    Row(71, "layers that keep statistics",
        refuses(running(nn.Sequential(nn.Unflatten(1, (2, 2)), nn.InstanceNorm1d(2, track_running_stats=True),
                                      nn.Flatten(), nn.Linear(4, 3))), saying="running statistics"),
        refuses(running(nn.Sequential(spectral_norm(nn.Linear(4, 3)))), saying="changes its own")),
    Row(72, "a model that learns in its forward pass",
        refuses(running(nn.Sequential(Shifting(), nn.Linear(4, 3))), saying="'0' .* changes its own 'mean'")),
    Row(73, "sparse gradients", refuses(lambda data: running(sparse_embedding())(ids), saying="sparse=False")),
    Row(74, "parameters of other dtypes",
        *(refuses(running(with_dtype(dtype))) for dtype in (torch.float16, torch.bfloat16, torch.complex64)),
        an_integer_parameter_cannot_be_trained_and_does_no_harm),
    Row(75, "parameters without axes or entries", exact_by_hand(Scaled)),
    Row(114, "asked before any step", nothing_is_spent_before_anything_is_released),
]  # fmt: skip


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.number}: {row.what}")
def test_bad_input(row):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for check in row.checks:
            check()


def test_every_row_is_there_once():
    assert [row.number for row in ROWS] == [*range(1, 42), *range(45, 76), 114]
    assert all(row.checks for row in ROWS)
