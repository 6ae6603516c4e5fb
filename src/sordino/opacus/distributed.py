"""Wrappers for distributed training, for scripts that also run on one device. There is no distributed training."""

from __future__ import annotations

from typing import Any

from torch import distributed, nn

from sordino.errors import UsageError


def DifferentiallyPrivateDistributedDataParallel(model: nn.Module) -> nn.Module:
    """The model itself, if this is the only process of the training.

    >>> DifferentiallyPrivateDistributedDataParallel(nn.Linear(2, 1))
    Linear(in_features=2, out_features=1, bias=True)
    """
    refuse_other_processes()
    return model


def FSDP2Wrapper(model: nn.Module, *, mp_policy: Any = None, opacus_high_precision_layers: Any = None) -> nn.Module:
    """The model itself, if this is the only process of the training. It keeps its own precision.

    >>> FSDP2Wrapper(nn.Linear(2, 1))
    Linear(in_features=2, out_features=1, bias=True)
    """
    refuse_other_processes()
    return model


def refuse_other_processes() -> None:
    """Raises an error if torch runs this training in several processes."""
    if distributed.is_available() and distributed.is_initialized() and distributed.get_world_size() > 1:
        raise UsageError(
            f"there is no distributed training, got {distributed.get_world_size()} processes: start one process."
        )
