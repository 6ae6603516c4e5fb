"""Atomic writing of files, and reading of files that may be hostile."""

from __future__ import annotations

import os
import stat
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from sordino.errors import DataError

# Opening does not wait for the writer of a pipe. Windows has another set of flags.
_READ = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)


def write_atomically(path: Path, content: bytes, *, private: bool = False) -> None:
    """Replaces a file at once: after a crash it is either unchanged or complete. `private` gives it mode 0600.

    >>> folder = Path(tempfile.mkdtemp())
    >>> write_atomically(folder / "key", b"secret", private=True)
    >>> (folder / "key").read_bytes(), oct((folder / "key").stat().st_mode & 0o777)
    (b'secret', '0o600')
    """
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")  # mode 0600
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            if not private and sys.platform != "win32":
                os.fchmod(file.fileno(), 0o666 & ~_umask())
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def read_bytes(path: Path, *, at_most: int) -> bytes:
    """Reads a regular file of at most `at_most` bytes. Pipes, devices and folders are refused unread.

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
    """Opens a regular file for reading. An `OSError` inside the block is raised as a `DataError`."""
    shown = repr(str(path))
    try:
        with open(os.open(path, _READ), "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise DataError(f"{shown} is not a regular file.")
            yield file
    except OSError as error:
        raise DataError(f"{shown} cannot be read: {error.strerror}.") from None


def lock(descriptor: int) -> bool:
    """Locks an open file for this process until it is closed. Returns whether nobody else holds the lock.

    >>> with tempfile.NamedTemporaryFile() as file, open(file.name) as again:
    ...     lock(file.fileno()), lock(again.fileno())
    (True, False)
    """
    try:
        if sys.platform == "win32":
            import msvcrt

            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
        else:
            import fcntl

            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def sync_folder(folder: Path) -> None:
    """Flushes the entries of a folder to the disk, after files in it were made, renamed or removed."""
    if sys.platform == "win32":  # a folder cannot be opened there
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
