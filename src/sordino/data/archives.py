"""Unpacking that a hostile file cannot exploit: sizes are bounded before memory is, and only plain files come out.

Nothing here writes to disk. Members are handed out as bytes by name; who keeps one chooses where.
"""

from __future__ import annotations

import io
import stat
import tarfile
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import PurePosixPath

from sordino.errors import DataError

_GZIP = 31  # zlib's number for a gzip header and trailer
_ZIP_HEADER_BYTES = 30  # at least, before each entry
_ALWAYS_ALLOWED = 1 << 20  # a small archive of zeros has a large ratio and does no harm


@dataclass(frozen=True)
class Limits:
    """How much an archive may unpack to: in bytes, as a multiple of its own size, and in members."""

    total_bytes: int = 4 << 30
    ratio: int = 200
    entries: int = 1000

    def unpacked(self, packed_bytes: int) -> int:
        """The most bytes that an archive of so many bytes may unpack to."""
        return min(self.total_bytes, max(_ALWAYS_ALLOWED, self.ratio * packed_bytes))


def gunzip_start(packed: bytes, count: int, *, shown: str) -> bytes:
    """The first `count` bytes of a gzip file, or all there are."""
    try:
        return zlib.decompressobj(_GZIP).decompress(packed, count)
    except zlib.error as error:
        raise DataError(f"{shown} is not a sound gzip file: {error}.") from None


def gunzip(packed: bytes, *, at_most: int, shown: str) -> bytes:
    """What a gzip file holds. Stops one byte after `at_most`, however much there is.

    >>> import gzip
    >>> gunzip(gzip.compress(bytes(10_000_000)), at_most=100, shown="'bomb.gz'")
    Traceback (most recent call last):
        ...
    sordino.errors.DataError: 'bomb.gz' unpacks to more than 100 bytes, which is the most allowed here.
    """
    unpacker = zlib.decompressobj(_GZIP)
    try:
        content = unpacker.decompress(packed, at_most + 1)
    except zlib.error as error:
        raise DataError(f"{shown} is not a sound gzip file: {error}.") from None
    if len(content) > at_most:
        raise DataError(f"{shown} unpacks to more than {at_most} bytes, which is the most allowed here.")
    if not unpacker.eof:
        raise DataError(f"{shown} is a truncated gzip file: it ends after {len(content)} unpacked bytes.")
    if unpacker.unused_data:
        raise DataError(f"{shown} has {len(unpacker.unused_data)} bytes after the end of its gzip data.")
    return content


def untar_gz(packed: bytes, *, limits: Limits, shown: str) -> dict[str, bytes]:
    """The regular files of a .tar.gz by name. Folders are passed over, anything else is refused."""
    content = gunzip(packed, at_most=limits.unpacked(len(packed)), shown=shown)
    members: dict[str, bytes] = {}
    try:
        with tarfile.open(fileobj=io.BytesIO(content), mode="r:") as archive:
            for number, member in enumerate(archive, start=1):
                _refuse_too_many(number, limits, shown)
                _refuse_unsafe_name(member.name, members, shown)
                if member.isdir():
                    continue
                if not member.isreg() or member.issparse():
                    raise DataError(f"{shown} holds {member.name!r:.200}, which is not a regular file.")
                found = content[member.offset_data : member.offset_data + member.size]
                if len(found) != member.size:
                    raise DataError(f"{shown} ends within {member.name!r:.200}.")
                members[member.name] = found
    except (tarfile.TarError, ValueError, EOFError, OverflowError):
        raise DataError(f"{shown} is not a sound tar file.") from None
    return members


def unzip(packed: bytes, *, limits: Limits, shown: str) -> dict[str, bytes]:
    """The regular files of a zip file by name, stored or deflated. A zip within it stays packed.

    >>> buffer = io.BytesIO()
    >>> with zipfile.ZipFile(buffer, "w") as archive:
    ...     archive.writestr("../escape", b"")
    >>> unzip(buffer.getvalue(), limits=Limits(), shown="'a.zip'")
    Traceback (most recent call last):
        ...
    sordino.errors.DataError: 'a.zip' holds '../escape', a name that leads out of its folder.
    """
    try:
        with zipfile.ZipFile(io.BytesIO(packed)) as archive:
            entries = archive.infolist()
            _refuse_too_many(len(entries), limits, shown)
            _refuse_overlap(entries, shown)
            allowed = limits.unpacked(len(packed))
            if sum(entry.file_size for entry in entries) > allowed:
                raise DataError(f"{shown} unpacks to more than {allowed} bytes, which is the most allowed here.")
            members: dict[str, bytes] = {}
            for entry in entries:
                _refuse_unsafe_name(entry.filename, members, shown)
                if not entry.is_dir():
                    members[entry.filename] = _inflate(archive, entry, shown)
            return members
    except (zipfile.BadZipFile, zlib.error, ValueError, EOFError, OverflowError, NotImplementedError):
        raise DataError(f"{shown} is not a sound zip file.") from None


def _inflate(archive: zipfile.ZipFile, entry: zipfile.ZipInfo, shown: str) -> bytes:
    kind = stat.S_IFMT(entry.external_attr >> 16)  # 0 where the archive was not made on Unix
    plain = entry.compress_type in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED) and not entry.flag_bits & 1
    if kind not in (0, stat.S_IFREG) or not plain:
        raise DataError(f"{shown} holds {entry.filename!r:.200}, which is not a plain regular file.")
    with archive.open(entry) as stream:  # stops at the declared size, and checks the CRC there
        content = stream.read()
    if len(content) != entry.file_size:
        raise DataError(f"{shown} holds {entry.filename!r:.200} with a wrong size.")
    return content


def _refuse_overlap(entries: list[zipfile.ZipInfo], shown: str) -> None:
    """Entries that share bytes are how a small zip file becomes a very large one."""
    end = 0
    for entry in sorted(entries, key=lambda entry: entry.header_offset):
        if entry.header_offset < end:
            raise DataError(f"{shown} is a zip file whose entries overlap.")
        end = entry.header_offset + _ZIP_HEADER_BYTES + entry.compress_size


def _refuse_too_many(number: int, limits: Limits, shown: str) -> None:
    if number > limits.entries:
        raise DataError(f"{shown} has more than {limits.entries} entries, which is the most allowed here.")


def _refuse_unsafe_name(name: str, taken: dict[str, bytes], shown: str) -> None:
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or "\\" in name or ":" in name:
        raise DataError(f"{shown} holds {name!r:.200}, a name that leads out of its folder.")
    if name in taken:
        raise DataError(f"{shown} holds {name!r:.200} twice.")
