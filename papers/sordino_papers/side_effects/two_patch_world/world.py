"""A world of two patches: one shows what a row's class is known by, the other is noise.

Xu and Chen (2026), section 2. A class has features of its own, a common one and a rare one, and all features are
orthogonal. A row is two patches of `dimension` numbers in random order: the feature of its group, and N(0, s^2 I). The
numbers of the paper's own worlds did not come down to us; the defaults are ours. The rows are nobody's.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import cos, isclose, radians, sin

import torch
from torch import Tensor

from sordino._input import validate
from sordino.errors import UsageError
from sordino.kernel.randomness import Stream

CLASSES = 2


@dataclass(frozen=True)
class PatchGroup:
    """Rows of one class with one feature: its length, and the share of all rows that show it."""

    name: str
    label: int
    feature_norm: float
    share: float

    def __post_init__(self) -> None:
        validate.count(at_least=0, at_most=CLASSES - 1, label=self.label)
        validate.positive(feature_norm=self.feature_norm)
        validate.between(0, 1, low_open=True, share=self.share)


FOUR_GROUPS = (
    PatchGroup("class 1, majority", 0, 1.0, 0.4),
    PatchGroup("class 1, minority", 0, 0.5, 0.1),
    PatchGroup("class 2, majority", 1, 0.8, 0.4),
    PatchGroup("class 2, minority", 1, 0.4, 0.1),
)


@dataclass(frozen=True, eq=False)
class PatchRows:
    """Rows of a world: `inputs` (row, patch, dimension), the class of each row and the group that it belongs to."""

    inputs: Tensor
    target: Tensor
    group: Tensor

    @property
    def data(self) -> tuple[Tensor, Tensor]:
        return self.inputs, self.target

    def of_group(self, group: int) -> PatchRows:
        """The rows of one group, by its place among those of the world."""
        which = self.group == group
        return PatchRows(self.inputs[which], self.target[which], self.group[which])

    def __len__(self) -> int:
        return len(self.target)


@dataclass(frozen=True)
class TwoPatches:
    """The law that rows are drawn from. `patch_noise` is the standard deviation of a number in the noise patch.

    >>> from sordino.kernel.randomness import Key
    >>> world = TwoPatches(dimension=16)
    >>> rows = world.draw(100, Key.from_seed(0).stream("rows"))
    >>> rows.inputs.shape, sorted(set(rows.group.tolist()))
    (torch.Size([100, 2, 16]), [0, 1, 2, 3])
    >>> world.features().norm(dim=1)
    tensor([1.0000, 0.5000, 0.8000, 0.4000])
    """

    groups: tuple[PatchGroup, ...] = FOUR_GROUPS
    dimension: int = 400
    patch_noise: float = 0.1
    rotation: float = 0.0

    def __post_init__(self) -> None:
        validate.count(at_least=max(2, len(self.groups)), dimension=self.dimension)
        validate.between(0, float("inf"), patch_noise=self.patch_noise)
        validate.between(0, 90, rotation=self.rotation)
        if not isclose(sum(group.share for group in self.groups), 1.0):
            raise UsageError(f"shares of groups must sum to 1, got {sum(group.share for group in self.groups):g}.")
        if self.rotation and [group.label for group in self.groups] != [0, 1]:
            raise UsageError(
                "a rotated world must have one group of each class, class 1 first: use `one_feature_each`."
            )

    def features(self) -> Tensor:
        """The feature of each group, shape (group, dimension).

        Rotated by an angle t, that of class 1 turns towards class 2 and that of class 2 away from class 1: cos t u1 +
        sin t u2 and cos t u2 - sin t u1 (appendix B).
        """
        norms = torch.tensor([group.feature_norm for group in self.groups])
        directions = torch.eye(len(self.groups), self.dimension)
        if self.rotation:
            angle = radians(self.rotation)
            turn = torch.tensor([[cos(angle), sin(angle)], [-sin(angle), cos(angle)]])
            directions = turn @ directions
        return norms[:, None] * directions

    def rotated(self, degrees: float) -> TwoPatches:
        """The same world with its features turned: rows to fine-tune on, after this one was trained on."""
        return replace(self, rotation=degrees)

    def draw(self, examples: int, randomness: Stream) -> PatchRows:
        """Rows whose groups come up by their shares."""
        validate.count(examples=examples)
        bounds = torch.tensor([group.share for group in self.groups], dtype=torch.float64).cumsum(0)[:-1]
        uniforms = torch.from_numpy(randomness.named("groups").uniforms(examples, step=0))
        return self._rows(torch.bucketize(uniforms, bounds, right=True), randomness)

    def draw_evenly(self, per_group: int, randomness: Stream) -> PatchRows:
        """So many rows of every group, whatever its share: to measure each as well as any other."""
        validate.count(per_group=per_group)
        return self._rows(torch.arange(len(self.groups)).repeat_interleave(per_group), randomness)

    def _rows(self, group: Tensor, randomness: Stream) -> PatchRows:
        size = len(group) * self.dimension
        drawn = randomness.named("patches").normals(size, step=0)
        noise = torch.from_numpy(drawn).float().reshape(-1, self.dimension)
        pair = torch.stack([self.features()[group], self.patch_noise * noise], dim=1)
        noise_first = torch.from_numpy(randomness.named("order").uniforms(len(group), step=0)) < 0.5
        labels = torch.tensor([one.label for one in self.groups])
        return PatchRows(torch.where(noise_first[:, None, None], pair.flip(1), pair), labels[group], group)


def one_feature_each(feature_norm: float, *, dimension: int = 400, patch_noise: float = 0.1) -> TwoPatches:
    """Two classes of equal size, each with one feature of this length.

    >>> one_feature_each(2.0).rotated(90.0).features()[:, :2].abs().round()
    tensor([[0., 2.],
            [2., 0.]])
    """
    groups = PatchGroup("class 1", 0, feature_norm, 0.5), PatchGroup("class 2", 1, feature_norm, 0.5)
    return TwoPatches(groups, dimension, patch_noise)
