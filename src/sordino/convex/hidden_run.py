"""`fit_hidden_state`: trains a convex model and releases the last iterate only.

Each step is a step of the kernel's run (gather, per-example gradient, clip, noise). Its noisy gradient is used for one
step of gradient descent in this module and then discarded. Checkpoints are in the private folder of the run, which is
deleted at the end. There are no evaluations during training, because each would reveal an iterate.

An interrupted run can resume from any earlier step, because steps that are repeated were not observed. An iterate that
is released (one that the plan shows, or the last one) is written to disk before it is released, and a resumed run
continues from it. So it is released again bit for bit, or not at all.
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
from sordino.training.description import describe_hidden_training
from sordino.training.evaluation import Public
from sordino.training.loop import Training, stop_requests, take_steps
from sordino.training.metrics import measured_at_end
from sordino.training.plan_identity import PlanDigest, digest_of
from sordino.training.run_folder import RunFolder
from sordino.training.run_writer import RunWriter, promised_fields

_WHAT = "training run"

OnShown = Callable[[int, dict[str, Tensor]], None]


@dataclass(frozen=True)
class HiddenStateFit:
    """The trained model (the last iterate), its privacy guarantee, its plan, and the metrics measured on it."""

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
    """Trains the plan's model, starting at zero, on `data`: (inputs, target), records or a budget.

    `outputs` is the public number of classes, or 1. `on_shown(epoch, weights)` is called after each epoch in the plan's
    `shown_after`; a resumed run may repeat the last call. `evaluation` is measured on the final model.

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
            "on_shown must be given, because the plan accounts for the release of intermediate iterates; "
            "otherwise leave shown_after empty."
        )
    budget = data if isinstance(data, Budget) else Budget(data)
    records = budget.records
    if records.rows_per_unit > 1:
        raise UsageError(
            f"hidden-state training needs one row per unit, got up to {records.rows_per_unit} rows per {records.unit}: "
            "a clipped sum of gradients need not be the gradient of a convex loss, so there is no hidden-state "
            "guarantee."
        )
    if plan.examples not in (None, records.num_units):
        raise UsageError(f"the plan is for {plan.examples} examples, but the dataset has {records.num_units}.")
    if out is not None:
        records.check_repeatable()
    inputs = records.template(1).inputs[0].numel()
    module = plan.model.build(inputs, outputs)
    key = Key.fresh() if seed is None else Key.from_seed(seed)
    plan.check_noise(delta)
    bar = (ProgressBar("hidden-state training"),) if progress else ()
    callback_list = CallbackList((LogSteps(), *bar, CallbackList(callbacks)))
    if callback_list.needs_evaluation:
        raise UsageError("a hidden-state run has no measurements on its way, so no callback can stop it early.")
    steps = _Steps(plan, module, records, callback_list, on_shown)
    if not resume:  # before the folder is made, so that an error leaves none
        budget.check_target(plan.event_at, plan.noise_multiplier, plan.adjacency, what=_WHAT, delta=delta)
    if out is None:
        release = budget.address(plan.event, plan.adjacency, what=_WHAT, key=key)
        guarantee = _guarantee(plan, budget, delta, _assumptions(plan, key))
        with steps.calling_callbacks(0, guarantee):
            steps.take(steps.training(release.key, physical_batch_size), None)
            return steps.finish(guarantee, evaluation, None)
    folder, digest = RunFolder(out), digest_of(*steps.plan.stages, plan)
    if resume and folder.is_finished:
        described = describe_hidden_training(module, records, plan, outputs)
        return _load_finished(folder, budget, plan, module, digest, delta, described)
    with closing(RunWriter.resume(folder, key) if resume else RunWriter.begin(folder, key)) as writer:
        settings = {"hidden state": repr(plan), "outputs": str(outputs)}
        if plan.shown_after:  # tells these runs from older ones, which did not record what they had shown
            settings |= {"shown": "what was recorded before"}
        checkpoint = writer.last_checkpoint(steps.plan, module, records, settings, draw_again=True)
        release = budget.address(plan.event, plan.adjacency, what=_WHAT, key=writer.key, run=writer.run)
        training = steps.training(release.key, checkpoint.physical_batch_size if checkpoint else physical_batch_size)
        if checkpoint is not None:
            training.restore(checkpoint)
        sizes = {
            "examples": records.num_units,
            "batch_size": plan.batch_size(records.num_units),
            "steps": plan.steps,
        }
        guarantee = _guarantee(plan, budget, delta, _assumptions(plan, writer.key))
        writer.describe(describe_hidden_training(module, records, plan, outputs))
        rows = writer.promise(
            promised_fields(plan.sampler, sizes, plan.noise_multiplier, guarantee),
            number=release.number,
            plan=digest,
            noise_multiplier=plan.noise_multiplier,
        )
        with steps.calling_callbacks(training.run.steps, guarantee):
            if folder.has_model:  # it may have been observed, so it must not be computed again
                module.load_state_dict(folder.model(like=module.state_dict()))
            else:
                steps.take(training, writer)
                writer.decide(training)
            return steps.finish(guarantee, evaluation, writer, is_written=bool(rows))


def kernel_plan(hidden: NoisyCGD) -> Plan:
    """Returns the kernel's plan for the steps. Its event is for an observer of all steps: do not use it for epsilon."""
    noise = Fading(hidden.noise_multiplier, hidden.noise_schedule, hidden.steps)
    return Plan(hidden.sampler, LossGradient(hidden.loss), ClipByNorm(hidden.clip), noise)


def _guarantee(plan: NoisyCGD, budget: Budget, delta: float, assumptions: tuple[str, ...]) -> Guarantee:
    """What this run promises by itself. The budget has a guarantee for all that it holds."""
    plan.check_noise(delta)
    return budget.guarantee_of(plan.event, plan.adjacency, delta=delta, assumptions=assumptions)


def _assumptions(plan: NoisyCGD, key: Key) -> tuple[str, ...]:
    """The assumptions of the guarantee."""
    hidden = "nobody sees more of the run than its final result"
    assumed = (
        "nothing else is released from the same data outside this run's budget",
        hidden + " and the iterates that it shows" if plan.shown_after else hidden,
    )
    return (*assumed, SEED_STAYS_SECRET) if key.reproducible else assumed


@dataclass(frozen=True)
class _Steps:
    """The steps of a plan on one dataset, and the release of their result."""

    hidden: NoisyCGD
    module: nn.Module
    records: Records
    callbacks: Callback
    on_shown: OnShown | None

    @property
    def plan(self) -> Plan:
        return kernel_plan(self.hidden)

    def training(self, key: Key, physical_batch_size: int | Literal["auto"]) -> Training:
        budget = Budget(self.records)  # the kernel charges this one; the caller's was charged with the plan's event
        run = PrivateRun(self.plan, self.module, budget, key=key, physical_batch_size=physical_batch_size)
        optimizer = torch.optim.SGD(
            self.module.parameters(), lr=self.hidden.learning_rate, weight_decay=self.hidden.strength
        )
        divisor, schedule = self.hidden.batch_size(self.records.num_units), _WholeSchedule(self.hidden)
        return Training(self.module, optimizer, run, divisor=divisor, schedule=schedule)

    @contextmanager
    def calling_callbacks(self, steps_done: int, guarantee: Guarantee) -> Iterator[None]:
        """Calls `on_start` at the beginning, and `on_close` at the end."""
        hidden, size = self.hidden, self.hidden.batch_size(self.records.num_units)
        start = TrainingStart(hidden.sampler.steps, steps_done, size, hidden.noise_multiplier, guarantee)
        with closing_callbacks(self.callbacks):
            self.callbacks.on_start(start)
            yield

    def take(self, training: Training, writer: RunWriter | None) -> None:
        """Takes the remaining steps, and the trailing steps without data after them."""
        run = training.run

        def after_step() -> None:
            self.callbacks.on_step(run.steps, len(run))
            self._show(training, writer)

        with stop_requests(wanted=writer is not None) as stop:
            self._show(training, writer)  # the run may have been interrupted before this call
            take_steps(
                training,
                take=lambda: self._descend(run.steps, run.next_from),
                writer=writer,
                stop=stop,
                after_step=after_step,
            )
            if writer is not None:
                writer.at_rest(training)  # every continuation from this checkpoint gives the same final model
        self._take_trailing_steps(training)

    def finish(
        self, guarantee: Guarantee, evaluation: Public | None, writer: RunWriter | None, *, is_written: bool = False
    ) -> HiddenStateFit:
        """Measures the last iterate, which has been written to disk, and deletes the key."""
        scores = {} if evaluation is None else measured_at_end(self.module, evaluation)
        metrics = {"epsilon": guarantee.epsilon, "delta": guarantee.delta}
        fitted = HiddenStateFit(
            self.module, guarantee, self.hidden, metrics | {f"test_{name}": value for name, value in scores.items()}
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
        """Releases the current iterate, if the plan accounts for its release."""
        epoch, within = divmod(training.run.steps, self.hidden.sampler.batches_per_epoch)
        if within or epoch not in self.hidden.shown_after or self.on_shown is None:
            return
        if writer is None:
            weights = {name: x.detach().clone() for name, x in self.module.state_dict().items()}
        else:
            weights = writer.before_showing(training, epoch)
        self.on_shown(epoch, weights)

    def _take_trailing_steps(self, training: Training) -> None:
        """Takes the steps without data: noise and the ridge term only."""
        for step in range(self.hidden.sampler.steps, self.hidden.steps):
            self._descend(step, partial(training.run.noise_from, step=step))

    @torch.no_grad()
    def _descend(self, step: int, release_from: Callable[[Tensor], Private]) -> None:
        """Takes one step of descent, V <- (1 - rate * strength) V - rate / b * (sum + noise), rounded as a whole.

        Guarantee: the new iterate is a function of one exactly rounded release. If only the noise were rounded and V
        added to it, the sum would reveal the last bits of V, which the noise of this step does not hide.
        """
        rate = self.hidden.learning_rate_at(step)
        if not rate:  # the step does not change the iterate
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
    """The learning-rate schedule of a plan over all its steps, including those without data."""

    plan: NoisyCGD

    def factor(self, step: int, steps: int) -> float:
        return self.plan.schedule.factor(step, self.plan.steps)


def _load_finished(
    folder: RunFolder,
    budget: Budget,
    plan: NoisyCGD,
    module: nn.Module,
    digest: PlanDigest,
    delta: float,
    described: dict[str, object],
) -> HiddenStateFit:
    """Loads a finished run from its folder, and charges it unless the budget includes it already."""
    run = folder.finished_run()
    run.check(digest, folder.path)
    if not folder.is_run:  # an earlier version wrote it, and did not describe it
        folder.write_training(described)
    budget.charge(plan.event, plan.adjacency, what=_WHAT, run=run.identity)
    module.load_state_dict(folder.model(like=module.state_dict()))
    promised: Any = folder.privacy()
    guarantee = _guarantee(plan, budget, delta, tuple(promised["assumptions"]))
    return HiddenStateFit(module, guarantee, plan, folder.metrics()[-1])
