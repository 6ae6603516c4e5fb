"""Freezing: whole parameters that add nothing and get no noise."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from sordino.encoding import State
from sordino.encodings.masking import Masking
from sordino.errors import UsageError
from sordino.randomness import Stream
from sordino.states import Layout, Private


@dataclass(frozen=True)
class Freeze:
    """Keeps the parameters of these names where they are. Their gradients take no part in the clip.

    A parameter that never moves is cheaper with `requires_grad` off; this is for combining with other encodings.

    >>> layout = Layout(("weight", "bias"), ((2, 2), (2,)))
    >>> Freeze(["weight"]).init(layout)["keep"]
    tensor([False, False, False, False,  True,  True])
    """

    names: tuple[str, ...]

    def __init__(self, names: Sequence[str]) -> None:
        object.__setattr__(self, "names", tuple(names))

    def init(self, layout: Layout) -> State:
        for name in self.names:
            if name not in layout.names:
                raise UsageError(f"names must be of trainable parameters, got {name!r:.80}.")
        frozen = [torch.tensor([name in self.names]) for name in layout.names]
        parts = [is_frozen.expand(size) for is_frozen, size in zip(frozen, layout.sizes, strict=True)]
        return {"keep": ~torch.cat(parts)}

    def codec(self, state: State, step: int, randomness: Stream) -> Masking:
        return Masking(state["keep"])

    def update(self, state: State, private: Private) -> State:
        return state
