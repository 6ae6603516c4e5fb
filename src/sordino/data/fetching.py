"""Download of standard datasets: over https, from the publisher's host only, and verified by SHA-256.

A download goes to a temporary folder. Files replace what was there before only after they are verified.
"""

from __future__ import annotations

import logging
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import urljoin, urlsplit

from pooch.core import retrieve
from pooch.utils import get_logger
from rich.progress import DownloadColumn, Progress

from sordino._input.files import read_bytes, write_atomically
from sordino.data.archives import Limits, untar_gz
from sordino.data.published import NAMES, SOURCES, FileSource, PublishedFile
from sordino.data.published import root as standard_root
from sordino.errors import DataError, StateError, UsageError
from sordino.training.progress import progress_bar

_MOST_REDIRECTS = 5
_TIMEOUT_SECONDS = 30
_CHUNK_BYTES = 1 << 16


def fetch(name: str, *, root: str | os.PathLike[str] | None = None, progress: bool = True) -> Path:
    """Downloads a standard dataset to `root`/name, unless it is there, and returns that folder.

    >>> fetch("digits")
    Traceback (most recent call last):
        ...
    sordino.errors.UsageError: 'digits' needs no download: fetch one of mnist, fashion-mnist, cifar10, svhn, adult.
    """
    if name not in SOURCES:
        reason = "needs no download" if name in NAMES else "is not known"
        raise UsageError(f"{name!r:.200} {reason}: fetch one of {', '.join(SOURCES)}.")
    folder = (Path(root) if root is not None else standard_root()) / name
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for source in SOURCES[name]:
            fetch_source(source, folder, Download(visible=progress))
    except OSError as error:
        raise DataError(f"{str(folder)!r} cannot be written: {error.strerror or type(error).__name__}.") from None
    return folder


@dataclass(frozen=True)
class Download:
    """Downloads one URL. Schemes other than https are for tests."""

    visible: bool = True
    schemes: tuple[str, ...] = ("https",)

    def to(self, path: Path, source: FileSource) -> None:
        """Downloads the published file to `path`. If it cannot be verified, raises and leaves nothing there."""

        def stream(fname: str, action: Any, pooch: Any, *, check_only: bool | None = None) -> None:
            self._stream(fname, Path(action), source.file)  # pooch passes the URL and the temporary file

        get_logger().setLevel(logging.WARNING)  # the progress bar is enough
        try:
            retrieve(
                source.url,
                known_hash=f"sha256:{source.file.sha256}",
                fname=path.name,
                path=path.parent,
                downloader=stream,
            )
        except ValueError:  # raised by pooch for another hash, after it has deleted the temporary file
            raise StateError(f"{source.url} did not send the published file: its SHA-256 differs.") from None

    def _stream(self, url: str, path: Path, expected: PublishedFile) -> None:
        with self._open(url) as response, path.open("wb") as file, self._bar() as bar:
            task = bar.add_task(expected.name, total=expected.size)
            written = 0
            # Not decoded: the hash is that of the file as published, whatever encoding the server declares.
            for chunk in response.raw.stream(_CHUNK_BYTES, decode_content=False):
                written += len(chunk)
                if written > expected.size:
                    raise DataError(f"{url} sent more than the {expected.size} bytes that were published.")
                file.write(chunk)
                bar.advance(task, len(chunk))
        if written < expected.size:
            raise DataError(f"{url} sent {written} bytes, {expected.size} were published.")

    @contextmanager
    def _open(self, url: str) -> Iterator[Any]:
        """Opens a response. Redirects to other hosts, error codes and HTML pages are refused."""
        import requests
        from urllib3.exceptions import HTTPError

        host = urlsplit(url).hostname
        try:
            for _ in range(_MOST_REDIRECTS + 1):
                self._refuse_elsewhere(url, host)
                headers = {"Accept-Encoding": "identity"}
                response = requests.get(
                    url, stream=True, allow_redirects=False, timeout=_TIMEOUT_SECONDS, headers=headers
                )
                with response:
                    if response.is_redirect:
                        url = urljoin(url, response.headers["location"])
                        continue
                    if response.status_code != 200:
                        raise DataError(f"{url} cannot be fetched: status {response.status_code}.")
                    if response.headers.get("content-type", "").startswith("text/html"):
                        raise DataError(f"{url} sent a web page in place of the file.")
                    yield response
                    return
        except (requests.RequestException, HTTPError) as error:
            raise DataError(f"{url} cannot be fetched: {type(error).__name__}.") from None
        raise DataError(f"{url} cannot be fetched: more than {_MOST_REDIRECTS} redirects.")

    def _refuse_elsewhere(self, url: str, host: str | None) -> None:
        address = urlsplit(url)
        if address.scheme not in self.schemes:
            raise DataError(f"{url!r:.200} is not fetched: it must start with {self.schemes[0]}://.")
        if address.hostname != host:
            raise DataError(f"{url!r:.200} is not fetched: {host} redirects to another host.")

    def _bar(self) -> Progress:
        return progress_bar(self.visible, DownloadColumn())


def fetch_source(source: FileSource, folder: Path, download: Download) -> None:
    """Downloads the files of a source into `folder`, unless they are there and verified."""
    if _is_verified(source, folder):
        return
    with tempfile.TemporaryDirectory(dir=folder, prefix=".fetching.") as temporary:
        path = Path(temporary) / source.file.name
        download.to(path, source)
        content = read_bytes(path, at_most=source.file.size)
    contents = _unpack(content, source) if source.unpacked else {source.file.name: content}
    for name, content in contents.items():
        write_atomically(folder / name, content)


def _unpack(packed: bytes, source: FileSource) -> dict[str, bytes]:
    members = untar_gz(packed, limits=Limits(), shown=source.url)
    by_last_name = {PurePosixPath(name).name: content for name, content in members.items()}
    for file in source.unpacked:
        if file.name not in by_last_name:
            raise DataError(f"{source.url} does not contain {file.name}.")
        file.check(by_last_name[file.name], shown=f"{file.name} in {source.url}")
    return {file.name: by_last_name[file.name] for file in source.unpacked}


def _is_verified(source: FileSource, folder: Path) -> bool:
    try:
        return all(bool(file.verify(folder)) for file in source.kept)
    except (DataError, StateError):
        return False
