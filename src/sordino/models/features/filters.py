"""The Morlet wavelets and the Gaussian average of the scattering transform, on a periodic grid.

Bruna and Mallat (2013), with the constants of Andreux et al., "Kymatio" (2020): a wavelet at scale 2^j is as wide as
0.8 * 2^j, oscillates at 3/4 pi / 2^j and is stretched by L / 4 along its crests; the average is 0.8 * 2^(J-1) wide.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

_PERIODS = range(-2, 3)  # beyond two periods nothing is left of any filter


def wavelets(size: tuple[int, int], scale: int, angles: int) -> Tensor:
    """The Fourier transforms of the wavelets at scale 2^`scale`, one per angle. They are real: [angle, row, column].

    >>> wavelets((36, 36), scale=1, angles=8).shape
    torch.Size([8, 36, 36])
    """
    turns = [(angles // 2 - 1 - i) * math.pi / angles for i in range(angles)]
    in_space = [_morlet(size, 0.8 * 2**scale, turn, 0.75 * math.pi / 2**scale, 4 / angles) for turn in turns]
    spectra: Tensor = torch.fft.fft2(torch.stack(in_space)).real
    return spectra


def average(length: int, scale: int) -> Tensor:
    """The Fourier transform of a Gaussian in one dimension. The average is separable: rows, then columns."""
    width = 0.8 * 2 ** (scale - 1)
    places = torch.arange(length, dtype=torch.float64)
    bells = [torch.exp(-((places + period * length) ** 2) / (2 * width**2)) for period in _PERIODS]
    spectrum: Tensor = torch.fft.fft(torch.stack(bells).sum(dim=0) / (width * math.sqrt(2 * math.pi))).real
    return spectrum


def lowest(spectrum: Tensor, length: int, axis: int) -> Tensor:
    """The lowest `length` frequencies: the same filter for signals on a coarser grid."""
    half = length // 2
    return torch.cat([spectrum.narrow(axis, 0, length - half), spectrum.narrow(axis, -half, half)], dim=axis)


def _morlet(size: tuple[int, int], width: float, turn: float, frequency: float, slant: float) -> Tensor:
    """A wave under a Gaussian, less as much of the Gaussian as makes its mean zero."""
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
