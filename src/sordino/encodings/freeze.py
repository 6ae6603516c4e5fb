"""Freezing: parameters that add nothing, get no noise, and stay where they are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn

from sordino._input import validate
from sordino.encodings.codecs import MaskCodec
from sordino.encodings.freeze_by_magnitude import FreezeByMagnitude, Together, Weights
from sordino.encodings.resting import Rest
from sordino.errors import UsageError
from sordino.kernel.encoding import State
from sordino.kernel.randomness import Stream
from sordino.kernel.states import Layout


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
        validate.instance(Sequence, names=names)
        object.__setattr__(self, "names", tuple(names))

    @classmethod
    def by_magnitude(
        cls,
        model: nn.Module,
        *,
        stages: Sequence[int],
        final: float = 0.77,
        together: Together | None = None,
        prune: bool = False,
    ) -> FreezeByMagnitude:
        """Freezes the smallest weights of the model that is trained, more of them in each stage.

        >>> Freeze.by_magnitude(nn.Linear(4, 3), stages=(100, 200))
        FreezeByMagnitude(stages=(100, 200), final=0.77, together=Weights(), prune=False)
        """
        return FreezeByMagnitude(model, stages, final, together or Weights(), prune)

    def init(self, layout: Layout) -> State:
        for name in self.names:
            if name not in layout.names:
                raise UsageError(f"names must be of trainable parameters, got {validate.option(name)}.")
        frozen = [torch.tensor([name in self.names]) for name in layout.names]
        parts = [is_frozen.expand(size) for is_frozen, size in zip(frozen, layout.sizes, strict=True)]
        return {"keep": ~torch.cat(parts)}

    def codec(self, state: State, step: int, randomness: Stream) -> MaskCodec:
        return MaskCodec(state["keep"], learn=lambda released: state)

    def rest(self, state: State) -> Rest:
        return Rest.of(~state["keep"])
