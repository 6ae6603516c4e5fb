"""Carries out a hidden-state plan: takes all steps, keeps every iterate to itself, and gives the last one.

The steps are those of the kernel's run: gather, per-example gradient, clip, noise. What it hands out stays in here, is
used for one plain step of gradient descent, and is gone. Checkpoints lie in the private folder, which is deleted at the
end; there are no measures on the way, because each would show an iterate.

A run that is stopped may go on anywhere: nobody has seen the steps that are taken again. What is seen, an iterate that
the plan shows or the last one, is on the disk before anybody sees it, and from there the run goes on: it is shown again
bit for bit, or not at all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from sordino._input import validate
from sordino.accounting import SEED_STAYS_SECRET, Guarantee
from sordino.convex.noisy_cgd import Fading, NoisyCGD
from sordino.errors import UsageError
from sordino.kernel.budget import Budget
from sordino.kernel.clipping import ClipByNorm
from sordino.kernel.contribution import LossGradient
from sordino.kernel.randomness import Key
from sordino.kernel.records import Data, Records
from sordino.kernel.run import PrivateRun
from sordino.kernel.states import Private
from sordino.kernel.step import Plan
from sordino.training.callbacks import Callback, CallbackList, LogSteps, ProgressBar, TrainingStart, closing_callbacks
from sordino.training.checkpoint import RunWriter, digest_of, promised_fields
from sordino.training.evaluation import Public
from sordino.training.loop import Training, measured, stop_requests, take_steps
from sordino.training.run_folder import RunFolder

_WHAT = "training run"

OnShown = Callable[[int, dict[str, Tensor]], None]


@dataclass(frozen=True)
class HiddenStateFit:
    """The last iterate, what is promised to whoever sees only it, and what was measured on it."""

    model: nn.Module
    guarantee: Guarantee
    plan: NoisyCGD
    metrics: dict[str, Any] = field(default_factory=dict)


def fit_hidden_state(
    plan: NoisyCGD,
    data: Data | Budget,
    *,
    outputs: int,
    delta: float,
    evaluation: Public | None = None,
    callbacks: Sequence[Callback] = (),
    out: Path | str | None = None,
    resume: bool = False,
    seed: int | None = None,
    physical_batch_size: int | Literal["auto"] = "auto",
    progress: bool = True,
    on_shown: OnShown | None = None,
) -> HiddenStateFit:
    """Trains the plan's model from zero on `data`, which is (inputs, target), records or a budget.

    `outputs` is the public number of classes, or 1. `on_shown` gets the weights after each epoch that the plan shows.
    Public rows for `evaluation` are measured at the end. A run that is resumed may show the last of the weights again.

    >>> from sordino.convex.model import GatedReLU
    >>> from sordino.kernel.sampling import Cyclic
    >>> data = (torch.randn(40, 5), torch.randint(0, 3, (40,)))
    >>> plan = NoisyCGD(Cyclic(4, 2), GatedReLU(8), clip=1.0, noise_multiplier=4.0, learning_rate=1.0)
    >>> fitted = fit_hidden_state(plan, data, outputs=3, delta=1e-3, seed=0, progress=False)
    >>> fitted.guarantee.accountant, str(fitted.guarantee.view)
    ('hidden-state', 'final-model')
    """
    validate.instance(NoisyCGD, plan=plan)
    validate.count(outputs=outputs)
    validate.instance((Public, type(None)), evaluation=evaluation)
    if out is None and resume:
        raise UsageError("resume needs out: a run can be resumed from its folder only.")
    if plan.shown_after and on_shown is None:
        raise UsageError(
            "on_shown must be given, because the plan pays for iterates that are shown: or leave shown_after empty."
        )
    budget = data if isinstance(data, Budget) else Budget(data)
    records = budget.records
    if records.rows_per_unit > 1:
        raise UsageError(
            f"a unit must have one row, got up to {records.rows_per_unit} rows of a {records.unit}: a clipped sum of "
            "gradients need not be the gradient of a convex loss, and has no hidden-state guarantee."
        )
    if plan.examples not in (None, records.num_units):
        raise UsageError(f"the plan is for {plan.examples} examples, the data set has {records.num_units}.")
    if out is not None:
        records.check_repeatable()
    inputs = records.template(1).inputs[0].numel()
    module = plan.model.build(inputs, outputs)
    key = Key.fresh() if seed is None else Key.from_seed(seed)
    plan.check_noise(delta)
    bar = (ProgressBar("training in hiding"),) if progress else ()
    called = CallbackList((LogSteps(), *bar, *callbacks))
    steps = _Steps(plan, module, records, called, on_shown)
    if out is None:
        release = budget.address(plan.event, plan.adjacency, what=_WHAT, key=key)
        guarantee = budget.guarantee(delta=delta, assumptions=_assumptions(plan, key))
        with steps.announced(0, guarantee):
            steps.take(steps.training(release.key, physical_batch_size), None)
            return steps.finished(guarantee, evaluation, None)
    folder, digest = RunFolder(out), digest_of(*steps.plan.stages, plan)
    if resume and folder.is_finished:
        return _taken_up(folder, budget, plan, module, digest, delta)
    if not resume:
        budget.check(plan.event, plan.adjacency, what=_WHAT)  # a refusal leaves no folder behind
    with closing(RunWriter.resume(folder, key) if resume else RunWriter.begin(folder, key)) as writer:
        settings = {"hidden state": repr(plan), "outputs": str(outputs)}
        if plan.shown_after:  # before they were recorded, nobody knew what had been shown when a run was stopped
            settings |= {"shown": "what was recorded before"}
        checkpoint = writer.last_checkpoint(steps.plan, module, records, settings, draw_again=True)
        release = budget.address(plan.event, plan.adjacency, what=_WHAT, key=writer.key, run=writer.run)
        training = steps.training(release.key, checkpoint.physical_batch_size if checkpoint else physical_batch_size)
        if checkpoint is not None:
            training.restore(checkpoint)
        numbers = {
            "examples": records.num_units,
            "batch_size": plan.batch_size(records.num_units),
            "steps": plan.steps,
        }
        guarantee = budget.guarantee(delta=delta, assumptions=_assumptions(plan, writer.key))
        rows = writer.promise(
            promised_fields(plan.sampler, numbers, plan.noise_multiplier, guarantee),
            number=release.number,
            plan=digest,
            noise_multiplier=plan.noise_multiplier,
        )
        with steps.announced(training.run.steps, guarantee):
            if folder.has_model:  # which may have been seen
                module.load_state_dict(folder.model(like=module.state_dict()))
            else:
                steps.take(training, writer)
                writer.decide(training)
            return steps.finished(guarantee, evaluation, writer, is_written=bool(rows))


def kernel_plan(hidden: NoisyCGD) -> Plan:
    """What the kernel carries out. Its own event, of a run that is seen, is not what this one is worth."""
    noise = Fading(hidden.noise_multiplier, hidden.noise_schedule, hidden.steps)
    return Plan(hidden.sampler, LossGradient(hidden.loss), ClipByNorm(hidden.clip), noise)


def _assumptions(plan: NoisyCGD, key: Key) -> tuple[str, ...]:
    """What the guarantee takes for granted."""
    hidden = "nobody sees anything of the run but what it gives in the end"
    assumed = (
        "nothing else is released from the same data outside this run's budget",
        hidden + " and what it shows" if plan.shown_after else hidden,
    )
    return (*assumed, SEED_STAYS_SECRET) if key.reproducible else assumed


@dataclass(frozen=True)
class _Steps:
    """The steps of a plan on one dataset."""

    hidden: NoisyCGD
    module: nn.Module
    records: Records
    callbacks: Callback
    on_shown: OnShown | None

    @property
    def plan(self) -> Plan:
        return kernel_plan(self.hidden)

    def training(self, key: Key, physical_batch_size: int | Literal["auto"]) -> Training:
        budget = Budget(self.records)  # that of the kernel's view: the caller's own has been charged
        run = PrivateRun(self.plan, self.module, budget, key=key, physical_batch_size=physical_batch_size)
        optimizer = torch.optim.SGD(
            self.module.parameters(), lr=self.hidden.learning_rate, weight_decay=self.hidden.strength
        )
        divisor, schedule = self.hidden.batch_size(self.records.num_units), _WholeSchedule(self.hidden)
        return Training(self.module, optimizer, run, divisor=divisor, schedule=schedule)

    @contextmanager
    def announced(self, taken: int, guarantee: Guarantee) -> Iterator[None]:
        """Calls `on_start` at the beginning, and `on_close` at the end."""
        hidden, size = self.hidden, self.hidden.batch_size(self.records.num_units)
        start = TrainingStart(hidden.sampler.steps, taken, size, hidden.noise_multiplier, guarantee)
        with closing_callbacks(self.callbacks):
            self.callbacks.on_start(start)
            yield

    def take(self, training: Training, writer: RunWriter | None) -> None:
        """Takes the steps that are left, and those without data after them."""
        run = training.run

        def after_step() -> None:
            self.callbacks.on_step(run.steps, len(run))
            self._show(training, writer)

        with stop_requests(wanted=writer is not None) as stop:
            self._show(training, writer)  # the run may have been stopped before it did
            take_steps(
                training,
                take=lambda: self._descend(run.steps, run.next_from),
                writer=writer,
                stop=stop,
                after_step=after_step,
            )
            if writer is not None:
                writer.at_rest(training)  # from here the end is the same wherever it is reached, and may be shown
        self._trailing(training)

    def finished(
        self, guarantee: Guarantee, evaluation: Public | None, writer: RunWriter | None, *, is_written: bool = False
    ) -> HiddenStateFit:
        """Measures the last iterate, which is on the disk by now, and deletes the key."""
        found = {} if evaluation is None else measured(self.module, evaluation)
        numbers = {"epsilon": guarantee.epsilon, "delta": guarantee.delta}
        fitted = HiddenStateFit(
            self.module, guarantee, self.hidden, numbers | {f"test_{name}": value for name, value in found.items()}
        )
        row = {"step": self.hidden.sampler.steps, **fitted.metrics}
        if writer is not None and not is_written:
            writer.add(row)
        self.callbacks.on_evaluation(row)
        if writer is not None:
            writer.end()
        self.callbacks.on_end(row)
        return fitted

    def _show(self, training: Training, writer: RunWriter | None) -> None:
        """Shows the iterate, if the plan has paid for it."""
        epoch, within = divmod(training.run.steps, self.hidden.sampler.batches_per_epoch)
        if within or epoch not in self.hidden.shown_after or self.on_shown is None:
            return
        if writer is None:
            weights = {name: x.detach().clone() for name, x in self.module.state_dict().items()}
        else:
            weights = writer.before_showing(training, epoch)
        self.on_shown(epoch, weights)

    def _trailing(self, training: Training) -> None:
        """Steps that see nobody: noise and the ridge term."""
        for step in range(self.hidden.sampler.steps, self.hidden.steps):
            self._descend(step, partial(training.run.noise_from, step=step))

    @torch.no_grad()
    def _descend(self, step: int, release_from: Callable[[Tensor], Private]) -> None:
        """One step of descent, V <- (1 - rate * strength) V - rate / b * (sum + noise), which is rounded as a whole.

        Guarantee: the new iterate is a function of one exactly rounded release. Rounding the noise alone and adding V
        to it would show the last bits of V, which no noise of this step hides.
        """
        rate = self.hidden.learning_rate_at(step)
        if not rate:  # the step leaves the iterate where it is
            release_from(torch.zeros(sum(x.numel() for x in self.module.parameters()), dtype=torch.float64))
            return
        per_sum = -rate / self.hidden.batch_size(self.records.num_units)
        keep = (1 - rate * self.hidden.strength) / per_sum
        parameters = list(self.module.parameters())
        start = torch.cat([x.detach().flatten() for x in parameters]).double().mul_(keep)
        iterate = release_from(start).value * per_sum
        for x, part in zip(parameters, torch.split(iterate, [x.numel() for x in parameters]), strict=True):
            x.copy_(part.reshape(x.shape))
        self._project()

    def _project(self) -> None:
        if self.hidden.radius is None:
            return
        with torch.no_grad():
            parameters = list(self.module.parameters())
            norm = torch.stack([x.double().norm() for x in parameters]).norm()
            if norm > self.hidden.radius:
                for x in parameters:
                    x.mul_(self.hidden.radius / norm)


@dataclass(frozen=True)
class _WholeSchedule:
    """The schedule of a plan, which counts the steps without data too."""

    plan: NoisyCGD

    def factor(self, step: int, steps: int) -> float:
        return self.plan.schedule.factor(step, self.plan.steps)


def _taken_up(
    folder: RunFolder, budget: Budget, plan: NoisyCGD, module: nn.Module, digest: str, delta: float
) -> HiddenStateFit:
    """A finished run, charged unless the budget holds it."""
    done = folder.finished_run()
    done.check(digest, folder.path)
    budget.charge(plan.event, plan.adjacency, what=_WHAT, run=done.identity)
    module.load_state_dict(folder.model(like=module.state_dict()))
    promised: Any = folder.privacy()
    guarantee = budget.guarantee(delta=delta, assumptions=tuple(promised["assumptions"]))
    return HiddenStateFit(module, guarantee, plan, folder.metrics()[-1])
