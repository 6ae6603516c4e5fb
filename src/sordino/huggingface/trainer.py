"""`PrivateTrainer`: a `transformers.Trainer` whose batches come from a sampler and whose step is a private step.

Everything around the step is that of `Trainer`: logging, callbacks, schedulers, evaluation, saving. Its data loader
yields places in the schedule and no rows. The rows of a step are drawn, clipped and summed by the run, and the model
gets the private gradient, which the optimizer of the trainer applies.
"""

from __future__ import annotations

import math
import tempfile
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset
from transformers import Trainer, TrainerState, TrainingArguments
from transformers.trainer_callback import ExportableState
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR, TrainOutput

from sordino._input import validate
from sordino.accounting import Guarantee
from sordino.encodings.freeze import FreezingEncoding
from sordino.errors import UsageError
from sordino.huggingface.losses import TransformerLoss
from sordino.huggingface.rows import as_records, records_of
from sordino.huggingface.tasks import loss_for
from sordino.kernel.buckets import Buckets
from sordino.kernel.budget import Budget
from sordino.kernel.calibration import check_delta_for
from sordino.kernel.encoding import Encoding
from sordino.kernel.noise import Noise
from sordino.kernel.randomness import Key
from sordino.kernel.records import Data
from sordino.kernel.step import Plan
from sordino.training.evaluation import Evaluation
from sordino.training.fit import FitJob
from sordino.training.loop import Training, settings_of
from sordino.training.plans import public_size, uncalibrated_plan
from sordino.training.run_folder import RunFolder
from sordino.training.run_writer import RunWriter, epsilon_so_far
from sordino.training.schedules import Constant

_STATE = "trainer_state.json"
_OWN_LOSS = "is computed from single examples: pass loss=, a function of the outputs and the labels of one example"
_REFUSED: dict[str, tuple[object, str]] = {  # settings of TrainingArguments: the value that is accepted, and why
    "fp16": (False, "overflows in gradients of single examples: use bf16"),
    "auto_find_batch_size": (False, "would change the sampling rate: the size of a micro-batch is chosen anyway"),
    "label_smoothing_factor": (0.0, _OWN_LOSS),
    "neftune_noise_alpha": (None, "adds noise that is shared by the examples of a batch"),
    "include_num_input_tokens_seen": ("no", "counts tokens of private rows"),
    "deepspeed": (None, "is not supported yet"),
    "use_liger_kernel": (False, "replaces layers by kernels without gradients of single examples"),
    "torch_compile": (False, "cannot be taken apart into examples"),
}
_PLATEAU = ("reduce_lr_on_plateau", "greedy")
_OWN_BACKWARD = ("lomo", "adalomo")


class PrivateTrainer(Trainer):
    """Trains a transformer with differential privacy, with the interface of `transformers.Trainer`.

    Each step draws a Poisson batch of `per_device_train_batch_size * gradient_accumulation_steps` examples on average
    from `train_dataset`, and `max_grad_norm` of the arguments is the clipping norm of one example. Noise is calibrated
    for `epsilon` and `delta`; or `plan` says all of this. `train_dataset` is private and may be a `Budget`. `loss` is
    that of one example, by default of the model's task. `eval_dataset`, and with it early stopping and the choice of
    the best checkpoint, must be public.

    The log has `epsilon` in place of the training loss, which is private. The guarantee and the trained weights are in
    `run_folder`, by default beside `output_dir`. An interrupted training goes on with
    `train(resume_from_checkpoint=True)`, and gives the same weights as one without a stop.

    >>> import tempfile
    >>> from transformers import BertConfig, BertForSequenceClassification, TrainingArguments
    >>> config = BertConfig(vocab_size=9, hidden_size=4, num_hidden_layers=1, num_attention_heads=1)
    >>> rows = {"input_ids": torch.ones(40, 3, dtype=torch.int64), "labels": torch.zeros(40, dtype=torch.int64)}
    >>> folder = tempfile.mkdtemp() + "/model"
    >>> arguments = TrainingArguments(folder, per_device_train_batch_size=10, num_train_epochs=1, disable_tqdm=True)
    >>> trainer = PrivateTrainer(
    ...     BertForSequenceClassification(config), arguments, train_dataset=rows, epsilon=3.0, delta=1e-2
    ... )
    >>> trainer.guarantee.epsilon <= 3.0
    True
    """

    def __init__(
        self,
        model: nn.Module,
        args: TrainingArguments,
        *,
        train_dataset: Data | Budget,
        epsilon: float | None = None,
        delta: float | None = None,
        plan: Plan | None = None,
        loss: TransformerLoss | Any = None,
        noise: Noise | None = None,
        encoding: Encoding | None = None,
        buckets: Buckets | None = None,
        eval_dataset: Any = None,
        run_folder: Path | str | None = None,
        seed: int | None = None,
        **options: Any,
    ) -> None:
        validate.instance(nn.Module, model=model)
        validate.instance(TrainingArguments, args=args)
        _refuse(args, options, train_dataset, eval_dataset)
        folder = Path(run_folder or f"{str(args.output_dir).rstrip('/')}-run")
        if isinstance(train_dataset, Budget):
            found = records_of(model, train_dataset)
            budget = found if isinstance(found, Budget) else train_dataset
        else:
            budget = Budget(as_records(model, train_dataset, buckets=buckets))
        delta = budget.delta if delta is None else delta
        if delta is None:
            raise UsageError("delta must be given: it is part of the guarantee, and below 1 / examples.")
        self._key = Key.fresh() if seed is None else Key.from_seed(seed)
        self._private_rows, self._run_folder = train_dataset, RunFolder(folder)
        self._job: FitJob | None = None
        self._training: Training | None = None
        self._writer: RunWriter | None = None
        units = budget.records.num_units
        batch_size = args.per_device_train_batch_size * args.gradient_accumulation_steps
        validate.count(at_most=units, batch_size=batch_size)
        self._steps_per_epoch = math.ceil(units / batch_size)
        steps = args.max_steps if args.max_steps > 0 else math.ceil(args.num_train_epochs * self._steps_per_epoch)
        if plan is None:
            if epsilon is None:
                raise UsageError("epsilon must be given if there is no plan.")
            plan = uncalibrated_plan(
                units,
                epsilon=epsilon,
                delta=delta,
                batch_size=batch_size,
                steps=steps,
                loss=loss or loss_for(model, budget.records),
                clip=args.max_grad_norm,
                noise=noise,
                encoding=encoding,
                autocast=torch.bfloat16 if args.bf16 else None,
            )
        else:
            _refuse_beside_plan(epsilon=epsilon, loss=loss, noise=noise, encoding=encoding)
            if plan.steps != steps:
                raise UsageError(f"the plan has {plan.steps} steps, and the arguments ask for {steps}: set max_steps.")
        if isinstance(plan.encoding, FreezingEncoding):
            raise UsageError("an encoding that freezes weights needs so.fit, whose optimizer leaves them unchanged.")
        examples = public_size(plan.sampler, units)
        check_delta_for(examples, delta, allow_large_delta=False)
        args.mixed_precision = "no"  # half precision belongs to the gradient of one example, not to the whole model
        super().__init__(model=model, args=args, train_dataset=None, eval_dataset=eval_dataset, **options)
        optimizer = self._plain_optimizer()
        self._learning_rates = [float(group["lr"]) for group in optimizer.param_groups]
        self._job = FitJob(
            model,
            optimizer,
            plan,
            budget,
            Constant(),
            None,
            batch_size,
            examples,
            delta,
            Evaluation(),
        )
        if epsilon is None:
            self._job.check_budget()
        else:
            self._job = self._job.calibrated(epsilon, None, allow_weak=False)

    @property
    def plan(self) -> Plan:
        """The plan of the training, with its calibrated noise."""
        return self._fit_job.plan

    @property
    def guarantee(self) -> Guarantee:
        """The guarantee of all planned steps. It holds if the training is stopped early, whatever the reason."""
        job = self._fit_job
        if self._training is not None:
            return self._training.run.guarantee(delta=job.delta)
        return job.plan.guarantee(delta=job.delta)

    def train(self, resume_from_checkpoint: str | bool | None = None, *args: Any, **kwargs: Any) -> TrainOutput:
        """Trains, or continues a training that was interrupted.

        A training continues from the last step that its private folder holds, not from an older checkpoint: steps after
        that one were begun, and their noise may be drawn once only.
        """
        try:
            if not resume_from_checkpoint:
                return super().train(None, *args, **kwargs)
            with tempfile.TemporaryDirectory() as empty:
                path = resume_from_checkpoint if isinstance(resume_from_checkpoint, str) else self._last_checkpoint()
                if path is None:  # it was interrupted before the first checkpoint
                    self._state_at_step_0().save_to_json(str(Path(empty) / _STATE))
                return super().train(path or empty, *args, **kwargs)
        finally:
            if self._writer is not None:
                self._writer.close()

    def evaluate(self, eval_dataset: Any = None, *args: Any, **kwargs: Any) -> dict[str, float]:
        """Evaluates on public rows."""
        self._refuse_private(eval_dataset)
        return dict(super().evaluate(eval_dataset, *args, **kwargs))

    def predict(self, test_dataset: Any, *args: Any, **kwargs: Any) -> Any:
        """Predicts for public rows."""
        self._refuse_private(test_dataset)
        return super().predict(test_dataset, *args, **kwargs)

    def hyperparameter_search(self, *args: Any, **kwargs: Any) -> Any:
        """Refused: each trial is a release."""
        raise UsageError("each trial of a search is a release that must be counted: use sordino.tuning.")

    def get_train_dataloader(self) -> DataLoader[Any]:
        """Places in the schedule: the rows of a step are drawn by the run."""
        places = self._steps_per_epoch * self.args.gradient_accumulation_steps
        return DataLoader(_Places(places), batch_size=1, collate_fn=_nothing)

    def num_examples(self, dataloader: DataLoader[Any]) -> int:
        """The public number of examples."""
        return self._fit_job.examples if isinstance(dataloader.dataset, _Places) else super().num_examples(dataloader)

    def training_step(self, model: nn.Module, inputs: Any, num_items_in_batch: Any = None) -> Tensor:
        """Takes the private step at the last place of an optimizer step. The loss is private, so it is not returned."""
        training = self._prepared
        if self.accelerator.gradient_state.sync_gradients:
            model.train()
            if self._writer is not None:
                self._writer.before_step(training)
            training.write_gradient()
        return torch.zeros((), device=self.args.device)

    def floating_point_ops(self, inputs: Any) -> int:
        """Zero: the number of operations follows from the rows that were drawn."""
        return 0 if not inputs else int(super().floating_point_ops(inputs))

    def log(self, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
        """Logs public values, and epsilon of the steps so far in place of the training loss."""
        if self._training is not None and ("loss" in logs or "train_loss" in logs):
            logs = {name: value for name, value in logs.items() if name not in ("loss", "train_loss", "total_flos")}
            logs["epsilon"] = epsilon_so_far(self._training.run, self.guarantee)
        super().log(logs, *args, **kwargs)

    def _init_training_state(
        self, max_steps: int, steps_per_epoch: int, epochs: int, checkpoint: str | None, trial: Any
    ) -> tuple[int, int]:
        """Begins the run, or opens it at its last step, before the optimizer is wrapped."""
        found: tuple[int, int] = super()._init_training_state(max_steps, steps_per_epoch, epochs, checkpoint, trial)
        self._open(resume=checkpoint is not None)
        if checkpoint is None:
            return found
        done = self._prepared.run.steps
        self.state.global_step = done
        return done // steps_per_epoch, done % steps_per_epoch * self.args.gradient_accumulation_steps

    def _prepare_for_training(self, max_steps: int, train_dataloader: Any, checkpoint: str | None) -> Any:
        """The scheduler is a function of the step, and goes to that of the run."""
        prepared = super()._prepare_for_training(max_steps, train_dataloader, None)  # type: ignore[no-untyped-call]
        assert self.lr_scheduler is not None
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch expects a step of the optimizer before each one
            for _ in range(self._prepared.run.steps):
                self.lr_scheduler.step()
        return prepared

    def _finalize_training(self, *args: Any) -> TrainOutput:
        """Writes the weights to the run folder, and deletes the key of the noise."""
        if self._writer is not None:
            self._writer.finish(self._prepared)
        output = super()._finalize_training(*args)  # type: ignore[no-untyped-call]
        metrics = {name: value for name, value in output.metrics.items() if name not in ("train_loss", "total_flos")}
        return TrainOutput(output.global_step, math.nan, metrics)

    def _load_from_checkpoint(self, *_: Any) -> None:
        """Nothing: the private folder has the weights of the last step, which may be a later one."""

    def _load_rng_state(self, *_: Any) -> None:
        """Nothing: all draws of a private step are functions of the key and of the step."""

    def _clip_grad_norm(self, model: nn.Module) -> None:
        """Nothing: each example was clipped before the noise."""

    @property
    def _fit_job(self) -> FitJob:
        assert self._job is not None
        return self._job

    @property
    def _prepared(self) -> Training:
        assert self._training is not None
        return self._training

    def _plain_optimizer(self) -> torch.optim.Optimizer:
        """The optimizer of the trainer, without the wrapper that accelerate puts around it."""
        optimizer = self.optimizer or self.create_optimizer()
        return getattr(optimizer, "optimizer", optimizer)

    def _open(self, *, resume: bool) -> None:
        job = self._fit_job
        job.model.train()
        settings_of(job.optimizer)  # refused before anything is written, as is a model that mixes examples
        job.plan.contribution.check(job.model, job.budget.records)
        job.budget.records.check_repeatable()
        for group, rate in zip(job.optimizer.param_groups, self._learning_rates, strict=True):
            group["lr"] = rate  # as they were before a scheduler changed them
            group.pop("initial_lr", None)
        self._writer = job.writer_of(self._run_folder, self._key, resume=resume)
        try:
            self._training, described = job.opened(self._writer, "auto", draw_again=False)
            job.promised(self._training, self._writer, described)
        except BaseException:
            self._writer.close()
            raise
        for group, rate in zip(job.optimizer.param_groups, self._learning_rates, strict=True):
            group["lr"] = group["initial_lr"] = rate  # where the scheduler begins

    def _last_checkpoint(self) -> str | None:
        """The last folder of a checkpoint that was written to its end."""
        written = [path.parent for path in Path(str(self.args.output_dir)).glob(f"{PREFIX_CHECKPOINT_DIR}-*/{_STATE}")]
        return str(max(written, key=lambda path: int(path.name.rpartition("-")[2]))) if written else None

    def _state_at_step_0(self) -> TrainerState:
        known = [*self.callback_handler.callbacks, self.control]
        stateful: list[Any] = [each for each in known if isinstance(each, ExportableState)]
        return TrainerState(train_batch_size=self._train_batch_size, stateful_callbacks=stateful)

    def _refuse_private(self, dataset: Any) -> None:
        if dataset is not None and dataset is self._private_rows:
            raise UsageError("measurements on the private rows are a release: evaluate on public rows.")


class _Places(Dataset[int]):
    def __init__(self, number: int) -> None:
        self._number = number

    def __len__(self) -> int:
        return self._number

    def __getitem__(self, index: int) -> int:
        return index


def _nothing(_: object) -> dict[str, Tensor]:
    return {}


def _refuse(args: TrainingArguments, options: dict[str, Any], rows: Any, public: Any) -> None:
    for name, (accepted, reason) in _REFUSED.items():
        if getattr(args, name, accepted) not in (accepted, None):
            raise UsageError(f"{name} {reason}: leave it at {accepted!r}.")
    for name in _REFUSED_OPTIONS:
        if options.get(name) is not None:
            raise UsageError(f"{name} must not be given: {_REFUSED_OPTIONS[name]}.")
    if str(getattr(args, "train_sampling_strategy", "random")) != "random":
        raise UsageError("train_sampling_strategy must be 'random': batches are drawn by the sampler of the plan.")
    if _value(args.lr_scheduler_type) in _PLATEAU:
        raise UsageError(f"lr_scheduler_type {_value(args.lr_scheduler_type)!r} has no schedule: choose another one.")
    if _value(args.optim).startswith(_OWN_BACKWARD):
        raise UsageError("an optimizer that steps in the backward pass sees no private gradient: choose another optim.")
    if args.world_size > 1 or args.n_gpu > 1:
        raise UsageError(f"one process with one device is supported, got {max(args.world_size, args.n_gpu)}.")
    if not args.max_grad_norm > 0:
        raise UsageError(
            f"max_grad_norm is the clipping norm of one example: it must be positive, got {args.max_grad_norm}."
        )
    if public is not None and public is rows:
        raise UsageError("eval_dataset must be public rows, got the private train_dataset.")


_REFUSED_OPTIONS = {
    "compute_loss_func": f"the loss {_OWN_LOSS}",
    "optimizer_cls_and_kwargs": "pass optimizers=(optimizer, None), or choose one by args.optim",
    "model_init": "each trial of a search is a release",
}


def _refuse_beside_plan(**given: object) -> None:
    for name, value in given.items():
        if value is not None:
            raise UsageError(f"{name} is part of the plan: give either a plan or {name}.")


def _value(choice: object) -> str:
    return str(getattr(choice, "value", choice))
