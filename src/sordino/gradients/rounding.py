"""How far a float32 sum over rows may be off, whatever the rows hold and in whatever order it is taken.

u is 2^-24. A float32 product of matrices with n terms is off by at most gamma_n = n u / (1 - n u) of the sum of the
sizes of its terms, element by element, whatever the order and with or without fused additions (Higham, Accuracy and
Stability of Numerical Algorithms, section 3.1). For rows with weights w_a whose gradients are sums over places t of
g_at x_at^T, the Frobenius norm of that is at most gamma_n sum_a w_a M_a with the magnitudes M_a = sum_t |g_at| |x_at|.
Where there is one place, and where a row's gradient is formed before it is added, M_a is the norm that is clipped.

Theorem. E is the sum of the clipped gradients in real numbers, S the one that was computed, both in units of the clip
norm. One row is replaced by nothing and keeps its place. Then E moves by at most 1, because each weight is a function
of its own row, and S by at most 1 + 2 `OF_A_SUM`:

* Rows are added up in groups whose sizes are public, and groups in sections. All but the group of the row, and what
  its sum is added to, is bit for bit the same.
* `OF_ROWS`: a group has at most `TOGETHER` = N rows. Where M_a is the norm that is clipped, sum_a w_a M_a <= N, and a
  term is multiplied twice and added N times: gamma_(N+2) N. Gradients that are formed m rows at a time are added to a
  running sum: m N + (N - m) N / 2 additions of something of length 1, no more.
* `OF_PLACES`: where places of a row may cancel, M_a is larger, by as much as the row's author likes. The sum of a group
  is taken in float32 only if gamma_n sum_a w_a M_a, which is computed, is at most that; otherwise in float64.
* `OF_DOUBLES`: the norm of such a row is raised to sqrt(|g|^2 + `RAISED`^2 M^2), so that w_a M_a <= 1 / RAISED in any
  case, and what 2^-53 leaves of it in n <= `PLACES_TOGETHER` terms is small.
* `OF_GROUPS`: a row's group is added to at most `GROUPS` others in float32, and rounded once more.
* Numbers below 2^-126 may count as zeros. Rows with factors beyond `LARGEST_FACTOR` count as absent, so that what a
  flushed factor is multiplied with leaves 2^-19.

Parameters differ in the first two only: their errors are lengths in orthogonal spaces, hence the root of their squares.
A clip that scales each gradient to 1 - 2 `OF_A_SUM` and a little more therefore bounds what one row adds. Sums of more
than `AT_ONCE` rows, and of micro-batches, are float64.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import hypot, isqrt

import torch
from torch import Tensor

_UNIT, _DOUBLE_UNIT = 2.0**-24, 2.0**-53

TOGETHER, GROUPS = 128, 4
AT_ONCE = GROUPS * TOGETHER
RAISED = 2.0**-16
PLACES_TOGETHER = 1 << 15
LARGEST_FACTOR = 2.0**44

OF_ROWS = 1.001 * TOGETHER * (TOGETHER + 3) * _UNIT
OF_PLACES = 2.0**-10
OF_DOUBLES = 2 * TOGETHER * PLACES_TOGETHER * _DOUBLE_UNIT / RAISED
OF_GROUPS = (GROUPS + 1) * AT_ONCE * _UNIT
OF_A_SUM = hypot(OF_ROWS, OF_PLACES) + OF_DOUBLES + OF_GROUPS + 2.0**-18

_USUAL_RATIO = 2  # of a row's magnitude to its norm: what was measured of recurrent layers is 1.4


def of_terms(terms: int, dtype: torch.dtype) -> float:
    """gamma for a sum of so many products of three numbers."""
    error = (terms + 4) * torch.finfo(dtype).eps / 2
    return error / (1 - error) if error < 0.5 else float("inf")


def rows_together(places: int) -> int:
    """How many rows with so many places share a sum, so that ordinary rows may be added up in float32."""
    return max(1, min(TOGETHER, isqrt(int(OF_PLACES / _UNIT / _USUAL_RATIO) // places)))


def groups(rows: int, together: int) -> Iterator[slice]:
    """Slices of about equal length, at most `together` rows each; one that is empty if there are no rows."""
    number = max(1, -(-rows // together))
    size, longer = divmod(rows, number)
    start = 0
    for place in range(number):
        stop = start + size + (place < longer)
        yield slice(start, stop)
        start = stop


def add_in_groups(total: Tensor, rows: int, together: int, add: Callable[[Tensor, slice], None]) -> None:
    """Adds to `total`, which holds zeros, what `add(part, rows)` adds to zeros for each group of rows.

    Up to `GROUPS` parts are added up as they are, and more of them in float64.
    """
    parts = list(groups(rows, together))
    if len(parts) <= GROUPS:
        _add_up(total, parts, add)
        return
    exact = torch.zeros_like(total, dtype=torch.float64)
    for start in range(0, len(parts), GROUPS):
        exact += _add_up(torch.zeros_like(total), parts[start : start + GROUPS], add)
    total += exact


def _add_up(total: Tensor, parts: list[slice], add: Callable[[Tensor, slice], None]) -> Tensor:
    first, *others = parts
    add(total, first)
    part = torch.empty_like(total) if others else total  # one for all, which stays in cache
    for rows in others:
        add(part.zero_(), rows)
        total += part
    return total
