"""Made-up pictures as a network is given the rows of a data set: public rows for whatever needs some."""

from __future__ import annotations

from torch import Generator, Tensor

from sordino.data import Facts
from sordino.data.dead_leaves import DeadLeaves
from sordino.models import Built


def made_up_rows(built: Built, facts: Facts, count: int, *, seed: int) -> Tensor:
    """So many pictures of dead leaves, in the public range of a data set with these facts, prepared for the network.

    >>> from sordino import models
    >>> facts = Facts("pictures", (1, 28, 28), 10, (0.0, 1.0))
    >>> rows = made_up_rows(models.build("dp-cnn-s", facts, seed=0), facts, 3, seed=0)
    >>> rows.shape, bool((rows.amax() <= 1) & (rows.amax() > 0.5))
    (torch.Size([3, 1, 28, 28]), True)
    """
    pictures = DeadLeaves(facts.input_shape).draw(count, Generator().manual_seed(seed)).pictures
    if facts.input_range is not None:
        low, high = facts.input_range
        pictures = low + (high - low) * pictures.float() / 255
    return pictures if built.features is None else built.features(pictures)
