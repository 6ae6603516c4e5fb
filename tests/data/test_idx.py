"""The format of MNIST: a file is exactly what its header says, or it is refused before memory is spent."""

import gzip
import struct
import tracemalloc

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sordino.data.standard import parse_idx, read_idx, read_pictures
from sordino.errors import DataError

LABELS, PICTURES = 2049, 2051


def idx(magic, shape, body):
    return struct.pack(f">I{len(shape)}I", magic, *shape) + bytes(body)


@pytest.fixture
def written(tmp_path):
    """Writes bytes to a file and gives its path."""

    def write(content, name="file"):
        path = tmp_path / name
        path.write_bytes(content)
        return path

    return write


@pytest.mark.parametrize("pack", [bytes, gzip.compress], ids=["plain", "gzip"])
def test_pictures_and_labels_are_read_as_they_were_written(written, pack):
    pictures = written(pack(idx(PICTURES, (2, 2, 3), range(12))), "pictures")
    labels = written(pack(idx(LABELS, (2,), [7, 9])), "labels")
    split = read_pictures(pictures, labels)
    assert split.inputs.tolist() == [[[[0, 1, 2], [3, 4, 5]]], [[[6, 7, 8], [9, 10, 11]]]]
    assert split.inputs.dtype == torch.uint8
    assert split.target.tolist() == [7, 9]
    assert split.target.dtype == torch.int64


@pytest.mark.parametrize("length", [0, 3, 4, 15])
def test_a_header_cut_short_is_refused_with_the_place_where_it_ends(length):
    with pytest.raises(DataError, match=f"ends at byte {length}, within its"):
        parse_idx(idx(PICTURES, (1, 2, 2), range(4))[:length], magic=PICTURES, shown="'a'")


@pytest.mark.parametrize("pack", [bytes, gzip.compress], ids=["plain", "gzip"])
def test_a_body_cut_short_is_refused_with_both_sizes(pack):
    with pytest.raises(DataError, match=r"must have 20 bytes for a shape of \(1, 2, 2\), found 19"):
        parse_idx(pack(idx(PICTURES, (1, 2, 2), range(3))), magic=PICTURES, shown="'a'")


def test_labels_given_as_pictures_are_refused_by_their_magic_number(written):
    labels = written(idx(LABELS, (4,), range(4)))
    with pytest.raises(DataError, match=r"magic number 2051 \(images\), found 2049 \(labels\)"):
        read_pictures(labels, labels)


def test_entries_that_are_not_bytes_are_refused():
    with pytest.raises(DataError, match="found 3331"):  # 0x0D03: three axes of float32
        parse_idx(idx(0x0D03, (1, 1, 1), range(4)), magic=PICTURES, shown="'a'")


@pytest.mark.parametrize("pack", [bytes, gzip.compress], ids=["plain", "gzip"])
def test_lengths_that_overflow_are_refused_before_memory_is_spent(pack):
    content = pack(idx(PICTURES, (2**32 - 1,) * 3, range(100)))
    tracemalloc.start()
    with pytest.raises(DataError, match=str(16 + (2**32 - 1) ** 3)):
        parse_idx(content, magic=PICTURES, shown="'a'")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 100_000


def test_bytes_after_the_end_are_refused():
    with pytest.raises(DataError, match=r"must have 12 bytes.*found 13"):
        parse_idx(idx(LABELS, (4,), range(5)), magic=LABELS, shown="'a'")


def test_a_gzip_bomb_is_stopped_at_the_size_that_the_header_declares():
    bomb = gzip.compress(idx(LABELS, (100,), bytes(50_000_000)))
    tracemalloc.start()
    with pytest.raises(DataError, match="unpacks to more than 108 bytes"):
        parse_idx(bomb, magic=LABELS, shown="'a'")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1_000_000


def test_another_number_of_pictures_than_of_labels_is_refused(written):
    pictures = written(idx(PICTURES, (2, 1, 1), range(2)), "pictures")
    labels = written(idx(LABELS, (3,), range(3)), "labels")
    with pytest.raises(DataError, match=r"has 2 images but .* has 3 labels"):
        read_pictures(pictures, labels)


@pytest.mark.parametrize("shape", [(0, 28, 28), (5, 0, 28)])
def test_an_empty_set_is_refused(shape):
    with pytest.raises(DataError, match="is empty"):
        parse_idx(idx(PICTURES, shape, b""), magic=PICTURES, shown="'a'")


def test_an_empty_file_is_refused(written):
    with pytest.raises(DataError, match="ends at byte 0"):
        read_idx(written(b""), magic=LABELS)


headers = st.builds(
    lambda magic, shape: struct.pack(f">I{len(shape)}I", magic, *shape),
    st.sampled_from([LABELS, PICTURES, 2050, 0x0D03]),
    st.lists(st.one_of(st.integers(0, 6), st.integers(0, 2**32 - 1)), max_size=4),
)


@given(st.one_of(st.just(b""), headers), st.binary(max_size=300), st.booleans(), st.sampled_from([LABELS, PICTURES]))
def test_any_bytes_are_read_whole_or_refused_and_never_become_more_than_the_file(header, body, packed, magic):
    content = header + body
    try:
        entries = parse_idx(gzip.compress(content, 1) if packed else content, magic=magic, shown="'a'")
    except DataError:
        return
    assert entries.numel() + 4 + 4 * entries.ndim == len(content)
    assert bytes(entries.flatten().tolist()) == content[-entries.numel() :]


@given(st.binary(max_size=200))
def test_any_bytes_after_a_gzip_mark_are_refused_with_a_data_error(body):
    with pytest.raises(DataError):
        parse_idx(b"\x1f\x8b" + body, magic=LABELS, shown="'a'")
