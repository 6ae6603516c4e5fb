"""Rare examples: accuracy by how hard a public ensemble finds a row, and the examples that lose most.

The ensemble is trained without privacy, on public rows only. The rows are split in two halves, and each member is
trained on one of them. A row is evaluated by the members that were not trained on it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from sordino.effects.groups import Group, Grouping
from sordino.errors import DataError
from sordino.recipes import FinishedRun
from sordino.training.evaluation import correctness

_BATCH, _LR = 128, 3e-3
_EPOCHS, _FEWEST_STEPS = 10, 1000
WORDS = (
    f"Adam with learning rate {_LR:g} decaying linearly to 0, batches of {_BATCH}, {_EPOCHS} epochs and at least "
    f"{_FEWEST_STEPS} steps"
)


def as_input(rows: Tensor) -> Tensor:
    """Rows as a network takes them: bytes and half-precision features as float32, other types such as ids unchanged."""
    return rows.float() if rows.dtype in (torch.uint8, torch.float16) else rows


def train_plainly(model: nn.Module, inputs: Tensor, target: Tensor, *, seed: int) -> nn.Module:
    """Trains the model without clipping and noise, and returns it in eval mode.

    The result is as private as the rows: do not publish it if they are not public.

    >>> rows, model = 9 * torch.eye(4).repeat(50, 1), nn.Linear(4, 4)
    >>> _ = nn.init.zeros_(model.weight)
    >>> model = train_plainly(model, rows, torch.arange(4).repeat(50), seed=0)
    >>> model(rows[:4]).argmax(dim=1)
    tensor([0, 1, 2, 3])
    """
    generator = torch.Generator().manual_seed(seed)
    per_epoch = math.ceil(len(target) / _BATCH)
    epochs = max(_EPOCHS, math.ceil(_FEWEST_STEPS / per_epoch))
    optimizer = torch.optim.Adam(model.parameters(), _LR)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, epochs * per_epoch)
    model.train()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)  # for dropout
        for _ in range(epochs):
            for rows in torch.split(torch.randperm(len(target), generator=generator), _BATCH):
                optimizer.zero_grad()
                torch.autograd.backward(F.cross_entropy(model(as_input(inputs[rows])), target[rows]))
                optimizer.step()
                schedule.step()
    return model.eval()


MEMBERS = 2  # for each half of the rows
_FEWEST = 20


@dataclass(frozen=True)
class PublicEnsemble:
    """Class probabilities for each public row by the members that were not trained on it, [members, rows, classes]."""

    probabilities: Tensor = field(repr=False)
    target: Tensor = field(repr=False)

    @property
    def right(self) -> NDArray[np.float64]:
        """The fraction of the members that classify each row right."""
        fractions: Tensor = torch.stack([correctness(each, self.target) for each in self.probabilities]).mean(dim=0)
        return fractions.numpy()

    @property
    def likelihoods(self) -> NDArray[np.float64]:
        """The probability of each row's label, averaged over the members."""
        likelihoods: NDArray[np.float64] = self._of_labels.squeeze(2).mean(dim=0).double().numpy()
        return likelihoods

    @property
    def margins(self) -> NDArray[np.float64]:
        """The probability of each row's label minus that of the most probable other class, averaged over the members.

        >>> PublicEnsemble(torch.tensor([[[0.9, 0.1]], [[0.3, 0.7]]]), torch.tensor([0])).margins.round(3)
        array([0.2])
        """
        others = self.probabilities.scatter(2, self._label_index, -torch.inf).amax(dim=2)
        margins: NDArray[np.float64] = (self._of_labels.squeeze(2) - others).mean(dim=0).double().numpy()
        return margins

    @property
    def _label_index(self) -> Tensor:
        return self.target[:, None].expand(len(self.probabilities), -1, 1)

    @property
    def _of_labels(self) -> Tensor:
        return self.probabilities.gather(2, self._label_index)


def train_public_ensemble(saved: FinishedRun, raw: Tensor, target: Tensor, *, seed: int) -> PublicEnsemble:
    """Trains networks of the run's architecture on public rows, without privacy."""
    if len(target) < _FEWEST:
        raise DataError(f"the public ensemble needs at least {_FEWEST} public rows, got {len(target)}.")
    inputs = saved.network_inputs(raw)
    order = torch.randperm(len(target), generator=torch.Generator().manual_seed(seed))
    halves = order[: len(order) // 2], order[len(order) // 2 :]
    probabilities = torch.zeros(MEMBERS, len(target), saved.facts.num_classes or 0)
    for fold, (train, test) in enumerate((halves, halves[::-1])):
        for member in range(MEMBERS):
            own = seed + 1 + MEMBERS * fold + member
            network = saved.fresh_network(own)
            train_plainly(network, inputs[train], target[train], seed=own)
            with torch.no_grad():
                outputs = torch.cat([network(as_input(rows)) for rows in torch.split(inputs[test], 1024)])
            probabilities[member, test] = outputs.softmax(dim=1)
    return PublicEnsemble(probabilities, target)


DECILES = 10
SCORE = "margin under an ensemble trained on other public rows"


def by_decile(margins: NDArray[np.float64]) -> Grouping:
    """Splits rows into ten groups of nearly equal size, from the smallest margins to the largest.

    >>> [group.rows.tolist() for group in by_decile(np.array([0.5, -0.2, 0.9])).groups]
    [[1], [0], [2]]
    """
    order = np.argsort(margins, kind="stable")
    parts = np.array_split(order, min(DECILES, len(order)))
    groups = tuple(Group("tenth", _name(number, len(parts)), rows) for number, rows in enumerate(parts, start=1))
    return Grouping("tenth", groups)


@dataclass(frozen=True)
class HarmedExample:
    """A public row, and the probability of its label under a reference model and under the model."""

    row: int
    reference: float
    model: float


def most_harmed(
    reference: NDArray[np.float64], model: NDArray[np.float64], wrong: NDArray[np.bool_], count: int
) -> tuple[HarmedExample, ...]:
    """The misclassified rows whose label lost most probability compared with the reference, without rows that gained.

    >>> most_harmed(np.array([0.9, 0.5, 0.8]), np.array([0.1, 0.4, 0.7]), np.array([True, True, False]), 2)
    (HarmedExample(row=0, reference=0.9, model=0.1), HarmedExample(row=1, reference=0.5, model=0.4))
    """
    loss = np.where(wrong, reference - model, 0.0)
    order = np.argsort(-loss, kind="stable")[:count]
    return tuple(HarmedExample(int(row), float(reference[row]), float(model[row])) for row in order if loss[row] > 0)


def _name(number: int, parts: int) -> str:
    ends = {1: " (hardest)", parts: " (easiest)"}
    return f"tenth {number}{ends.get(number, '')}"
