"""`fit`: train a model with differential privacy in one call.

`fit` carries out a `Plan` on one dataset. It makes the run, takes its steps in the loop of `sordino.training.loop`, and
calls callbacks with public values. With a run folder it can be stopped and resumed at any time.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, Unpack

import torch
from dp_accounting.dp_event import ComposedDpEvent, DpEvent
from torch import nn
from torch.optim.lr_scheduler import LRScheduler
from torch.optim.swa_utils import AveragedModel

from sordino._input import validate
from sordino.accounting import SEED_STAYS_SECRET, Guarantee
from sordino.errors import UsageError
from sordino.gradients.torch_state import original
from sordino.gradients.transformers_settings import transformers_model
from sordino.kernel.budget import Budget
from sordino.kernel.calibration import calibrate, check_delta_for, check_target, event_at
from sordino.kernel.randomness import Key
from sordino.kernel.records import Data, Records, as_records
from sordino.kernel.run import PrivateRun
from sordino.kernel.step import Plan
from sordino.training.averaging import Averaging, TorchAverage
from sordino.training.callbacks import (
    Callback,
    CallbackList,
    CallOnEvaluation,
    LogSteps,
    ProgressBar,
    Row,
    TrainingStart,
    closing_callbacks,
)
from sordino.training.description import MakeOptimizer as MakeOptimizer
from sordino.training.description import describe_training, name_of_loss
from sordino.training.evaluation import Charged, Evaluation, Public
from sordino.training.loop import Training, described_optimizer, settings_of, stop_requests, take_steps
from sordino.training.metrics import measured_at_end
from sordino.training.plan_identity import digest_of
from sordino.training.plans import PlanSettings, noise_or_gaussian, public_size, uncalibrated_plan
from sordino.training.run_folder import PromisedRun, RunFolder
from sordino.training.run_writer import (
    RunWriter,
    epsilon_so_far,
    evaluations_until,
    is_evaluated,
    promised_fields,
)
from sordino.training.schedules import AnySchedule, Constant, RateTable, Schedule

_WHAT = "training run"


@dataclass(frozen=True)
class Fitted:
    """A trained model, the guarantee of its training, its plan and its metrics.

    `metrics` has public values only: rows of step, epoch, epsilon, delta, and measurements on public rows or charged to
    the budget.
    """

    model: nn.Module
    guarantee: Guarantee
    plan: Plan
    metrics: tuple[Row, ...] = field(repr=False, default=())


class FitSettings(PlanSettings, total=False):
    """Arguments of `dp_sgd`, and settings of `fit` that are rarely needed."""

    learning_rate: float
    physical_batch_size: int | Literal["auto"]
    draw_again: bool
    progress: bool
    validation: Public | Charged | None
    test: Public | None
    on_row: Callable[[Row], None] | None


def fit(
    model: nn.Module,
    data: Data | Budget,
    plan: Plan | None = None,
    *,
    optimizer: torch.optim.Optimizer | MakeOptimizer | None = None,
    delta: float | None = None,
    schedule: Schedule | LRScheduler | None = None,
    averaging: Averaging | AveragedModel | None = None,
    evaluation: Evaluation | Public | Charged | None = None,
    callbacks: Sequence[Callback] = (),
    out: Path | str | None = None,
    resume: bool = False,
    seed: int | None = None,
    **settings: Unpack[FitSettings],
) -> Fitted:
    """Trains `model` in place by a `plan`, or for a target epsilon, and returns it with its guarantee.

    A model of Hugging Face transformers, with or without adapters of PEFT, is trained as it is, on rows that are
    dictionaries: its class decides the loss and which columns are used (`sordino.huggingface`).

    Without a plan, `settings` are the arguments of `dp_sgd` (epsilon, batch_size, epochs and others). Sums of gradients
    are divided by `batch_size`, or by the expected batch size of the plan. `epsilon` and the returned guarantee are
    those of this fit, with its charged evaluations. If `data` is a `Budget`, its own guarantee counts all releases.

    `optimizer` is a torch optimizer, or a function from parameters to one (by default SGD with momentum 0.9 and
    `learning_rate` 0.5). `schedule` may be a torch scheduler of the optimizer that depends on the step alone, and
    `averaging` a torch `AveragedModel`. `evaluation` measures on public rows, or on private rows charged to the budget.

    With `out` the run has a folder (see `RunFolder`) and can be stopped at any time. `resume=True` continues it, with
    the same arguments and an equal model, and gives the same result as without the stop. Datasets with random
    augmentation draw the same values in a repeated step, from the global generators; rows that still differ are
    refused. A finished run is charged as its folder says, unless `data` is a budget that holds it already. If the
    arithmetic changed (other processor, torch version or number of threads), the last steps have to be repeated with
    fresh noise, for a larger epsilon: `draw_again=True`.

    >>> model, data = nn.Linear(4, 3), (torch.zeros(100, 4), torch.zeros(100, dtype=torch.int64))
    >>> fitted = fit(model, data, epsilon=3.0, delta=1e-3, batch_size=50, epochs=2, seed=0, progress=False)
    >>> fitted.guarantee.epsilon <= 3.0
    True
    >>> from sordino.training.plans import dp_sgd
    >>> plan = dp_sgd(100, epsilon=3.0, delta=1e-3, batch_size=50, epochs=2)
    >>> fit(model, data, plan, delta=1e-3, progress=False).plan == plan
    True
    """
    plan_settings, options = _split(settings, has_plan=plan is not None)
    validate.instance((Plan, type(None)), plan=plan)
    own_callbacks = CallbackList(callbacks)  # checked by themselves, so that a message has the place in `callbacks`
    evaluation = _evaluation(evaluation, options)
    bar = (ProgressBar(),) if options.get("progress", True) else ()
    on_row = options.get("on_row")
    called = CallbackList((LogSteps(), *bar, own_callbacks, *(() if on_row is None else (CallOnEvaluation(on_row),))))
    if called.needs_evaluation and evaluation.during is None:
        raise UsageError(
            "a callback that stops early needs measurements on the way, on public rows or charged to the budget: give "
            "evaluation=so.Public(...). Private rows that are not charged for cannot decide when to stop."
        )
    if delta is None:
        delta = data.delta if isinstance(data, Budget) else None
        if delta is None:
            raise UsageError("delta must be given: it is part of the guarantee, and below 1 / examples.")
    if plan is None:
        for name in ("epsilon", "batch_size"):
            if name not in plan_settings:
                raise UsageError(f"{name} must be given if there is no plan.")
        check_target(
            plan_settings["epsilon"],
            delta,
            allow_weak=plan_settings.get("allow_weak", False),
            release=noise_or_gaussian(plan_settings.get("noise")).event,
        )
    validate.instance(nn.Module, model=model)
    learning_rate = options.get("learning_rate", 0.5)
    validate.positive(learning_rate=learning_rate)
    draw_again = options.get("draw_again", False)
    if out is None and (resume or draw_again):
        raise UsageError("resume and draw_again need out: a run can be resumed only from its folder.")
    if transformers_model(model) is not None:
        data, evaluation = _of_transformer(model, data, evaluation, plan_settings if plan is None else None)
    budget = data if isinstance(data, Budget) else Budget(data)
    optimizer = _make_optimizer(model, optimizer, learning_rate)
    units = budget.records.num_units
    requested = plan_settings.get("epsilon")
    if plan is None:
        plan = uncalibrated_plan(units, delta=delta, **plan_settings)
        divisor: float = plan_settings["batch_size"]
        examples = public_size(plan.sampler, units)
    else:
        examples = public_size(plan.sampler, units)
        check_delta_for(examples, delta, allow_large_delta=options.get("allow_large_delta", False))
        divisor = _whole_if_near(plan.sampler.expected_batch_size(examples))
    job = FitJob(
        model,
        optimizer,
        plan,
        budget,
        _schedule(schedule, optimizer, plan.steps),
        _averaging(averaging),
        divisor,
        examples,
        delta,
        evaluation,
    )
    folder = None if out is None else RunFolder(out)
    taken_up = _taken_up(folder, budget) if folder is not None and resume else None
    if requested is not None:
        job = job.calibrated(requested, taken_up, allow_weak=plan_settings.get("allow_weak", False))
    elif taken_up is None:
        job.check_budget()
    if evaluation.charged is not None:
        needed = evaluations_until(plan.steps, plan.steps)
        validate.count(at_most=evaluation.charged.remaining, evaluations_needed=needed)
        if draw_again:
            raise UsageError(
                "draw_again must be False with a charged evaluation: its noise was used for other weights."
            )
    key = Key.fresh() if seed is None else Key.from_seed(seed)
    micro_batch = options.get("physical_batch_size", "auto")
    if folder is None:
        return job.follow(job.training(key, micro_batch), called)
    settings_of(optimizer)  # refused before anything is written
    if taken_up is not None and folder.is_finished:
        return job.finished(folder, taken_up)
    plan.contribution.check(model, budget.records)  # before a folder is made, and gradients are computed for it
    budget.records.check_repeatable()
    return job.follow_in(folder, key, micro_batch, called, resume=resume, draw_again=draw_again)


@dataclass(frozen=True)
class FitJob:
    """All arguments of one fit after they were checked."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    plan: Plan
    budget: Budget
    schedule: AnySchedule
    averaging: Averaging | None
    divisor: float
    examples: int
    delta: float
    evaluation: Evaluation

    @property
    def _module(self) -> nn.Module:
        """The model, without the wrapper of `torch.compile`."""
        return original(self.model)

    def calibrated(self, epsilon: float, taken_up: PromisedRun | None, *, allow_weak: bool) -> FitJob:
        """A copy whose noise is calibrated for `epsilon`, or has the multiplier of a run that is taken up again."""
        if taken_up is not None:
            return replace(
                self, plan=replace(self.plan, noise=self.plan.noise.with_multiplier(taken_up.noise_multiplier))
            )
        beside = self.evaluation.event
        plan = calibrate(self.plan, epsilon=epsilon, delta=self.delta, beside=beside, allow_weak=allow_weak)
        replace(self, plan=plan).check_budget(epsilon)
        return replace(self, plan=plan)

    def check_budget(self, epsilon: float | None = None) -> None:
        """Refuses a plan that does not fit into the budget, and says which epsilon would."""
        plan = self.plan
        self.budget.check_target(
            partial(event_at, plan),
            self.noise_multiplier,
            plan.adjacency,
            what=_WHAT,
            delta=self.delta,
            epsilon=epsilon,
            beside=self.evaluation.event,
        )

    def training(
        self, key: Key, physical_batch_size: int | Literal["auto"], writer: RunWriter | None = None
    ) -> Training:
        run = PrivateRun(
            self.plan,
            self.model,
            self.budget,
            key=key,
            identity=None if writer is None else writer.run,
            physical_batch_size=physical_batch_size,
        )
        return Training(
            self.model,
            self.optimizer,
            run,
            divisor=self.divisor,
            schedule=self.schedule,
            averaging=self.averaging,
        )

    def settings(self) -> dict[str, str]:
        """Settings that identify the run of a checkpoint, besides its plan and its data."""
        gradient = self.plan.contribution
        found = {
            "model": repr([(name, tuple(x.shape), x.requires_grad) for name, x in self._module.named_parameters()]),
            "loss": name_of_loss(getattr(gradient, "loss", gradient)),
            "precision": str(getattr(gradient, "autocast", None)),
            "views": repr(getattr(gradient, "views", None)),
            "optimizer": described_optimizer(self.optimizer, self._module),
            "schedule": repr((self.schedule, self.averaging, self.divisor)),
        }
        charged = self.evaluation.charged
        return found if charged is None else found | {"validation": charged.identity}

    def follow_in(
        self,
        folder: RunFolder,
        key: Key,
        physical_batch_size: int | Literal["auto"],
        callbacks: Callback,
        *,
        resume: bool,
        draw_again: bool,
    ) -> Fitted:
        """Trains with checkpoints in the private folder, from the last one if the run is resumed."""
        with closing(self.writer_of(folder, key, resume=resume)) as writer:
            training, described = self.opened(writer, physical_batch_size, draw_again=draw_again)
            return self.follow(training, callbacks, writer, described)

    def writer_of(self, folder: RunFolder, key: Key, *, resume: bool) -> RunWriter:
        """Opens the private folder of a run, or makes it."""
        return (RunWriter.resume if resume else RunWriter.begin)(folder, key)

    def opened(
        self, writer: RunWriter, physical_batch_size: int | Literal["auto"], *, draw_again: bool
    ) -> tuple[Training, dict[str, object]]:
        """The training at its last checkpoint if there is one, and public facts about it as it began."""
        checkpoint = writer.last_checkpoint(
            self.plan,
            self.model,
            self.budget.records,
            self.settings(),
            optimizer=self.optimizer,
            draw_again=draw_again,
        )
        if checkpoint is not None:
            physical_batch_size = checkpoint.physical_batch_size
        training = self.training(writer.key, physical_batch_size, writer)
        described = self._described()  # before a checkpoint sets learning rates to those of its step
        if checkpoint is not None:
            training.restore(checkpoint)
            if self.evaluation.charged is not None:
                self.evaluation.charged.continue_at(evaluations_until(training.run.steps, len(training.run)))
        return training, described

    def promised(
        self, training: Training, writer: RunWriter, described: Mapping[str, object]
    ) -> tuple[Guarantee, list[Row]]:
        """Writes the guarantee and the public facts, before the first step. Returns it with the metrics so far."""
        run = training.run
        guarantee = self._guarantee(run)
        writer.describe(described)
        rows = writer.promise(
            promised_fields(
                self.plan.sampler,
                {"examples": self.examples, "batch_size": self.divisor, "steps": self.plan.steps},
                self.noise_multiplier,
                guarantee,
            ),
            number=run.number,
            plan=digest_of(*self.plan.stages),
            noise_multiplier=self.noise_multiplier,
            drawn_again=writer.drawn_again,
        )
        return guarantee, rows

    @property
    def noise_multiplier(self) -> float:
        release: Any = self.plan.noise.event  # whatever the noise is, its event has a multiplier
        return float(release.noise_multiplier)

    def follow(
        self,
        training: Training,
        callbacks: Callback,
        writer: RunWriter | None = None,
        described: Mapping[str, object] | None = None,
    ) -> Fitted:
        """Takes all remaining steps, and writes public values to the run folder if there is a `writer`."""
        run, rows = training.run, list[Row]()
        if writer is None:
            guarantee = self._guarantee(run)
        else:
            guarantee, rows = self.promised(training, writer, described or {})

        def note(row: Row) -> None:
            rows.append(row)
            if writer is not None:
                writer.add(row)

        def after_step() -> None:
            callbacks.on_step(run.steps, len(run))
            if is_evaluated(run.steps, len(run)):
                note(self._row(training, guarantee))
                callbacks.on_evaluation(rows[-1])

        with ExitStack() as stack:
            stack.enter_context(closing_callbacks(callbacks))
            stop = stack.enter_context(stop_requests(wanted=writer is not None))
            start = TrainingStart(len(run), run.steps, self.divisor, self.noise_multiplier, guarantee, tuple(rows))
            callbacks.on_start(start)
            take_steps(training, writer=writer, stop=stop, after_step=after_step, ends_early=callbacks.wants_to_stop)
            if run.steps < len(run) and self.evaluation.at_end is not None:  # it was ended early by a callback
                note(self._last_row(training, rows[-1] if rows else {}, guarantee))
            training.end()
            if writer is not None:
                writer.finish(training)
            callbacks.on_end(rows[-1] if rows else {})
        return Fitted(self.model, guarantee, self.plan, tuple(rows))

    def finished(self, folder: RunFolder, done: PromisedRun) -> Fitted:
        """Returns the result of a finished run, and charges it unless the budget holds it already.

        The content of the folder was released from the data, whichever budget counted it then.
        """
        plan = self.plan
        done.check(digest_of(*plan.stages), folder.path)
        if not folder.is_run:  # an earlier version wrote it, and did not describe it
            folder.write_training(self._described())
        run, adjacency, events = done.identity, plan.adjacency, [plan.event]
        self.budget.charge(plan.event, adjacency, what=_WHAT, run=run)
        if done.drawn_again:
            events.append(plan.sampler.compose(plan.noise.event, done.drawn_again))
            self.budget.charge(events[-1], adjacency, what="steps drawn again", run=run)
        self._module.load_state_dict(folder.model(like=self._module.state_dict()))
        promised: Any = folder.privacy()
        guarantee = self._guarantee_of(events, tuple(promised["assumptions"]))
        guarantee = replace(guarantee, epsilon=max(guarantee.epsilon, float(promised["epsilon"])))
        return Fitted(self.model, guarantee, plan, tuple(folder.metrics()))

    def _guarantee(self, run: PrivateRun) -> Guarantee:
        """Guarantee of this fit: its steps, those drawn again, and its charged evaluations."""
        charged, own, assumed = self.evaluation.charged, 1 + (run.event != self.plan.event), run.assumptions
        if charged is not None:
            own += charged.budget is self.budget
            assumed += (SEED_STAYS_SECRET,) if charged.has_seed else ()
        releases = len(self.budget.releases)
        if releases > own:
            assumed += (f"this run is counted alone: its budget holds {releases} releases, and has a guarantee",)
        self.plan.check_noise(self.delta)
        return self._guarantee_of([run.event], tuple(dict.fromkeys(assumed)))

    def _guarantee_of(self, events: Sequence[DpEvent], assumptions: tuple[str, ...]) -> Guarantee:
        beside = [] if self.evaluation.event is None else [self.evaluation.event]
        unit, adjacency = self.budget.records.unit, self.plan.adjacency
        event = ComposedDpEvent([*events, *beside])
        return Guarantee.of(event, adjacency, delta=self.delta, unit=unit, assumptions=assumptions)

    def _described(self) -> dict[str, object]:
        """Public facts about the training, for a run folder without a recipe."""
        return describe_training(
            self._module,
            self.budget.records,
            self.plan,
            self.optimizer,
            self.schedule,
            self.averaging,
            self.divisor,
        )

    def _last_row(self, training: Training, before: Row, guarantee: Guarantee) -> Row:
        """The last row of a training that was ended early: that of its last evaluation, with the test rows."""
        row = before if before.get("step") == training.run.steps else self._about(training, guarantee)
        tested = {} if self.evaluation.at_end is None else training.measure(self.evaluation.at_end)
        return row | {f"test_{name}": value for name, value in tested.items()}

    def _about(self, training: Training, guarantee: Guarantee) -> Row:
        run = training.run
        epoch = round(run.steps * self.divisor / self.examples, 4)
        return {"step": run.steps, "epoch": epoch, "epsilon": epsilon_so_far(run, guarantee), "delta": self.delta}

    def _row(self, training: Training, guarantee: Guarantee) -> Row:
        run, rows, row = training.run, self.evaluation, self._about(training, guarantee)
        if rows.during is not None:
            row |= {f"validation_{name}": value for name, value in training.measure(rows.during).items()}
        if rows.at_end is not None and run.steps == len(run):
            row |= {f"test_{name}": value for name, value in training.measure(rows.at_end, measured_at_end).items()}
        return row


def _split(settings: FitSettings, *, has_plan: bool) -> tuple[PlanSettings, FitSettings]:
    """Splits settings into those of a plan and those of `fit`. Settings of a plan are refused if there is a plan."""
    of_plan = PlanSettings.__annotations__
    known = FitSettings.__annotations__
    for name in settings:
        if name not in known:
            raise TypeError(f"fit() got an unexpected keyword argument {name!r}")
        if has_plan and name in of_plan and name != "allow_large_delta":
            raise UsageError(f"{name} is part of the plan: give either a plan or {name}.")
    given: Any = settings
    return (
        {name: value for name, value in given.items() if name in of_plan},  # type: ignore[return-value]
        {name: value for name, value in given.items() if name not in of_plan or name == "allow_large_delta"},
    )


def records_for(model: nn.Module, data: Data) -> Records:
    """The records of `data` for `model`: columns that a transformer takes, or rows as they are for another model."""
    if transformers_model(model) is None:
        return as_records(data)
    from sordino import huggingface

    return huggingface.as_records(model, data)


def _of_transformer(
    model: nn.Module, data: Data | Budget, evaluation: Evaluation, settings: PlanSettings | None
) -> tuple[Records | Budget, Evaluation]:
    """The rows for a transformer. Its task decides the loss in the settings of a plan, if the caller gives none."""
    from sordino import huggingface

    found = huggingface.records_of(model, data)
    if settings is not None and "loss" not in settings:
        settings["loss"] = huggingface.loss_for(model, found.records if isinstance(found, Budget) else found)

    def public(rows: Public) -> Public:
        return Public(huggingface.as_records(model, rows.data, allow_single=True))

    during = public(evaluation.during) if isinstance(evaluation.during, Public) else evaluation.during
    return found, Evaluation(during, None if evaluation.at_end is None else public(evaluation.at_end))


def _evaluation(given: Evaluation | Public | Charged | None, options: FitSettings) -> Evaluation:
    old = {name: options.get(name) for name in ("validation", "test", "on_row")}
    for name in [name for name in old if name in options and old[name] is not None]:
        new = "callbacks" if name == "on_row" else "evaluation"
        warnings.warn(f"{name}= of fit is deprecated until 0.3: use {new}=.", DeprecationWarning, stacklevel=3)
    if old["validation"] is None and old["test"] is None:
        return Evaluation.of(given)
    if given is not None:
        raise UsageError("evaluation replaces validation and test: give evaluation alone.")
    return Evaluation(options.get("validation"), options.get("test"))


def _whole_if_near(size: float) -> float:
    """Rounds to a whole number if the difference is a rounding error, as of 100 * (1 / 3) * 3."""
    return round(size) if abs(size - round(size)) < 1e-9 * size else size


def _schedule(given: Schedule | LRScheduler | None, optimizer: torch.optim.Optimizer, steps: int) -> AnySchedule:
    if isinstance(given, LRScheduler):
        return RateTable.of(given, optimizer, steps=steps)
    schedule = given or Constant()
    validate.instance(Schedule, schedule=schedule)
    return schedule


def _averaging(given: Averaging | AveragedModel | None) -> Averaging | None:
    if isinstance(given, AveragedModel):
        return TorchAverage(given)
    validate.instance((Averaging, type(None)), averaging=given)
    return given


def _taken_up(folder: RunFolder, budget: Budget) -> PromisedRun | None:
    """The run in the folder, if it is finished or this budget holds it, so that its noise was chosen before."""
    if folder.is_finished:
        return folder.finished_run()
    promised = folder.promised()
    return promised if promised is not None and budget.holds(promised.identity) else None


def _make_optimizer(
    model: nn.Module, optimizer: torch.optim.Optimizer | MakeOptimizer | None, learning_rate: float
) -> torch.optim.Optimizer:
    trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if not trainable:
        raise UsageError("the model has no trainable parameter: set requires_grad of the parameters to train.")
    if optimizer is None:
        optimizer = torch.optim.SGD(trainable, lr=learning_rate, momentum=0.9)
    elif not isinstance(optimizer, torch.optim.Optimizer) and callable(optimizer):
        optimizer = optimizer(trainable)
    validate.instance(torch.optim.Optimizer, optimizer=optimizer)
    if isinstance(optimizer, torch.optim.LBFGS):
        raise UsageError("LBFGS needs several gradients per step, and each would be a release: use another optimizer.")
    groups = optimizer.param_groups
    validate.positive(**{f"lr of parameter group {i}": float(group["lr"]) for i, group in enumerate(groups)})
    held = {id(parameter) for group in groups for parameter in group["params"]}
    if not held >= {id(parameter) for parameter in trainable}:
        raise UsageError("the optimizer does not hold all trainable parameters of the model: pass model.parameters().")
    return optimizer
