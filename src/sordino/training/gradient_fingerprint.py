"""What a model, its loss and its optimizer make of rows that nobody owns, as a digest: is a step the same once more?

A checkpoint restores numbers, not code. The same shapes may stand for another activation, another dropout, another loss
or another optimizer of the same name, and the same noise on other sums would show the difference. So whoever goes on
with a run shows first what the gradients of synthetic rows are, at weights that are synthetic too, and where the
optimizer goes from there.
"""

from __future__ import annotations

import copy
import hashlib
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from sordino.gradients.agreement import at_synthetic_weights
from sordino.kernel.contribution import Contribution
from sordino.kernel.records import Records

_ROWS, _SEED = 3, 20_253


def rehearsal(
    contribution: Contribution, model: nn.Module, records: Records, optimizer: torch.optim.Optimizer | None = None
) -> str:
    """The digest. It depends on the shapes of the data and on no value of it; all is left as it was, bit for bit.

    >>> import torch.nn.functional as F
    >>> from sordino.kernel.contribution import LossGradient
    >>> from sordino.kernel.records import as_records
    >>> records = as_records((torch.zeros(9, 4), torch.zeros(9, dtype=torch.int64)))
    >>> one, other = (rehearsal(LossGradient(F.cross_entropy), nn.Linear(4, 3), records) for _ in range(2))
    >>> one == other  # weights are drawn, and differ; what is done with them is the same
    True
    """
    rows, digest = records.template(_ROWS), hashlib.blake2b(digest_size=8)
    with at_synthetic_weights(model):
        each = contribution.of(model, rows, torch.arange(_ROWS))
        norms = each.squared_norms()
        numbers = [norms, each.weighted_sum(torch.ones_like(norms))]
        if optimizer is not None:
            numbers += _moved(optimizer, model)
    for tensor in numbers:
        digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _moved(optimizer: torch.optim.Optimizer, model: nn.Module) -> list[Tensor]:
    """The weights after two steps on made-up gradients. The weights themselves are for the caller to put back."""
    generator, trained = torch.Generator().manual_seed(_SEED), [x for x in model.parameters() if x.requires_grad]
    with _put_back(optimizer), torch.random.fork_rng(devices=[]):
        for _ in range(2):
            for x in trained:
                x.grad = torch.randn(x.shape, generator=generator, dtype=x.dtype).to(x.device)
            optimizer.step()
        return [x.detach().clone() for x in trained]


@contextmanager
def _put_back(optimizer: torch.optim.Optimizer) -> Iterator[None]:
    """Steps within are forgotten: state, settings of groups, attributes and gradients are those of before.

    Within, nothing has a gradient yet: what has none is not moved.
    """
    groups, attributes = [dict(group) for group in optimizer.param_groups], dict(vars(optimizer))
    held = [x for group in groups for x in group["params"]]
    gradients = [x.grad for x in held]
    for x in held:
        x.grad = None
    state = {x: {name: _own(value) for name, value in entries.items()} for x, entries in optimizer.state.items()}
    optimizer.state = defaultdict(dict, state)
    try:
        yield
    finally:
        vars(optimizer).clear()
        vars(optimizer).update(attributes)
        for group, before in zip(optimizer.param_groups, groups, strict=True):
            group.clear()
            group.update(before)
        for x, gradient in zip(held, gradients, strict=True):
            x.grad = gradient


def _own(value: object) -> object:
    return value.clone() if isinstance(value, Tensor) else copy.deepcopy(value)
