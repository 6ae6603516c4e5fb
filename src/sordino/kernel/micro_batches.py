"""Micro-batches: the number of privacy units that a step holds in memory at a time, and an allocator setting.

Sizes are a function of public quantities only: the model, the shape of the data and the expected batch size. Codec and
step count do not depend on micro-batches, so these change neither what is released nor its event.
"""

from __future__ import annotations

from functools import lru_cache
from math import ceil, sqrt

import torch
from torch import Tensor

from sordino.kernel.states import Layout

MEMORY_MIB = 256  # default for the activations of a micro-batch
_SMALLEST, _LARGEST = 32, 1024
_SLACK = 1.1  # an automatic size may exceed the best one by this factor if that saves a micro-batch

# The fixed cost of a micro-batch, as the bytes of activations whose computation takes twenty times as long: per
# parameter tensor for the operations around it, and per parameter for the passes over its sum.
_BYTES_PER_TENSOR, _BYTES_PER_PARAMETER = 3 << 20, 40

_LARGEST_COUNTED = 32 << 20  # largest block, with its header, that changes the thresholds of the allocator
_HEADER_AND_ALIGNMENT = 1 << 16


def units_at_a_time(layout: Layout, *, bytes_per_unit: int, expected_batch_size: float, memory_mib: int) -> int:
    """The number of units of a micro-batch: as many as fit, or slightly more if that saves a micro-batch per step.

    >>> units_at_a_time(Layout(("w",), ((9,),)), bytes_per_unit=1 << 20, expected_batch_size=70.0, memory_mib=4096)
    32
    """
    units = _units_that_fit(layout, max(1, bytes_per_unit), memory_mib)
    likely_at_most = expected_batch_size + 3 * sqrt(expected_batch_size)
    micro_batches = max(1, ceil(likely_at_most / (_SLACK * units)))
    return max(units, min(int(_SLACK * units), ceil(likely_at_most / micro_batches)))


def split(indices: Tensor, size: int) -> tuple[Tensor, ...]:
    """The micro-batches of a batch, of at most `size` units each.

    An empty batch has one empty part, so that there is always a sum. All parts have nearly equal size, because a small
    last part would cost nearly as much as a large one.

    >>> [len(part) for part in split(torch.arange(40), 16)], [len(part) for part in split(torch.arange(0), 16)]
    ([14, 13, 13], [0])
    """
    return torch.tensor_split(indices, max(1, ceil(len(indices) / size)))


@lru_cache(maxsize=1)
def keep_what_is_freed() -> None:
    """Makes the process keep up to 64 MiB of freed memory, for the next step. Has an effect once per process.

    The allocator of Linux (glibc) returns the end of its heap to the system once more than a threshold of it is free.
    The default threshold is about the memory of one step of a small network, so that some runs fetch their memory again
    in each step, page by page, and others do not. The threshold grows with the largest block that was ever freed, up to
    32 MiB. So one such block is allocated and freed, without being touched. This does nothing to other allocators.
    """
    torch.empty(_LARGEST_COUNTED - _HEADER_AND_ALIGNMENT, dtype=torch.uint8)


def _units_that_fit(layout: Layout, bytes_per_unit: int, memory_mib: int) -> int:
    """The number of units for which the fixed cost of a micro-batch is a twentieth of its cost, if so many fit.

    More units would be slower: the allocator returns large buffers to the system, and gets them back page by page.
    """
    enough = _BYTES_PER_TENSOR * len(layout.names) + _BYTES_PER_PARAMETER * layout.size
    units = min((memory_mib << 20) // bytes_per_unit, max(_SMALLEST, enough // bytes_per_unit))
    even = units - units % torch.get_num_threads()  # a multiple of the threads, which divide the units among them
    return max(1, min(_LARGEST, even))
