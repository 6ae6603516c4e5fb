"""Safe unpacking of gzip, tar and zip: sizes are checked before memory is used, and only regular files are accepted.

Nothing here writes to disk: members are returned as bytes by name.
"""

from __future__ import annotations

import io
import stat
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Container, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import IO, BinaryIO, cast

from sordino.errors import DataError

_GZIP = 31  # zlib's number for a gzip header and trailer
_ZIP_HEADER = "<26x2H"  # before each entry; it ends with the lengths of the name and of the extra field
_ZIP_HEADER_BYTES = struct.calcsize(_ZIP_HEADER)
_ALWAYS_ALLOWED = 1 << 20  # a small archive of zeros has a large ratio and does no harm
_LARGEST_DIRECTORY = 1 << 20  # bytes at the end of a zip file, which list its entries


@dataclass(frozen=True)
class Limits:
    """Limits of an archive: unpacked bytes, ratio of unpacked to packed size, and number of members.

    `way_out` says what to do about an archive that unpacks to more than `total_bytes`.
    """

    total_bytes: int = 4 << 30
    ratio: int = 200
    entries: int = 1000
    way_out: str = ""

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
    with _opened(io.BytesIO(packed), limits, shown) as archive:
        _refuse_large(archive.infolist(), len(packed), limits, shown)
        members: dict[str, bytes] = {}
        for entry in archive.infolist():
            _refuse_unsafe_name(entry.filename, members, shown)
            if not entry.is_dir():
                members[entry.filename] = _inflate(archive, entry, shown)
        return members


@dataclass(frozen=True)
class Stored:
    """The place of an uncompressed member in a zip file."""

    offset: int
    size: int


def unzip_around(
    file: BinaryIO, leaves: Callable[[str, int], bool], *, limits: Limits, shown: str
) -> tuple[dict[str, bytes], dict[str, Stored]]:
    """Members of an open zip file that are read, and places of uncompressed ones that are left where they are.

    `leaves` decides by name and size. A member that is left lies within the file, and shares no byte with another one.
    Its bytes are not read, so its CRC is not checked. All other members are treated as by `unzip`.
    """
    with _opened(file, limits, shown) as archive:
        members: dict[str, bytes] = {}
        places: dict[str, Stored] = {}
        starts = sorted(entry.header_offset for entry in archive.infolist())
        ends = dict(zip(starts, [*starts[1:], archive.start_dir], strict=True))
        stored = [entry for entry in archive.infolist() if entry.compress_type == zipfile.ZIP_STORED]
        left = [entry for entry in stored if leaves(entry.filename, entry.file_size)]
        read = [entry for entry in archive.infolist() if entry not in left and not entry.is_dir()]
        _refuse_large(read, sum(entry.compress_size for entry in read), limits, shown)
        for entry in archive.infolist():
            _refuse_unsafe_name(entry.filename, members.keys() | places.keys(), shown)
            if entry in left:
                places[entry.filename] = _place(archive, file, entry, ends[entry.header_offset], shown)
            elif entry in read:
                members[entry.filename] = _inflate(archive, entry, shown)
        return members, places


@contextmanager
def _opened(file: BinaryIO, limits: Limits, shown: str) -> Iterator[zipfile.ZipFile]:
    """A zip file whose entries are few and disjoint."""
    guarded = _Guarded(file)
    try:
        with zipfile.ZipFile(cast(IO[bytes], guarded)) as archive:
            guarded.is_open = True
            entries = archive.infolist()
            _refuse_too_many(len(entries), limits, shown)
            _refuse_overlap(entries, shown)
            yield archive
    except (zipfile.BadZipFile, zlib.error, ValueError, EOFError, OverflowError, NotImplementedError, struct.error):
        raise DataError(f"{shown} is not a valid zip file.") from None


class _Guarded:
    """A file of which a hostile list of entries cannot be read into memory, however long it says it is."""

    def __init__(self, file: BinaryIO) -> None:
        self._file, self.is_open = file, False
        self.seek, self.tell, self.seekable = file.seek, file.tell, file.seekable

    def read(self, size: int = -1) -> bytes:
        if self.is_open:
            return self._file.read(size)
        found = self._file.read(_LARGEST_DIRECTORY + 1 if size < 0 else min(size, _LARGEST_DIRECTORY + 1))
        if len(found) > _LARGEST_DIRECTORY:
            raise zipfile.BadZipFile
        return found


def _place(archive: zipfile.ZipFile, file: BinaryIO, entry: zipfile.ZipInfo, end: int, shown: str) -> Stored:
    _refuse_irregular(entry, shown)
    archive.open(entry).close()  # compares the header before the member with the list of entries
    file.seek(entry.header_offset)
    name_length, extra_length = struct.unpack(_ZIP_HEADER, file.read(_ZIP_HEADER_BYTES))
    offset = entry.header_offset + _ZIP_HEADER_BYTES + name_length + extra_length
    if entry.compress_size != entry.file_size or offset + entry.file_size > end:
        raise DataError(f"{shown} holds {entry.filename!r:.200} with a wrong size.")
    return Stored(offset, entry.file_size)


def _refuse_large(entries: list[zipfile.ZipInfo], packed: int, limits: Limits, shown: str) -> None:
    allowed = limits.unpacked(packed)
    if sum(entry.file_size for entry in entries) > allowed:
        way_out = f": {limits.way_out}" if limits.way_out and allowed == limits.total_bytes else ""
        raise DataError(f"{shown} unpacks to more than {allowed} bytes, which is the most allowed here{way_out}.")


def _refuse_irregular(entry: zipfile.ZipInfo, shown: str) -> None:
    kind = stat.S_IFMT(entry.external_attr >> 16)  # 0 where the archive was not made on Unix
    plain = entry.compress_type in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED) and not entry.flag_bits & 1
    if kind not in (0, stat.S_IFREG) or not plain:
        raise DataError(f"{shown} holds {entry.filename!r:.200}, which is not a plain regular file.")


def _inflate(archive: zipfile.ZipFile, entry: zipfile.ZipInfo, shown: str) -> bytes:
    _refuse_irregular(entry, shown)
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


def _refuse_unsafe_name(name: str, taken: Container[str], shown: str) -> None:
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or "\\" in name or ":" in name:
        raise DataError(f"{shown} holds {name!r:.200}, a path outside its folder.")
    if name in taken:
        raise DataError(f"{shown} holds {name!r:.200} twice.")
