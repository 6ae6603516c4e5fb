"""What a network is given for raw rows: the same in training, in testing and in prediction."""

from __future__ import annotations

from torch import Tensor

from sordino.data import Facts
from sordino.models import Built


def network_inputs(built: Built, facts: Facts, raw: Tensor, *, progress: bool = False) -> Tensor:
    """Features where the network has them, which know the public range themselves; otherwise rows held to that range.

    A number that is not finite stays so: the row counts as absent.
    """
    prepared = built.prepare(raw, progress=progress)
    if built.features is not None or facts.input_range is None:
        return prepared
    return prepared.clamp(*facts.input_range)
