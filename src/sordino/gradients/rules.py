"""What a recorded operation must know: how its parameters' gradients follow from its input and its output's gradient.

Index letters: `r` a row (a physical example), `t` a place within it (a token, a pixel), `i` and `o` input and output
features. A rule sees rows only through their leading axis, so rows never meet.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

Tag = Callable[[Tensor], Tensor]
_NUMBERS_AT_A_TIME = 1 << 14


def squared_norms(matrix: Tensor) -> Tensor:
    """The squared norm of each row in float64, from float32 norms of short pieces.

    A float32 norm of ten million numbers is off by 4e-4; of 16,384 it is off by about 1e-6, at the price of no copy.
    """
    pieces = [torch.linalg.vector_norm(piece, dim=1) for piece in torch.split(matrix, _NUMBERS_AT_A_TIME, dim=1)]
    return torch.stack(pieces, dim=1).double().square().sum(dim=1)


@runtime_checkable
class Block(Protocol):
    """The gradients of some rows by one parameter, held in whatever form is cheapest."""

    def squared_norms(self) -> Tensor:
        """Float64, shape (r,)."""
        ...

    def weighted_sum(self, weights: Tensor) -> Tensor:
        """The flattened sum over rows, in the dtype of the gradients."""
        ...

    def dense(self) -> Tensor:
        """The gradients themselves, shape (r, size of the parameter)."""
        ...


@dataclass(frozen=True, repr=False)
class Instantiated:
    """Gradients as a matrix: computed once, used for norms and for the sum."""

    matrix: Tensor

    def squared_norms(self) -> Tensor:
        return squared_norms(self.matrix)

    def weighted_sum(self, weights: Tensor) -> Tensor:
        return weights.to(self.matrix.dtype) @ self.matrix

    def dense(self) -> Tensor:
        return self.matrix


@dataclass(frozen=True, repr=False)
class Outer:
    """Gradients of rank one: row `r` is the outer product of `left[r]` and `right[r]`, never formed.

    Its norm is the product of the norms, and the sum over rows is one matrix product, as in plain training.
    """

    left: Tensor
    right: Tensor

    def squared_norms(self) -> Tensor:
        return squared_norms(self.left) * squared_norms(self.right)

    def weighted_sum(self, weights: Tensor) -> Tensor:
        return ((weights.to(self.left.dtype)[:, None] * self.left).T @ self.right).flatten()

    def dense(self) -> Tensor:
        return torch.einsum("ro,ri->roi", self.left, self.right).flatten(1)


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
        """One block per name. Both tensors have the rows in front, then the axes that the operation saw."""
        ...
