"""Files that are whole or absent, and reading that a hostile file cannot exploit."""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from sordino.errors import DataError


def write_atomically(path: Path, content: bytes, *, private: bool = False) -> None:
    """Writes a file that is either as before or whole, whenever the machine stops. A private one is its owner's alone.

    >>> folder = Path(tempfile.mkdtemp())
    >>> write_atomically(folder / "key", b"secret", private=True)
    >>> (folder / "key").read_bytes(), oct((folder / "key").stat().st_mode & 0o777)
    (b'secret', '0o600')
    """
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")  # made with mode 0600
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            if not private:
                os.fchmod(file.fileno(), 0o666 & ~_umask())
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def read_bytes(path: Path, *, at_most: int) -> bytes:
    """The content of a regular file of at most so many bytes. Pipes, devices and folders are refused unread.

    >>> read_bytes(Path("/dev/zero"), at_most=10)
    Traceback (most recent call last):
        ...
    sordino.errors.DataError: '/dev/zero' is not a regular file.
    """
    with open_regular(path) as file:
        content = file.read(min(os.fstat(file.fileno()).st_size, at_most) + 1)
    if len(content) > at_most:
        raise DataError(f"{str(path)!r} is longer than {at_most} bytes, which is the most allowed here.")
    return content


@contextmanager
def open_regular(path: Path) -> Iterator[BinaryIO]:
    """A regular file, open for reading piece by piece. What the system refuses in between is a DataError too."""
    shown = repr(str(path))
    try:
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb") as file:  # without waiting at a pipe
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise DataError(f"{shown} is not a regular file.")
            yield file
    except OSError as error:
        raise DataError(f"{shown} cannot be read: {error.strerror}.") from None


def sync_folder(folder: Path) -> None:
    """What was made, renamed or removed in the folder is so on the disk, too."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
