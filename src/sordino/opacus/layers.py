"""The layers that Opacus writes anew for per-example gradients. Here torch's own have them, under the same names."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from torch import nn

from sordino._input import validate
from sordino.errors import UsageError

_Registered = TypeVar("_Registered", bound=Callable[..., object])


def register_grad_sampler(layers: type[nn.Module] | Sequence[type[nn.Module]]) -> Callable[[_Registered], _Registered]:
    """Returns a decorator that leaves a function as it is and never calls it.

    In Opacus such a function computes the gradients of rows by the parameters of a layer. Here they follow from the
    layer's forward pass, so a mistake in the function cannot change a sum.
    """
    classes = layers if isinstance(layers, Sequence) else [layers]
    if not all(isinstance(layer, type) and issubclass(layer, nn.Module) for layer in classes):
        raise UsageError(f"layers must be classes of torch.nn.Module, got {validate.described(layers)}.")
    return lambda function: function


class DPLSTM(nn.LSTM):
    """`torch.nn.LSTM`, whose per-example gradients are supported as they are. Parameters have the same names.

    >>> import torch
    >>> outputs, (hidden, cell) = DPLSTM(4, 3, batch_first=True)(torch.zeros(2, 5, 4))
    >>> outputs.shape
    torch.Size([2, 5, 3])
    """


class DPGRU(nn.GRU):
    """`torch.nn.GRU`, whose per-example gradients are supported as they are.

    >>> import torch
    >>> DPGRU(4, 3, batch_first=True)(torch.zeros(2, 5, 4))[0].shape
    torch.Size([2, 5, 3])
    """


class DPRNN(nn.RNN):
    """`torch.nn.RNN`, whose per-example gradients are supported as they are.

    >>> import torch
    >>> DPRNN(4, 3, batch_first=True)(torch.zeros(2, 5, 4))[0].shape
    torch.Size([2, 5, 3])
    """


class DPMultiheadAttention(nn.MultiheadAttention):
    """`torch.nn.MultiheadAttention`, whose per-example gradients are supported as they are.

    >>> import torch
    >>> x = torch.zeros(2, 5, 8)
    >>> DPMultiheadAttention(8, 2, batch_first=True)(x, x, x)[0].shape
    torch.Size([2, 5, 8])
    """
