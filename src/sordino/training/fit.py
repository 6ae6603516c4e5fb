"""A model, a data set and a target: everything around a run, for people who want none of the stages."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import torch
import torch.nn.functional as F
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from torch import Tensor, nn

from sordino._input import validate
from sordino.accounting import Guarantee
from sordino.accounting.guarantee import rounded_up
from sordino.errors import Interrupted, UsageError
from sordino.kernel.augmentation import Views
from sordino.kernel.budget import Budget, RunIdentity
from sordino.kernel.calibration import calibrate, check_delta_for, check_target
from sordino.kernel.clipping import Clip, ClipByNorm
from sordino.kernel.contribution import LossGradient
from sordino.kernel.encoding import Encoding, Unchanged
from sordino.kernel.noise import Gaussian, Noise
from sordino.kernel.randomness import Key
from sordino.kernel.run import PrivateRun
from sordino.kernel.sampling import Poisson, Sampler, steps_for
from sordino.kernel.step import Plan
from sordino.training.averaging import Averaging
from sordino.training.evaluation import Charged, Public
from sordino.training.interruption import interruption
from sordino.training.journal import Journal, described, digest_of, epsilon_so_far, is_mark, marks_until
from sordino.training.loop import Training, described_optimizer, settings_of
from sordino.training.run_folder import PromisedRun, RunFolder
from sordino.training.schedules import Constant, Schedule

MakeOptimizer = Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]
Row = dict[str, Any]


@dataclass(frozen=True)
class Fitted:
    """A trained model, what its training promises, and what was measured on rows declared public."""

    model: nn.Module
    guarantee: Guarantee
    plan: Plan
    metrics: tuple[Row, ...] = field(repr=False, default=())


def fit(
    model: nn.Module,
    data: object,
    *,
    epsilon: float,
    delta: float,
    batch_size: int,
    epochs: float | None = None,
    steps: int | None = None,
    sampler: Sampler | None = None,
    loss: Callable[..., Tensor] = F.cross_entropy,
    clip: Clip | float = 1.0,
    noise: Noise | None = None,
    encoding: Encoding | None = None,
    views: Views | None = None,
    learning_rate: float = 0.5,
    optimizer: torch.optim.Optimizer | MakeOptimizer | None = None,
    schedule: Schedule | None = None,
    averaging: Averaging | None = None,
    validation: Public | Charged | None = None,
    test: Public | None = None,
    out: Path | str | None = None,
    resume: bool = False,
    draw_again: bool = False,
    physical_batch_size: int | Literal["auto"] = "auto",
    autocast: torch.dtype | None = None,
    seed: int | None = None,
    allow_weak: bool = False,
    allow_large_delta: bool = False,
    progress: bool = True,
    on_row: Callable[[Row], None] | None = None,
) -> Fitted:
    """Trains `model` in place with noise calibrated so that (epsilon, delta) holds, and says what was promised.

    `batch_size` is the expected one and the public divisor. Without a `sampler` it is Poisson sampling at
    `batch_size` / examples for `steps` steps, or for `epochs` passes on average. `clip` is a norm or a clipping stage;
    `noise` a noise at any scale, which is then calibrated (Gaussian unless said; delta may be 0 if it is pure);
    `optimizer` one of torch's, or a function of the parameters that makes one (SGD with momentum 0.9 unless said).
    `test` are rows declared public, measured at the end; `validation` is measured about twenty times on the way, on
    public rows too, or `Charged`. The guarantee is of all that the budget of the data holds.

    With `out` the run has a folder (see `RunFolder`) and can be stopped at any moment: `resume` goes on, with the same
    arguments and an equal model, and gives what would have been. Rows that change at random draw the same in a step
    that is taken again, from the global generators; rows that differ all the same are refused. A finished run is
    charged by what its folder holds, unless `data` is a budget that holds it already. Where the arithmetic is another
    one (other processor, torch or number of threads), the last steps must be drawn again with fresh noise, and paid
    for: `draw_again`.

    >>> model, data = nn.Linear(4, 3), (torch.zeros(100, 4), torch.zeros(100, dtype=torch.int64))
    >>> fitted = fit(model, data, epsilon=3.0, delta=1e-3, batch_size=50, epochs=2, seed=0, progress=False)
    >>> fitted.guarantee.epsilon <= 3.0
    True
    """
    noise = Gaussian(1.0) if noise is None else noise
    validate.instance(Noise, noise=noise)
    check_target(epsilon, delta, allow_weak=allow_weak, release=noise.event)
    validate.instance(nn.Module, model=model)
    validate.count(batch_size=batch_size)
    validate.positive(learning_rate=learning_rate)
    schedule = schedule or Constant()
    validate.instance(Schedule, schedule=schedule)
    validate.instance((Averaging, type(None)), averaging=averaging)
    validate.instance((Public, Charged, type(None)), validation=validation)
    validate.instance((Public, type(None)), test=test)
    if out is None and (resume or draw_again):
        raise UsageError("a run can be resumed from its folder only: say out.")
    optimizer = _make_optimizer(model, optimizer, learning_rate)
    budget = data if isinstance(data, Budget) else Budget(data)
    if sampler is None:
        sampler = _poisson(batch_size, budget.records.num_units, epochs=epochs, steps=steps)
    elif epochs is not None or steps is not None:
        raise UsageError("epochs and steps are the sampler's when a sampler is given.")
    public_size = getattr(sampler, "expected_examples", None) or budget.records.num_units
    validate.count(at_most=public_size, batch_size=batch_size)
    check_delta_for(public_size, delta, allow_large_delta=allow_large_delta)
    clip = ClipByNorm(clip) if isinstance(clip, (int, float)) else clip
    gradient = LossGradient(loss, autocast, views or Views())
    plan = Plan(sampler, gradient, clip, noise, encoding or Unchanged())
    folder = None if out is None else RunFolder(out)
    taken_up = _taken_up(folder, budget) if folder is not None and resume else None
    if taken_up is None:
        plan = calibrate(plan, epsilon=epsilon, delta=delta, budget=budget, allow_weak=allow_weak)
    else:  # the noise is what it was, whatever else the budget holds by now
        plan = replace(plan, noise=plan.noise.with_multiplier(taken_up.noise_multiplier))
    key = Key.fresh() if seed is None else Key.from_seed(seed)
    course = _Course(model, optimizer, plan, budget, schedule, averaging, batch_size, public_size, delta)
    if isinstance(validation, Charged):
        validate.count(at_most=validation.remaining, evaluations_needed=marks_until(plan.steps, plan.steps))
        if draw_again:
            raise UsageError("a charged validation cannot be drawn again: its noise would fall on other weights.")
    show = _Show(validation, test, progress, on_row)
    if folder is None:
        return course.follow(course.training(key, physical_batch_size), show)
    settings_of(optimizer)  # refused before anything is written
    if taken_up is not None and folder.is_finished:
        return course.finished(folder, taken_up)
    budget.records.check_repeatable()
    with closing(Journal.resume(folder, key) if resume else Journal.begin(folder, key)) as journal:
        settings = course.settings() | show.settings()
        checkpoint = journal.last_checkpoint(
            plan, model, budget.records, settings, optimizer=optimizer, draw_again=draw_again
        )
        if checkpoint is not None:
            physical_batch_size = checkpoint.physical_batch_size
        training = course.training(journal.key, physical_batch_size, journal.run)
        if checkpoint is not None:
            training.restore(checkpoint)
            show.continue_at(training.run)
        return course.follow(training, show, journal)


@dataclass(frozen=True)
class _Show:
    """What is shown on the way: public quantities, and released ones that were paid for."""

    validation: Public | Charged | None
    test: Public | None
    progress: bool
    on_row: Callable[[Row], None] | None

    def settings(self) -> dict[str, str]:
        return {"validation": self.validation.identity} if isinstance(self.validation, Charged) else {}

    def continue_at(self, run: PrivateRun) -> None:
        if isinstance(self.validation, Charged):
            self.validation.continue_at(marks_until(run.steps, len(run)))


@dataclass(frozen=True)
class _Course:
    """Everything that was decided before the first step."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    plan: Plan
    budget: Budget
    schedule: Schedule
    averaging: Averaging | None
    batch_size: int
    examples: int
    delta: float

    def training(
        self, key: Key, physical_batch_size: int | Literal["auto"], identity: RunIdentity | None = None
    ) -> Training:
        run = PrivateRun(
            self.plan,
            self.model,
            self.budget,
            key=key,
            identity=identity,
            physical_batch_size=physical_batch_size,
        )
        divisor, schedule, averaging = self.batch_size, self.schedule, self.averaging
        return Training(self.model, self.optimizer, run, divisor=divisor, schedule=schedule, averaging=averaging)

    def settings(self) -> dict[str, str]:
        """By which a checkpoint is told from those of other runs, beside its plan and its data."""
        gradient = self.plan.contribution
        loss = getattr(gradient, "loss", gradient)
        return {
            "model": repr([(name, tuple(x.shape), x.requires_grad) for name, x in self.model.named_parameters()]),
            "loss": getattr(loss, "__qualname__", type(loss).__qualname__),
            "precision": str(getattr(gradient, "autocast", None)),
            "views": repr(getattr(gradient, "views", None)),
            "optimizer": described_optimizer(self.optimizer, self.model),
            "schedule": repr((self.schedule, self.averaging, self.batch_size)),
        }

    def follow(self, training: Training, show: _Show, journal: Journal | None = None) -> Fitted:
        """Takes every step that is left, and writes down what may be seen."""
        run, rows = training.run, list[Row]()
        guarantee = self.budget.guarantee(delta=self.delta, assumptions=run.assumptions)
        if journal is not None:
            release: Any = self.plan.noise.event  # whatever the noise is, its event has a multiplier
            numbers = {"examples": self.examples, "batch_size": self.batch_size, "steps": self.plan.steps}
            multiplier = float(release.noise_multiplier)
            rows = journal.promise(
                described(self.plan.sampler, numbers, multiplier, guarantee),
                number=run.number,
                plan=digest_of(*self.plan.stages),
                noise_multiplier=multiplier,
                drawn_again=journal.drawn_again,
            )
        with _progress_bar(show.progress) as bar, interruption(wanted=journal is not None) as asked:
            task = bar.add_task("training privately", total=len(run), completed=run.steps, spent="")
            while run.steps < len(run):
                if journal is not None:
                    journal.before_step(training)
                training.step()
                bar.advance(task)
                if is_mark(run.steps, len(run)):
                    row = self._row(training, guarantee, show)
                    spent = f"epsilon {rounded_up(row['epsilon'], 3)} of {rounded_up(guarantee.epsilon, 3)}"
                    bar.update(task, spent=spent)
                    rows.append(row)
                    if journal is not None:
                        journal.add(row)
                    if show.on_row is not None:
                        show.on_row(row)
                if journal is not None and asked.to_stop and run.steps < len(run):
                    journal.at_rest(training)
                    raise Interrupted(f"stopped after step {run.steps} of {len(run)}; nothing is lost, resume it.")
            self.model.load_state_dict(training.weights())
            if journal is not None:
                journal.finish(training)
        return Fitted(self.model, guarantee, self.plan, tuple(rows))

    def finished(self, folder: RunFolder, done: PromisedRun) -> Fitted:
        """A run that was killed after its last word is finished all the same, and charged unless the budget holds it.

        What the folder holds was released from the data, whichever budget was there to count it.
        """
        plan = self.plan
        done.check(digest_of(*plan.stages), folder.path)
        run, adjacency = done.identity, plan.adjacency
        self.budget.charge(plan.event, adjacency, what="training run", run=run)
        if done.drawn_again:
            again = plan.sampler.compose(plan.noise.event, done.drawn_again)
            self.budget.charge(again, adjacency, what="steps drawn again", run=run)
        self.model.load_state_dict(folder.model(like=self.model.state_dict()))
        promised: Any = folder.privacy()
        guarantee = self.budget.guarantee(delta=self.delta, assumptions=tuple(promised["assumptions"]))
        guarantee = replace(guarantee, epsilon=max(guarantee.epsilon, float(promised["epsilon"])))
        return Fitted(self.model, guarantee, plan, tuple(folder.metrics()))

    def _row(self, training: Training, guarantee: Guarantee, show: _Show) -> Row:
        run = training.run
        epoch = round(run.steps * self.batch_size / self.examples, 4)
        row: Row = {"step": run.steps, "epoch": epoch, "epsilon": epsilon_so_far(run, guarantee), "delta": self.delta}
        if show.validation is not None:
            row |= {f"validation_{name}": value for name, value in training.measure(show.validation).items()}
        if show.test is not None and run.steps == len(run):
            row |= {f"test_{name}": value for name, value in training.measure(show.test).items()}
        return row


def _taken_up(folder: RunFolder, budget: Budget) -> PromisedRun | None:
    """The run in the folder, if it is finished or if this very budget holds it: its noise was chosen before."""
    if folder.is_finished:
        return folder.finished_run()
    promised = folder.promised()
    return promised if promised is not None and budget.holds(promised.identity) else None


def _poisson(batch_size: int, num_units: int, *, epochs: float | None, steps: int | None) -> Poisson:
    if (epochs is None) == (steps is None):
        raise UsageError("say either epochs or steps, not both and not neither.")
    validate.count(at_most=num_units, batch_size=batch_size)
    if epochs is not None:
        steps = steps_for(epochs, num_units, batch_size)
    return Poisson(rate=batch_size / num_units, steps=steps or 0)


def _make_optimizer(
    model: nn.Module, optimizer: torch.optim.Optimizer | MakeOptimizer | None, learning_rate: float
) -> torch.optim.Optimizer:
    trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if not trainable:
        raise UsageError("the model has no trainable parameter: nothing to train.")
    if optimizer is None:
        optimizer = torch.optim.SGD(trainable, lr=learning_rate, momentum=0.9)
    elif not isinstance(optimizer, torch.optim.Optimizer) and callable(optimizer):
        optimizer = optimizer(trainable)
    validate.instance(torch.optim.Optimizer, optimizer=optimizer)
    if isinstance(optimizer, torch.optim.LBFGS):
        raise UsageError("LBFGS asks for several gradients within a step, and each would be a release: use another.")
    groups = optimizer.param_groups
    validate.positive(**{f"lr of parameter group {i}": float(group["lr"]) for i, group in enumerate(groups)})
    held = {id(parameter) for group in groups for parameter in group["params"]}
    if not held >= {id(parameter) for parameter in trainable}:
        raise UsageError("the optimizer does not hold all trainable parameters of the model.")
    return optimizer


def _progress_bar(visible: bool) -> Progress:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    return Progress(*columns, TextColumn("{task.fields[spent]}"), console=Console(stderr=True), disable=not visible)
