"""Networks that have learnt from public rows, and are then tuned in private on rows that look another way."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import ClassVar

from torch import Tensor

from sordino import models
from sordino.data import DataSet, Facts, Split, load
from sordino.effects.plain_training import train_plainly
from sordino.errors import DataError
from sordino.models import Built
from sordino_papers.side_effects.changed import Pictures
from sordino_papers.side_effects.trials import LENET


@dataclass(frozen=True)
class TurnedTest(Pictures):
    """The test rows of a set, turned: the first half is private, the other one is measured on."""

    kind: ClassVar[str] = "rotated-test-images"

    def chosen(self) -> DataSet:
        loaded = load(self.set_name)
        if loaded.test is None:
            raise DataError(f"{self.set_name} has no test rows to turn.")
        inputs, target = loaded.test.inputs, loaded.test.target
        half = len(target) // 2
        return replace(loaded, train=Split(inputs[:half], target[:half]), test=Split(inputs[half:], target[half:]))


@dataclass(frozen=True)
class PublicTraining:
    """A start from a network that was trained on the public training rows of a set, or on `examples` of them."""

    kind: ClassVar[str] = "public-training"
    set_name: str
    examples: int | None = None

    def weights(self, network: str, facts: Facts, seed: int) -> dict[str, Tensor]:
        return _learnt(self, network, facts, seed)

    def built(self, network: str, facts: Facts, seed: int) -> Built:
        built = models.build(network, facts, seed=seed)
        built.module.load_state_dict(self.weights(network, facts, seed))
        return built

    def quick(self) -> PublicTraining:
        return replace(self, examples=2_000)


@lru_cache(maxsize=2)  # entries of one seed share what was learnt
def _learnt(learning: PublicTraining, network: str, facts: Facts, seed: int) -> dict[str, Tensor]:
    rows = Pictures(learning.set_name, examples=learning.examples).rows(LENET)
    model = train_plainly(models.build(network, facts, seed=seed).module, *rows.data, seed=seed)
    return {name: x.detach().clone() for name, x in model.state_dict().items()}
