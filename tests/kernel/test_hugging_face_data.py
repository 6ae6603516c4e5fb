"""A `datasets.Dataset` is read where it is, many rows at once, and a row that cannot be read is absent."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytest
import torch
from torch import nn

import sordino as so
from sordino.errors import DataError, UsageError
from sordino.kernel.randomness import Key
from sordino.kernel.records import as_records
from sordino.kernel.rows import ReadAt

IDS = torch.arange(120).reshape(40, 3)
X = torch.linspace(-1, 1, 80, dtype=torch.float32).reshape(40, 2)
Y = torch.arange(40) % 3
SOME, AT = torch.tensor([5, 39, 2]), ReadAt(Key.from_seed(3).stream("rows"), 0)


def made() -> datasets.Dataset:
    texts = [f"row {index}" for index in range(40)]
    return datasets.Dataset.from_dict({"text": texts, "input_ids": IDS.tolist(), "x": X.tolist(), "labels": Y.tolist()})


def on_disk(folder: Path) -> datasets.Dataset:
    made().save_to_disk(str(folder / "saved"), num_shards=3)
    return datasets.load_from_disk(str(folder / "saved"))


FORMS: dict[str, Any] = {
    "as it is": lambda folder: made(),
    "on the disk": on_disk,
    "of numpy": lambda folder: made().with_format("numpy"),
    "of torch": lambda folder: made().with_format("torch", columns=["input_ids", "x", "labels"]),
    "shuffled back": lambda folder: made().select(range(39, -1, -1)).select(range(39, -1, -1)),
    "with a transform": lambda folder: made().with_transform(
        lambda rows: {name: rows[name] for name in ("input_ids", "x", "labels")}
    ),
}


@pytest.mark.parametrize("make", FORMS.values(), ids=FORMS)
def test_every_form_of_a_dataset_gives_the_rows_of_a_dictionary(make: Any, tmp_path: Path) -> None:
    records = as_records(make(tmp_path), inputs=("input_ids", "x"))
    batch, expected = (each.gather(SOME, AT) for each in (records, as_records({"input_ids": IDS, "x": X, "labels": Y})))
    assert batch.names == ("input_ids", "x") and bool(batch.valid.all())
    assert all(torch.equal(found, like) for found, like in zip(batch.inputs, expected.inputs, strict=True))
    assert torch.equal(batch.target, expected.target)


def test_rows_are_read_together_and_only_in_the_columns_that_are_used(monkeypatch: pytest.MonkeyPatch) -> None:
    records, reads = as_records(made(), inputs=("x",)), list[Any]()
    read = datasets.Dataset.__getitem__

    def noted(dataset: datasets.Dataset, key: Any) -> Any:
        reads.append((key, dataset.column_names))
        return read(dataset, key)

    monkeypatch.setattr(datasets.Dataset, "__getitem__", noted)
    records.gather(SOME, AT)
    assert reads == [(SOME.tolist(), ["x", "labels"])]


def test_rows_that_cannot_be_used_are_absent_and_the_others_as_they_were() -> None:
    rows = made().to_list()
    rows[5]["x"], rows[6]["labels"], rows[7]["x"] = [1.0], None, None
    batch = as_records(datasets.Dataset.from_list(rows), inputs=("x",)).gather(torch.arange(4, 9), AT)
    assert batch.valid.tolist() == [True, False, False, False, True]
    assert torch.equal(batch.inputs[0][[0, 4]], X[[4, 8]])


def test_an_image_that_is_damaged_is_absent_though_it_was_read_with_others(tmp_path: Path) -> None:
    from PIL import Image

    paths = [tmp_path / f"{index}.png" for index in range(20)]
    for index, path in enumerate(paths):
        Image.fromarray(np.full((3, 3), index, dtype=np.uint8)).save(path)
    paths[7].write_bytes(paths[7].read_bytes()[:40])
    columns = {"x": list(map(str, paths)), "labels": [0] * 20}
    dataset = datasets.Dataset.from_dict(columns).cast_column("x", datasets.Image()).with_format("numpy")
    batch = as_records(dataset).gather(torch.tensor([6, 7, 8]), AT)
    assert batch.valid.tolist() == [True, False, True]
    assert batch.inputs[0][[0, 2], 0, 0].tolist() == [6, 8]


def test_a_transform_that_draws_sees_one_row_and_its_seed() -> None:
    def noisy(rows: dict[str, Sequence[Any]]) -> dict[str, Any]:
        return {"x": [torch.tensor(x) + torch.rand(()) for x in rows["x"]], "labels": rows["labels"]}

    records = as_records(made().with_transform(noisy))
    together, alone = records.gather(SOME, AT), records.gather(SOME[1:2], AT)
    assert torch.equal(together.inputs[0][1], alone.inputs[0][0])


def test_a_model_trains_on_a_dataset_read_by_workers() -> None:
    class Named(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(2, 3)

        def forward(self, x: torch.Tensor) -> Any:
            return self.layer(x)

    def value(data: Any) -> torch.Tensor:
        torch.manual_seed(0)
        gradient, noise = so.LossGradient(nn.functional.cross_entropy), so.Gaussian(9.0)
        plan = so.Plan(so.Poisson(0.5, 2), gradient, so.ClipByNorm(1.0), noise)
        return torch.stack([private.value for private in so.PrivateRun(plan, Named(), data, seed=1)])

    expected = value(as_records({"x": X, "labels": Y}))
    assert torch.equal(value(as_records(made(), inputs=("x",), loading=so.Loading(num_workers=1))), expected)


def test_sequences_are_padded_to_buckets_by_workers_too() -> None:
    ids = [list(range(1, 2 + index % 4)) for index in range(40)]
    dataset = datasets.Dataset.from_dict({"input_ids": ids, "labels": Y.tolist()})
    buckets = so.Buckets((2, 4))
    alone, ahead = (as_records(dataset, buckets=buckets, loading=so.Loading(workers)) for workers in (0, 1))
    reading = ahead.read_ahead(iter([(SOME, AT)]), requests_per_step=1)
    found, expected = reading.gather(SOME, AT), alone.gather(SOME, AT)
    assert found.names == ("input_ids", "attention_mask") and found.inputs[1].sum(1).tolist() == [2, 4, 3]
    assert all(torch.equal(one, other) for one, other in zip(found.inputs, expected.inputs, strict=True))


@pytest.mark.parametrize(
    ("make", "error", "says"),
    [
        (lambda: as_records(datasets.DatasetDict(train=made())), UsageError, r"choose a split, as in data\['train'\]"),
        (lambda: as_records(made().to_iterable_dataset()), UsageError, "indexable.*got an IterableDataset"),
        (lambda: as_records(made()), DataError, r"must be a tensor.* got str: .*inputs=\(\.\.\.\)"),
        (lambda: as_records(made(), target="label"), DataError, "no key 'label'"),
        (lambda: as_records(made().select([])), DataError, "the dataset is empty"),
    ],
)
def test_what_cannot_be_sampled_is_refused_in_one_line(make: Any, error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says) as refused:
        make()
    assert "\n" not in str(refused.value) and "row 1" not in str(refused.value)
