"""Callbacks of a training: base class, progress bar, log messages, TensorBoard, and stopping early.

A callback receives public values only: step counts, epsilon, and measurements on public rows or charged to the budget.
Gradients, losses of private rows and batches are never passed to it.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sordino._input import validate
from sordino.accounting import Guarantee
from sordino.accounting.guarantee import rounded_up
from sordino.errors import UsageError
from sordino.training.progress import progress_bar

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

Row = dict[str, Any]

LOGGER = logging.getLogger("sordino")
LOGGER.addHandler(logging.NullHandler())


@dataclass(frozen=True)
class TrainingStart:
    """Public facts about a training before its first step. If it is resumed, with its steps and evaluations so far."""

    steps: int
    steps_taken: int
    batch_size: float
    noise_multiplier: float
    guarantee: Guarantee
    rows: tuple[Row, ...] = ()


class Callback:
    """Base class of callbacks. Override the methods that you need.

    An exception in a callback ends the training, which can be resumed if it has a run folder.

    >>> class CountSteps(Callback):
    ...     steps = 0
    ...     def on_step(self, step, steps):
    ...         self.steps = step
    >>> counter = CountSteps()
    >>> counter.on_step(1, 10)
    >>> counter.steps
    1
    """

    needs_evaluation: bool = False  # refuse a training that measures nothing on its way

    def on_start(self, start: TrainingStart) -> None:
        """Called once, before the first step."""

    def wants_to_stop(self) -> bool:
        """Asked before each step of `fit`: whether the training shall end here, with the weights that it has.

        The guarantee stays that of all planned steps, whatever the reason to stop.
        """
        return False

    def on_step(self, step: int, steps: int) -> None:
        """Called after each step with the number of steps taken and planned."""

    def on_evaluation(self, row: Row) -> None:
        """Called about twenty times per run with public values: step, epoch, epsilon, delta and measurements."""

    def on_end(self, row: Row) -> None:
        """Called after the last step, when the model has its final weights, with the last public values."""

    def on_close(self) -> None:
        """Called last, even if the training was stopped or failed."""


class CallbackList(Callback):
    """Several callbacks, called in order."""

    def __init__(self, callbacks: Iterable[Callback]) -> None:
        self._callbacks: Sequence[Callback] = tuple(callbacks)
        for place, callback in enumerate(self._callbacks):
            validate.instance(Callback, **{f"callbacks[{place}]": callback})
        self.needs_evaluation = any(callback.needs_evaluation for callback in self._callbacks)

    def wants_to_stop(self) -> bool:
        return any([callback.wants_to_stop() for callback in self._callbacks])

    def on_start(self, start: TrainingStart) -> None:
        for callback in self._callbacks:
            callback.on_start(start)

    def on_step(self, step: int, steps: int) -> None:
        for callback in self._callbacks:
            callback.on_step(step, steps)

    def on_evaluation(self, row: Row) -> None:
        for callback in self._callbacks:
            callback.on_evaluation(row)

    def on_end(self, row: Row) -> None:
        for callback in self._callbacks:
            callback.on_end(row)

    def on_close(self) -> None:
        for callback in self._callbacks:
            callback.on_close()


@contextmanager
def closing_callbacks(callbacks: Callback) -> Iterator[Callback]:
    """Calls `on_close` at the end of the block, even after an exception."""
    try:
        yield callbacks
    finally:
        callbacks.on_close()


class ProgressBar(Callback):
    """Progress bar on standard error, with steps, remaining time and epsilon spent so far."""

    def __init__(self, description: str = "training privately") -> None:
        self._description, self._promised = description, 0.0

    def on_start(self, start: TrainingStart) -> None:
        from rich.progress import TextColumn

        self._bar = progress_bar(True, None, TextColumn("{task.fields[spent]}"))
        self._bar.start()
        self._task = self._bar.add_task(self._description, total=start.steps, completed=start.steps_taken, spent="")
        self._promised = start.guarantee.epsilon

    def on_step(self, step: int, steps: int) -> None:
        self._bar.update(self._task, completed=step)

    def on_evaluation(self, row: Row) -> None:
        spent = f"epsilon {rounded_up(row['epsilon'], 3)} of {rounded_up(self._promised, 3)}"
        self._bar.update(self._task, spent=spent)

    def on_close(self) -> None:
        if hasattr(self, "_bar"):
            self._bar.stop()


class LogSteps(Callback):
    """Logs start, evaluations and end to the logger "sordino" of the standard `logging` module.

    `fit` always uses it. A program enables its messages, for example, with `logging.basicConfig(level="INFO")`.
    """

    def on_start(self, start: TrainingStart) -> None:
        LOGGER.info(
            "training %d steps from step %d with noise multiplier %.4g: epsilon %s at delta %g, %s",
            start.steps,
            start.steps_taken,
            start.noise_multiplier,
            rounded_up(start.guarantee.epsilon, 3),
            start.guarantee.delta,
            start.guarantee.adjacency,
        )

    def on_evaluation(self, row: Row) -> None:
        LOGGER.info("%s", ", ".join(f"{name} {_short(value)}" for name, value in row.items()))

    def on_end(self, row: Row) -> None:
        LOGGER.info("training ended after step %s", row.get("step"))


class EventLog(Callback):
    """Writes evaluations for TensorBoard into `folder`, which is made at the first one. See also `loggers`."""

    def __init__(self, folder: Path | str) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise UsageError("TensorBoard is not installed: install sordino[tensorboard].") from None
        self._make, self._folder = SummaryWriter, Path(folder)
        self._writer: SummaryWriter | None = None

    def on_evaluation(self, row: Row) -> None:
        if self._writer is None:
            self._writer = self._make(str(self._folder))
        for name, value in row.items():
            if name != "step":
                self._writer.add_scalar(name, value, row["step"])
        self._writer.flush()

    def on_close(self) -> None:
        if self._writer is not None:
            self._writer.close()


class EarlyStopping(Callback):
    """Ends a training when a measurement has not improved for `patience` evaluations in a row.

    It sees what was measured on public rows (`evaluation=Public(...)`), or on private rows by an evaluation that was
    charged before (`Charged`). Stopping saves time and no privacy: the guarantee is that of all planned steps.

    >>> stopping = EarlyStopping("validation_accuracy", patience=2)
    >>> for accuracy in (0.5, 0.7, 0.6, 0.7):
    ...     stopping.on_evaluation({"step": 1, "validation_accuracy": accuracy})
    >>> stopping.wants_to_stop(), stopping.best
    (True, 0.7)
    """

    needs_evaluation = True

    def __init__(
        self,
        metric: str = "validation_accuracy",
        *,
        patience: int = 3,
        least_gain: float = 0.0,
        lower_is_better: bool = False,
    ) -> None:
        validate.instance(str, metric=metric)
        validate.count(patience=patience)
        validate.between(0, 1e300, least_gain=least_gain)
        self.metric, self._patience, self._least_gain = metric, patience, least_gain
        self._sign = -1.0 if lower_is_better else 1.0
        self._best, self._in_vain = -math.inf, 0

    @property
    def best(self) -> float:
        """The best value so far."""
        return self._sign * self._best

    def on_start(self, start: TrainingStart) -> None:
        self._best, self._in_vain = -math.inf, 0
        for row in start.rows:
            self.on_evaluation(row)

    def on_evaluation(self, row: Row) -> None:
        if self.metric not in row:
            measured = [name for name in row if name.startswith("validation_")]
            raise UsageError(f"metric must be one of {', '.join(measured)}, got {validate.option(self.metric)}.")
        value = self._sign * float(row[self.metric])
        if value > self._best + self._least_gain:
            self._best, self._in_vain = value, 0
        else:
            self._in_vain += 1

    def wants_to_stop(self) -> bool:
        return self._in_vain >= self._patience


class CallOnEvaluation(Callback):
    """Calls a function with the row of each evaluation.

    >>> rows = []
    >>> CallOnEvaluation(rows.append).on_evaluation({"step": 1})
    >>> rows
    [{'step': 1}]
    """

    def __init__(self, function: Any) -> None:
        self._function = function

    def on_evaluation(self, row: Row) -> None:
        self._function(row)


def _short(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
