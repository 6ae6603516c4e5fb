"""The two-layer ReLU network of the two-patch world, and its results on each group."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sordino._input import validate
from sordino_papers.side_effects.two_patch_world.world import CLASSES, PatchRows, TwoPatches


class PatchNetwork(nn.Module):
    """F_j(x) = (1 / m) sum over filters r of class j of relu(<w_jr, x_1>) + relu(<w_jr, x_2>).

    m is `filters`, for each class. Weights begin as torch's own. The paper has its second layer fixed too, at values
    that were lost; 1 / m is ours.

    >>> network = PatchNetwork(dimension=8, filters=3, seed=0)
    >>> network(torch.zeros(5, 2, 8)).shape, network.weights().shape
    (torch.Size([5, 2]), torch.Size([2, 3, 8]))
    """

    def __init__(self, dimension: int = 400, filters: int = 20, *, seed: int) -> None:
        super().__init__()
        validate.count(dimension=dimension, filters=filters)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.filters = nn.Linear(dimension, CLASSES * filters, bias=False)

    @classmethod
    def of(cls, weights: Tensor) -> PatchNetwork:
        """The network with these weights, shape (class, filter, dimension)."""
        network = cls(weights.shape[2], weights.shape[1], seed=0)
        with torch.no_grad():
            network.filters.weight.copy_(weights.flatten(0, 1))
        return network

    def weights(self) -> Tensor:
        """Weights, shape (class, filter, dimension)."""
        return self.filters.weight.detach().reshape(CLASSES, -1, self.filters.in_features)

    def forward(self, patches: Tensor) -> Tensor:
        seen = F.relu(self.filters(patches)).sum(dim=-2)
        return seen.reshape(*seen.shape[:-1], CLASSES, -1).mean(dim=-1)


@dataclass(frozen=True)
class GroupOutcome:
    """Mean cross-entropy and accuracy of one group."""

    group: str
    loss: float
    accuracy: float


def outcomes(network: PatchNetwork, world: TwoPatches, rows: PatchRows) -> tuple[GroupOutcome, ...]:
    """Results of each group of the world. Rows must contain all groups, as `draw_evenly` draws them.

    >>> from sordino.kernel.randomness import Key
    >>> world = TwoPatches(dimension=8)
    >>> rows = world.draw_evenly(10, Key.from_seed(0).stream("rows"))
    >>> [one.group for one in outcomes(PatchNetwork(8, 4, seed=0), world, rows)][0]
    'class 1, majority'
    """
    with torch.no_grad():
        outputs = network(rows.inputs)
    losses = F.cross_entropy(outputs, rows.target, reduction="none")
    right = (outputs.argmax(dim=1) == rows.target).float()
    return tuple(
        GroupOutcome(group.name, float(losses[rows.group == place].mean()), float(right[rows.group == place].mean()))
        for place, group in enumerate(world.groups)
    )
