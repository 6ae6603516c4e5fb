"""What a recorded operation must know: how its parameters' gradients follow from its input and its output's gradient.

Index letters: `r` a row (a physical example), `t` a place within it (a token, a pixel), `i` and `o` input and output
features. A rule sees rows only through their leading axis, so rows never meet.

The operation saw a batch within each row: of one, unless the model folds frames, tokens or a pair of pictures into the
batch axis. That axis comes second, after the rows, and may have any length; how the model orders it is its own affair,
because each row is folded alone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from torch import Tensor

from sordino.gradients.blocks import Block

Tag = Callable[[Tensor], Tensor]


class Rule(Protocol):
    """One parametrised operation with its settings. `names` are its trained parameters, None where there is none."""

    @property
    def names(self) -> tuple[str | None, ...]: ...

    def run(self, arguments: dict[str, Any], tag: Tag) -> tuple[Any, Tensor]:
        """The output of the operation, and what the gradients of its parameters will need of its input.

        `tag` is called once, on the tensor whose gradient `blocks` will be given: the output, or for an operation with
        something after its parameters a tensor inside. It answers the same values.
        """
        ...

    def blocks(self, saved: Tensor, output_gradient: Tensor) -> tuple[Block | None, ...]:
        """One block per name. Both tensors have the rows in front, then the axes that the operation saw.

        A batch axis among them need not have length one: what a parameter gets is the sum over it.
        """
        ...


class MultipliesAsItRan:
    """A rule that is given input and output gradient in the precision that the operation ran in, and multiplies in it.

    Other rules are given both in the model's own precision.
    """
