"""Networks that have learnt from public rows, and are then tuned in private on rows that look another way."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sordino import models
from sordino.data import DataSet, Facts, Split, load
from sordino.errors import DataError
from sordino.experiments.fairness.changed import Pictures
from sordino.experiments.fairness.trials import LENET, AttackedTrial


@dataclass(frozen=True)
class TurnedTest(Pictures):
    """The test rows of a set, turned: the first half is private, the other one is measured on."""

    def chosen(self) -> DataSet:
        loaded = load(self.set_name)
        if loaded.test is None:
            raise DataError(f"{self.set_name} has no test rows to turn.")
        inputs, target = loaded.test.inputs, loaded.test.target
        half = len(target) // 2
        return replace(loaded, train=Split(inputs[:half], target[:half]), test=Split(inputs[half:], target[half:]))


@dataclass(frozen=True)
class Learning:
    """Plain steps of Adam on public rows, without privacy."""

    set_name: str
    epochs: int = 5
    batch_size: int = 128
    learning_rate: float = 1e-3
    examples: int | None = None

    def weights(self, network: str, facts: Facts, seed: int) -> dict[str, Tensor]:
        return _learnt(self, network, facts, seed)


@dataclass(frozen=True)
class FineTuned(AttackedTrial):
    """Begins where a network has got to on public rows."""

    learnt: Learning = field(default_factory=lambda: Learning("mnist"))

    def build(self, facts: Facts, seed: int) -> nn.Module:
        model = super().build(facts, seed)
        model.load_state_dict(self.learnt.weights(self.network, facts, seed))
        return model


@lru_cache(maxsize=2)  # entries of one seed share what was learnt: of each network, the whole table follows
def _learnt(learning: Learning, network: str, facts: Facts, seed: int) -> dict[str, Tensor]:
    rows = Pictures(learning.set_name, examples=learning.examples).rows(LENET)
    model = models.build(network, facts, seed=seed).module
    optimizer = torch.optim.Adam(model.parameters(), lr=learning.learning_rate)
    generator = torch.Generator().manual_seed(seed)
    for _ in range(learning.epochs):
        for batch in torch.split(torch.randperm(len(rows), generator=generator), learning.batch_size):
            optimizer.zero_grad()
            F.cross_entropy(model(rows.inputs[batch]), rows.target[batch]).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
    return {name: x.detach().clone() for name, x in model.state_dict().items()}
