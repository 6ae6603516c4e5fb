"""A row of a map-style dataset that cannot be used counts as absent: no error, no message, and no other row changes."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

import sordino as so
from sordino.errors import DataError
from sordino.kernel.records import as_records, by_user
from sordino.training.evaluation import accuracy

GENERATOR = torch.Generator().manual_seed(0)
INPUTS, LABELS = torch.randn(60, 4, generator=GENERATOR), torch.randint(0, 3, (60,), generator=GENERATOR)


class Damaged(Dataset[Any]):
    """A dataset of usable rows, except for the given ones: a row, or an exception that reading the row raises."""

    def __init__(self, rows: dict[int, object], *, labels: Any = None) -> None:
        self.rows, self.labels = rows, LABELS.tolist() if labels is None else labels

    def __len__(self) -> int:
        return len(INPUTS)

    def __getitem__(self, index: int) -> Any:
        found = self.rows.get(index, (INPUTS[index], self.labels[index]))
        if isinstance(found, BaseException):
            raise found
        return found


SOUND = INPUTS[7]
DAMAGES = {
    "an unreadable file": OSError(5, "cannot read", "ALICE.png"),
    "an error of the data set's own": RuntimeError("ALICE is not a number"),
    "one that our own checks raise": DataError("ALICE"),
    "endless recursion": RecursionError("ALICE"),
    "another dtype": (SOUND.double(), 1),
    "another shape": (torch.zeros(5), 1),
    "more parts": (SOUND, SOUND, 1),
    "no target": (SOUND,),
    "no tuple": SOUND,
    "no row at all": None,
    "an input that is text": ("ALICE", 1),
    "objects": (np.array([{}]), 1),
    "sparse numbers": (SOUND.to_sparse(), 1),
    "complex numbers": (SOUND.to(torch.complex64), 1),
    "a label that is None": (SOUND, None),
    "a label beyond 64 bits": (SOUND, 2**70),
    "a label far below zero": (SOUND, -(2**63) - 1),
    "a label that is no whole number": (SOUND, 1.5),
    "a label that is text": (SOUND, "ALICE"),
    "numbers that are not finite": (SOUND.new_full((4,), float("nan")), 1),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
@pytest.mark.parametrize("labels", [None, LABELS.numpy()])
def test_a_damaged_row_is_absent_and_the_others_are_as_they_were(damage: object, labels: Any) -> None:
    rows = torch.tensor([3, 7, 8])
    found = as_records(Damaged({7: damage}, labels=labels)).gather(rows)
    sound = as_records(Damaged({}, labels=labels)).gather(rows)
    assert found.valid.tolist() == [True, False, True]
    assert not found.inputs[0][1].any() and not found.target[1]
    assert torch.equal(found.inputs[0][[0, 2]], sound.inputs[0][[0, 2]])
    assert torch.equal(found.target[[0, 2]], sound.target[[0, 2]]) and found.target.dtype == sound.target.dtype


def test_a_number_for_a_target_may_be_damaged_too() -> None:
    records = as_records(Damaged({7: (SOUND, float("nan")), 8: (SOUND, None)}, labels=LABELS.double().tolist()))
    assert records.gather(torch.tensor([6, 7, 8])).valid.tolist() == [True, False, False]


def test_a_user_with_a_damaged_row_keeps_the_others() -> None:
    users = by_user(Damaged({7: OSError()}), torch.arange(60) // 3, rows_per_user=3)
    assert users.gather(torch.tensor([2])).valid.tolist() == [True, False, True]


def released(data: object) -> tuple[Tensor, Tensor]:
    torch.manual_seed(0)
    model = nn.Linear(4, 3)
    gradient = so.LossGradient(nn.functional.cross_entropy)
    plan = so.Plan(so.Poisson(rate=0.5, steps=3), gradient, so.ClipByNorm(1.0), so.Gaussian(30.0))
    values = []
    for private in so.PrivateRun(plan, model, data, seed=5):
        values.append(private.value)
    return torch.stack(values), model.weight.detach()


def test_a_run_on_damaged_rows_releases_what_it_releases_without_them(capfd: pytest.CaptureFixture[str]) -> None:
    at = range(1, 1 + len(DAMAGES))
    damaged, _ = released(Damaged(dict(zip(at, DAMAGES.values(), strict=True))))
    absent, _ = released(Damaged({place: (torch.full((4,), float("nan")), 0) for place in at}))
    assert torch.equal(damaged, absent)
    assert not any(capfd.readouterr())


@pytest.mark.parametrize("damage", [OSError("ALICE"), (torch.zeros(9), 1), (INPUTS[0].double(), 2)])
def test_the_first_row_may_be_damaged_and_does_not_say_what_the_others_should_be(damage: object) -> None:
    batch = as_records(Damaged({0: damage})).gather(torch.arange(4))
    assert batch.valid.tolist() == [False, True, True, True]
    assert torch.equal(batch.inputs[0][1:], INPUTS[1:4])


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, MemoryError])
@pytest.mark.parametrize("place", [0, 8])
def test_what_is_no_matter_of_a_row_is_not_hidden(error: type[BaseException], place: int) -> None:
    with pytest.raises(error):
        as_records(Damaged({place: error()})).gather(torch.tensor([place]))


@pytest.mark.parametrize(
    ("row", "said"),
    [
        (KeyError("ALICE"), r"raises KeyError: try data\[0\]"),
        ((INPUTS[0], "ALICE"), "targets must be a tensor or an array, got str"),
        ((INPUTS[0], 2**70), "targets must hold numbers, got an array of dtype object"),
        ("ALICE", r"must be a tuple \(inputs..., target\) or a dictionary, got str"),
    ],
)
def test_a_data_set_of_which_no_row_can_be_used_is_refused_and_not_quoted(row: object, said: str) -> None:
    with pytest.raises(DataError, match=said) as caught:
        as_records(Damaged(dict.fromkeys(range(60), row)))
    assert "ALICE" not in str(caught.value) and caught.value.__cause__ is None is caught.value.__context__


def test_rows_without_a_common_shape_are_refused_and_their_shapes_are_not_told() -> None:
    with pytest.raises(DataError, match="pad or crop") as caught:
        as_records(Damaged({place: (torch.zeros(100 + place), 1) for place in range(60)}))
    assert "10" not in str(caught.value)


def test_public_rows_that_cannot_be_read_are_counted() -> None:
    with pytest.raises(DataError, match="2 of the public rows are not finite or cannot be read"):
        accuracy(nn.Linear(4, 3), so.Public(Damaged({3: OSError("ALICE"), 9: (SOUND, None)})))


def test_a_file_that_is_cut_short_on_the_disk_does_not_end_a_training(tmp_path) -> None:
    for place in range(60):
        buffer = io.BytesIO()
        torch.save(INPUTS[place], buffer)
        (tmp_path / f"{place}.pt").write_bytes(buffer.getvalue()[: 40 if place == 7 else None])

    class Files(Damaged):
        def __getitem__(self, index: int) -> tuple[Tensor, int]:
            return torch.load(tmp_path / f"{index}.pt"), int(LABELS[index])

    settings = {"epsilon": 3.0, "delta": 1e-3, "batch_size": 30, "steps": 4, "progress": False}
    assert so.fit(nn.Linear(4, 3), Files({}), **settings).guarantee.epsilon <= 3.0
