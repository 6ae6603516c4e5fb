"""A small ensemble that learns from public rows only: what is easy, and what a network without noise can reach.

Rows are split in two, and each member learns from one half. A row is judged by the members that have not seen it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sordino.effects.plain_training import as_input, train_plainly
from sordino.errors import DataError
from sordino.recipes import FinishedRun
from sordino.training.evaluation import correctness

MEMBERS = 2  # of each half
_FEWEST = 20


@dataclass(frozen=True)
class PublicEnsemble:
    """What the members say about each public row that they have not seen: probabilities [members, rows, classes]."""

    probabilities: Tensor = field(repr=False)
    target: Tensor = field(repr=False)

    @property
    def right(self) -> NDArray[np.float64]:
        """The share of the members that have each row right."""
        found: Tensor = torch.stack([correctness(each, self.target) for each in self.probabilities]).mean(dim=0)
        return found.numpy()

    @property
    def likelihoods(self) -> NDArray[np.float64]:
        """How likely its own label is to the members, for each row."""
        found: NDArray[np.float64] = self._of_labels.squeeze(2).mean(dim=0).double().numpy()
        return found

    @property
    def margins(self) -> NDArray[np.float64]:
        """The probability of each row's label less that of the likeliest other class, on average over the members.

        >>> PublicEnsemble(torch.tensor([[[0.9, 0.1]], [[0.3, 0.7]]]), torch.tensor([0])).margins.round(3)
        array([0.2])
        """
        others = self.probabilities.scatter(2, self._answer, -torch.inf).amax(dim=2)
        found: NDArray[np.float64] = (self._of_labels.squeeze(2) - others).mean(dim=0).double().numpy()
        return found

    @property
    def _answer(self) -> Tensor:
        return self.target[:, None].expand(len(self.probabilities), -1, 1)

    @property
    def _of_labels(self) -> Tensor:
        return self.probabilities.gather(2, self._answer)


def train_public_ensemble(saved: FinishedRun, raw: Tensor, target: Tensor, *, seed: int) -> PublicEnsemble:
    """Networks like that of the run, trained on public rows as one does without privacy."""
    if len(target) < _FEWEST:
        raise DataError(f"an ensemble needs at least {_FEWEST} public rows, got {len(target)}.")
    inputs = saved.network_inputs(raw)
    order = torch.randperm(len(target), generator=torch.Generator().manual_seed(seed))
    halves = order[: len(order) // 2], order[len(order) // 2 :]
    said = torch.zeros(MEMBERS, len(target), saved.facts.num_classes or 0)
    for fold, (seen, unseen) in enumerate((halves, halves[::-1])):
        for member in range(MEMBERS):
            own = seed + 1 + MEMBERS * fold + member
            network = saved.fresh_network(own)
            train_plainly(network, inputs[seen], target[seen], seed=own)
            with torch.no_grad():
                outputs = torch.cat([network(as_input(rows)) for rows in torch.split(inputs[unseen], 1024)])
            said[member, unseen] = outputs.softmax(dim=1)
    return PublicEnsemble(said, target)
