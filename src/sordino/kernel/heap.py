"""What a step frees stays with the process until the next step asks for it.

The allocator of Linux gives the end of its heap back to the system once more than a threshold of it is free, by default
no more than a step of a small network takes. Whether each step fetches its memory again, page by page, is then a matter
of luck. The threshold follows the largest block that was ever freed, up to 32 MiB: so one such block is asked for and
freed, without being touched. Other allocators take no notice.
"""

from __future__ import annotations

from functools import lru_cache

import torch

_LARGEST_COUNTED = 32 << 20  # bytes of a block with its header, by which the thresholds are still set
_HEADER_AND_ALIGNMENT = 1 << 16


@lru_cache(maxsize=1)
def keep_what_is_freed() -> None:
    """Once in a process: up to 64 MiB of what is free at the end of the heap are kept."""
    torch.empty(_LARGEST_COUNTED - _HEADER_AND_ALIGNMENT, dtype=torch.uint8)
