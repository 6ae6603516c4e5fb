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


def prepared_by(built: Built) -> str:
    """What prepares raw rows for the network, as a text that is another one whenever the numbers are.

    Weights fit any numbers of the right shape, so this is all that tells a model from one that expects others.

    >>> from sordino.models import build
    >>> prepared_by(build("two-layer", Facts("digits", (1, 8, 8), 10, (0.0, 16.0)), seed=0))
    'Pixels(input_range=(0.0, 16.0), mean=None, std=None), version 1'
    """
    if built.features is None:
        return "nothing"
    return f"{built.features!r}, version {getattr(built.features, 'version', 1)}"
