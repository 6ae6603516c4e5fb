"""Bounds on the rounding error of a float32 sum over rows, for any values of the rows and any order of the additions.

Let u = 2^-24. Each element of a float32 product of matrices with n terms has an error of at most
gamma_n = n u / (1 - n u) times the sum of the absolute values of its terms, in any order and with or without fused
additions (Higham, Accuracy and Stability of Numerical Algorithms, section 3.1). For rows with weights w_a whose
gradients are sums over places t of g_at x_at^T, the Frobenius norm of the error is at most gamma_n sum_a w_a M_a, with
the magnitudes M_a = sum_t |g_at| |x_at|. If there is one place, or if a row's gradient is formed before it is added,
M_a is the norm that is clipped.

Theorem. Let E be the sum of the clipped gradients in real numbers and S the computed sum, both in units of the clip
norm. Replace one row by zero, in its place. Then E moves by at most 1, because each weight is a function of its own
row, and S by at most 1 + 2 `SUM_ERROR`:

* Rows are added up in groups whose sizes are public, and groups in sections. Except for the group of the replaced row,
  and the sums to which that group's sum is added, all sums are equal bit for bit.
* `ROWS_ERROR`: a group has at most `TOGETHER` = N rows. If M_a is the norm that is clipped, sum_a w_a M_a <= N, and a
  term is multiplied twice and added N times: gamma_(N+2) N. Gradients that are formed m rows at a time are added to a
  running sum, with at most m N + (N - m) N / 2 additions of a vector of length 1.
* `PLACES_ERROR`: if places of a row may cancel, M_a is larger, by any factor that the row's author chooses. The sum of
  a group is computed in float32 only if gamma_n sum_a w_a M_a, which is computed, is at most `PLACES_ERROR`; otherwise
  in float64.
* `DOUBLES_ERROR`: the norm of such a row is raised to sqrt(|g|^2 + `RAISED`^2 M^2), so that w_a M_a <= 1 / RAISED
  always, and 2^-53 of it in n <= `PLACES_TOGETHER` terms is small.
* `GROUPS_ERROR`: a row's group is added to at most `GROUPS` others in float32, and rounded once more.
* Values below 2^-126 may count as zeros. Rows with factors beyond `LARGEST_FACTOR` count as absent, so that a factor
  that is flushed to zero loses at most 2^-19 in a product.

Parameters contribute separately to the first two errors only. Their errors are vectors in orthogonal spaces, hence the
root of the sum of squares. A clip that scales each gradient to 1 - 2 `SUM_ERROR`, and slightly less, therefore bounds
what one row adds. Sums of more than `AT_ONCE` rows, and sums of micro-batches, are float64.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import hypot, isqrt

import numpy as np
import torch
from torch import Tensor

_UNIT, _DOUBLE_UNIT = 2.0**-24, 2.0**-53

TOGETHER, GROUPS = 128, 4
AT_ONCE = GROUPS * TOGETHER
RAISED = 2.0**-16
PLACES_TOGETHER = 1 << 15
LARGEST_FACTOR = 2.0**44

ROWS_ERROR = 1.001 * TOGETHER * (TOGETHER + 3) * _UNIT
PLACES_ERROR = 2.0**-10
DOUBLES_ERROR = 2 * TOGETHER * PLACES_TOGETHER * _DOUBLE_UNIT / RAISED
GROUPS_ERROR = (GROUPS + 1) * AT_ONCE * _UNIT
SUM_ERROR = hypot(ROWS_ERROR, PLACES_ERROR) + DOUBLES_ERROR + GROUPS_ERROR + 2.0**-18

_DTYPES = {torch.float32: np.float32, torch.float64: np.float64}
_USUAL_RATIO = 2  # usual ratio of a row's magnitude to its norm; 1.4 was measured for recurrent layers


def of_terms(terms: int, dtype: torch.dtype) -> float:
    """The bound gamma on the relative error of a sum of `terms` products of three factors."""
    error = (terms + 4) * torch.finfo(dtype).eps / 2
    return error / (1 - error) if error < 0.5 else float("inf")


def rows_together(places: int) -> int:
    """The number of rows in a group, for rows with so many places, such that usual rows are added up in float32."""
    return max(1, min(TOGETHER, isqrt(int(PLACES_ERROR / _UNIT / _USUAL_RATIO) // places)))


def groups(rows: int, together: int) -> Iterator[slice]:
    """Slices of nearly equal length, at most `together` rows each. If there are no rows, one empty slice."""
    number = max(1, -(-rows // together))
    size, longer = divmod(rows, number)
    start = 0
    for group in range(number):
        stop = start + size + (group < longer)
        yield slice(start, stop)
        start = stop


def zeros(like: Tensor, size: int, dtype: torch.dtype | None = None) -> Tensor:
    """A vector of zeros for a sum, of the device of `like`, and of its dtype unless another is given.

    NumPy asks Linux for large pages and torch does not. A new vector of ten million values, whose memory the system
    provides as it is written, takes a fifth of the time with them.
    """
    dtype = dtype or like.dtype
    if like.device.type == "cpu" and dtype in _DTYPES:
        return torch.from_numpy(np.zeros(size, _DTYPES[dtype]))
    return like.new_zeros(size, dtype=dtype)


def in_float64(total: Tensor) -> Tensor:
    """A float64 copy of a vector, to which more is added."""
    return zeros(total, len(total), torch.float64).copy_(total)


def add_in_groups(total: Tensor, rows: int, together: int, add: Callable[[Tensor, slice], None]) -> None:
    """Adds the sums of all groups of rows to `total`, which holds zeros. `add(part, rows)` adds one group to zeros.

    Up to `GROUPS` sums are added up in the precision of `total`, more of them in float64.
    """
    parts = list(groups(rows, together))
    if len(parts) <= GROUPS:
        _add_up(total, parts, add)
        return
    exact = zeros(total, len(total), torch.float64)
    for start in range(0, len(parts), GROUPS):
        exact += _add_up(zeros(total, len(total)), parts[start : start + GROUPS], add)
    total += exact


def _add_up(total: Tensor, parts: list[slice], add: Callable[[Tensor, slice], None]) -> Tensor:
    first, *others = parts
    add(total, first)
    part = zeros(total, len(total)) if others else total  # one buffer for all groups, which stays in cache
    for rows in others:
        add(part.zero_(), rows)
        total += part
    return total
