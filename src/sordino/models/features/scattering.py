"""The scattering transform: wavelet features of images that change little under small shifts and deformations.

Bruna and Mallat (2013), with the constants of Andreux et al., "Kymatio" (2020): a Morlet wavelet at scale 2^j has width
0.8 * 2^j, frequency 3/4 pi / 2^j and is stretched by L / 4 along its crests; the Gaussian average has width
0.8 * 2^(J-1). Grids are periodic. The transform has no trained parameters.

Fourier transforms of many small images are computed as products with matrices of cosines and sines. For sizes up to 40
this takes half the time of an FFT, and it leaves all signals in the last axis, where the filters need them. Transforms
are not scaled; inverse transforms are divided by the number of positions.

Index letters: `b` image, `t` angle, `p` signal (an image at an angle), `m`, `n` rows and columns, `k`, `l` their
frequencies, `c` real and imaginary part, `a` aliases. Signals are stored as [m, n, p].
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property, lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor

from sordino._input import validate
from sordino.errors import UsageError
from sordino.models.features.cache import side_by_side


@dataclass(frozen=True)
class FourierGrid:
    """Fourier transforms of signals on a grid with even numbers of rows and columns.

    >>> signals = torch.rand(4, 6, 10)
    >>> spectra = FourierGrid(4, 6).half_spectra(signals).reshape(3, 2, 6, 10)
    >>> torch.allclose(spectra[:, 0], torch.fft.fft2(signals, dim=(0, 1))[:3].real, atol=1e-5)
    True
    """

    rows: int
    columns: int

    def half_spectra(self, signals: Tensor) -> Tensor:
        """Spectra [k c l, p] of real signals [m, n, p], with k up to rows / 2. The rest follows by symmetry."""
        count = signals.shape[2]
        rows_done = self._row_analysis @ signals.reshape(self.rows, -1)  # [k c, n p]
        return torch.matmul(self._column_analysis, rows_done.reshape(-1, 2 * self.columns, count)).reshape(-1, count)

    def modulus(self, spectra: Tensor) -> Tensor:
        """Absolute values [m, n, p] of the signals with full spectra [k c l, p]."""
        count = spectra.shape[1]
        rows_done = self._row_synthesis @ spectra.reshape(2 * self.rows, -1)  # [m c, l p]
        pairs = torch.matmul(self._column_synthesis, rows_done.reshape(self.rows, 2 * self.columns, count))
        real, imaginary = pairs.reshape(self.rows, 2, self.columns, count).unbind(dim=1)
        return torch.hypot(real, imaginary)

    def in_half(self, k: Tensor, c: Tensor, column: Tensor) -> tuple[Tensor, Tensor]:
        """Index of part `c` of frequency (k, l) in a half spectrum, and its sign there."""
        mirrored = k > self.rows // 2
        k, column = torch.where(mirrored, self.rows - k, k), torch.where(mirrored, -column % self.columns, column)
        return (2 * k + c) * self.columns + column, torch.where(mirrored & (c == 1), -1.0, 1.0)

    @cached_property
    def _row_analysis(self) -> Tensor:
        """Matrix [k c, m] of the forward transform over rows."""
        angles = _angles(self.rows // 2 + 1, self.rows, -self.rows)
        return torch.stack([angles.cos(), angles.sin()], dim=1).flatten(0, 1).to(torch.float32)

    @cached_property
    def _column_analysis(self) -> Tensor:
        """Matrix [c' l, c n] of the forward transform over columns."""
        return _turning(_angles(self.columns, self.columns, -self.columns)).to(torch.float32)

    @cached_property
    def _row_synthesis(self) -> Tensor:
        """Matrix [m c', k c] of the inverse transform over rows."""
        turning = _turning(_angles(self.rows, self.rows, self.rows)).reshape(2, self.rows, 2, self.rows)
        return (turning.permute(1, 0, 3, 2).reshape(2 * self.rows, 2 * self.rows) / self.rows).to(torch.float32)

    @cached_property
    def _column_synthesis(self) -> Tensor:
        """Matrix [c' n, c l] of the inverse transform over columns."""
        return (_turning(_angles(self.columns, self.columns, self.columns)) / self.columns).to(torch.float32)


def _angles(outputs: int, inputs: int, period: int) -> Tensor:
    return 2 * math.pi * torch.outer(torch.arange(outputs).double(), torch.arange(inputs).double()) / period


def _turning(angles: Tensor) -> Tensor:
    """The matrix that multiplies by e^(i angle), on real parts and then imaginary parts."""
    cosines, sines = angles.cos(), angles.sin()
    return torch.cat([torch.cat([cosines, -sines], dim=1), torch.cat([sines, cosines], dim=1)])


_PERIODS = range(-2, 3)  # filters are negligible beyond two periods


def morlet_wavelets(size: tuple[int, int], scale: int, angles: int) -> Tensor:
    """Fourier transforms of the wavelets at scale 2^`scale`, one per angle. They are real: [angle, row, column].

    >>> morlet_wavelets((36, 36), scale=1, angles=8).shape
    torch.Size([8, 36, 36])
    """
    turns = [(angles // 2 - 1 - i) * math.pi / angles for i in range(angles)]
    in_space = [_morlet(size, 0.8 * 2**scale, turn, 0.75 * math.pi / 2**scale, 4 / angles) for turn in turns]
    spectra: Tensor = torch.fft.fft2(torch.stack(in_space)).real
    return spectra


def averaging_filter(length: int, scale: int) -> Tensor:
    """Fourier transform of the Gaussian average in one dimension. It is applied to rows, then to columns."""
    width = 0.8 * 2 ** (scale - 1)
    places = torch.arange(length, dtype=torch.float64)
    bells = [torch.exp(-((places + period * length) ** 2) / (2 * width**2)) for period in _PERIODS]
    spectrum: Tensor = torch.fft.fft(torch.stack(bells).sum(dim=0) / (width * math.sqrt(2 * math.pi))).real
    return spectrum


def lowest_frequencies(spectrum: Tensor, length: int, axis: int) -> Tensor:
    """The lowest `length` frequencies of a filter, which are its transform on a coarser grid."""
    half = length // 2
    return torch.cat([spectrum.narrow(axis, 0, length - half), spectrum.narrow(axis, -half, half)], dim=axis)


def _morlet(size: tuple[int, int], width: float, turn: float, frequency: float, slant: float) -> Tensor:
    """A Morlet wavelet: a wave times a Gaussian, minus a multiple of the Gaussian that makes the mean zero."""
    wave, bell = torch.zeros(size, dtype=torch.complex128), torch.zeros(size, dtype=torch.complex128)
    for row_period in _PERIODS:
        for column_period in _PERIODS:
            rows = (torch.arange(size[0], dtype=torch.float64) + row_period * size[0])[:, None]
            columns = (torch.arange(size[1], dtype=torch.float64) + column_period * size[1])[None, :]
            across = rows * math.cos(turn) + columns * math.sin(turn)
            along = columns * math.cos(turn) - rows * math.sin(turn)
            envelope = torch.exp(-(across**2 + (slant * along) ** 2) / (2 * width**2))
            bell += envelope
            wave += torch.polar(envelope, frequency * across)
    return (wave - wave.sum() / bell.sum() * bell) * slant / (2 * math.pi * width**2)


_CHUNK = 16  # images of 40x40 pixels whose second-order coefficients fit into the processor's cache


@dataclass(frozen=True)
class Scattering2D:
    """Scattering coefficients of order 0, 1 and 2 at scale 2^J with L angles: [..., M, N] -> [..., channels, M', N'].

    S0 = x * phi, S1 = |x * psi1| * phi and S2 = ||x * psi1| * psi2| * phi, with psi2 coarser than psi1, each kept at
    every 2^J-th position. Channels are S0, then S1 by scale and angle, then S2 by first scale, first angle, second
    scale and second angle, as in Kymatio. Images are padded by reflection at their borders, and never mix.

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
        """Number of coefficients at each position."""
        return 1 + self.L * self.J + self.L**2 * (self.J * (self.J - 1) // 2)

    @property
    def places(self) -> tuple[int, int]:
        """Rows and columns of the coefficients."""
        return self._padded[0] // 2**self.J - 2, self._padded[1] // 2**self.J - 2

    def __call__(self, pictures: Tensor) -> Tensor:
        """Coefficients as float32. They do not depend on the number of threads."""
        if pictures.ndim < 2 or tuple(pictures.shape[-2:]) != self.shape:
            raise UsageError(f"images must have shape {self.shape}, got a tensor of shape {tuple(pictures.shape)}.")
        flat = pictures.detach().reshape(-1, *self.shape)
        coefficients = torch.empty(len(flat), self.channels, *self.places)
        size = max(1, min(_CHUNK, _CHUNK * 1600 // (self._padded[0] * self._padded[1])))

        def scatter_chunk(start: int) -> None:
            chunk = flat[start : start + size].to(torch.float32)
            full = F.pad(chunk, (0, 0, 0, 0, 0, size - len(chunk)))  # rounding may depend on the shape of a product
            coefficients[start : start + size] = self._scatter(full)[: len(chunk)]

        side_by_side(scatter_chunk, range(0, len(flat), size))
        return coefficients.reshape(*pictures.shape[:-2], *coefficients.shape[1:])

    def _scatter(self, images: Tensor) -> Tensor:
        bank = _bank(self.J, self.L, self._padded)
        count, angles, places = len(images), self.L, self.places
        signals = F.pad(images, self._margins, mode="reflect").permute(1, 2, 0).contiguous()
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
        """Padded size: at least one more coarse position on each side, which is dropped from the coefficients."""
        step = 2**self.J
        return ((self.shape[0] + step) // step + 1) * step, ((self.shape[1] + step) // step + 1) * step

    @property
    def _margins(self) -> tuple[int, int, int, int]:
        """Padding on the left, right, top and bottom."""
        rows, columns = self._padded[0] - self.shape[0], self._padded[1] - self.shape[1]
        return columns // 2, columns - columns // 2, rows // 2, rows - rows // 2


@dataclass(frozen=True)
class _Bank:
    """Filters of one transform. Signals at scale j are stored at every 2^j-th position."""

    grids: tuple[FourierGrid, ...]
    wavelets: dict[tuple[int, int], tuple[Tensor, Tensor]]  # by grid and scale: filters [k c l, t, a], and their inputs
    averages: tuple[tuple[Tensor, Tensor], ...]  # by grid, for rows and columns, at the final positions

    def wavelet_modulus(self, spectra: Tensor, grid: int, scale: int) -> Tensor:
        """|x * psi| [m, n, t p] on the grid of `scale`, for signals x on `grid` with the given half spectra.

        Subsampling by s sums the s * s aliases of each frequency. So the filter and this sum are one small matrix
        product for each frequency.
        """
        filters, inputs = self.wavelets[grid, scale]
        aliases = spectra.index_select(0, inputs).reshape(len(filters), -1, spectra.shape[1])
        filtered = filters * aliases if grid == scale else torch.bmm(filters, aliases)  # no sum on the same grid
        return self.grids[scale].modulus(filtered.flatten(1))

    def average(self, signals: Tensor, grid: int) -> Tensor:
        """Gaussian average of signals [m, n, p], at the final positions."""
        rows, columns = self.averages[grid]
        rows_done = rows @ signals.flatten(1)
        return torch.matmul(columns, rows_done.reshape(len(rows), *signals.shape[1:]))


@lru_cache(maxsize=8)
def _bank(J: int, L: int, padded: tuple[int, int]) -> _Bank:
    grids = tuple(FourierGrid(padded[0] >> j, padded[1] >> j) for j in range(J))
    wavelets = {}
    for scale in range(J):
        spectra = morlet_wavelets(padded, scale, L)
        for grid in range(scale + 1):
            coarse = lowest_frequencies(lowest_frequencies(spectra, grids[grid].rows, 1), grids[grid].columns, 2)
            wavelets[grid, scale] = _aliased(coarse, grids[grid], grids[scale])
    averages = tuple((_averaging(padded[0], grid, J), _averaging(padded[1], grid, J)) for grid in range(J))
    return _Bank(grids, wavelets, averages)


def _aliased(spectra: Tensor, fine: FourierGrid, coarse: FourierGrid) -> tuple[Tensor, Tensor]:
    """Filters [k c l, t, a] from one grid to the other, and the indices of the half spectrum that they multiply."""
    stride = fine.rows // coarse.rows
    k, column = (torch.arange(stride) * size + torch.arange(size)[:, None] for size in (coarse.rows, coarse.columns))
    k, column = k[:, None, None, :, None], column[None, None, :, None, :]  # [k, c, l, a, a]
    inputs, signs = fine.in_half(k, torch.arange(2)[:, None, None, None], column)
    values = (spectra[:, k, column] * signs / stride**2).movedim(0, 3)  # [k, c, l, t, a, a]
    return values.reshape(-1, len(spectra), stride**2).to(torch.float32), inputs.flatten()


def _averaging(length: int, grid: int, scale: int) -> Tensor:
    """Matrix that averages a signal on `grid` at every 2^scale-th position except the first and the last."""
    coarse = length >> grid
    kernel: Tensor = torch.fft.ifft(lowest_frequencies(averaging_filter(length, scale), coarse, 0)).real
    kept = torch.arange(length >> scale)[1:-1] * 2 ** (scale - grid)
    return kernel[(kept[:, None] - torch.arange(coarse)) % coarse].to(torch.float32)
