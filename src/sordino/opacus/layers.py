"""The layers that Opacus writes anew for per-example gradients. Here torch's own have them, under the same names."""

from __future__ import annotations

from torch import nn


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
