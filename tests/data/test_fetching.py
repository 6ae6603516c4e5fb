"""Fetching, against a server on this machine: only what was published arrives, and what was there before stays."""

import gzip
import hashlib
import io
import tarfile
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from sordino.data import fetch
from sordino.data.fetching import Download, fetch_source
from sordino.data.published import SOURCES, FileSource, PublishedFile
from sordino.errors import DataError, StateError, UsageError

CONTENT = gzip.compress(bytes(range(256)) * 1000)
OVER_HTTP = Download(visible=False, schemes=("http",))


def published(name, content):
    return PublishedFile(name, len(content), hashlib.sha256(content).hexdigest())


def tar_gz(**members):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for name, content in members.items():
            member = tarfile.TarInfo(f"batches/{name}.bin")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


class Server:
    """Answers what a test puts into `answers`: path to (status, headers, body)."""

    def __init__(self):
        self.answers, self.asked = {}, []

        class Handler(BaseHTTPRequestHandler):
            def do_GET(handler):
                self.asked.append((handler.path, handler.headers["Accept-Encoding"]))
                status, headers, body = self.answers.get(handler.path, (404, {}, b""))
                handler.send_response(status)
                for name, value in headers.items():
                    handler.send_header(name, value)
                handler.end_headers()
                handler.wfile.write(body)

            def log_message(self, *_):
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"http://127.0.0.1:{self.http.server_port}"

    def publish(self, body=CONTENT, *, path="/a.gz", status=200, **headers):
        self.answers[path] = (status, headers, body)
        return FileSource(self.address + path, published("a.gz", CONTENT))


@pytest.fixture(scope="module")
def running():
    server = Server()
    thread = threading.Thread(target=server.http.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server
    server.http.shutdown()
    thread.join()
    server.http.server_close()


@pytest.fixture
def server(running):
    running.answers.clear()
    running.asked.clear()
    return running


@pytest.fixture
def folder(tmp_path):
    """A folder that holds an older file, which every refusal has to leave alone."""
    (tmp_path / "a.gz").write_bytes(b"older")
    return tmp_path


def assert_refused_and_kept(error, message, source, folder):
    with pytest.raises(error, match=message) as refused:
        fetch_source(source, folder, OVER_HTTP)
    assert "\n" not in str(refused.value)
    assert [(path.name, path.read_bytes()) for path in folder.iterdir()] == [("a.gz", b"older")]


def test_a_published_file_takes_the_place_of_another_one_and_is_not_fetched_twice(server, folder):
    source = server.publish()
    for _ in range(2):
        fetch_source(source, folder, OVER_HTTP)
    assert [path.name for path in folder.iterdir()] == ["a.gz"]
    assert (folder / "a.gz").read_bytes() == CONTENT
    assert server.asked == [("/a.gz", "identity")]


def test_a_file_is_kept_as_it_was_published_even_if_the_server_calls_its_packing_an_encoding(server, folder):
    fetch_source(server.publish(**{"Content-Encoding": "gzip"}), folder, OVER_HTTP)
    assert (folder / "a.gz").read_bytes() == CONTENT


def test_an_archive_is_kept_as_the_members_that_are_named(server, tmp_path):
    members = {"one": b"first", "two": b"second", "readme": b"text"}
    packed = tar_gz(**members)
    server.publish(packed, path="/set.tar.gz")
    wanted = tuple(published(f"{name}.bin", members[name]) for name in ("one", "two"))
    source = FileSource(f"{server.address}/set.tar.gz", published("set.tar.gz", packed), wanted)
    for _ in range(2):
        fetch_source(source, tmp_path, OVER_HTTP)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"one.bin": b"first", "two.bin": b"second"}
    assert len(server.asked) == 1


@pytest.mark.parametrize(
    ("members", "error", "message"),
    [
        ({"two": b"second"}, DataError, "does not contain one.bin"),
        ({"one": b"another"}, StateError, "one.bin in .* is not the published file"),
    ],
)
def test_an_archive_without_the_published_members_leaves_nothing(server, tmp_path, members, error, message):
    packed = tar_gz(**members)
    server.publish(packed, path="/set.tar.gz")
    wanted = (published("one.bin", b"first"),)
    with pytest.raises(error, match=message):
        source = FileSource(f"{server.address}/set.tar.gz", published("set.tar.gz", packed), wanted)
        fetch_source(source, tmp_path, OVER_HTTP)
    assert list(tmp_path.iterdir()) == []


def test_another_content_of_the_same_size_is_refused(server, folder):
    source = server.publish(CONTENT[:-1] + b"x")
    assert_refused_and_kept(StateError, "its SHA-256 differs", source, folder)


def test_a_file_that_is_too_long_or_cut_short_is_refused(server, folder):
    assert_refused_and_kept(DataError, "sent more than the", server.publish(CONTENT + b"x"), folder)
    assert_refused_and_kept(DataError, f"sent {len(CONTENT) - 1} bytes", server.publish(CONTENT[:-1]), folder)
    cut = server.publish(CONTENT[:100], **{"Content-Length": str(len(CONTENT))})
    assert_refused_and_kept(DataError, "cannot be fetched", cut, folder)


def test_a_page_in_place_of_the_file_is_refused(server, folder):
    page = server.publish(b"<html>", **{"Content-Type": "text/html; charset=utf-8"})
    assert_refused_and_kept(DataError, "sent a web page in place of the file", page, folder)


def test_a_missing_file_or_a_server_that_does_not_answer_is_one_line(server, folder):
    assert_refused_and_kept(DataError, "cannot be fetched: status 404", server.publish(status=404), folder)
    nobody = FileSource("http://127.0.0.1:1/a.gz", published("a.gz", CONTENT))
    assert_refused_and_kept(DataError, "cannot be fetched: ConnectionError", nobody, folder)


def test_plain_http_is_refused_before_anything_is_asked(server, folder):
    source = server.publish()
    with pytest.raises(DataError, match="must start with https://"):
        fetch_source(source, folder, Download(visible=False))
    assert server.asked == []


def test_a_redirect_is_followed_on_the_same_host_and_refused_to_another(server, folder):
    server.publish(path="/elsewhere")
    moved = server.publish(b"", status=302, Location="/elsewhere")
    fetch_source(moved, folder, OVER_HTTP)
    assert (folder / "a.gz").read_bytes() == CONTENT
    (folder / "a.gz").write_bytes(b"older")
    other_host = f"http://localhost:{server.http.server_port}/elsewhere"
    moved = server.publish(b"", status=301, Location=other_host)
    assert_refused_and_kept(DataError, "redirects to another host", moved, folder)


def test_a_redirect_to_another_scheme_or_in_circles_is_refused(server, folder):
    moved = server.publish(b"", status=302, Location="ftp://127.0.0.1/a.gz")
    assert_refused_and_kept(DataError, "is not fetched", moved, folder)
    circle = server.publish(b"", status=302, Location="/a.gz")
    assert_refused_and_kept(DataError, "more than 5 redirects", circle, folder)


def test_progress_is_shown_on_standard_error_only(server, tmp_path, capsys):
    fetch_source(server.publish(), tmp_path, Download(visible=True, schemes=("http",)))
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "a.gz" in printed.err


def test_nothing_is_shown_where_no_progress_is_wanted(server, tmp_path, capsys):
    fetch_source(server.publish(), tmp_path, OVER_HTTP)
    assert capsys.readouterr() == ("", "")


def test_fetching_by_name_goes_to_the_folder_of_that_name(server, tmp_path, monkeypatch):
    source = server.publish()
    monkeypatch.setitem(SOURCES, "mnist", (source,))
    with pytest.raises(DataError, match="must start with https://"):
        fetch("mnist", root=tmp_path, progress=False)
    (tmp_path / "mnist" / "a.gz").write_bytes(CONTENT)
    assert fetch("mnist", root=tmp_path, progress=False) == tmp_path / "mnist"


@pytest.mark.parametrize(("name", "reason"), [("digits", "needs no download"), ("nothing", "is not known")])
def test_what_cannot_be_fetched_is_a_usage_error(name, reason):
    with pytest.raises(UsageError, match=reason):
        fetch(name)


def test_a_folder_that_cannot_be_written_is_a_data_error(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(DataError, match="cannot be written: Not a directory"):
        fetch("mnist", root=tmp_path / "file")
