"""Sequences of different lengths are cut to public lengths, and contribute what they contribute alone, unpadded."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import Dataset

import sordino as so
from sordino.errors import DataError, UsageError
from sordino.gradients import tape
from sordino.kernel.buckets import ROUNDED_ALIKE, Buckets, real_lengths
from sordino.kernel.randomness import Key
from sordino.kernel.records import Records, as_records, by_user
from sordino.kernel.step import StepState, Streams, begin, bounded_sum

LENGTHS = (3, 5, 8)
IDS = [
    torch.randint(1, 9, (length,), generator=torch.Generator().manual_seed(7)) for length in (1, 3, 4, 8, 2, 8, 5, 11)
]
PADDING = {"input_ids": 0, "labels": -100}


class Tokens(Dataset[dict[str, Any]]):
    """Sequences of token ids of different lengths, with a label for each token."""

    def __init__(self, form: Any = lambda x: x) -> None:
        self._form = form

    def __len__(self) -> int:
        return len(IDS)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"input_ids": self._form(IDS[index]), "labels": self._form(IDS[index] % 3)}


class Tagger(nn.Module):
    """Classifies each token from itself and the mean of the real ones. It notes the shapes that it has seen."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(9, 4), nn.Linear(8, 3)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        mask = attention_mask[:, :, None].to(torch.float32)
        tokens = self.table(input_ids)
        mean = (tokens * mask).sum(1, keepdim=True) / mask.sum(1, keepdim=True).clamp(min=1)
        return self.head(torch.cat([tokens, mean.expand_as(tokens)], dim=2))


def loss(outputs: Tensor, target: Tensor) -> Tensor:
    return F.cross_entropy(outputs.flatten(0, 1), target.flatten(), reduction="sum")


def plan(clip: float = 0.5) -> so.Plan:
    return so.Plan(so.Poisson(rate=0.5, steps=3), so.LossGradient(loss), so.ClipByNorm(clip), so.Gaussian(2.0))


def sum_of(records: Records, model: nn.Module, units: list[int], units_at_a_time: int) -> Tensor:
    planned, streams = plan(), Streams.of(Key.from_seed(0))
    begun = begin(planned, StepState({}), 0, torch.tensor(units, dtype=torch.int64), streams)
    return bounded_sum(planned, model, records, begun, streams, units_at_a_time).value.float()


def expected(model: nn.Module, units: list[list[int]]) -> Tensor:
    """The clipped sum of the gradients of single sequences without padding."""
    total = torch.zeros(sum(p.numel() for p in model.parameters()))
    for rows in units:
        model.zero_grad()
        for row in rows:
            ids = IDS[row][: LENGTHS[-1]][None]
            loss(model(ids, torch.ones_like(ids)), ids % 3).backward()
        gradient = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])
        total += gradient * min(1.0, 0.5 / float(gradient.norm()))
    return total


FORMS = {"tensors": lambda x: x, "arrays": lambda x: x.numpy(), "lists": lambda x: x.tolist()}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("units_at_a_time", [1, 3, 64])
def test_the_sum_is_that_of_single_sequences_without_padding(form: str, units_at_a_time: int) -> None:
    model, records = Tagger(), as_records(Tokens(FORMS[form]), buckets=Buckets(LENGTHS, PADDING))
    units = [0, 1, 2, 3, 6, 7]
    found = sum_of(records, model, units, units_at_a_time)
    assert torch.allclose(found, expected(model, [[unit] for unit in units]), rtol=4e-3, atol=1e-6)  # SCALED_TO


def test_a_user_is_in_the_bucket_of_the_longest_of_their_sequences() -> None:
    model, owners = Tagger(), torch.tensor([0, 1, 0, 1, 2, 2, 2, 3])
    records = by_user(Tokens(), owners, rows_per_user=2, buckets=Buckets(LENGTHS, PADDING))
    found = sum_of(records, model, [0, 1, 2], 2)
    assert torch.allclose(found, expected(model, [[0, 2], [1, 3], [4, 5]]), rtol=4e-3, atol=1e-6)


def test_a_batch_costs_what_its_buckets_cost(monkeypatch: pytest.MonkeyPatch) -> None:
    model, records = Tagger(), as_records(Tokens(), buckets=Buckets(LENGTHS, PADDING))
    plan().contribution.check(model, records)
    shapes, recorded = list[tuple[int, ...]](), tape.record

    def noted(*args: Any) -> Any:
        shapes.append(tuple(args[2][0].shape))
        return recorded(*args)

    monkeypatch.setattr("sordino.kernel.contribution.record", noted)
    sum_of(records, model, [0, 1, 2, 3, 4, 5, 6], 2)
    assert shapes == [(3, 3), (2, 5), (2, 8)]  # twice 8 / 3 units fit where two of length 8 do


def test_padding_changes_no_bit() -> None:
    model, mask = Tagger(), torch.tensor([[1, 1, 0, 0, 0, 0, 0, 0], [1, 1, 1, 1, 0, 0, 0, 0]])
    rows = {"input_ids": torch.randint(9, (2, 8)), "attention_mask": mask, "labels": torch.where(mask == 1, 1, -100)}
    other = rows | {"input_ids": torch.where(mask == 1, rows["input_ids"], 5)}
    sums = [sum_of(as_records(each, buckets=Buckets(LENGTHS, PADDING)), model, [0, 1], 8) for each in (rows, other)]
    assert torch.equal(*sums)


def test_a_batch_without_units_and_one_of_empty_rows_are_zero() -> None:
    mask, ids = torch.zeros(2, 8, dtype=torch.int64), torch.zeros(2, 8, dtype=torch.int64)
    rows = {"input_ids": ids, "attention_mask": mask, "labels": ids - 100}
    records = as_records(rows, buckets=Buckets(LENGTHS, PADDING))
    assert not sum_of(records, Tagger(), [], 8).any()
    assert not sum_of(records, Tagger(), [0, 1], 8).any()


def test_a_run_with_buckets_trains_and_says_what_it_assumes() -> None:
    model, records = Tagger(), as_records(Tokens(), buckets=Buckets(LENGTHS, PADDING))
    fitted = so.fit(model, records, plan(), delta=1e-2, progress=False)
    assert ROUNDED_ALIKE in fitted.guarantee.assumptions


@pytest.mark.slow
def test_a_verification_cuts_synthetic_rows_to_the_buckets() -> None:
    assert so.verify(plan(), Tagger(), as_records(Tokens(), buckets=Buckets(LENGTHS, PADDING))).passed


def test_lengths_are_those_up_to_the_last_real_place() -> None:
    assert real_lengths(torch.tensor([[0, 0], [1, 0], [0, 1], [1, 1]])).tolist() == [0, 1, 2, 2]


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: Buckets((8, 4)), "lengths of buckets must increase, got "),
        (lambda: Buckets((0, 4)), "length 0 must be"),
        (lambda: as_records((torch.zeros(3, 8), torch.zeros(3)), buckets=Buckets((8,))), "must be a dictionary of pad"),
        (
            lambda: as_records({"input_ids": np.zeros((3, 8)), "labels": np.zeros(3)}, buckets=Buckets((8,))),
            "need the key",
        ),
        (
            lambda: as_records(
                {"input_ids": np.zeros((3, 9)), "attention_mask": np.ones((3, 9)), "labels": np.zeros(3)},
                buckets=Buckets((8,)),
            ),
            r"'attention_mask' must have 8 places per row, as the last bucket, got \(3, 9\)",
        ),
        (
            lambda: as_records(Tokens(lambda x: "private"), buckets=Buckets((8,))),
            "must be a sequence of numbers, got str",
        ),
        (
            lambda: as_records(Tokens(), inputs=("input_ids",), buckets=Buckets((8,), PADDING)),
            "the mask 'attention_mask' of buckets must be among the inputs",
        ),
    ],
)
def test_what_cannot_be_cut_to_length_is_refused_in_one_line(make: Any, says: str) -> None:
    with pytest.raises((DataError, UsageError), match=says) as refused:
        make()
    assert "private" not in str(refused.value)
