"""A model, its optimizer and the average of its iterates around a run: the one object that changes while training."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from sordino.averaging import Average, Averaging
from sordino.checkpoint import Checkpoint, Progress
from sordino.encodings.resting import Rest, rest_of, step_at_rest
from sordino.errors import StateError, UsageError
from sordino.run import PrivateRun
from sordino.schedule import Schedule
from sordino.states import Private
from sordino.validation import Charged, Public, accuracy, regression


class Training:
    """Takes the steps of a run. All of it is post-processing of `Private` gradients, so none of it costs privacy."""

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        run: PrivateRun,
        *,
        divisor: float,
        schedule: Schedule,
        averaging: Averaging | None,
    ) -> None:
        self.model, self.optimizer, self.run = model, optimizer, run
        self._divisor, self._schedule, self._averaging = divisor, schedule, averaging
        self._learning_rates = [float(group["lr"]) for group in optimizer.param_groups]
        self._trained = {name: x for name, x in model.named_parameters() if x.requires_grad}
        self._average = None if averaging is None else averaging.init(self._trained)

    def step(self) -> None:
        """Takes the run's next step."""
        step = self.run.steps
        self.descend(next(self.run), step)

    def descend(self, private: Private, step: int) -> None:
        """One private gradient, divided by a public number, given to the optimizer. What rests is not moved."""
        steps = len(self.run)
        factor = self._schedule.factor(step, steps)
        for group, learning_rate in zip(self.optimizer.param_groups, self._learning_rates, strict=True):
            group["lr"] = learning_rate * factor
        private.divide(self._divisor).write_to(self.model)
        step_at_rest(self.optimizer, self.model, self._rest())
        if self._averaging is not None and self._average is not None:
            self._average = self._averaging.update(self._average, self._trained, step, steps)

    def weights(self) -> dict[str, Tensor]:
        """What is released in the end: the model's state with averaged parameters, where there is an average."""
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

    def measure(self, rows: Public | Charged) -> dict[str, float]:
        """How good the weights that would be released now are, on rows declared public or at a price paid before."""
        last = {name: x.detach().clone() for name, x in self.model.state_dict().items()}
        self.model.load_state_dict(self.weights())
        try:
            return measured(self.model, rows) if isinstance(rows, Public) else {"accuracy": rows.accuracy(self.model)}
        finally:
            self.model.load_state_dict(last)

    def checkpoint(self, progress: Progress) -> Checkpoint:
        """All that the next step depends on."""
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
        return Checkpoint(progress, tensors, {"optimizer": values, "physical_batch_size": self.run.physical_batch_size})

    def restore(self, checkpoint: Checkpoint) -> None:
        """Goes on from there."""
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


def measured(model: nn.Module, public: Public) -> dict[str, float]:
    """The accuracy of a model of classes; the errors of a model of numbers, which has a floating target.

    >>> measured(nn.Identity(), Public((torch.eye(2), torch.tensor([0, 0]))))
    {'accuracy': 0.5}
    """
    if not public.records.template(1).target.is_floating_point():
        return {"accuracy": accuracy(model, public)}
    errors = regression(model, public)
    return {name: value for name, value in vars(errors).items() if math.isfinite(value)}


def _named(kind: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {f"{kind}/{name}": tensor for name, tensor in tensors.items()}


def _of(kind: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name.removeprefix(f"{kind}/"): x for name, x in tensors.items() if name.startswith(f"{kind}/")}
