"""What a model and its loss make of rows that nobody owns, as a digest: whether a step would be the same once more.

A checkpoint restores numbers, not code. The same shapes may stand for another activation, another dropout or another
loss of the same name, and the same noise on their sums would show the difference. So whoever goes on with a run shows
first what the gradients of synthetic rows are, at weights that are synthetic too.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from sordino.contribution import Contribution
from sordino.records import Records

_ROWS, _SEED = 3, 20_252


def rehearsal(contribution: Contribution, model: nn.Module, records: Records) -> str:
    """The digest. It depends on the shapes of the data and on no value of it; the model is left as it was, bit for bit.

    >>> import torch.nn.functional as F
    >>> from sordino.contribution import LossGradient
    >>> from sordino.records import as_records
    >>> records = as_records((torch.zeros(9, 4), torch.zeros(9, dtype=torch.int64)))
    >>> one, other = (rehearsal(LossGradient(F.cross_entropy), nn.Linear(4, 3), records) for _ in range(2))
    >>> one == other  # weights are drawn, and differ; what is done with them is the same
    True
    """
    rows, digest = records.template(_ROWS), hashlib.blake2b(digest_size=8)
    with _at_synthetic_weights(model):
        each = contribution.of(model, rows, torch.arange(_ROWS))
        norms = each.squared_norms()
        for numbers in (norms, each.weighted_sum(torch.ones_like(norms))):
            digest.update(numbers.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


@contextmanager
def _at_synthetic_weights(model: nn.Module) -> Iterator[None]:
    """All that a checkpoint restores is made up for a while, so that only what it does not restore can differ."""
    restored, generator = _restored(model), torch.Generator().manual_seed(_SEED)
    kept = [tensor.clone() for tensor in restored]
    try:
        for tensor in restored:
            tensor.copy_(_made_up(tensor, generator))
        yield
    finally:
        for tensor, before in zip(restored, kept, strict=True):
            tensor.copy_(before)


def _restored(model: nn.Module) -> list[Tensor]:
    """Without gradients, and each tensor once, however many names it has."""
    saved = model.state_dict().keys()
    buffers = [buffer for name, buffer in model.named_buffers() if name in saved]
    return [tensor.detach() for tensor in (*model.parameters(), *buffers) if tensor.is_floating_point()]


def _made_up(like: Tensor, generator: torch.Generator) -> Tensor:
    """Of a size that neither vanishes nor overflows in a deep network. Vectors may be variances, and are positive."""
    if like.ndim < 2:
        return 0.5 + torch.rand(like.shape, generator=generator)
    inputs = math.prod(like.shape[1:])
    return torch.randn(like.shape, generator=generator) / math.sqrt(max(1, inputs))
