"""Evaluation of models: on public rows, or on private rows with noise that is charged to the budget.

Theorem. Let s_u in [0, 1] be the fraction of unit u's rows that a model classifies correctly, a function of u's rows
and the model only. The sum of the s_u moves by at most 1 when a unit is added, removed or replaced by nothing, so the
sum plus normal noise of standard deviation sigma is a Gaussian mechanism of multiplier sigma. Each model may depend on
all that was released before: the evaluations compose with one another, and with all other releases of the budget.
Division by a public number is post-processing.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from threading import Lock

import torch
import torch.nn.functional as F
from dp_accounting.dp_event import DpEvent, SelfComposedDpEvent
from scipy.stats import binomtest
from torch import Tensor, nn
from torch.func import vmap

from sordino._input import validate
from sordino.accounting import Adjacency
from sordino.errors import BudgetError, DataError, UsageError
from sordino.gradients import torch_state
from sordino.gradients.loop import why_alone
from sordino.gradients.one_pass import TensorTracker, one_pass
from sordino.gradients.probes import one_line
from sordino.gradients.recurrent import OwnInitialState
from sordino.gradients.row_loss import Loss, RowLoss, logits_of
from sordino.gradients.torch_state import device_of, frozen_half_precision, original, pinned, working_dtype
from sordino.gradients.transformers_settings import transformers_settings
from sordino.gradients.vmapped import fixed_values, trained_values
from sordino.kernel.budget import Budget
from sordino.kernel.noise import Gaussian
from sordino.kernel.randomness import Key
from sordino.kernel.records import Batch, Data, Records, as_records
from sordino.kernel.rows import ReadAt
from sordino.kernel.states import BoundedSum, Layout


def correctness(outputs: Tensor, target: Tensor) -> Tensor:
    """Fraction of each row's labels that are predicted correctly, float64, shape (rows,).

    For outputs (rows, classes, ...) and labels (rows, ...), the prediction is the class of the largest output. If there
    are as many outputs as labels, they are binary logits and the prediction is their sign. Rows with outputs that are
    not finite score 0.

    >>> correctness(torch.tensor([[0.1, 0.9], [0.8, 0.2]]), torch.tensor([1, 1]))
    tensor([1., 0.], dtype=torch.float64)
    """
    return _right(outputs, target).reshape(len(target), -1).double().mean(dim=1)


def correctness_by_class(outputs: Tensor, target: Tensor) -> dict[int, float]:
    """Fraction of labels predicted correctly, for each class that occurs.

    >>> correctness_by_class(torch.eye(3), torch.tensor([0, 1, 1]))
    {0: 1.0, 1: 0.5}
    """
    right = _right(outputs, target).flatten()
    classes, which = torch.unique(target.to(torch.int64).flatten(), return_inverse=True)
    shares = torch.bincount(which, weights=right.double()) / torch.bincount(which)
    return dict(zip(classes.tolist(), shares.tolist(), strict=True))


@dataclass(frozen=True)
class Regression:
    """Errors of a regression model: mean squared error and R^2.

    >>> Regression.of(torch.tensor([[1.0], [2.0]]), torch.tensor([1.0, 3.0]))
    Regression(mse=0.5, r2=0.5)
    """

    mse: float
    r2: float

    @classmethod
    def of(cls, outputs: Tensor, target: Tensor) -> Regression:
        if outputs.numel() != target.numel():
            raise UsageError(_shape_mismatch(outputs, target))  # (n, 1) - (n,) would broadcast to (n, n)
        target = target.double()
        mse = float((outputs.double().reshape(target.shape) - target).square().mean())
        variance = float((target - target.mean(dim=0)).square().mean())
        return cls(mse, 1 - mse / variance if variance > 0 else math.nan)


def wilson(successes: float, trials: int, *, confidence: float = 0.95) -> tuple[float, float]:
    """Wilson's (1927) confidence interval for a probability: it stays in [0, 1] and is valid near the ends too.

    >>> [round(end, 4) for end in wilson(9850, 10_000)]
    [0.9824, 0.9872]
    """
    validate.count(trials=trials)
    validate.between(0, trials, successes=successes)
    if successes != round(successes):
        raise UsageError(f"successes must be a whole number, got {successes}.")
    validate.between(0, 1, low_open=True, high_open=True, confidence=confidence)
    found = binomtest(round(successes), trials).proportion_ci(confidence, method="wilson")
    return float(found.low), float(found.high)


def _right(outputs: Tensor, target: Tensor) -> Tensor:
    if outputs.numel() == target.numel():
        right = (outputs > 0).reshape(target.shape).to(target.dtype) == target
    elif outputs.ndim == target.ndim + 1 and outputs.shape[:1] + outputs.shape[2:] == target.shape:
        right = outputs.argmax(dim=1) == target
    else:
        raise UsageError(_shape_mismatch(outputs, target))
    finite = outputs.reshape(len(outputs), -1).isfinite().all(dim=1)
    return right & finite.reshape(-1, *[1] * (target.ndim - 1))


def _shape_mismatch(outputs: Tensor, target: Tensor) -> str:
    return f"outputs of shape {tuple(outputs.shape)} do not match targets of shape {tuple(target.shape)}."


_FINEST = 2.0**-20  # scores are multiples of it: their sums are exact, so rounding adds nothing to the sensitivity


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Puts the model into eval mode. Afterwards each module gets its own mode back.

    >>> model = nn.Dropout()
    >>> with evaluating(model):
    ...     model.training
    False
    >>> model.training
    True
    """
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training


def check_scorable(model: nn.Module, records: Records) -> None:
    """Raises if the model fails on synthetic rows."""
    validate.instance(nn.Module, model=model)
    working_dtype(model)
    try:
        _scores(model, records.template(2).to(device_of(model)))
    except (RuntimeError, IndexError) as error:
        raise UsageError(f"the model cannot be evaluated on one example at a time: {one_line(error)}") from error


def scores_of_units(model: nn.Module, batch: Batch) -> Tensor:
    """Fraction of each unit's rows classified correctly, rounded down to a multiple of 2**-20, float64.

    >>> from sordino.kernel.records import as_records
    >>> batch = as_records((torch.eye(2), torch.zeros(2, dtype=torch.int64))).gather(torch.arange(2))
    >>> model = nn.Linear(2, 2)
    >>> _ = model.load_state_dict({"weight": torch.eye(2), "bias": torch.zeros(2)})
    >>> scores_of_units(model, batch)
    tensor([1., 0.], dtype=torch.float64)
    """
    batch = batch.to(device_of(model))
    sums = torch.zeros(batch.num_units, dtype=torch.float64, device=batch.units.device)
    sums.index_add_(0, batch.units, _scores_where_possible(model, batch))
    rows = torch.bincount(batch.units, minlength=batch.num_units)
    return (sums / rows / _FINEST).floor() * _FINEST


def _scores_where_possible(model: nn.Module, batch: Batch) -> Tensor:
    """Scores of all rows at once. If that fails, of each half, down to single rows, of which a failing one scores 0."""
    rows = len(batch.target)
    try:
        return torch.where(batch.valid, _scores(model, batch), 0.0)
    except (RuntimeError, IndexError):
        if rows == 1:
            return torch.zeros(1, dtype=torch.float64, device=batch.units.device)
    halves = slice(0, rows // 2), slice(rows // 2, rows)
    return torch.cat([_scores_where_possible(model, batch.take(half)) for half in halves])


def _scores(model: nn.Module, batch: Batch) -> Tensor:
    """Scores by `vmap` over batches of one, so that a score depends on its own row only, whatever the model does."""
    model = original(model)
    values, dtype = {**fixed_values(model), **trained_values(model)}, working_dtype(model)

    def score_of_one(row: tuple[Tensor, ...], label: Tensor, zero: Tensor) -> Tensor:
        with TensorTracker(of_this_pass), OwnInitialState(zero):
            outputs = torch_state.call(model, values, tuple(x[None] for x in row), batch.names)
            return correctness(logits_of(outputs), label[None])[0]

    rows = tuple(x.to(dtype) if x.is_floating_point() else x for x in batch.inputs)
    with evaluating(model), pinned(model, frozen_half_precision(model)), torch.no_grad(), one_pass() as of_this_pass:
        scores: Tensor = vmap(score_of_one)(rows, batch.target, torch.zeros(len(batch.target), device=rows[0].device))
    return scores


_ROWS_AT_A_TIME = 1024
_SMALLEST_DELTA = 1e-12
_SUM = Layout(("correct",), ((1,),))


@dataclass(frozen=True)
class Public:
    """Rows that the caller declares public: inputs and target, as for training.

    >>> Public((torch.zeros(5, 3), torch.zeros(5))).records.num_units
    5
    """

    data: Data = field(repr=False)

    @cached_property
    def records(self) -> Records:
        return as_records(self.data, allow_single=True)


@dataclass(frozen=True)
class Evaluation:
    """Rows for evaluation in a training: `during` about twenty times per run, `at_end` once after the last step.

    >>> rows = Public((torch.zeros(5, 3), torch.zeros(5)))
    >>> Evaluation(during=rows, at_end=rows).event is None  # public rows cost nothing
    True
    """

    during: Public | Charged | None = None
    at_end: Public | None = None

    def __post_init__(self) -> None:
        validate.instance((Public, Charged, type(None)), during=self.during)
        validate.instance((Public, type(None)), at_end=self.at_end)

    @property
    def charged(self) -> Charged | None:
        """The evaluations on private rows, or None."""
        return self.during if isinstance(self.during, Charged) else None

    @property
    def event(self) -> DpEvent | None:
        """The privacy event of all charged evaluations, or None."""
        return None if self.charged is None else self.charged.event

    @classmethod
    def of(cls, given: Evaluation | Public | Charged | None) -> Evaluation:
        """Makes an `Evaluation` of rows: `during` training, and `at_end` too if they are public."""
        if isinstance(given, Evaluation):
            return given
        validate.instance((Public, Charged, type(None)), evaluation=given)
        return cls(given, given if isinstance(given, Public) else None)


def accuracy(model: nn.Module, public: Public, *, batch_size: int = _ROWS_AT_A_TIME) -> float:
    """Accuracy on public rows. `wilson` gives a confidence interval for it.

    >>> rows = torch.tensor([[2.0, 1.0], [0.0, 1.0], [5.0, 3.0]])
    >>> round(accuracy(nn.Identity(), Public((rows, torch.tensor([0, 1, 1])))), 3)
    0.667
    """
    return float(correctness(*outputs_on(model, public, batch_size)).mean())


def per_class_accuracy(model: nn.Module, public: Public, *, batch_size: int = _ROWS_AT_A_TIME) -> dict[int, float]:
    """Accuracy on public rows, for each class that occurs."""
    return correctness_by_class(*outputs_on(model, public, batch_size))


def regression(model: nn.Module, public: Public, *, batch_size: int = _ROWS_AT_A_TIME) -> Regression:
    """Mean squared error and R^2 of a regression model on public rows."""
    return Regression.of(*outputs_on(model, public, batch_size))


def mean_loss(
    model: nn.Module, public: Public, loss: Loss = F.cross_entropy, *, batch_size: int = _ROWS_AT_A_TIME
) -> float:
    """Mean loss on public rows, computed for one row at a time as in training."""
    row_loss = RowLoss.of(loss)
    outputs, target = outputs_on(model, public, batch_size)
    losses, usable = vmap(lambda output, label: row_loss(output[None], label[None]))(outputs, target)
    if not bool(usable.all()):
        raise DataError(f"{int((~usable).sum())} public rows have a label outside the model's classes.")
    return float(losses.double().mean())


class Charged:
    """Accuracy on the private rows of a budget, with noise. All `evaluations` are charged when this object is made.

    `noise_multiplier` is the standard deviation of the noise on the number of correct units. A user with several rows
    counts as the fraction of them that are correct. The divisor is `expected_examples`, by default the number of units.
    Under add-or-remove that number is secret, so `expected_examples` must be given.

    >>> budget = Budget((torch.eye(3).repeat(100, 1), torch.arange(3).repeat(100)))
    >>> charged = Charged(budget, noise_multiplier=2.0, evaluations=1, seed=0)
    >>> -0.1 < charged.accuracy(nn.Linear(3, 3)) < 1.1
    True
    >>> charged.remaining, round(charged.std, 4)
    (0, 0.0067)
    """

    def __init__(
        self,
        budget: Budget,
        noise_multiplier: float,
        evaluations: int,
        *,
        adjacency: Adjacency = Adjacency.ZERO_OUT,
        expected_examples: int | None = None,
        seed: int | None = None,
        key: Key | None = None,
    ) -> None:
        validate.instance(Budget, budget=budget)
        validate.count(evaluations=evaluations)
        if expected_examples is not None:
            validate.count(expected_examples=expected_examples)
        elif adjacency is Adjacency.ADD_OR_REMOVE:
            raise UsageError("add-or-remove keeps the number of units secret: give a public expected_examples.")
        if seed is not None and key is not None:
            raise UsageError("seed and key exclude each other: a seed makes noise reproducible, a key keeps it secret.")
        if key is None:
            key = Key.fresh() if seed is None else Key.from_seed(seed)
        self._noise = Gaussian(noise_multiplier)
        self.event: DpEvent = SelfComposedDpEvent(self._noise.event, evaluations)
        self.budget, self.has_seed = budget, key.reproducible
        self._release = budget.open(
            "validation",
            noise=self._noise,
            adjacency=adjacency,
            key=key,
            event=self.event,
            steps=evaluations,
            delta=budget.delta or _SMALLEST_DELTA,
        )
        self._records, self._expected = budget.records, expected_examples or budget.records.num_units
        self._evaluations, self._taken, self._evaluating = evaluations, 0, Lock()

    @property
    def identity(self) -> str:
        """A keyed hash with which a resumed run checks that it draws the same noise. It reveals nothing of the key."""
        return hashlib.blake2b(b"identity", key=self._release.key.secret).hexdigest()

    def continue_at(self, taken: int) -> None:
        """Continues after the `taken` evaluations of a stopped run, which had the same key and the same models."""
        validate.count(at_least=0, at_most=self._evaluations, taken=taken)
        if self._taken not in (0, taken):
            raise UsageError(
                f"continue_at must be called before the first evaluation, got one after {self._taken} evaluations."
            )
        self._taken = taken

    @property
    def remaining(self) -> int:
        """Number of evaluations that are charged and not yet taken."""
        return self._evaluations - self._taken

    @property
    def std(self) -> float:
        """The standard deviation of the noise on an accuracy."""
        return self._noise.std(1.0) / self._expected

    def accuracy(self, model: nn.Module, *, batch_size: int = _ROWS_AT_A_TIME) -> float:
        """Noisy accuracy, which may lie outside [0, 1]. Each call uses one of the charged evaluations."""
        validate.count(batch_size=batch_size)
        check_scorable(model, self._records)
        self._release.check_process()
        with self._evaluating:  # one thread at a time, in the order of steps
            step = self._begin_evaluation()
            total, at = BoundedSum.of_nobody(1.0, _SUM), ReadAt(self._release.stream("rows"), step)
            parts = torch.split(torch.arange(self._records.num_units), batch_size)
            for batch in self._records.gather_each(parts, at):
                scores = scores_of_units(model, batch).cpu()
                total += BoundedSum.of_rows(scores[:, None], 1.0, _SUM)
            private = self._release.add(total, step)
        return float(private.divide(self._expected).value)

    def _begin_evaluation(self) -> int:
        if not self.remaining:
            raise BudgetError(f"all {self._evaluations} evaluations that were charged have been used.")
        self._taken += 1
        return self._taken - 1


def outputs_on(model: nn.Module, public: Public, batch_size: int = _ROWS_AT_A_TIME) -> tuple[Tensor, Tensor]:
    """Outputs for all public rows, and their targets. A model that can only run on one row at a time gets one."""
    validate.instance(nn.Module, model=model)
    validate.instance(Public, public=public)
    validate.count(batch_size=batch_size)
    device = next((p.device for p in model.parameters()), torch.device("cpu"))
    batch_size = batch_size if why_alone(model) is None else 1
    outputs, targets = [], []
    half = frozen_half_precision(model)
    with (
        evaluating(model),
        transformers_settings(model),
        torch.autocast(device.type, dtype=half, enabled=half is not None),
        torch.inference_mode(),
    ):
        for gathered in public.records.gather_each(torch.split(torch.arange(public.records.num_units), batch_size)):
            batch = gathered.to(device)
            if not bool(batch.valid.all()):
                raise DataError(f"{int((~batch.valid).sum())} of the public rows are not finite or cannot be read.")
            by_name = dict(zip(batch.names, batch.inputs, strict=True)) if batch.names else {}
            found = logits_of(model(**by_name) if by_name else model(*batch.inputs))
            outputs.append(found if half is None else found.float())
            targets.append(batch.target)
    return torch.cat(outputs), torch.cat(targets)
