"""The rule of products of data with one trained tensor: `einsum`, `bilinear`, `matmul`, `bmm`, `tensordot` and others.

Each of them is a sum over products of one value of each operand, and so is the gradient by the trained operand, with
the output gradient in its place. Axes are named by letters, as in `einsum`. There are four kinds of axes of one row:

* `o`, of weight and output; `i`, of weight and data; `t`, of data and output, over which gradients are added up;
* `h`, of weight, data and output, such as the heads of attention: a weight of its own for each.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import prod
from string import ascii_letters
from typing import Any

import torch
from torch import Tensor

from sordino.gradients.blocks import (
    Block,
    DenseBlock,
    FormedLater,
    Outer,
    held_in,
    weight_block,
    write_products,
)
from sordino.gradients.projections import stacked
from sordino.gradients.rowwise import on_rows
from sordino.gradients.rules import MultipliesAsItRan, Tag
from sordino.gradients.view_blocks import in_order
from sordino.gradients.views import Name, ParameterView

_MOST_PIECES = 32  # more heads are formed together


@dataclass(frozen=True)
class Axes:
    """The letters of the axes of each operand and of the output, without axes of length one, and their lengths."""

    operands: tuple[str, ...]
    output: str
    lengths: dict[str, int]

    @classmethod
    def of(cls, equation: str, operands: Sequence[Tensor]) -> Axes | None:
        """The axes of an equation of `einsum`. None for one that takes the diagonal of an operand."""
        terms, output = _terms(equation, [x.ndim for x in operands])
        if any(len(set(term)) < len(term) for term in terms):
            return None
        pairs = [list(zip(term, x.shape, strict=True)) for term, x in zip(terms, operands, strict=True)]
        lengths = {letter: length for each in pairs for letter, length in each if length != 1}
        kept = tuple("".join(letter for letter, length in each if length != 1) for each in pairs)
        return cls(kept, "".join(letter for letter in output if letter in lengths), lengths)

    def shape(self, letters: str) -> tuple[int, ...]:
        """The lengths of these axes."""
        return tuple(self.lengths[letter] for letter in letters)

    def number(self, letters: str) -> int:
        """The number of values of a tensor with these axes."""
        return prod(self.shape(letters))


def _terms(equation: str, ranks: list[int]) -> tuple[list[str], str]:
    """The letters of the operands and of the output, with letters of their own for the axes of an ellipsis."""
    left, arrow, output = equation.replace(" ", "").partition("->")
    terms, spare = left.split(","), [letter for letter in ascii_letters if letter not in equation]
    hidden = [rank - len(term.replace("...", "")) for term, rank in zip(terms, ranks, strict=True)]
    most = max((number for term, number in zip(terms, hidden, strict=True) if "..." in term), default=0)
    rest = "".join(spare[:most])
    terms = [term.replace("...", rest[most - number :]) for term, number in zip(terms, hidden, strict=True)]
    if not arrow:
        letters = "".join(terms)
        output = "..." + "".join(sorted(letter for letter in set(letters) - set(rest) if letters.count(letter) == 1))
    return terms, output.replace("...", rest)


@dataclass(frozen=True)
class Product(MultipliesAsItRan):
    """The rule of a product in which operand number `trained` is the only trained one, and of a bias of `bilinear`."""

    names: tuple[Name | None, Name | None]
    arguments: tuple[str, ...]  # the names of the operands among the arguments
    trained: int
    axes: Axes
    output_shape: tuple[int, ...]

    @classmethod
    def recognise(
        cls,
        arguments: dict[str, Any],
        name_of: Any,
        equation_of: Callable[..., str | None],
        names: tuple[str, ...],
    ) -> Product | None:
        """The rule of a call whose operands have these `names`, or one name for all of them."""
        operands = _operands(arguments, names)
        named = [number for number, x in enumerate(operands) if name_of(x)]
        if len(named) != 1 or not all(isinstance(x, Tensor) for x in operands) or arguments.get("out") is not None:
            return None
        equation = equation_of(*operands, **{key: arguments[key] for key in ("equation", "dims") if key in arguments})
        axes = None if equation is None else Axes.of(equation, operands)
        if equation is None or axes is None:
            return None
        (trained,) = named
        rest = "".join((*axes.operands[:trained], *axes.operands[trained + 1 :], axes.output))
        if set(axes.operands[trained]) - set(rest):  # axes over which only the weight is added up
            return None
        shape = torch.einsum(equation, *(torch.empty(x.shape, device="meta") for x in operands)).shape
        bias = arguments.get("bias")
        return cls((name_of(operands[trained]), name_of(bias)), names, trained, axes, tuple(shape))

    def run(self, arguments: dict[str, Any], tag: Tag) -> tuple[Tensor, Tensor]:
        operands = _operands(arguments, self.arguments)
        weight = operands.pop(self.trained)
        x = operands[0] if len(operands) == 1 else torch.cat([data.flatten() for data in operands])
        output = tag(on_rows(self._of_one, self._of_rows, x, weight, arguments.get("bias")))
        return output, x.to(output.dtype)

    def _of_one(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return self._of_rows(x[None], weight, bias)[0]

    def _of_rows(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """The product of all rows: an `einsum` in which data and output have one more axis."""
        row, axes, data = self._row, self.axes, self._data(x)
        terms = [row + term for term in axes.operands]
        terms[self.trained] = axes.operands[self.trained]
        data.insert(self.trained, weight.reshape(axes.shape(axes.operands[self.trained])))
        output = torch.einsum(f"{','.join(terms)}->{row}{axes.output}", *data).reshape(len(x), *self.output_shape)
        return output if bias is None else output + bias

    @property
    def _row(self) -> str:
        return next(letter for letter in ascii_letters if letter not in self.axes.lengths)

    @property
    def _terms(self) -> tuple[str, ...]:
        """The axes of the data operands."""
        return tuple(term for number, term in enumerate(self.axes.operands) if number != self.trained)

    def _data(self, saved: Tensor) -> list[Tensor]:
        """The data operands, rows first, without axes of length one."""
        sizes = [self.axes.number(term) for term in self._terms]
        parts = torch.split(saved.reshape(len(saved), -1), sizes, dim=1)
        return [part.reshape(len(saved), *self.axes.shape(term)) for part, term in zip(parts, self._terms, strict=True)]

    def blocks(self, saved: Tensor, output_gradient: Tensor) -> tuple[Block | None, ...]:
        g = output_gradient.reshape(len(saved), *self.axes.shape(self.axes.output))
        bias = None
        if self.names[1]:
            by_place = output_gradient.reshape(len(saved), -1, self.output_shape[-1])
            bias = DenseBlock(by_place.sum(dim=1, dtype=held_in(g.dtype)))
        return self._weight(g, self._data(saved)) if self.names[0] else None, bias

    def _weight(self, g: Tensor, data: list[Tensor]) -> Block:
        """The gradients by the weight in the cheapest form."""
        terms, factors, weight = [self.axes.output, *self._terms], [g, *data], self.axes.operands[self.trained]
        outer = self._outer(terms, factors, weight)
        if outer is not None:
            return outer
        if len(data) > 1:
            equation = ",".join(self._row + term for term in terms) + f"->{self._row}{weight}"
            return EinsumGradients(equation, tuple(factors), self.axes.number(weight))
        return self._of_places(g, data[0], weight)

    def _outer(self, terms: list[str], factors: list[Tensor], weight: str) -> Block | None:
        """One outer product per row if there are two groups of factors that have no axis in common, or None.

        The group that has the first axes of the weight is the left one. The smallest factors are chosen.
        """
        splits = []
        for size in range(1, len(terms)):
            for group in combinations(range(len(terms)), size):
                others = [number for number in range(len(terms)) if number not in group]
                one, other = ("".join(terms[number] for number in numbers) for numbers in (group, others))
                left, right = (("".join(x for x in weight if x in letters)) for letters in (one, other))
                if not set(one) & set(other) and left + right == weight:
                    splits.append((self.axes.number(left) + self.axes.number(right), group, others, left, right))
        if not splits:
            return None
        _, group, others, left, right = min(splits)
        sides = []
        for numbers, letters in ((group, left), (others, right)):
            inputs = ",".join(self._row + terms[number] for number in numbers)
            side = torch.einsum(f"{inputs}->{self._row}{letters}", *(factors[number] for number in numbers))
            sides.append(side.reshape(len(side), -1).to(held_in(side.dtype)))
        return Outer(*sides)

    def _of_places(self, g: Tensor, x: Tensor, weight: str) -> Block:
        """The gradients for one data operand: a sum of outer products over places, for each head."""
        output, (data,) = self.axes.output, self._terms
        heads, outputs, inputs = (
            "".join(letter for letter in weight if kind == (letter in output, letter in data))
            for kind in ((True, True), (True, False), (False, True))
        )
        places = "".join(letter for letter in output if letter in data and letter not in weight)
        row, count = self._row, self.axes.number
        shape = len(g), count(heads), count(places)
        left = torch.einsum(f"{row}{output}->{row}{heads}{places}{outputs}", g).reshape(*shape, -1)
        right = torch.einsum(f"{row}{data}->{row}{heads}{places}{inputs}", x).reshape(*shape, -1)
        strides = dict(zip(weight, torch.empty(self.axes.shape(weight), device="meta").stride(), strict=True))
        held = heads + outputs + inputs
        if held != weight and heads + inputs + outputs == weight:
            left, right, held = right, left, weight
        block = _of_heads(left, right)
        view = ParameterView("", count(weight), self.axes.shape(held), tuple(strides[letter] for letter in held))
        return in_order(view, block)


def _of_heads(left: Tensor, right: Tensor) -> Block:
    """The gradients sum_t left[r, h, t, o] right[r, h, t, i], in the order h, o, i."""
    heads, places, outputs, inputs = *left.shape[1:], right.shape[3]
    if heads == 1:
        return weight_block(left[:, 0], right[:, 0])
    if outputs == inputs == 1:
        return DenseBlock((left * right).sum(dim=(2, 3), dtype=held_in(left.dtype)))
    if places == 1 and heads <= _MOST_PIECES:
        return stacked(tuple(weight_block(*sides) for sides in zip(left.unbind(1), right.unbind(1), strict=True)))
    return HeadProducts(left, right)


@dataclass(frozen=True, repr=False)
class HeadProducts(FormedLater):
    """Gradients formed when needed: row `r` has for each head h the sum of outer products of left and right [r, h, t].

    In half precision, the values that are added are those whose norm was computed.
    """

    left: Tensor
    right: Tensor

    @property
    def size(self) -> int:
        return self.left.shape[1] * self.left.shape[3] * self.right.shape[3]

    def take(self, rows: slice) -> HeadProducts:
        return HeadProducts(self.left[rows], self.right[rows])

    def formed(self, room: Tensor | None = None) -> DenseBlock:
        rows, heads, _, outputs = self.left.shape
        room = self.left.new_empty(rows * self.size, dtype=held_in(self.left.dtype)) if room is None else room
        left, right = self.left.flatten(0, 1), self.right.flatten(0, 1)
        formed = write_products(left.transpose(1, 2), right, room.view(rows * heads, outputs, -1))
        return DenseBlock(formed.view(rows, -1))

    def dense(self) -> Tensor:
        return self.formed().matrix


@dataclass(frozen=True, repr=False)
class EinsumGradients(FormedLater):
    """Gradients formed when needed: `einsum` of factors with the rows first."""

    equation: str
    factors: tuple[Tensor, ...]
    numbers: int

    @property
    def size(self) -> int:
        return self.numbers

    def take(self, rows: slice) -> EinsumGradients:
        return EinsumGradients(self.equation, tuple(factor[rows] for factor in self.factors), self.numbers)

    def dense(self) -> Tensor:
        gradients = torch.einsum(self.equation, *self.factors).flatten(1)
        return gradients.to(held_in(gradients.dtype))


def _operands(arguments: dict[str, Any], names: tuple[str, ...]) -> list[Any]:
    return [arguments[name] for name in names] if len(names) > 1 else list(arguments[names[0]])


def of_einsum(*operands: Tensor, equation: str) -> str:
    """The equation of `einsum`."""
    return equation


def of_bilinear(one: Tensor, other: Tensor, weight: Tensor) -> str:
    """The equation of `bilinear`."""
    return "...i,...j,oij->...o"


def of_batches(one: Tensor, other: Tensor) -> str:
    """The equation of `bmm`."""
    return "bti,bio->bto"


def of_matrices(one: Tensor, other: Tensor) -> str | None:
    """The equation of `matmul`, in which an operand may be a vector. None for operands that torch refuses."""
    if one.ndim == 0 or other.ndim == 0:
        return None
    left, right = "i" if one.ndim == 1 else "...ti", "i" if other.ndim == 1 else "...io"
    output = ("..." if "..." in left + right else "") + ("t" if one.ndim > 1 else "") + ("o" if other.ndim > 1 else "")
    return f"{left},{right}->{output}"


def of_sums(one: Tensor, other: Tensor, dims: Any) -> str | None:
    """The equation of `tensordot`."""
    if isinstance(dims, int):
        dims = list(range(one.ndim - dims, one.ndim)), list(range(dims))
    if isinstance(dims, Tensor):
        return None
    summed = [[axis % x.ndim for axis in axes] for axes, x in zip(dims, (one, other), strict=True)]
    left, right = list(ascii_letters[: one.ndim]), list(ascii_letters[one.ndim : one.ndim + other.ndim])
    for here, there in zip(*summed, strict=True):
        right[there] = left[here]
    shared = {left[axis] for axis in summed[0]}
    output = [letter for letter in left + right if letter not in shared]
    return f"{''.join(left)},{''.join(right)}->{''.join(output)}"
