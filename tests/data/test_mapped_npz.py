"""Large inputs of an uncompressed .npz file stay in the file, and are what they are when they are read."""

import dataclasses
import io
import json
import logging
import struct
import subprocess
import sys
import zipfile

import limited_memory
import numpy as np
import pytest
import sparse_npz
import torch
from sparse_npz import NUMBERS, write_sparse_npz

import sordino.data.npz as npz_module
from sordino.cli import main
from sordino.data import load
from sordino.data.npz import map_arrays
from sordino.errors import DataError, SordinoError, StateError
from sordino.recipes.prepared import prepare, rehearse
from sordino.recipes.recipe import Recipe

TABLE = "confirmed_public = true\n[inputs]\nshape = [4]\nrange = [-1, 1]\n[target]\nclasses = 3\n"
PICTURES = """
confirmed_public = true
rows_per_user = 2
[inputs]
shape = [3, 16, 16]
range = [0, 255]
mean = [0.5, 0.4, 0.3]
std = [0.2, 0.3, 0.4]
[target]
classes = 3
"""


@pytest.fixture
def left(monkeypatch):
    """Small arrays are left in the file too."""
    monkeypatch.setattr(npz_module, "_LEFT_FROM", 1)


def values(dtype, shape=(40, 4)):
    drawn = np.random.default_rng(0).normal(scale=2, size=shape)
    if np.dtype(dtype).kind == "f":
        drawn[3].flat[0], drawn[5].flat[1] = np.nan, np.inf
    with np.errstate(invalid="ignore"):
        return (drawn * 60 % 256 if dtype == "u1" else drawn).astype(dtype)


def saved(folder, facts=TABLE, **arrays):
    (folder / "set.toml").write_text(facts)
    np.savez(folder / "set.npz", **arrays)
    return folder / "set.npz"


def labels(rows=40):
    return np.arange(rows) % 3


def both(path, monkeypatch, model="linear", **options):
    """The records of a recipe whose inputs are mapped, and those of one whose inputs are read."""
    prepared = []
    for size in (1, 1 << 40):
        monkeypatch.setattr(npz_module, "_LEFT_FROM", size)
        prepared.append(prepare(Recipe(str(path), model, epsilon=1.0, delta=1e-4, **options), progress=False))
    assert [each.data.train.is_mapped for each in prepared] == [True, False]
    return [each.records for each in prepared]


def assert_same_rows(mapped, read):
    some = torch.tensor([7, 3, 5, 19, 0])
    ours, others = mapped.gather(some), read.gather(some)
    assert ours.inputs[0].dtype == torch.float32 and torch.equal(ours.inputs[0], others.inputs[0])
    assert torch.equal(ours.target, others.target) and torch.equal(ours.valid, others.valid)
    assert ours.target.dtype == others.target.dtype and mapped.num_units == read.num_units


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("dtype", ["<f2", "<f4", "<f8", "u1", "i1", "<i2", "<i4", "<i8", "?"])
def test_mapped_rows_are_those_that_would_be_read(dtype, order, tmp_path, monkeypatch):
    path = saved(tmp_path, inputs=np.asarray(values(dtype), order=order), target=labels())
    assert_same_rows(*both(path, monkeypatch))


@pytest.mark.parametrize("model", ["linear", "cnn", "gated-relu", "scatter-linear"])
def test_pictures_of_users_are_prepared_when_they_are_drawn(model, tmp_path, monkeypatch):
    monkeypatch.setenv("SORDINO_CACHE", str(tmp_path))
    arrays = {"inputs": values("u1", (40, 3, 16, 16)), "target": labels(), "owners": np.arange(40) // 2}
    mapped, read = both(saved(tmp_path, PICTURES, **arrays), monkeypatch, model)
    assert mapped.rows_per_unit == 2
    assert_same_rows(mapped, read)


def test_a_number_as_target_stays_a_number(tmp_path, monkeypatch):
    facts = TABLE.replace("classes = 3", "bounds = [0, 10]")
    assert_same_rows(*both(saved(tmp_path, facts, inputs=values("<f4"), target=labels() * 1.5), monkeypatch))


def test_training_on_mapped_rows_gives_the_same_weights_and_can_be_resumed(tmp_path, monkeypatch):
    path = saved(tmp_path, inputs=values("<f8"), target=labels(), test_inputs=values("<f8"), test_target=labels())
    for name, size in (("mapped", 1), ("read", 1 << 40)):
        monkeypatch.setattr(npz_module, "_LEFT_FROM", size)
        options = f"--model linear --epsilon 3 --delta 1e-3 --epochs 3 --seed 7 --quiet --out {tmp_path / name}"
        with pytest.raises(SystemExit) as ended:
            main(["train", "--data", str(path), *options.split()])
        assert not ended.value.code
    weights = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("mapped", "read")]
    assert weights[0] == weights[1]


def test_nothing_is_read_of_the_inputs_and_their_sum_is_not_checked(left, tmp_path):
    path = saved(tmp_path, inputs=values("<f4"), target=labels())
    with zipfile.ZipFile(path) as archive:
        places = {entry.filename: entry.header_offset for entry in archive.infolist()}
    content = bytearray(path.read_bytes())
    content[places["target.npy"] - 1] ^= 0x40  # the last byte of the inputs
    path.write_bytes(content)
    assert not np.array_equal(map_arrays(path)["inputs"], values("<f4"), equal_nan=True)
    content[-200] ^= 0x40
    target_end = content.index(b"PK\x01\x02") - 1
    content[target_end] ^= 0x40
    path.write_bytes(content)
    with pytest.raises(DataError, match="not a valid zip file"):  # the sum of the target is checked
        map_arrays(path)


def test_a_map_cannot_be_written_to(left, tmp_path):
    inputs = map_arrays(saved(tmp_path, inputs=values("<f4"), target=labels()))["inputs"]
    with pytest.raises(ValueError, match="read-only"):
        inputs[0] = 1.0


def test_compressed_inputs_are_read_with_a_remark(left, tmp_path, caplog):
    path = saved(tmp_path, inputs=values("<f4"), target=labels())
    assert load(path, map_large=True).train.is_mapped and not caplog.records
    np.savez_compressed(path, inputs=values("<f4"), target=labels())
    with caplog.at_level(logging.WARNING, "sordino"):
        assert not load(path, map_large=True).train.is_mapped
    assert "'inputs.npy' is compressed and is read into memory as a whole: numpy.savez" in caplog.text


def test_small_arrays_are_read_and_so_is_everything_for_other_callers(left, tmp_path, monkeypatch):
    path = saved(tmp_path, inputs=values("<f8"), target=labels())
    assert not load(path).train.is_mapped and load(path).train.inputs.dtype == torch.float32
    monkeypatch.undo()
    assert not load(path, map_large=True).train.is_mapped


def test_a_rehearsal_draws_no_row_of_a_map(left, tmp_path):
    path = saved(tmp_path, inputs=values("<f8"), target=labels())
    rehearsed = rehearse(Recipe(str(path), "linear", epsilon=1.0, delta=1e-4))
    assert (rehearsed.examples, rehearsed.records.num_units) == (40, 16)


@pytest.mark.parametrize("dtype", [">f4", "<u2", "<u8"])
def test_numbers_that_cannot_be_mapped_are_read_or_refused_with_a_way_out(left, dtype, tmp_path, monkeypatch):
    path = saved(tmp_path, inputs=values("u1").astype(dtype), target=labels())
    found = load(path, map_large=True).train
    assert not found.is_mapped and found.inputs.tolist() == values("u1").tolist()
    monkeypatch.setattr(npz_module, "_LARGEST_FILE", 100)
    with pytest.raises(DataError, match=r"too large to read and cannot be mapped: save it as float32 or uint8"):
        load(path, map_large=True)


def test_compressed_inputs_that_are_too_large_are_refused_with_a_way_out(left, tmp_path, monkeypatch):
    path = saved(tmp_path, inputs=values("<f4"), target=labels())
    np.savez_compressed(path, inputs=values("<f4"), target=labels())
    monkeypatch.setattr(npz_module, "_LIMITS", dataclasses.replace(npz_module._LIMITS, total_bytes=100))
    with pytest.raises(DataError, match=r"more than 100 bytes, which is the most allowed here: numpy\.savez saves"):
        load(path, map_large=True)


def npy(array, **options):
    buffer = io.BytesIO()
    np.save(buffer, array, **options)
    return buffer.getvalue()


def zipped(path, content, *, name="inputs.npy", change=lambda entry: None, twice=False):
    """A zip file with `content` under a name, and good targets. `change` is done to its entry before it is listed."""
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(name, content)
        change(archive.getinfo(name))
        archive.writestr("target.npy", npy(labels()))
        if twice:
            with pytest.warns(UserWarning, match="Duplicate"):
                archive.writestr(name, content)
    path.with_suffix(".toml").write_text(TABLE)
    return path


def set_(**fields):
    def change(entry):
        for name, value in fields.items():
            setattr(entry, name, value)

    return change


GOOD = npy(values("<f4"))
DAMAGED = {
    "objects": (npy(np.array([{}], dtype=object), allow_pickle=True), None, "holds pickled objects"),
    "text": (npy(np.array(["a"])), None, "must hold numbers"),
    "truncated": (GOOD[:-1], None, "must have 640 bytes"),
    "longer": (GOOD + b"x", None, "must have 640 bytes"),
    "no header": (b"\x93NUMPY\x09\x00" + bytes(100), None, "not a valid .npy file"),
    "header of 4 GB": (b"\x93NUMPY\x02\x00" + struct.pack("<I", 2**32 - 1) + b"{", None, "not a valid .npy file"),
    "negative shape": (GOOD.replace(b"(40, 4)", b"(-4, 4)"), None, "must have"),
    "longer than the file": (GOOD, set_(file_size=1 << 40, compress_size=1 << 40), "wrong size|overlap|not a valid"),
    "two sizes": (GOOD, set_(file_size=len(GOOD) - 1), "wrong size"),
    "outside the file": (GOOD, set_(header_offset=1 << 40), "not a valid zip file|wrong size"),
    "over another member": (GOOD, set_(file_size=len(GOOD) + 9, compress_size=len(GOOD) + 9), "wrong size|overlap"),
    "encrypted": (GOOD, set_(flag_bits=1), "not a plain regular file|not a valid zip file"),
    "a link": (GOOD, set_(external_attr=0o120777 << 16), "not a plain regular file"),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_hostile_members_are_refused_as_when_they_are_read(left, name, tmp_path):
    content, change, message = DAMAGED[name]
    path = zipped(tmp_path / "set.npz", content, change=change or (lambda entry: None))
    with pytest.raises((DataError, StateError), match=message):
        load(path, map_large=True)


def test_names_that_occur_twice_or_lead_elsewhere_are_refused(left, tmp_path):
    with pytest.raises(DataError, match="twice"):
        map_arrays(zipped(tmp_path / "set.npz", GOOD, twice=True))
    with pytest.raises(SordinoError, match="a path outside its folder"):
        map_arrays(zipped(tmp_path / "set.npz", GOOD, name="../inputs.npy"))


def test_a_header_that_differs_from_the_list_of_entries_is_refused(left, tmp_path):
    path = zipped(tmp_path / "set.npz", GOOD)
    path.write_bytes(path.read_bytes().replace(b"inputs.npy", b"outputs.py", 1))
    with pytest.raises(DataError, match="not a valid zip file"):
        map_arrays(path)


def test_a_list_of_entries_that_is_too_long_is_refused_unread(left, tmp_path):
    path = zipped(tmp_path / "set.npz", GOOD)
    content = path.read_bytes()
    start, end = content.index(b"PK\x01\x02"), content.index(b"PK\x05\x06")
    record = bytearray(content[end:])
    record[12:16] = struct.pack("<I", (end - start) + (3 << 30))
    with path.open("wb") as file:
        file.write(content[:start])
        file.seek(3 << 30, io.SEEK_CUR)  # a hole
        file.write(content[start:end] + record)
    with pytest.raises(DataError, match="not a valid zip file"):
        map_arrays(path)


def test_a_file_that_ends_early_is_refused(left, tmp_path):
    path = saved(tmp_path, inputs=values("<f4"), target=labels())
    for content in (b"", path.read_bytes()[:-30], path.read_bytes()[200:]):
        path.write_bytes(content)
        with pytest.raises(DataError, match=r"not a valid zip file|wrong size|overlap"):
            map_arrays(path)
    with pytest.raises(DataError, match=r"Is a directory|is not a regular file"):
        map_arrays(tmp_path)


COMMAND = """
import sys
from sordino.cli import main
main(sys.argv[1:])
"""


@pytest.mark.parametrize("gibibytes", [2, pytest.param(20, marks=pytest.mark.slow)])
def test_a_large_file_trains_in_half_a_gibibyte(gibibytes, tmp_path):
    rows = (gibibytes << 30) // (4 * NUMBERS)
    path, script = tmp_path / "big.npz", tmp_path / "command.py"
    write_sparse_npz(path, rows)
    script.write_text(COMMAND)
    options = f"--model linear --epsilon 3 --delta 1e-9 --batch-size 64 --epochs {200 / rows} --quiet"
    command = ["train", "--data", str(path), *options.split(), "--out", str(tmp_path / "run")]
    subprocess.run([sys.executable, limited_memory.__file__, "512", str(script), *command], check=True)
    said = json.loads((tmp_path / "run" / "privacy.json").read_text())
    assert said["epsilon"] <= 3 and sparse_npz.FACTS.startswith("confirmed_public")
