"""The table of operations with a rule for per-example gradients, by the torch function that computes them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from sordino.gradients import embedding_bags
from sordino.gradients.convolution import Convolution
from sordino.gradients.convolution_transposed import TransposedConvolution
from sordino.gradients.layers import (
    ChannelNorm,
    EmbeddingOperation,
    LayerNorm,
    LinearOperation,
    MatrixProduct,
    RMSNorm,
)
from sordino.gradients.products import Product, of_batches, of_bilinear, of_einsum, of_matrices, of_sums
from sordino.gradients.projections import Projections, projections
from sordino.gradients.recurrent import Recurrence, recur
from sordino.gradients.rules import Rule
from sordino.gradients.views import Name

NameOf = Callable[[Any], Name | None]


@dataclass(frozen=True)
class Operation:
    """The arguments of a torch function in order, with defaults, and the function that makes its rule."""

    arguments: dict[str, Any]
    recognise: Callable[[dict[str, Any], NameOf], Rule | None]

    def bind(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        """All arguments by name."""
        return self.arguments | dict(zip(self.arguments, args, strict=False)) | kwargs


_CONVOLUTION = Operation(
    {"input": None, "weight": None, "bias": None, "stride": 1, "padding": 0, "dilation": 1, "groups": 1},
    Convolution.recognise,
)

_TRANSPOSED_CONVOLUTION = Operation(
    {
        "input": None,
        "weight": None,
        "bias": None,
        "stride": 1,
        "padding": 0,
        "output_padding": 0,
        "groups": 1,
        "dilation": 1,
    },
    TransposedConvolution.recognise,
)


@dataclass(frozen=True)
class WithOperands(Operation):
    """A torch function whose arguments after the first are operands."""

    def bind(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        operands = args[1] if len(args) == 2 and isinstance(args[1], (tuple, list)) else args[1:]
        return {"equation": args[0], "operands": tuple(operands), **kwargs}


def _product(equation_of: Callable[..., str | None], *operands: str) -> Callable[[dict[str, Any], NameOf], Rule | None]:
    return lambda arguments, name_of: Product.recognise(arguments, name_of, equation_of, operands)


def _first_of(*recognisers: Callable[[dict[str, Any], NameOf], Rule | None]) -> Any:
    """The first rule that has a trained parameter."""

    def recognise(arguments: dict[str, Any], name_of: NameOf) -> Rule | None:
        rules = (recognise(arguments, name_of) for recognise in recognisers)
        return next((rule for rule in rules if rule is not None and any(rule.names)), None)

    return recognise


_PRODUCT = Operation(
    {"input": None, "other": None}, _first_of(MatrixProduct.recognise, _product(of_matrices, "input", "other"))
)
_MATRICES = Operation(
    {"input": None, "mat2": None}, _first_of(MatrixProduct.recognise, _product(of_matrices, "input", "mat2"))
)
_BATCHES = Operation({"input": None, "mat2": None}, _product(of_batches, "input", "mat2"))
_VECTOR = Operation({"input": None, "vec": None}, _product(of_matrices, "input", "vec"))
_ADDED_PRODUCT = Operation({"input": None, "mat1": None, "mat2": None, "beta": 1, "alpha": 1}, MatrixProduct.recognise)

OPERATIONS: dict[Any, Operation] = {
    **dict.fromkeys((torch.matmul, Tensor.matmul, Tensor.__matmul__), _PRODUCT),
    **dict.fromkeys((torch.mm, Tensor.mm), _MATRICES),
    **dict.fromkeys((torch.bmm, Tensor.bmm), _BATCHES),
    **dict.fromkeys((torch.mv, Tensor.mv), _VECTOR),
    torch.tensordot: Operation({"a": None, "b": None, "dims": 2}, _product(of_sums, "a", "b")),
    torch.einsum: WithOperands({}, _product(of_einsum, "operands")),
    F.bilinear: Operation(
        {"input1": None, "input2": None, "weight": None, "bias": None},
        _product(of_bilinear, "input1", "input2", "weight"),
    ),
    **dict.fromkeys((torch.addmm, Tensor.addmm), _ADDED_PRODUCT),
    F.linear: Operation({"input": None, "weight": None, "bias": None}, LinearOperation.recognise),
    F.conv1d: _CONVOLUTION,
    F.conv2d: _CONVOLUTION,
    F.conv3d: _CONVOLUTION,
    **dict.fromkeys((F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d), _TRANSPOSED_CONVOLUTION),
    F.layer_norm: Operation(
        {"input": None, "normalized_shape": None, "weight": None, "bias": None, "eps": 1e-5},
        LayerNorm.recognise,
    ),
    F.rms_norm: Operation({"input": None, "normalized_shape": None, "weight": None, "eps": None}, RMSNorm.recognise),
    F.group_norm: Operation(
        {"input": None, "num_groups": None, "weight": None, "bias": None, "eps": 1e-5},
        ChannelNorm.recognise_group_norm,
    ),
    F.instance_norm: Operation(
        {
            "input": None,
            "running_mean": None,
            "running_var": None,
            "weight": None,
            "bias": None,
            "use_input_stats": True,
            "momentum": 0.1,
            "eps": 1e-5,
        },
        ChannelNorm.recognise_instance_norm,
    ),
    F.embedding: Operation(
        {
            "input": None,
            "weight": None,
            "padding_idx": None,
            "max_norm": None,
            "norm_type": 2.0,
            "scale_grad_by_freq": False,
            "sparse": False,
        },
        EmbeddingOperation.recognise,
    ),
    F.embedding_bag: Operation(embedding_bags.ARGUMENTS, embedding_bags.recognise),
    projections: Operation({"inputs": None, "weights": None, "bias": None, "features": None}, Projections.recognise),
    recur: Operation(
        {"cell": None, "projected": None, "initial": None, "weight": None, "bias": None, "projection": None},
        Recurrence.recognise,
    ),
}


def recognise(
    function: Any, args: tuple[Any, ...], kwargs: dict[str, Any], name_of: NameOf
) -> RecordedOperation | None:
    """The rule and the bound arguments of a call, or None if it is not a known operation on a trained parameter."""
    operation = OPERATIONS.get(function)
    if operation is None:
        return None
    arguments = operation.bind(args, kwargs)
    rule = operation.recognise(arguments, name_of)
    return RecordedOperation(rule, arguments) if rule is not None and any(rule.names) else None


@dataclass(frozen=True)
class RecordedOperation:
    """One call of a known operation."""

    rule: Rule
    arguments: dict[str, Any]


def tensors_in(values: Any) -> list[Tensor]:
    """The tensors among arguments or results, one level of nesting deep."""
    if isinstance(values, Tensor):
        return [values]
    if not isinstance(values, (tuple, list)):
        return []
    tensors: list[Tensor] = []
    for value in values:
        if isinstance(value, Tensor):
            tensors.append(value)
        elif isinstance(value, (tuple, list)):
            tensors += [inner for inner in value if isinstance(inner, Tensor)]
    return tensors
