"""Cache of features on disk, and parallel computation over rows.

Features of private data are private: files are readable by their owner only. Each block of rows has a file named by a
hash of the transform and of the block's inputs. So features of other inputs are never used by mistake, a stopped
computation continues where it stopped, and at most one block is in memory twice.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import is_dataclass
from math import prod
from pathlib import Path
from typing import ClassVar, Protocol

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from sordino._input.files import read_bytes, write_atomically
from sordino.data import root
from sordino.errors import DataError, UsageError
from sordino.training.progress import progress_bar


def side_by_side(work: Callable[[int], None], starts: Iterable[int]) -> None:
    """Calls `work` with each number, in parallel, each call on a single thread.

    Splitting small matrix products over threads makes the threads wait for each other, long on a busy machine. Without
    that, results are also the same for any number of threads.

    >>> squares = torch.zeros(4)
    >>> side_by_side(lambda i: squares[i].fill_(i * i), range(4))
    >>> squares
    tensor([0., 1., 4., 9.])
    """
    threads = torch.get_num_threads()
    try:
        with ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,)) as pool:
            for _ in pool.map(work, starts):  # re-raises exceptions of the threads
                pass
    finally:
        torch.set_num_threads(threads)


_BLOCK_BYTES = 64 << 20
_HEADER_BYTES = 1 << 16


class FeatureTransform(Protocol):
    """A frozen dataclass that maps each row to float16 features. Its `repr` is its configuration."""

    version: ClassVar[int]

    @property
    def output_shape(self) -> tuple[int, ...]: ...

    def __call__(self, inputs: Tensor, /) -> Tensor: ...


def cached(transform: FeatureTransform, inputs: Tensor, folder: Path | None = None, *, progress: bool = True) -> Tensor:
    """Returns `transform(inputs)`, from disk if it was computed before. A damaged file is replaced.

    The default folder is `features` in the folder of standard datasets. It may be deleted at any time.

    >>> import tempfile
    >>> from sordino.models.features import ScatteringFeatures
    >>> folder, pictures = Path(tempfile.mkdtemp()), torch.zeros(3, 1, 28, 28)
    >>> first = cached(ScatteringFeatures((1, 28, 28)), pictures, folder, progress=False)
    >>> again = cached(ScatteringFeatures((1, 28, 28)), pictures, folder, progress=False)
    >>> torch.equal(first, again), len(list(folder.iterdir()))
    (True, 1)
    """
    if not is_dataclass(transform):
        raise UsageError(
            f"transform must be a dataclass, whose repr is its configuration, got {type(transform).__name__}."
        )
    folder = root() / "features" if folder is None else folder
    features = torch.empty(len(inputs), *transform.output_shape, dtype=torch.float16)
    rows_per_block = max(1, _BLOCK_BYTES // (2 * prod(transform.output_shape)))
    with progress_bar(progress, transient=True) as bar:
        task = bar.add_task("preparing features", total=len(inputs))
        for start in range(0, len(inputs), rows_per_block):
            block = slice(start, start + rows_per_block)
            features[block] = _block(transform, inputs[block], folder)
            bar.advance(task, len(inputs[block]))
    return features


def _block(transform: FeatureTransform, inputs: Tensor, folder: Path) -> Tensor:
    path = folder / f"{_key(transform, inputs)}.safetensors"
    known = _read(path, (len(inputs), *transform.output_shape))
    if known is not None:
        return known
    features = transform(inputs).to(torch.float16)
    _keep(path, features)
    return features


def _key(transform: FeatureTransform, inputs: Tensor) -> str:
    kind = type(transform)
    about = (kind.__module__, kind.__qualname__, transform.version, repr(transform), inputs.dtype, tuple(inputs.shape))
    digest = hashlib.sha256(repr(about).encode())
    digest.update(_bytes_of(inputs))
    return digest.hexdigest()


def _read(path: Path, shape: tuple[int, ...]) -> Tensor | None:
    """Reads the features in a file. Returns None if it is missing, damaged or of another shape."""
    try:
        parts = load(read_bytes(path, at_most=2 * prod(shape) + _HEADER_BYTES))
    except (DataError, SafetensorError):
        return None
    features, digest = parts.get("features"), parts.get("sha256")
    if features is None or digest is None or features.dtype != torch.float16 or tuple(features.shape) != shape:
        return None
    if digest.dtype != torch.uint8 or bytes(digest.flatten().tolist()) != _digest(features):
        return None
    return features  # may have values that are not finite: those rows count as absent


def _keep(path: Path, features: Tensor) -> None:
    content = save({"features": features, "sha256": torch.tensor(list(_digest(features)), dtype=torch.uint8)})
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_atomically(path, content, private=True)
    except OSError:  # without a cache (full disk, missing permission) the features are computed again next time
        return


def _digest(features: Tensor) -> bytes:
    return hashlib.sha256(_bytes_of(features)).digest()


def _bytes_of(tensor: Tensor) -> memoryview:
    return tensor.contiguous().flatten().view(torch.uint8).numpy().data
