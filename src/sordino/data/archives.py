"""Safe unpacking of gzip, tar and zip: sizes are checked before memory is used, and only regular files are accepted.

Nothing here writes to disk: members are returned as bytes by name.
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
    """Limits of an archive: unpacked bytes, ratio of unpacked to packed size, and number of members."""

    total_bytes: int = 4 << 30
    ratio: int = 200
    entries: int = 1000

    def unpacked(self, packed_bytes: int) -> int:
        """Largest allowed unpacked size of an archive of `packed_bytes` bytes."""
        return min(self.total_bytes, max(_ALWAYS_ALLOWED, self.ratio * packed_bytes))


def gunzip_start(packed: bytes, count: int, *, shown: str) -> bytes:
    """Unpacks the first `count` bytes of a gzip file, or all if it has fewer."""
    try:
        return zlib.decompressobj(_GZIP).decompress(packed, count)
    except zlib.error as error:
        raise DataError(f"{shown} is not a valid gzip file: {error}.") from None


def gunzip(packed: bytes, *, at_most: int, shown: str) -> bytes:
    """Unpacks a gzip file of at most `at_most` unpacked bytes. Larger files are refused after one byte more.

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
        raise DataError(f"{shown} is not a valid gzip file: {error}.") from None
    if len(content) > at_most:
        raise DataError(f"{shown} unpacks to more than {at_most} bytes, which is the most allowed here.")
    if not unpacker.eof:
        raise DataError(f"{shown} is a truncated gzip file: it ends after {len(content)} unpacked bytes.")
    if unpacker.unused_data:
        raise DataError(f"{shown} has {len(unpacker.unused_data)} bytes after the end of its gzip data.")
    return content


def untar_gz(packed: bytes, *, limits: Limits, shown: str) -> dict[str, bytes]:
    """Regular files of a .tar.gz by name. Folders are skipped; links, devices and the like are refused."""
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
        raise DataError(f"{shown} is not a valid tar file.") from None
    return members


def unzip(packed: bytes, *, limits: Limits, shown: str) -> dict[str, bytes]:
    """Regular files of a zip file by name, stored or deflated. A zip inside it is not unpacked.

    >>> buffer = io.BytesIO()
    >>> with zipfile.ZipFile(buffer, "w") as archive:
    ...     archive.writestr("../escape", b"")
    >>> unzip(buffer.getvalue(), limits=Limits(), shown="'a.zip'")
    Traceback (most recent call last):
        ...
    sordino.errors.DataError: 'a.zip' holds '../escape', a path outside its folder.
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
        raise DataError(f"{shown} is not a valid zip file.") from None


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
    """Refuses entries that share bytes: with them a small zip file can unpack to a very large size (a zip bomb)."""
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
        raise DataError(f"{shown} holds {name!r:.200}, a path outside its folder.")
    if name in taken:
        raise DataError(f"{shown} holds {name!r:.200} twice.")
