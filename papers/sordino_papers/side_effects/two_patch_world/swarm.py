"""Many networks of one shape, trained side by side on rows of patches: laws need many trainings.

The gradient of a two-layer network is written out, so that all networks take a step in a few matrix products. This is a
simulation on rows that are nobody's, with no run, no budget and no epsilon; a test holds its steps to those of the
kernel.

Letters: `k` a network, `b` a row, `p` a patch, `r` a filter of either class, `d` a coordinate. The gradient by w_r is
(1 / m) (p_j - y_j) sum_p 1(<w_r, x_p> > 0) x_p, for a filter r of class j.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from sordino.errors import UsageError
from sordino.kernel.clipping import SCALED_TO
from sordino.kernel.randomness import Stream
from sordino_papers.side_effects.two_patch_world.descent import PatchDescent
from sordino_papers.side_effects.two_patch_world.network import PatchNetwork
from sordino_papers.side_effects.two_patch_world.world import CLASSES, PatchRows


def train_side_by_side(
    networks: Sequence[PatchNetwork], rows: Sequence[PatchRows], descents: Sequence[PatchDescent], randomness: Stream
) -> list[PatchNetwork]:
    """Network k is trained on rows k by descent k, which may differ in all but the number of steps.

    >>> from sordino_papers.side_effects.two_patch_world.world import TwoPatches
    >>> from sordino.kernel.randomness import Key
    >>> stream = Key.from_seed(0).stream("example")
    >>> rows, start = TwoPatches(dimension=8).draw(50, stream), PatchNetwork(8, 4, seed=0)
    >>> few = train_side_by_side([start] * 2, [rows] * 2, [PatchDescent(std, steps=3) for std in (0.0, 0.1)], stream)
    >>> len(few)
    2
    """
    steps = {descent.steps for descent in descents}
    if not len(networks) == len(rows) == len(descents) or len(steps) != 1:
        raise UsageError(
            f"as many networks as rows and descents, of one number of steps, got {len(networks)} networks, "
            f"{len(rows)} of rows, {len(descents)} descents of {sorted(steps)} steps."
        )
    inputs = torch.stack([one.inputs for one in rows])
    target = F.one_hot(torch.stack([one.target for one in rows]), CLASSES).to(inputs)
    weights = torch.stack([network.weights().flatten(0, 1) for network in networks])
    clip, rate, learning_rate, noise_std = (
        torch.tensor([getattr(descent, name) for descent in descents])[:, None]
        for name in ("clip_norm", "rate", "learning_rate", "noise_std")
    )
    products = inputs @ inputs.mT
    joining, noise = randomness.named("sampling"), randomness.named("noise")
    for step in range(steps.pop()):
        uniforms = torch.from_numpy(joining.uniforms(target[..., 0].numel(), step=step)).reshape(target.shape[:2])
        total = clipped_sums(weights, inputs, target, products, clip, uniforms < rate)
        normals = torch.from_numpy(noise.normals(weights.numel(), step=step)).float().reshape(weights.shape)
        mean = total / (rate * inputs.shape[1])[..., None] + noise_std[..., None] * normals
        weights = weights - learning_rate[..., None] * mean
    return [PatchNetwork.of(each.reshape(CLASSES, -1, each.shape[1])) for each in weights]


def clipped_sums(
    weights: Tensor, inputs: Tensor, target: Tensor, products: Tensor, clip: Tensor, joins: Tensor
) -> Tensor:
    """The sum over the rows that join of gradients clipped to norm `clip`, shape (k, r, d).

    `weights` (k, r, d), `inputs` (k, b, p, d), `target` one-hot (k, b, class), `products` <x_p, x_q> of each row (k, b,
    p, p), `clip` (k, 1), `joins` (k, b).
    """
    filters = weights.shape[1] // CLASSES
    seen = (inputs.flatten(1, 2) @ weights.mT).reshape(*inputs.shape[:3], -1)
    outputs = seen.relu().sum(dim=2).reshape(*target.shape, filters).mean(dim=-1)
    errors = (outputs.softmax(dim=-1) - target).repeat_interleave(filters, dim=-1) / filters
    slopes = torch.where(seen > 0, errors[:, :, None], 0.0)
    norms = torch.einsum("kbpq,kbpq->kb", slopes @ slopes.mT, products).clamp(min=0).sqrt()
    factors = joins * (SCALED_TO * clip / norms.clamp(min=1e-30)).clamp(max=1.0)
    return (slopes * factors[..., None, None]).flatten(1, 2).mT @ inputs.flatten(1, 2)
