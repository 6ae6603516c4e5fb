"""Audit of a hidden-state run: canaries act in every epoch, and the attacker sees the last iterate only.

A canary is an example with one feature that no other example has, and a label so far away that its gradient is clipped
in every step: the strongest pull in a direction of its own that the plan allows. The run is `fit_hidden_state` itself,
on a linear model, for which the theorem is the same as for every convex network. All canaries are in the last batch of
an epoch, because the least noise follows it. No dataset is needed.
"""

from __future__ import annotations

from dataclasses import replace
from math import isqrt

import torch
from torch import Tensor

from sordino._input import validate
from sordino.accounting import Adjacency
from sordino.attacks.audit.canaries import coins
from sordino.attacks.audit.scores import Scores
from sordino.convex.hidden_run import fit_hidden_state
from sordino.convex.model import Linear
from sordino.convex.noisy_cgd import NoisyCGD
from sordino.kernel.randomness import Key

_FAR = 1e6  # in units of the clip: a label that no prediction ever reaches
_MOST_BYTES = 1 << 30


def on_canaries_alone(plan: NoisyCGD, canaries: int) -> NoisyCGD:
    """The plan for a dataset of canaries and rows of zeros, with the same guarantee.

    The contribution of a unit and the noise are both proportional to 1 / batch size, so only the radius of the ball
    of weights has to be rescaled.
    """
    examples = canaries * plan.sampler.batches_per_epoch
    if plan.radius is None or plan.examples is None:
        return replace(plan, model=Linear(), examples=None)
    radius = plan.radius * plan.batch_size(plan.examples) / canaries
    return replace(plan, model=Linear(), radius=radius, examples=examples)


def most_in_last_iterate(plan: NoisyCGD) -> int:
    """The largest number of canaries whose rows, with one feature per canary, fit into memory."""
    return isqrt(_MOST_BYTES // plan.sampler.batches_per_epoch)


def last_iterate_scores(plan: NoisyCGD, *, canaries: int, delta: float, seed: int) -> Scores:
    """Trains by the plan on canaries, and scores each canary by the weight of its feature in the last iterate.

    >>> from sordino.kernel.sampling import Cyclic
    >>> plan = NoisyCGD(Cyclic(3, 4), Linear(), clip=1.0, noise_multiplier=1.0, learning_rate=0.5)
    >>> scores = last_iterate_scores(plan, canaries=200, delta=1e-5, seed=0)
    >>> bool(scores.values[scores.included].mean() > scores.values[~scores.included].mean())
    True
    """
    validate.count(at_most=most_in_last_iterate(plan), canaries=canaries)
    batches = plan.sampler.batches_per_epoch
    included = coins(canaries, Key.from_seed(seed))
    rows = _rows(plan, batches, torch.from_numpy(included))
    alone = on_canaries_alone(plan, canaries)
    fitted = fit_hidden_state(alone, rows, outputs=1, delta=delta, seed=seed, progress=False)
    weights = torch.cat([x.detach().flatten() for x in fitted.model.parameters()])
    return Scores(weights.double().numpy(), included)


def _rows(plan: NoisyCGD, batches: int, included: Tensor) -> tuple[Tensor, Tensor]:
    """Inputs and labels of all batches, with the canaries as the last batch.

    A canary that is left out is a row of zeros; under replace-one adjacency it is replaced by its opposite.
    """
    canaries, far = len(included), _FAR * plan.clip
    inputs = torch.zeros(batches * canaries, canaries, dtype=torch.uint8)
    labels = torch.zeros(batches * canaries)
    last = slice((batches - 1) * canaries, None)
    if plan.adjacency is Adjacency.REPLACE_ONE:
        inputs[last], labels[last] = torch.eye(canaries, dtype=torch.uint8), torch.where(included, far, -far)
    else:
        inputs[last], labels[last] = torch.diag(included.to(torch.uint8)), torch.where(included, far, 0.0)
    return inputs, labels
