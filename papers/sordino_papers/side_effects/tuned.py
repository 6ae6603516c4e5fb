"""Networks that have learnt from public rows, and are then tuned in private on rows that look another way."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import lru_cache

from torch import Tensor, nn

from sordino import models
from sordino.data import DataSet, Facts, Split, load
from sordino.effects.rare_examples import train_plainly
from sordino.errors import DataError
from sordino_papers.side_effects.changed import Pictures
from sordino_papers.side_effects.trials import LENET, AttackedTrial


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
    """What a network learns from the training rows of a set, or `examples` of them, where these are public."""

    set_name: str
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


@lru_cache(maxsize=2)  # entries of one seed share what was learnt
def _learnt(learning: Learning, network: str, facts: Facts, seed: int) -> dict[str, Tensor]:
    rows = Pictures(learning.set_name, examples=learning.examples).rows(LENET)
    model = train_plainly(models.build(network, facts, seed=seed).module, *rows.data, seed=seed)
    return {name: x.detach().clone() for name, x in model.state_dict().items()}
