"""The scattering transform: what a picture looks like in wavelets, up to small shifts and bends. It has no parameters.

Letters: `b` picture, `t` angle, `p` signal (a picture at an angle), `m`, `n` rows and columns, `k`, `l` frequencies,
`c` real and imaginary part, `a` aliases. Signals lie side by side in the last axis: [m, n, p].
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor

from sordino._input import validate
from sordino.errors import UsageError
from sordino.models.features import filters
from sordino.models.features.fourier import Grid
from sordino.models.features.side_by_side import side_by_side

_CHUNK = 16  # pictures of 40 by 40 pixels whose second order stays in cache


@dataclass(frozen=True)
class Scattering2D:
    """Scattering coefficients of order 0, 1 and 2 at scale 2^J with L angles: [..., M, N] -> [..., channels, M', N'].

    S0 = x * phi, S1 = |x * psi1| * phi and S2 = ||x * psi1| * psi2| * phi, with psi2 coarser than psi1, each kept at
    every 2^J-th place. Channels are S0, then S1 by scale and angle, then S2 by first scale, first angle, second scale
    and second angle, as in Kymatio. Pictures are continued by reflection at their borders, and never mix.

    >>> transform = Scattering2D(J=2, L=8, shape=(28, 28))
    >>> transform(torch.zeros(5, 28, 28)).shape
    torch.Size([5, 81, 7, 7])
    """

    J: int = 2
    L: int = 8
    shape: tuple[int, int] = (28, 28)

    def __post_init__(self) -> None:
        validate.count(at_most=8, J=self.J)
        validate.count(at_most=64, L=self.L)
        validate.axes(2, shape=self.shape)
        if min(self.shape) <= 2**self.J or max(self.shape) > 4096:
            raise UsageError(
                f"shape must be two sizes above 2^J = {2**self.J} and at most 4096, got {validate.shown(self.shape)}."
            )

    @property
    def channels(self) -> int:
        """How many coefficients there are at each place."""
        return 1 + self.L * self.J + self.L**2 * (self.J * (self.J - 1) // 2)

    @property
    def places(self) -> tuple[int, int]:
        """Rows and columns of the coefficients."""
        return self._padded[0] // 2**self.J - 2, self._padded[1] // 2**self.J - 2

    def __call__(self, pictures: Tensor) -> Tensor:
        """The coefficients as float32. The number of threads does not change a bit of them."""
        if pictures.ndim < 2 or tuple(pictures.shape[-2:]) != self.shape:
            raise UsageError(f"pictures must be of shape {self.shape}, got a tensor of shape {tuple(pictures.shape)}.")
        flat = pictures.detach().reshape(-1, *self.shape)
        coefficients = torch.empty(len(flat), self.channels, *self.places)
        size = max(1, min(_CHUNK, _CHUNK * 1600 // (self._padded[0] * self._padded[1])))

        def scatter_chunk(start: int) -> None:
            chunk = flat[start : start + size].to(torch.float32)
            full = F.pad(chunk, (0, 0, 0, 0, 0, size - len(chunk)))  # products of one shape round alike for every row
            coefficients[start : start + size] = self._scatter(full)[: len(chunk)]

        side_by_side(scatter_chunk, range(0, len(flat), size))
        return coefficients.reshape(*pictures.shape[:-2], *coefficients.shape[1:])

    def _scatter(self, pictures: Tensor) -> Tensor:
        bank = _bank(self.J, self.L, self._padded)
        count, angles, places = len(pictures), self.L, self.places
        signals = F.pad(pictures, self._margins, mode="reflect").permute(1, 2, 0).contiguous()
        spectra = bank.grids[0].half_spectra(signals)
        zeroth, first, second = bank.average(signals, 0), [], []
        for j1 in range(self.J):
            once = bank.wavelet_modulus(spectra, 0, j1)  # [m, n, t1 b]
            first.append(bank.average(once, j1))
            if j1 + 1 < self.J:
                again = bank.grids[j1].half_spectra(once)
                twice = [bank.average(bank.wavelet_modulus(again, j1, j2), j2) for j2 in range(j1 + 1, self.J)]
                paths = torch.stack(twice, dim=2).reshape(*places, -1, angles, angles, count)
                second.append(paths.permute(0, 1, 4, 2, 3, 5).reshape(*places, -1))  # from j2, t2, t1 to t1, j2, t2
        coefficients = torch.cat([zeroth, *first, *second], dim=2).reshape(*places, self.channels, count)
        return coefficients.permute(3, 2, 0, 1)

    @property
    def _padded(self) -> tuple[int, int]:
        """At least one coarse place more on each side, which is dropped from the coefficients."""
        step = 2**self.J
        return ((self.shape[0] + step) // step + 1) * step, ((self.shape[1] + step) // step + 1) * step

    @property
    def _margins(self) -> tuple[int, int, int, int]:
        """Left, right, top, bottom."""
        rows, columns = self._padded[0] - self.shape[0], self._padded[1] - self.shape[1]
        return columns // 2, columns - columns // 2, rows // 2, rows - rows // 2


@dataclass(frozen=True)
class _Bank:
    """The filters of one transform. Scale j lives on the grid of every 2^j-th place."""

    grids: tuple[Grid, ...]
    wavelets: dict[tuple[int, int], tuple[Tensor, Tensor]]  # by grid and scale: filters [k c l, t, a], and their inputs
    averages: tuple[tuple[Tensor, Tensor], ...]  # by grid, for rows and columns, at the places kept

    def wavelet_modulus(self, spectra: Tensor, grid: int, scale: int) -> Tensor:
        """|x * psi| on the grid of `scale`, for signals x on `grid` given by half their spectra: [m, n, t p].

        To keep every s-th place is to add up the s * s aliases of each frequency, so the filter and the sum over
        aliases are one small product of matrices for each frequency.
        """
        filters, inputs = self.wavelets[grid, scale]
        aliases = spectra.index_select(0, inputs).reshape(len(filters), -1, spectra.shape[1])
        filtered = filters * aliases if grid == scale else torch.bmm(filters, aliases)  # alone, it need not be added up
        return self.grids[scale].modulus(filtered.flatten(1))

    def average(self, signals: Tensor, grid: int) -> Tensor:
        """[m, n, p] at the places kept."""
        rows, columns = self.averages[grid]
        rows_done = rows @ signals.flatten(1)
        return torch.matmul(columns, rows_done.reshape(len(rows), *signals.shape[1:]))


@lru_cache(maxsize=8)
def _bank(J: int, L: int, padded: tuple[int, int]) -> _Bank:
    grids = tuple(Grid(padded[0] >> j, padded[1] >> j) for j in range(J))
    wavelets = {}
    for scale in range(J):
        spectra = filters.wavelets(padded, scale, L)
        for grid in range(scale + 1):
            coarse = filters.lowest(filters.lowest(spectra, grids[grid].rows, 1), grids[grid].columns, 2)
            wavelets[grid, scale] = _aliased(coarse, grids[grid], grids[scale])
    averages = tuple((_averaging(padded[0], grid, J), _averaging(padded[1], grid, J)) for grid in range(J))
    return _Bank(grids, wavelets, averages)


def _aliased(spectra: Tensor, fine: Grid, coarse: Grid) -> tuple[Tensor, Tensor]:
    """Filters [k c l, t, a] from one grid to the other, and the entries of a half spectrum that they multiply."""
    stride = fine.rows // coarse.rows
    k, column = (torch.arange(stride) * size + torch.arange(size)[:, None] for size in (coarse.rows, coarse.columns))
    k, column = k[:, None, None, :, None], column[None, None, :, None, :]  # [k, c, l, a, a]
    inputs, signs = fine.in_half(k, torch.arange(2)[:, None, None, None], column)
    values = (spectra[:, k, column] * signs / stride**2).movedim(0, 3)  # [k, c, l, t, a, a]
    return values.reshape(-1, len(spectra), stride**2).to(torch.float32), inputs.flatten()


def _averaging(length: int, grid: int, scale: int) -> Tensor:
    """The matrix that averages a signal on `grid` and keeps every 2^scale-th place but the first and the last."""
    coarse = length >> grid
    kernel: Tensor = torch.fft.ifft(filters.lowest(filters.average(length, scale), coarse, 0)).real
    kept = torch.arange(length >> scale)[1:-1] * 2 ** (scale - grid)
    return kernel[(kept[:, None] - torch.arange(coarse)) % coarse].to(torch.float32)
