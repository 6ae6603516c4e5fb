"""A tensor file is read only if it holds exactly what was asked for. A hostile one is refused before it is believed."""

from __future__ import annotations

import io
import json
import os
import pickle
from pathlib import Path

import pytest
import safetensors.torch
import torch
from hypothesis import given
from hypothesis import strategies as st

from sordino._input.safetensors_file import load_tensors, save_tensors
from sordino.errors import StateError

TENSORS = {"weight": torch.arange(6.0).reshape(2, 3), "bias": torch.zeros(2), "steps": torch.tensor(7)}


def raw(header: object, body: bytes = b"", length: int | None = None) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return (len(text) if length is None else length).to_bytes(8, "little") + text + body


def entry(start: int, stop: int, shape: list[int], dtype: str = "F32") -> dict[str, object]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [start, stop]}


def test_what_was_saved_is_what_is_loaded(tmp_path: Path) -> None:
    save_tensors(tmp_path / "a", TENSORS, {"about": "ä"})
    found = load_tensors(tmp_path / "a", like=TENSORS)
    assert found.texts == {"about": "ä"}
    assert found.tensors.keys() == TENSORS.keys()
    assert all(
        torch.equal(found.tensors[name], x) and found.tensors[name].dtype == x.dtype for name, x in TENSORS.items()
    )


def test_tensors_that_share_memory_are_saved_apart(tmp_path: Path) -> None:
    shared = torch.ones(3)
    save_tensors(tmp_path / "a", {"encoder": shared, "decoder": shared, "part": shared[:2]})
    assert load_tensors(tmp_path / "a").tensors["part"].tolist() == [1, 1]


def test_a_private_file_is_its_owners_alone(tmp_path: Path) -> None:
    save_tensors(tmp_path / "a", TENSORS, private=True)
    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o600


def test_a_full_disk_leaves_the_old_file_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_tensors(tmp_path / "a", TENSORS)

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        save_tensors(tmp_path / "a", {"weight": torch.zeros(9)})
    assert load_tensors(tmp_path / "a", like=TENSORS)
    assert os.listdir(tmp_path) == ["a"]


class Executed:
    def __reduce__(self):
        return (os.mkdir, ("executed",))


def a_torch_file(legacy: bool) -> bytes:
    file = io.BytesIO()
    torch.save(Executed(), file, _use_new_zipfile_serialization=not legacy)
    return file.getvalue()


WHOLE = safetensors.torch.save({"w": torch.ones(2)})
HOSTILE = {
    "a pickle that would run code": pickle.dumps(Executed()),
    "a torch file that would run code": a_torch_file(legacy=False),
    "an old torch file that would run code": a_torch_file(legacy=True),
    "nothing": b"",
    "seven bytes": b"1234567",
    "a header of 2^63 bytes": raw({}, length=1 << 63),
    "a header longer than the file": raw({}, length=100),
    "a header of a hundred megabytes": raw(b" " * (100 << 20)),
    "a header that is no JSON": raw(b"{'w': 1}"),
    "a header that is a list": raw([1, 2]),
    "a header nested too deeply": raw(b'{"a":' * 100_000 + b"1" + b"}" * 100_000),
    "a hundred thousand entries": raw({f"t{i}": entry(0, 0, [0]) for i in range(100_000)}),
    "a name that comes twice": raw(b'{"w": {}, "w": {}}'),
    "overlapping tensors": raw({"a": entry(0, 8, [2]), "b": entry(4, 12, [2])}, bytes(12)),
    "two tensors in one place": raw({"a": entry(0, 8, [2]), "b": entry(0, 8, [2])}, bytes(8)),
    "a gap": raw({"a": entry(0, 4, [1]), "b": entry(8, 12, [1])}, bytes(12)),
    "bytes that no tensor owns": raw({"a": entry(0, 4, [1])}, bytes(8)),
    "a tensor that ends after the file": raw({"a": entry(0, 8, [2])}, bytes(4)),
    "a shape that overflows": raw({"a": entry(0, 4, [1 << 62, 4])}, bytes(4)),
    "a shape of other size than its bytes": raw({"a": entry(0, 4, [2])}, bytes(4)),
    "a negative shape": raw({"a": entry(0, 4, [-1])}, bytes(4)),
    "a true shape": raw({"a": {"dtype": "F32", "shape": [True], "data_offsets": [0, 4]}}, bytes(4)),
    "offsets that run backwards": raw({"a": entry(4, 0, [1])}, bytes(4)),
    "three offsets": raw({"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4, 4]}}, bytes(4)),
    "an unknown dtype": raw({"a": entry(0, 4, [1], "F99")}, bytes(4)),
    "a dtype that is a list": raw({"a": {"dtype": ["F32"], "shape": [1], "data_offsets": [0, 4]}}, bytes(4)),
    "metadata that is no text": raw({"__metadata__": {"a": 1}}),
    "a truncated body": WHOLE[:-1],
    "a number that is not finite": safetensors.torch.save({"w": torch.tensor([1.0, float("nan")])}),
    "an infinite number": safetensors.torch.save({"w": torch.tensor([float("-inf")])}),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_file_is_refused(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("state").write_bytes(HOSTILE[name])
    with pytest.raises(StateError, match="'state'"):
        load_tensors(Path("state"))
    assert not Path("executed").exists()


def test_an_unreadable_place_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "absent", tmp_path, tmp_path / "pipe", Path("/dev/zero")):
        with pytest.raises(StateError):
            load_tensors(path)


@given(st.binary(max_size=200), st.integers(0, 100))
def test_no_damage_ends_in_anything_but_a_refusal(noise: bytes, place: int) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "state"
        path.write_bytes(WHOLE[:place] + noise + WHOLE[place:])
        try:
            found = load_tensors(path)
        except StateError:
            return
        assert all(tensor.isfinite().all() for tensor in found.tensors.values())


@pytest.mark.parametrize(
    ("like", "named"),
    [
        ({"w": torch.ones(3)}, r"'w' is torch.float32 of shape \(2,\), expected torch.float32 of shape \(3,\)"),
        ({"w": torch.ones(2, dtype=torch.float64)}, "expected torch.float64"),
        ({"w": torch.ones(2), "b": torch.ones(1)}, "no tensor 'b'"),
        ({}, "an unexpected tensor 'w'"),
    ],
)
def test_a_file_of_another_model_is_refused_by_its_first_difference(like, named: str, tmp_path: Path) -> None:
    save_tensors(tmp_path / "a", {"w": torch.ones(2)})
    with pytest.raises(StateError, match=named):
        load_tensors(tmp_path / "a", like=like)
