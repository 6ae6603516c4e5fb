"""The training loop: the only file with a loop over the steps of a run.

`Training` is the mutable state of a training: model, optimizer, average of the iterates, run. `take_steps` takes all
remaining steps, with checkpoints and requests to stop. `fit`, NoisyCGD, tuning trials, audits and experiments all call
it, and differ in how one step is taken.
"""

from __future__ import annotations

import math
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from inspect import isroutine
from types import FrameType
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from sordino.encodings.freeze import Rest, rest_of, step_at_rest
from sordino.errors import Interrupted, StateError, UsageError
from sordino.gradients.torch_state import original
from sordino.gradients.transformers_settings import transformers_model
from sordino.kernel.run import PrivateRun
from sordino.kernel.states import Private
from sordino.training.averaging import Average, Averaging, TorchAverage
from sordino.training.checkpoint import Checkpoint, Progress
from sordino.training.evaluation import Charged, Public, accuracy, regression
from sordino.training.schedules import AnySchedule, Constant, rates_at

if TYPE_CHECKING:
    from sordino.training.run_writer import RunWriter

Measure = Callable[[nn.Module, Public], dict[str, float]]
_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class StopRequest:
    """Whether the user has asked to stop (Ctrl-C or SIGTERM).

    >>> with stop_requests() as asked:
    ...     asked.to_stop
    False
    """

    def __init__(self) -> None:
        self.to_stop = False


@contextmanager
def stop_requests(wanted: bool = True) -> Iterator[StopRequest]:
    """Records the first Ctrl-C or SIGTERM inside the block; the second has its usual effect. Main thread only.

    A signal that came too late to stop the training is raised again at the end, so that a program that runs several
    trainings stops too.
    """
    asked = StopRequest()
    if not wanted or threading.current_thread() is not threading.main_thread():
        yield asked
        return
    usual, noted = {number: signal.getsignal(number) for number in _SIGNALS}, list[int]()

    def note(number: int, frame: FrameType | None) -> None:
        asked.to_stop = True
        noted.append(number)
        for each in _SIGNALS:
            signal.signal(each, usual[each])

    for number in _SIGNALS:
        signal.signal(number, note)
    try:
        yield asked
    finally:
        for number in _SIGNALS:
            signal.signal(number, usual[number])
    for late in noted:  # not reached if the training stopped because of it, which raises `Interrupted`
        signal.raise_signal(late)


class Training:
    """Applies the private gradients of a run to a model. This is post-processing, so it costs no privacy.

    Of a model inside `torch.compile`, `model` is the module itself, whose names are saved. The compiled one measures
    public rows.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        run: PrivateRun,
        *,
        divisor: float,
        schedule: AnySchedule | None = None,
        averaging: Averaging | None = None,
    ) -> None:
        self.model, self.optimizer, self.run = original(model), optimizer, run
        self._evaluated = model  # compiled, if the caller compiled it
        self._divisor, self._schedule, self._averaging = divisor, schedule or Constant(), averaging
        self._learning_rates = [float(group["lr"]) for group in optimizer.param_groups]
        self._trained = {name: x for name, x in self.model.named_parameters() if x.requires_grad}
        self._average = None if averaging is None else averaging.init(self._trained)

    def step(self) -> None:
        """Takes the run's next step."""
        step = self.run.steps
        self.descend(next(self.run), step)

    def write_gradient(self) -> None:
        """Takes the run's next step and writes its gradient to the model. The caller steps the optimizer."""
        next(self.run).divide(self._divisor).write_to(self.model)

    def descend(self, private: Private, step: int) -> None:
        """Takes one optimizer step with a private gradient divided by a public number. Frozen weights do not change."""
        steps = len(self.run)
        rates = rates_at(self._schedule, step, steps, self._learning_rates)
        for group, learning_rate in zip(self.optimizer.param_groups, rates, strict=True):
            group["lr"] = learning_rate
        private.divide(self._divisor).write_to(self.model)
        step_at_rest(self.optimizer, self.model, self._rest())
        if self._averaging is not None and self._average is not None:
            self._average = self._averaging.update(self._average, self._trained, step, steps)

    def end(self) -> None:
        """Loads the released weights into the model, and the average into torch's `AveragedModel` if there is one."""
        self.model.load_state_dict(self.weights())
        if isinstance(self._averaging, TorchAverage) and self._average is not None:
            self._averaging.write_to_model(self._average)

    def weights(self) -> dict[str, Tensor]:
        """The state dict to release, with averaged parameters if there is an average."""
        state = {name: x.detach() for name, x in self.model.state_dict().items()}
        if self._averaging is None or self._average is None:
            return state
        averaged = self._averaging.weights(self._average)
        if (rest := self._rest()) is not None:
            averaged = rest.at_rest(averaged, self._trained, self.run.layout)
        by_parameter = {id(parameter): averaged[name] for name, parameter in self._trained.items()}
        for name, parameter in self.model.named_parameters(remove_duplicate=False):  # tied weights have several names
            state[name] = by_parameter.get(id(parameter), state[name])
        return state

    def measure(self, rows: Public | Charged, by: Measure | None = None) -> dict[str, float]:
        """Evaluates the weights that would be released now: public rows `by` a function, or by a charged evaluation."""
        last = {name: x.detach().clone() for name, x in self.model.state_dict().items()}
        self.model.load_state_dict(self.weights())
        try:
            if isinstance(rows, Public):
                return (by or measured)(self._evaluated, rows)
            return {"accuracy": rows.accuracy(self.model)}
        finally:
            self.model.load_state_dict(last)

    def checkpoint(self, progress: Progress) -> Checkpoint:
        """The complete state on which the next step depends."""
        tensors = _named("model", self.model.state_dict()) | _named("coding", self.run.coding_state)
        if self._average is not None:
            tensors |= _named("average", self._average.state_tensors())
        values: dict[str, object] = {}
        for index, entries in self.optimizer.state_dict()["state"].items():
            for key, value in entries.items():
                name = f"{index}/{key}"
                if isinstance(value, Tensor):
                    tensors[f"optimizer/{name}"] = value
                else:
                    values[name] = value
        for name, tensor in tensors.items():
            if tensor.is_floating_point() and not bool(tensor.isfinite().all()):
                what = f"{name!r} is no longer finite at step {progress.step}"
                raise UsageError(f"training diverged: {what}. Choose a smaller learning rate.")
        settings = {"optimizer": values, "optimizer settings": settings_of(self.optimizer)}
        return Checkpoint(progress, tensors, settings | {"physical_batch_size": self.run.physical_batch_size})

    def restore(self, checkpoint: Checkpoint) -> None:
        """Continues from a checkpoint."""
        try:
            self.model.load_state_dict(_of("model", checkpoint.tensors))
            self._load_optimizer(checkpoint)
        except (RuntimeError, ValueError, KeyError) as error:
            raise StateError(f"the checkpoint does not fit the model: {' '.join(str(error).split())[:200]}") from None
        if self._average is not None:
            self._average = Average.from_tensors(_of("average", checkpoint.tensors), like=self._trained)
        progress = checkpoint.progress
        self.run.continue_at(progress.step, _of("coding", checkpoint.tensors), drawn_again=progress.drawn_again)

    def _rest(self) -> Rest | None:
        return rest_of(self.run.plan.encoding, self.run.coding_state)

    def _load_optimizer(self, checkpoint: Checkpoint) -> None:
        values = checkpoint.values["optimizer"]
        entries = {**_of("optimizer", checkpoint.tensors), **(values if isinstance(values, dict) else {})}
        state: dict[int, dict[str, Any]] = {}
        for name, value in entries.items():
            index, key = name.split("/", 1)
            state.setdefault(int(index), {})[key] = value
        self.optimizer.load_state_dict({"state": state, "param_groups": self.optimizer.state_dict()["param_groups"]})
        kept: Any = checkpoint.values["optimizer settings"]
        for group, settings in zip(self.optimizer.param_groups, kept["groups"], strict=True):
            group |= {name: _like(group.get(name), value) for name, value in settings.items()}
        for name, value in kept["attributes"].items():
            setattr(self.optimizer, name, _like(getattr(self.optimizer, name, None), value))


def take_steps(
    training: Training,
    *,
    take: Callable[[], None] | None = None,
    writer: RunWriter | None = None,
    stop: StopRequest | None = None,
    after_step: Callable[[], None] = lambda: None,
    ends_early: Callable[[], bool] = lambda: False,
) -> None:
    """Takes all remaining steps, or those until `ends_early`, which may depend on public values only.

    `take` takes one step, by default `training.step`. A `writer` writes checkpoints: no step begins before a checkpoint
    covers it. With a `writer`, a `stop` request ends the loop after the current step with `Interrupted`.
    """
    run, take = training.run, take or training.step
    for _ in steps_left(run):
        if ends_early():
            return
        if writer is not None:
            writer.before_step(training)
        take()
        after_step()
        if writer is not None and stop is not None and stop.to_stop and run.steps < len(run):
            writer.at_rest(training)
            raise Interrupted(f"stopped after step {run.steps} of {len(run)}; nothing is lost, resume it.")


def steps_left(run: PrivateRun) -> Iterator[int]:
    """Yields the number of each remaining step. The caller takes it before asking for the next one."""
    while run.steps < len(run):
        yield run.steps


def releases_of(run: PrivateRun) -> Iterator[tuple[int, Tensor]]:
    """Yields the number of steps counted and the private gradient of each step at constant weights, for checks."""
    for private in run:
        yield run.steps, private.value


def described_optimizer(optimizer: torch.optim.Optimizer, model: nn.Module) -> str:
    """Identity of an optimizer: its class, and the settings and parameters of each of its groups.

    >>> layer = nn.Linear(2, 1)
    >>> groups = [{"params": [layer.weight]}, {"params": [layer.bias], "lr": 0.5}]
    >>> one, other = (torch.optim.SGD(groups, lr=rate) for rate in (0.1, 0.2))
    >>> described_optimizer(one, layer) == described_optimizer(other, layer)
    False
    """
    kind, names = type(optimizer), {id(parameter): name for name, parameter in model.named_parameters()}
    groups = []
    for group in optimizer.param_groups:
        settings = sorted((name, _spoken(value)) for name, value in group.items() if name != "params")
        groups.append((settings, [names.get(id(x), f"another, {tuple(x.shape)}") for x in group["params"]]))
    return repr((f"{kind.__module__}.{kind.__qualname__}", _spoken(optimizer.defaults), groups))


def settings_of(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Settings of an optimizer's groups, and its attributes, in which some optimizers count steps.

    Refuses values that a checkpoint cannot hold: a repeated step must be exactly the same step, or its noise would be
    added to another sum, and the difference of the two releases would have no noise.
    """
    kind = type(optimizer).__name__
    hooks = (*optimizer._optimizer_step_pre_hooks, *optimizer._optimizer_step_post_hooks)
    if hooks or "step" in vars(optimizer):
        raise UsageError(
            f"the step of the {kind} is changed by hooks, so it cannot be repeated from a checkpoint: remove them, or "
            "train without out."
        )
    groups = [{name: value for name, value in x.items() if name != "params"} for x in optimizer.param_groups]
    attributes = {name: value for name, value in vars(optimizer).items() if name not in _OF_TORCH}
    for name, value in (*(item for group in groups for item in group.items()), *attributes.items()):
        if not (_is_plain(value) or isroutine(value) or (name == "lr" and isinstance(value, Tensor))):
            raise UsageError(
                f"the {kind} keeps {name!r} ({type(value).__name__}) outside its state, where no checkpoint holds it: "
                "keep it in optimizer.state, or train without out."
            )
    return {"groups": [_plain_of(group) for group in groups], "attributes": _plain_of(attributes)}


_OF_TORCH = frozenset(vars(torch.optim.SGD([nn.Parameter(torch.zeros(1))])))


def _plain_of(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if _is_plain(value)}


def _is_plain(value: object) -> bool:
    if isinstance(value, (tuple, list)):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, (bool, int, float, str))


def _like(before: object, value: Any) -> Any:
    """The value as a tuple if it was a tuple before it was written to JSON, which has no tuples."""
    return tuple(value) if isinstance(before, tuple) else value


def _spoken(value: object) -> str:
    """String of a value that is equal in every process: without memory addresses, and with the values of tensors."""
    if isinstance(value, Mapping):
        return repr(sorted((str(name), _spoken(x)) for name, x in value.items()))
    if isinstance(value, Tensor):
        return repr((str(value.dtype), value.tolist()))
    return repr(value) if _is_plain(value) else getattr(value, "__qualname__", type(value).__qualname__)


def measured(model: nn.Module, public: Public) -> dict[str, float]:
    """Accuracy of a classifier, or errors of a regression model (one with a floating-point target).

    Transformers of Hugging Face have measurements of their own.

    >>> measured(nn.Identity(), Public((torch.eye(2), torch.tensor([0, 0]))))
    {'accuracy': 0.5}
    """
    if transformers_model(model) is not None:
        from sordino import huggingface

        return huggingface.measured(model, public)
    if not public.records.template(1).target.is_floating_point():
        return {"accuracy": accuracy(model, public)}
    errors = regression(model, public)
    return {name: value for name, value in vars(errors).items() if math.isfinite(value)}


def _named(kind: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {f"{kind}/{name}": tensor for name, tensor in tensors.items()}


def _of(kind: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name.removeprefix(f"{kind}/"): x for name, x in tensors.items() if name.startswith(f"{kind}/")}
