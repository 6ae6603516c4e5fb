"""Micro-batches: how many privacy units a step holds in memory at a time, and memory that stays with the process.

A function of public quantities only: the model, the shape of the data and the expected batch size. Micro-batches lie
below the codec and the step count, so they can change neither what is released nor what it is worth.
"""

from __future__ import annotations

from functools import lru_cache
from math import ceil, sqrt

import torch
from torch import Tensor

from sordino.kernel.states import Layout

MEMORY_MIB = 256  # for the activations of a micro-batch, unless said
_SMALLEST, _LARGEST = 32, 1024
_SLACK = 1.1  # a micro-batch whose size nobody asked for may be larger, where that saves another one

# What a micro-batch costs whatever its size, in bytes of activations that take twenty times as long: per parameter
# tensor for the operations around it, and per parameter for the passes over its sum.
_BYTES_PER_TENSOR, _BYTES_PER_PARAMETER = 3 << 20, 40

_LARGEST_COUNTED = 32 << 20  # bytes of a block with its header, by which the allocator's thresholds are still set
_HEADER_AND_ALIGNMENT = 1 << 16


def units_at_a_time(layout: Layout, *, bytes_per_unit: int, expected_batch_size: float, memory_mib: int) -> int:
    """As many units as fit, or a little more if a step then has one micro-batch less.

    >>> units_at_a_time(Layout(("w",), ((9,),)), bytes_per_unit=1 << 20, expected_batch_size=70.0, memory_mib=4096)
    32
    """
    units = _units_that_fit(layout, max(1, bytes_per_unit), memory_mib)
    likely_at_most = expected_batch_size + 3 * sqrt(expected_batch_size)
    micro_batches = max(1, ceil(likely_at_most / (_SLACK * units)))
    return max(units, min(int(_SLACK * units), ceil(likely_at_most / micro_batches)))


def split(indices: Tensor, size: int) -> tuple[Tensor, ...]:
    """The micro-batches of a batch, of at most `size` units each.

    An empty batch has one empty part, so that a sum is always made. A small part at the end would cost nearly as much
    as a large one: all are alike.

    >>> [len(part) for part in split(torch.arange(40), 16)], [len(part) for part in split(torch.arange(0), 16)]
    ([14, 13, 13], [0])
    """
    return torch.tensor_split(indices, max(1, ceil(len(indices) / size)))


@lru_cache(maxsize=1)
def keep_what_is_freed() -> None:
    """Once in a process: up to 64 MiB of what a step frees stay with the process until the next step asks for them.

    The allocator of Linux gives the end of its heap back to the system once more than a threshold of it is free, by
    default no more than a step of a small network takes. Whether each step fetches its memory again, page by page, is
    then a matter of luck. The threshold follows the largest block that was ever freed, up to 32 MiB: so one such block
    is asked for and freed, without being touched. Other allocators take no notice.
    """
    torch.empty(_LARGEST_COUNTED - _HEADER_AND_ALIGNMENT, dtype=torch.uint8)


def _units_that_fit(layout: Layout, bytes_per_unit: int, memory_mib: int) -> int:
    """So many that what each micro-batch costs anyway is a twentieth of it, if they fit.

    More would not be faster but slower: the system takes large buffers back, and hands them out again page by page.
    """
    enough = _BYTES_PER_TENSOR * len(layout.names) + _BYTES_PER_PARAMETER * layout.size
    units = min((memory_mib << 20) // bytes_per_unit, max(_SMALLEST, enough // bytes_per_unit))
    even = units - units % torch.get_num_threads()  # threads share the units of a micro-batch
    return max(1, min(_LARGEST, even))
