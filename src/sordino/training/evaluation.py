"""How good a model is: measured on rows that are declared public, or on private ones at a price that is charged first.

Theorem. Let s_u in [0, 1] be the share of unit u's rows that a model has right, a function of u's rows and the model
only. The sum of the s_u moves by at most 1 when a unit is added, removed or replaced by nothing, so the sum plus normal
noise of standard deviation sigma is a Gaussian mechanism of multiplier sigma. Each model may depend on all that was
released before: the evaluations compose with one another, and with whatever else the budget holds. Division by a public
number is post-processing.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from functools import cached_property
from threading import Lock

import torch
import torch.nn.functional as F
from dp_accounting.dp_event import SelfComposedDpEvent
from torch import Tensor, nn
from torch.func import vmap

from sordino._input import validate
from sordino.accounting import Adjacency
from sordino.errors import BudgetError, DataError, UsageError
from sordino.gradients.row_loss import Loss, RowLoss
from sordino.kernel.budget import Budget
from sordino.kernel.noise import Gaussian
from sordino.kernel.randomness import Key
from sordino.kernel.records import Records, as_records
from sordino.kernel.rows import ReadAt
from sordino.kernel.states import BoundedSum, Layout
from sordino.training.metrics import Regression, correctness, correctness_by_class
from sordino.training.scoring import check_scorable, evaluating, scores_of_units

_ROWS_AT_A_TIME = 1024
_SMALLEST_DELTA = 1e-12
_SUM = Layout(("correct",), ((1,),))


@dataclass(frozen=True)
class Public:
    """Rows that anybody may see: inputs and target, as for training. To write the word is to declare it.

    >>> Public((torch.zeros(5, 3), torch.zeros(5))).records.num_units
    5
    """

    data: object = field(repr=False)

    @cached_property
    def records(self) -> Records:
        return as_records(self.data, allow_single=True)


def accuracy(model: nn.Module, public: Public, *, batch_size: int = _ROWS_AT_A_TIME) -> float:
    """The share of labels that the model has right. `metrics.wilson` gives an interval for it.

    >>> rows = torch.tensor([[2.0, 1.0], [0.0, 1.0], [5.0, 3.0]])
    >>> round(accuracy(nn.Identity(), Public((rows, torch.tensor([0, 1, 1])))), 3)
    0.667
    """
    return float(correctness(*_outputs(model, public, batch_size)).mean())


def per_class_accuracy(model: nn.Module, public: Public, *, batch_size: int = _ROWS_AT_A_TIME) -> dict[int, float]:
    """The same for the rows of each class that occurs."""
    return correctness_by_class(*_outputs(model, public, batch_size))


def regression(model: nn.Module, public: Public, *, batch_size: int = _ROWS_AT_A_TIME) -> Regression:
    """Mean squared error and R^2 of a model of numbers."""
    return Regression.of(*_outputs(model, public, batch_size))


def mean_loss(
    model: nn.Module, public: Public, loss: Loss = F.cross_entropy, *, batch_size: int = _ROWS_AT_A_TIME
) -> float:
    """The mean over rows of the loss that training sums: of one row at a time."""
    row_loss = RowLoss.of(loss)
    outputs, target = _outputs(model, public, batch_size)
    losses, usable = vmap(lambda output, label: row_loss(output[None], label[None]))(outputs, target)
    if not bool(usable.all()):
        raise DataError(f"{int((~usable).sum())} public rows have a label outside the model's classes.")
    return float(losses.double().mean())


class Charged:
    """Accuracy on the private rows of a budget, with noise. All `evaluations` are charged when this is made.

    `noise_multiplier` is the standard deviation of the noise on the number of units that are right. A user with several
    rows counts by the share of them that is right. The divisor is `expected_examples`, the number of units unless said;
    under add-or-remove that number is secret, and it has to be said.

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
        self._release = budget.open(
            "validation",
            noise=self._noise,
            adjacency=adjacency,
            key=key,
            event=SelfComposedDpEvent(self._noise.event, evaluations),
            steps=evaluations,
            delta=budget.delta or _SMALLEST_DELTA,
        )
        self._records, self._expected = budget.records, expected_examples or budget.records.num_units
        self._evaluations, self._taken, self._evaluating = evaluations, 0, Lock()

    @property
    def identity(self) -> str:
        """By which a resumed run knows that the same noise will be drawn. It tells nothing about the key."""
        return hashlib.blake2b(b"identity", key=self._release.key.secret).hexdigest()

    def continue_at(self, taken: int) -> None:
        """Goes on after the evaluations `taken` before a run was stopped, with the same key and the same models."""
        validate.count(at_least=0, at_most=self._evaluations, taken=taken)
        if self._taken not in (0, taken):
            raise UsageError(f"an evaluation can be continued before its first only, this one has taken {self._taken}.")
        self._taken = taken

    @property
    def remaining(self) -> int:
        """How many evaluations are charged and not taken."""
        return self._evaluations - self._taken

    @property
    def std(self) -> float:
        """The standard deviation of the noise on an accuracy."""
        return self._noise.std(1.0) / self._expected

    def accuracy(self, model: nn.Module, *, batch_size: int = _ROWS_AT_A_TIME) -> float:
        """The accuracy with its noise, which may take it out of [0, 1]. Each call takes one evaluation."""
        validate.count(batch_size=batch_size)
        check_scorable(model, self._records)
        self._release.check_process()
        with self._evaluating:  # one thread at a time, in the order of steps
            step = self._begin_evaluation()
            total, at = BoundedSum.of_nobody(1.0, _SUM), ReadAt(self._release.stream("rows"), step)
            for units in torch.split(torch.arange(self._records.num_units), batch_size):
                scores = scores_of_units(model, self._records.gather(units, at)).cpu()
                total += BoundedSum.of_rows(scores[:, None], 1.0, _SUM)
            private = self._release.add(total, step)
        return float(private.divide(self._expected).value)

    def _begin_evaluation(self) -> int:
        if not self.remaining:
            raise BudgetError(f"{self._evaluations} evaluations were charged and all have been taken.")
        self._taken += 1
        return self._taken - 1


def _outputs(model: nn.Module, public: Public, batch_size: int) -> tuple[Tensor, Tensor]:
    """The outputs for all public rows, and their targets."""
    validate.instance(nn.Module, model=model)
    validate.instance(Public, public=public)
    validate.count(batch_size=batch_size)
    device = next((p.device for p in model.parameters()), torch.device("cpu"))
    outputs, targets = [], []
    with evaluating(model), torch.inference_mode():
        for units in torch.split(torch.arange(public.records.num_units), batch_size):
            batch = public.records.gather(units).to(device)
            if not bool(batch.valid.all()):
                raise DataError(f"{int((~batch.valid).sum())} of the public rows cannot be read, or are not finite.")
            outputs.append(model(*batch.inputs))
            targets.append(batch.target)
    return torch.cat(outputs), torch.cat(targets)
