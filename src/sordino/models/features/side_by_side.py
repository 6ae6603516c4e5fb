"""Work on rows that do not depend on each other, by as many threads as torch has."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor

import torch


def side_by_side(work: Callable[[int], None], starts: Iterable[int]) -> None:
    """Calls `work` with each number, every call on one thread alone.

    Threads that share one small product wait for each other at its end, and on a busy machine for long. And since no
    product is ever shared, results are the same for any number of threads.

    >>> squares = torch.zeros(4)
    >>> side_by_side(lambda i: squares[i].fill_(i * i), range(4))
    >>> squares
    tensor([0., 1., 4., 9.])
    """
    threads = torch.get_num_threads()
    try:
        with ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,)) as pool:
            for _ in pool.map(work, starts):  # raises what a thread raised
                pass
    finally:
        torch.set_num_threads(threads)
