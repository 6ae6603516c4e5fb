"""The scattering transform: what a picture looks like in wavelets, up to small shifts and bends. It has no parameters.

Letters: `b` picture, `t` angle, `k`, `l` frequencies of rows and columns, `a` aliases, `m`, `n` rows and columns.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor

from sordino import validate
from sordino.errors import UsageError
from sordino.features import filters

_CHUNK = 16  # pictures whose second order stays in cache


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
        if len(self.shape) != 2 or min(self.shape) <= 2**self.J or max(self.shape) > 4096:
            raise UsageError(f"shape must be two sizes above 2^J = {2**self.J} and at most 4096, got {self.shape}.")

    @property
    def channels(self) -> int:
        """How many coefficients there are at each place."""
        return 1 + self.L * self.J + self.L**2 * (self.J * (self.J - 1) // 2)

    @property
    def places(self) -> tuple[int, int]:
        """Rows and columns of the coefficients."""
        return self._padded[0] // 2**self.J - 2, self._padded[1] // 2**self.J - 2

    @torch.no_grad()
    def __call__(self, pictures: Tensor) -> Tensor:
        """The coefficients as float32."""
        if pictures.ndim < 2 or tuple(pictures.shape[-2:]) != self.shape:
            raise UsageError(f"pictures must be of shape {self.shape}, got a tensor of shape {tuple(pictures.shape)}.")
        flat = pictures.reshape(-1, *self.shape)
        coefficients = torch.empty(len(flat), self.channels, *self.places)
        for start in range(0, len(flat), _CHUNK):
            chunk = slice(start, start + _CHUNK)
            coefficients[chunk] = self._scatter(flat[chunk].to(torch.float32))
        return coefficients.reshape(*pictures.shape[:-2], *coefficients.shape[1:])

    def _scatter(self, pictures: Tensor) -> Tensor:
        bank = _bank(self.J, self.L, self._padded)
        padded = F.pad(pictures, self._margins, mode="reflect")
        zeroth = bank.average(padded, 0)[:, None]
        first, second = [], []
        spectrum = torch.fft.fft2(padded)[:, None]
        for j1 in range(self.J):
            once = bank.wavelet_modulus(spectrum, 0, j1)[:, 0]  # [b, t1, m, n]
            first.append(bank.average(once, j1))
            if j1 + 1 < self.J:
                spectra = torch.fft.fft2(once)
                twice = [bank.average(bank.wavelet_modulus(spectra, j1, j2), j2) for j2 in range(j1 + 1, self.J)]
                second.append(torch.cat(twice, dim=2).flatten(1, 2))  # [b, t1 (j2 t2), m, n]
        return torch.cat([zeroth, *first, *second], dim=1)

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
    """The filters of one transform. Scale j lives on a grid of every 2^j-th place."""

    wavelets: dict[tuple[int, int], Tensor]  # by grid and scale: [k l, t, a]
    averages: dict[int, tuple[Tensor, Tensor]]  # by grid: rows and columns of the average, at the places kept

    def wavelet_modulus(self, spectra: Tensor, grid: int, scale: int) -> Tensor:
        """|x * psi| on the grid of `scale`, for x on `grid` given by spectra [b, p, k, l]: [b, p, t, m, n].

        To keep every s-th place is to add up the s * s aliases of each frequency, so the filter and the sum over
        aliases are one small matrix product per frequency.
        """
        pictures, paths, rows, columns = spectra.shape
        stride = 2 ** (scale - grid)
        aliases = spectra.reshape(pictures, paths, stride, rows // stride, stride, columns // stride)
        aliases = aliases.permute(3, 5, 2, 4, 0, 1).reshape(-1, stride**2, pictures * paths)
        filtered = torch.bmm(self.wavelets[grid, scale], torch.view_as_real(aliases).flatten(2))
        filtered = filtered.reshape(rows // stride, columns // stride, -1, pictures, paths, 2)
        convolved: Tensor = torch.fft.ifft2(torch.view_as_complex(filtered), dim=(0, 1))
        return convolved.abs().permute(3, 4, 2, 0, 1)

    def average(self, signals: Tensor, grid: int) -> Tensor:
        rows, columns = self.averages[grid]
        return rows @ (signals @ columns.T)


@lru_cache(maxsize=8)
def _bank(J: int, L: int, padded: tuple[int, int]) -> _Bank:
    wavelets = {}
    for scale in range(J):
        spectrum = filters.wavelets(padded, scale, L)
        for grid in range(scale + 1):
            rows, columns = padded[0] >> grid, padded[1] >> grid
            stride = 2 ** (scale - grid)
            coarse = filters.lowest(filters.lowest(spectrum, rows, 1), columns, 2)
            aliases = coarse.reshape(L, stride, rows // stride, stride, columns // stride).permute(2, 4, 0, 1, 3)
            wavelets[grid, scale] = (aliases.reshape(-1, L, stride**2) / stride**2).to(torch.float32)
    averages = {grid: (_averaging(padded[0], grid, J), _averaging(padded[1], grid, J)) for grid in range(J)}
    return _Bank(wavelets, averages)


def _averaging(length: int, grid: int, scale: int) -> Tensor:
    """The matrix that averages a signal on `grid` and keeps every 2^scale-th place but the first and the last."""
    coarse = length >> grid
    kernel: Tensor = torch.fft.ifft(filters.lowest(filters.average(length, scale), coarse, 0)).real
    kept = torch.arange(length >> scale)[1:-1] * 2 ** (scale - grid)
    return kernel[(kept[:, None] - torch.arange(coarse)) % coarse].to(torch.float32)
