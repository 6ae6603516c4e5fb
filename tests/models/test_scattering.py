"""The scattering transform is its definition, computed directly in space, and obeys its laws."""

import itertools
import math

import numpy as np
import pytest
import torch

import sordino.models.features.scattering as scattering
from sordino.errors import UsageError
from sordino.models.features import Scattering2D


def pictures(*shape, seed=0):
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed))


def periodic(function, rows, columns):
    """The values of a function on a periodic grid."""
    grid = np.zeros((rows, columns), dtype=complex)
    for p, q in itertools.product(range(-3, 4), repeat=2):
        u, v = np.meshgrid(np.arange(rows) + p * rows, np.arange(columns) + q * columns, indexing="ij")
        grid += function(u, v)
    return grid


def morlet(rows, columns, j, t, angles):
    """psi(u) = g(u) (e^{i xi u} - kappa), where kappa makes the sum zero."""
    sigma, xi, slant = 0.8 * 2**j, 3 * math.pi / 4 / 2**j, 4 / angles
    theta = (angles // 2 - 1 - t) * math.pi / angles
    turn = np.array([[math.cos(theta), -math.sin(theta)], [math.sin(theta), math.cos(theta)]])
    curve = turn @ np.diag([1, slant**2]) @ turn.T / (2 * sigma**2)

    def gauss(u, v):
        return np.exp(-(curve[0, 0] * u * u + 2 * curve[0, 1] * u * v + curve[1, 1] * v * v))

    def wave(u, v):
        return gauss(u, v) * np.exp(1j * xi * (u * math.cos(theta) + v * math.sin(theta)))

    bell, gabor = periodic(gauss, rows, columns), periodic(wave, rows, columns)
    return (gabor - gabor.sum() / bell.sum() * bell) * slant / (2 * math.pi * sigma**2)


def gaussian(rows, columns, J):
    sigma = 0.8 * 2 ** (J - 1)
    return periodic(lambda u, v: np.exp(-(u * u + v * v) / (2 * sigma**2)), rows, columns) / (2 * math.pi * sigma**2)


def coarser(kernel, grid):
    """The filter without what a grid of every 2^grid-th place cannot carry, on that grid, by sums over frequencies."""
    for _ in range(2):
        length = len(kernel)
        kept = length >> grid
        frequencies = np.arange(kept) - kept // 2
        analyse = np.exp(-2j * math.pi * np.outer(frequencies, np.arange(length)) / length)
        build = np.exp(2j * math.pi * np.outer(np.arange(kept), frequencies) / kept) / kept
        kernel = (build @ analyse @ kernel).T
    return kernel


def convolve(signal, kernel):
    """The circular convolution, as a matrix with a row for each place."""
    rows, columns = signal.shape
    p, q = np.divmod(np.arange(rows * columns), columns)
    matrix = kernel[np.subtract.outer(p, p) % rows, np.subtract.outer(q, q) % columns]
    return (matrix @ signal.reshape(-1)).reshape(rows, columns)


def direct(picture, J, L):
    """Every coefficient of one picture, in the order of the channels."""
    step, margins = 2**J, []
    for size in picture.shape:
        missing = ((size + step) // step + 1) * step - size
        margins.append((missing // 2, missing - missing // 2))
    padded = np.pad(picture, margins, mode="reflect")
    low = gaussian(*padded.shape, J)
    psi = {(j, t): morlet(*padded.shape, j, t, L) for j in range(J) for t in range(L)}

    def averaged(signal, grid):
        stride = 2 ** (J - grid)
        return convolve(signal, coarser(low, grid)).real[::stride, ::stride][1:-1, 1:-1]

    zeroth, first, second = [averaged(padded, 0)], [], []
    for j1, t1 in itertools.product(range(J), range(L)):
        once = np.abs(convolve(padded, psi[j1, t1]))[:: 2**j1, :: 2**j1]
        first.append(averaged(once, j1))
        for j2, t2 in itertools.product(range(j1 + 1, J), range(L)):
            stride = 2 ** (j2 - j1)
            twice = np.abs(convolve(once, coarser(psi[j2, t2], j1)))[::stride, ::stride]
            second.append(averaged(twice, j2))
    return np.stack(zeroth + first + second)


@pytest.mark.parametrize(("J", "L", "shape"), [(2, 8, (8, 8)), (1, 4, (6, 9)), (2, 3, (7, 10)), (3, 2, (9, 10))])
def test_the_transform_is_its_definition_computed_directly_in_space(J, L, shape):
    transform, given = Scattering2D(J, L, shape), pictures(2, *shape)
    expected = np.stack([direct(picture.double().numpy(), J, L) for picture in given])
    assert transform(given).shape == expected.shape == (2, transform.channels, *transform.places)
    np.testing.assert_allclose(transform(given), expected, rtol=2e-5, atol=2e-7)


@pytest.mark.parametrize(("size", "places"), [(28, 7), (32, 8)])
def test_pictures_of_both_sizes_have_81_coefficients_at_each_place(size, places):
    assert Scattering2D(2, 8, (size, size))(pictures(3, 2, size, size)).shape == (3, 2, 81, places, places)


def test_a_shift_by_a_coarse_place_shifts_the_coefficients():
    picture = torch.zeros(28, 28)
    picture[8:16, 8:16] = pictures(8, 8)
    shifted = picture.roll((4, 4), dims=(0, 1))
    one, other = Scattering2D()(torch.stack([picture, shifted]))
    torch.testing.assert_close(one[:, 1:-2, 1:-2], other[:, 2:-1, 2:-1], rtol=1e-3, atol=1e-4)


def test_a_shift_by_one_pixel_moves_the_coefficients_less_than_the_picture():
    picture = torch.zeros(28, 28)
    picture[8:20, 8:20] = pictures(12, 12)
    shifted = picture.roll(1, dims=0)
    one, other = Scattering2D()(torch.stack([picture, shifted]))
    assert (one - other).norm() / one.norm() < 0.5 * (picture - shifted).norm() / picture.norm()


def test_the_energy_of_the_coefficients_is_at_most_that_of_the_picture():
    transform, given = Scattering2D(), pictures(5, 28, 28) - 0.5
    padded = torch.nn.functional.pad(given, (4, 4, 4, 4), mode="reflect")
    energy = 16 * transform(given).square().sum(dim=(1, 2, 3))  # one place stands for 4 * 4
    assert (energy <= padded.square().sum(dim=(1, 2))).all()


def test_two_pictures_are_never_further_apart_after_the_transform():
    one, other = pictures(28, 28), pictures(28, 28, seed=1)
    padded = torch.nn.functional.pad((one - other)[None], (4, 4, 4, 4), mode="reflect")
    before, after = padded.norm(), 4 * (Scattering2D()(one) - Scattering2D()(other)).norm()
    assert after <= before


def test_nothing_has_no_coefficients_and_a_flat_picture_only_its_mean():
    transform = Scattering2D()
    assert torch.equal(transform(torch.zeros(2, 28, 28)), torch.zeros(2, 81, 7, 7))
    flat = transform(torch.full((28, 28), 0.5))
    torch.testing.assert_close(flat[0], torch.full((7, 7), 0.5), rtol=1e-5, atol=0)
    assert flat[1:].abs().max() < 1e-6


def test_colours_are_transformed_on_their_own():
    transform, given = Scattering2D(shape=(32, 32)), pictures(2, 3, 32, 32)
    together = transform(given)
    for channel in range(3):
        torch.testing.assert_close(together[:, channel], transform(given[:, channel]))


def test_neither_the_batch_nor_the_chunk_changes_a_coefficient(monkeypatch):
    transform, given = Scattering2D(), pictures(21, 28, 28)
    whole = transform(given)
    assert torch.equal(whole[:5], transform(given[:5]))
    torch.testing.assert_close(whole[5:6], transform(given[5:6]), rtol=1e-5, atol=1e-7)
    monkeypatch.setattr(scattering, "_CHUNK", 4)
    torch.testing.assert_close(whole, transform(given), rtol=1e-5, atol=1e-7)


def test_the_number_of_threads_changes_no_bit_and_is_left_as_it_was():
    transform, given, threads = Scattering2D(), pictures(40, 28, 28), torch.get_num_threads()
    whole = transform(given)
    assert torch.get_num_threads() == threads
    try:
        torch.set_num_threads(1 if threads > 1 else 2)
        assert torch.equal(whole, transform(given))
    finally:
        torch.set_num_threads(threads)


def test_what_fails_in_a_thread_is_raised_and_leaves_the_number_of_threads(monkeypatch):
    threads = torch.get_num_threads()

    def fail(transform, chunk):
        raise MemoryError("no room")

    monkeypatch.setattr(Scattering2D, "_scatter", fail)
    with pytest.raises(MemoryError, match="no room"):
        Scattering2D()(pictures(2, 28, 28))
    assert torch.get_num_threads() == threads


def test_no_pictures_give_no_coefficients():
    assert Scattering2D()(torch.zeros(0, 28, 28)).shape == (0, 81, 7, 7)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"J": 0}, "J must be a whole number from 1"),
        ({"L": 1.5}, "L must be a whole number"),
        ({"J": 3, "shape": (8, 9)}, r"shape must be two sizes above 2\^J = 8"),
    ],
)
def test_a_transform_that_cannot_be_is_refused(arguments, message):
    with pytest.raises(UsageError, match=message):
        Scattering2D(**arguments)


def test_pictures_of_another_size_are_refused():
    with pytest.raises(UsageError, match=r"images must have shape \(28, 28\), got a tensor of shape \(2, 32, 32\)"):
        Scattering2D()(torch.zeros(2, 32, 32))
