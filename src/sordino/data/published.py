"""URLs, sizes and SHA-256 hashes of the published files of the standard datasets."""

from __future__ import annotations

import hashlib
import os
import stat
from dataclasses import dataclass
from pathlib import Path

from sordino._input.files import read_bytes
from sordino.errors import DataError, StateError


@dataclass(frozen=True)
class PublishedFile:
    """A published file: name, size in bytes and SHA-256."""

    name: str
    size: int
    sha256: str

    def is_in(self, folder: Path) -> bool:
        """Whether a regular file of this name and size is in `folder`. `verify` checks its content."""
        try:
            status = os.stat(folder / self.name)
        except OSError:
            return False
        return stat.S_ISREG(status.st_mode) and status.st_size == self.size

    def verify(self, folder: Path) -> Path:
        """Returns the path of this file in `folder`, after its hash was checked once in this process."""
        path = folder / self.name
        try:
            status = os.stat(path)
        except OSError as error:
            raise DataError(f"{str(path)!r} cannot be read: {error.strerror}.") from None
        seen = (str(path.absolute()), status.st_size, status.st_mtime_ns)
        if seen not in _verified:
            if stat.S_ISREG(status.st_mode) and status.st_size != self.size:
                raise StateError(f"{str(path)!r} has {status.st_size} bytes, the published file has {self.size}.")
            self.check(read_bytes(path, at_most=self.size), shown=repr(str(path)))
            _verified.add(seen)
        return path

    def check(self, content: bytes, *, shown: str) -> None:
        """Raises if `content` has another SHA-256 than the published file.

        >>> PublishedFile("a", 0, hashlib.sha256(b"").hexdigest()).check(b"x", shown="'a'")
        Traceback (most recent call last):
            ...
        sordino.errors.StateError: 'a' is not the published file: SHA-256 2d711642b726..., expected e3b0c44298fc...
        """
        found = hashlib.sha256(content).hexdigest()
        if found != self.sha256:
            raise StateError(
                f"{shown} is not the published file: SHA-256 {found[:12]}..., expected {self.sha256[:12]}..."
            )


@dataclass(frozen=True)
class FileSource:
    """A published file and its URL. Of an archive, only the members in `unpacked` are kept, without their folders."""

    url: str
    file: PublishedFile
    unpacked: tuple[PublishedFile, ...] = ()

    @property
    def kept(self) -> tuple[PublishedFile, ...]:
        return self.unpacked or (self.file,)


# Path, size and modification time of files that this process has verified. Never written to disk.
_verified: set[tuple[str, int, int]] = set()


def _four_idx_files(base: str, *files: tuple[int, str]) -> tuple[FileSource, ...]:
    names = (f"{part}-{kind}-ubyte.gz" for part in ("train", "t10k") for kind in ("images-idx3", "labels-idx1"))
    return tuple(FileSource(base + name, PublishedFile(name, *known)) for name, known in zip(names, files, strict=True))


_MNIST = _four_idx_files(
    "https://ossci-datasets.s3.amazonaws.com/mnist/",
    (9_912_422, "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609"),
    (28_881, "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c"),
    (1_648_877, "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6"),
    (4_542, "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6"),
)
_FASHION_MNIST = _four_idx_files(
    "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/",
    (26_421_880, "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84"),
    (29_515, "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845"),
    (4_422_102, "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073"),
    (5_148, "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5"),
)
_CIFAR10 = FileSource(
    "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
    PublishedFile(
        "cifar-10-binary.tar.gz",
        170_052_171,
        "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
    ),
    unpacked=tuple(
        PublishedFile(name, 30_730_000, sha256)
        for name, sha256 in (
            ("data_batch_1.bin", "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5"),
            ("data_batch_2.bin", "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed"),
            ("data_batch_3.bin", "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67"),
            ("data_batch_4.bin", "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48"),
            ("data_batch_5.bin", "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add"),
            ("test_batch.bin", "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b"),
        )
    ),
)
_SVHN = tuple(
    FileSource(f"https://ufldl.stanford.edu/housenumbers/{name}", PublishedFile(name, size, sha256))
    for name, size, sha256 in (
        ("train_32x32.mat", 182_040_794, "435e94d69a87fde4fd4d7f3dd208dfc32cb6ae8af2240d066de1df7508d083b8"),
        ("test_32x32.mat", 64_275_384, "cdce80dfb2a2c4c6160906d0bd7c68ec5a99d7ca4831afa54f09182025b6a75b"),
    )
)
_ADULT = tuple(
    FileSource(
        f"https://archive.ics.uci.edu/ml/machine-learning-databases/adult/{name}", PublishedFile(name, size, sha256)
    )
    for name, size, sha256 in (
        ("adult.data", 3_974_305, "5b00264637dbfec36bdeaab5676b0b309ff9eb788d63554ca0a249491c86603d"),
        ("adult.test", 2_003_153, "a2a9044bc167a35b2361efbabec64e89d69ce82d9790d2980119aac5fd7e9c05"),
    )
)

SOURCES: dict[str, tuple[FileSource, ...]] = {
    "mnist": _MNIST,
    "fashion-mnist": _FASHION_MNIST,
    "cifar10": (_CIFAR10,),
    "svhn": _SVHN,
    "adult": _ADULT,
}

NAMES = ("digits", *SOURCES, "two-patch")  # the first and the last need no file


def root() -> Path:
    """The folder of the standard datasets: $SORDINO_DATA, or ~/.cache/sordino."""
    chosen = os.environ.get("SORDINO_DATA")
    return Path(chosen) if chosen else Path.home() / ".cache" / "sordino"


def is_complete(name: str, folder: Path) -> bool:
    """Whether every file of a dataset is in `folder`/name, with its published size."""
    return all(file.is_in(folder / name) for source in SOURCES.get(name, ()) for file in source.kept)
