"""Archives from strangers: what they claim is checked before memory is spent, and only plain files come out."""

import copy
import gzip
import io
import tarfile
import tracemalloc
import zipfile

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sordino.data.archives import Limits, gunzip, untar_gz, unzip
from sordino.errors import DataError

SMALL = Limits(total_bytes=1 << 24, ratio=10, entries=5)


def tar_gz(*members):
    """A .tar.gz of (name, content), or of (name, type, link name) for what is not a regular file."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for name, *rest in members:
            member = tarfile.TarInfo(name)
            if len(rest) == 1:
                member.size = len(rest[0])
                archive.addfile(member, io.BytesIO(rest[0]))
            else:
                member.type, member.linkname = rest
                archive.addfile(member)
    return buffer.getvalue()


def zipped(*members, compression=zipfile.ZIP_DEFLATED, change=lambda archive: None):
    """A zip file of (name or entry, content). `change` is done before the directory at its end is written."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", compression) as archive:
        for name, content in members:
            archive.writestr(name, content)
        change(archive)
    return buffer.getvalue()


def peak_memory(function):
    """The most bytes that Python held while `function`, which has to refuse, was running."""
    tracemalloc.start()
    try:
        with pytest.raises(DataError) as refused:
            function()
        return tracemalloc.get_traced_memory()[1], str(refused.value)
    finally:
        tracemalloc.stop()


def test_gzip_gives_back_what_was_packed():
    content = bytes(range(256)) * 100
    assert gunzip(gzip.compress(content), at_most=len(content), shown="'a'") == content


def test_a_gzip_bomb_is_stopped_one_byte_after_what_is_allowed():
    bomb = gzip.compress(bytes(50_000_000))
    peak, message = peak_memory(lambda: gunzip(bomb, at_most=1000, shown="'bomb.gz'"))
    assert peak < 2_000_000
    assert message == "'bomb.gz' unpacks to more than 1000 bytes, which is the most allowed here."


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda packed: packed[:50] + bytes([packed[50] ^ 1]) + packed[51:], "incorrect data check"),
        (lambda packed: packed[:-8] + bytes(4) + packed[-4:], "incorrect data check"),
        (lambda packed: packed[:-4] + bytes(4), "incorrect length check"),
        (lambda packed: packed[:-1], "truncated"),
        (lambda packed: packed[:20], "truncated"),
        (lambda packed: b"", "truncated"),
        (lambda packed: packed + b"more", "4 bytes after the end"),
        (lambda packed: b"<html>" + packed, "not a valid gzip file"),
    ],
    ids=["bit flipped", "wrong CRC", "wrong length", "a byte short", "cut in the middle", "empty", "trailing", "page"],
)
def test_a_damaged_gzip_file_is_refused(damage, message):
    content = bytes(range(256)) * 10
    with pytest.raises(DataError, match=message):
        gunzip(damage(gzip.compress(content)), at_most=len(content), shown="'a.gz'")


def test_a_tar_file_gives_its_regular_files_and_passes_over_folders():
    packed = tar_gz(("set", tarfile.DIRTYPE, ""), ("set/a", b"one"), ("set/b", b""))
    assert untar_gz(packed, limits=SMALL, shown="'a'") == {"set/a": b"one", "set/b": b""}


@pytest.mark.parametrize("name", ["../a", "/etc/passwd", "a/../../b", "..\\a", "C:a"])
def test_a_name_that_leads_out_of_its_folder_is_refused(name):
    with pytest.raises(DataError, match="a path outside its folder"):
        untar_gz(tar_gz((name, b"x")), limits=SMALL, shown="'a'")
    with pytest.raises(DataError, match="a path outside its folder"):
        unzip(zipped((name, b"x")), limits=SMALL, shown="'a'")


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.FIFOTYPE])
def test_a_tar_file_with_links_devices_or_pipes_is_refused(kind):
    with pytest.raises(DataError, match="'a', which is not a regular file"):
        untar_gz(tar_gz(("a", kind, "/etc/passwd")), limits=SMALL, shown="'x.tar.gz'")


def test_a_zip_file_with_a_link_is_refused():
    link = zipfile.ZipInfo("a")
    link.external_attr = 0o120777 << 16
    with pytest.raises(DataError, match="'a', which is not a plain regular file"):
        unzip(zipped((link, b"/etc/passwd")), limits=SMALL, shown="'x.zip'")


def test_an_encrypted_or_oddly_packed_zip_file_is_refused():
    with pytest.raises(DataError, match="not a plain regular file"):
        unzip(zipped(("a", b"x"), compression=zipfile.ZIP_BZIP2), limits=SMALL, shown="'x.zip'")
    packed = bytearray(zipped(("a", b"x")))
    packed[packed.index(b"PK\x01\x02") + 8] |= 1  # the flag that says encrypted
    with pytest.raises(DataError, match="not a plain regular file"):
        unzip(bytes(packed), limits=SMALL, shown="'x.zip'")


def test_a_bomb_is_refused_by_its_ratio_without_being_unpacked():
    zeros = bytes(10_000_000)
    for unpack, packed in ((unzip, zipped(("a", zeros))), (untar_gz, tar_gz(("a", zeros)))):
        peak, message = peak_memory(lambda unpack=unpack, packed=packed: unpack(packed, limits=SMALL, shown="'a'"))
        assert "more than 1048576 bytes" in message
        assert peak < 5_000_000


def test_a_total_above_the_limit_is_refused_however_well_it_is_packed():
    limits = Limits(total_bytes=1000, ratio=10_000)
    with pytest.raises(DataError, match="more than 1000 bytes"):
        unzip(zipped(("a", bytes(600)), ("b", bytes(600))), limits=limits, shown="'a'")
    with pytest.raises(DataError, match="more than 1000 bytes"):
        untar_gz(tar_gz(("a", bytes(600)), ("b", bytes(600))), limits=limits, shown="'a'")


def test_too_many_entries_are_refused():
    names = [(str(number), b"") for number in range(6)]
    for unpack, packed in ((unzip, zipped(*names)), (untar_gz, tar_gz(*names))):
        with pytest.raises(DataError, match="more than 5 entries"):
            unpack(packed, limits=SMALL, shown="'a'")


def test_a_name_given_twice_is_refused():
    with pytest.raises(DataError, match="'a' twice"):
        untar_gz(tar_gz(("a", b"1"), ("a", b"2")), limits=SMALL, shown="'x'")


def test_a_zip_file_whose_entries_share_bytes_is_refused():
    def list_the_first_entry_again(archive):
        again = copy.copy(archive.filelist[0])
        again.filename = "b"
        archive.filelist.append(again)

    packed = zipped(("a", bytes(100)), change=list_the_first_entry_again)
    with pytest.raises(DataError, match="entries overlap"):
        unzip(packed, limits=SMALL, shown="'x'")


def test_a_zip_file_that_lies_about_a_size_is_refused():
    def declare_ten_bytes(archive):
        archive.filelist[0].file_size = 10

    with pytest.raises(DataError, match="not a valid zip file"):
        unzip(zipped(("a", bytes(1000)), change=declare_ten_bytes), limits=SMALL, shown="'x'")


def test_a_zip_file_within_a_zip_file_stays_packed():
    bomb = zipped(("a", bytes(1_000_000)))
    assert unzip(zipped(("inner.zip", bomb)), limits=SMALL, shown="'x'") == {"inner.zip": bomb}


ARCHIVES = {
    unzip: zipped(("a", bytes(range(200))), ("folder/b", b"text" * 50)),
    untar_gz: tar_gz(("a", bytes(range(200))), ("folder", tarfile.DIRTYPE, ""), ("folder/b", b"text" * 50)),
}


@settings(max_examples=300)
@given(st.sampled_from([unzip, untar_gz]), st.lists(st.tuples(st.integers(0, 10**5), st.integers(0, 255)), max_size=4))
def test_a_damaged_archive_raises_nothing_but_a_data_error(unpack, changes):
    content = bytearray(ARCHIVES[unpack] if unpack is unzip else gzip.decompress(ARCHIVES[unpack]))
    for place, value in changes:
        content[place % len(content)] = value
    packed = bytes(content) if unpack is unzip else gzip.compress(bytes(content), 1)
    try:
        members = unpack(packed, limits=Limits(), shown="'a'")
    except DataError:
        return
    assert all(isinstance(member, bytes) and len(member) <= len(content) for member in members.values())
