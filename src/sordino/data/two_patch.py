"""A synthetic distribution with features of known strength: what noise does to each group can be computed.

A row has two patches, in random order: the feature of its class and group, and Gaussian noise. Each class has a
majority and a minority feature; all four are orthogonal, and a minority's is weaker. Nothing here is anybody's data.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from sordino._input import validate
from sordino.data.dataset import DataSet, Facts, Split
from sordino.errors import UsageError


@dataclass(frozen=True)
class TwoPatch:
    """The distribution. Norms are per class; `minority_share` is the chance that a row is of its class's minority.

    >>> drawn = TwoPatch(num_train=6, num_test=4, dimension=8).draw(seed=0)
    >>> drawn.train.inputs.shape, sorted(drawn.train.groups)
    (torch.Size([6, 2, 8]), ['minority'])
    """

    num_train: int = 1000
    num_test: int = 1000
    dimension: int = 400
    noise_std: float = 0.2
    majority_norms: tuple[float, float] = (1.0, 0.8)
    minority_norms: tuple[float, float] = (0.5, 0.4)
    minority_share: float = 0.2

    def __post_init__(self) -> None:
        validate.count(num_train=self.num_train, num_test=self.num_test)
        validate.count(at_least=4, dimension=self.dimension)  # four orthogonal features need as many directions
        validate.between(0.0, 1e6, noise_std=self.noise_std)
        validate.between(0.0, 1.0, minority_share=self.minority_share)
        validate.instance((tuple, list), majority_norms=self.majority_norms, minority_norms=self.minority_norms)
        if not len(self.majority_norms) == len(self.minority_norms) == 2:
            raise UsageError("majority_norms and minority_norms must be two norms each, one per class.")
        for place, (strong, weak) in enumerate(zip(self.majority_norms, self.minority_norms, strict=True)):
            validate.positive(**{f"majority_norms[{place}]": strong, f"minority_norms[{place}]": weak})
            if weak > strong:
                raise UsageError("a minority norm must be at most its class's majority norm, got a larger one.")

    def features(self) -> Tensor:
        """The features (class, group, dimension), group 0 being the majority, along the first four axes of space."""
        norms = torch.tensor([self.majority_norms, self.minority_norms]).T.flatten()
        return (norms[:, None] * torch.eye(4, self.dimension)).reshape(2, 2, self.dimension)

    def draw(self, seed: int) -> DataSet:
        """Rows for training and for testing. The same seed gives the same rows."""
        validate.count(at_least=0, at_most=2**63 - 1, seed=seed)
        generator = torch.Generator().manual_seed(seed)
        train, test = self._rows(self.num_train, generator), self._rows(self.num_test, generator)
        return DataSet(Facts("two-patch", (2, self.dimension), 2), train, test)

    def _rows(self, number: int, generator: torch.Generator) -> Split:
        target = torch.randint(2, (number,), generator=generator)
        minority = (torch.rand(number, generator=generator) < self.minority_share).to(torch.int64)
        place = torch.randint(2, (number,), generator=generator)
        inputs = self.noise_std * torch.randn(number, 2, self.dimension, generator=generator)
        inputs[torch.arange(number), place] = self.features()[target, minority]
        return Split(inputs, target, groups={"minority": minority})
