"""Rows for a transformer: the columns that its `forward` takes, and inputs or labels that follow from others.

Each row of the result is a function of that row alone: causal language models predict their own inputs, and decoders
read the labels before each place.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from sordino.errors import DataError, UsageError
from sordino.huggingface.losses import IGNORED
from sordino.huggingface.tasks import Transformer
from sordino.kernel.buckets import Buckets
from sordino.kernel.budget import Budget
from sordino.kernel.loading import Loading
from sordino.kernel.records import Data, Records
from sordino.kernel.records import as_records as plain_records
from sordino.kernel.row_structure import most_of
from sordino.kernel.rows import ReadAt, Rows
from sordino.training.callbacks import LOGGER

_LABELS = ("labels", "label", "label_ids")
_ROWS_TO_INSPECT = 9


def as_records(
    model: nn.Module,
    data: Data,
    *,
    target: str | None = None,
    buckets: Buckets | None = None,
    input_range: tuple[float, float] | None = None,
    allow_single: bool = False,
    dtype: torch.dtype = torch.float32,
    loading: Loading | None = None,
) -> Records:
    """Makes `Records` for a transformer, from rows that are dictionaries.

    Columns that the model's `forward` takes are its inputs, and other columns are left out with a log message. Labels
    are in the column `target` (by default "labels", "label" or "label_ids"). Without labels, a causal language model
    predicts its own `input_ids` without padding. Models from sequence to sequence get their `decoder_input_ids` from
    the labels. `so.fit` does all this for its data; make records yourself for a `Budget` or a `PrivateRun`.

    >>> from transformers import GPT2Config, GPT2LMHeadModel
    >>> model = GPT2LMHeadModel(GPT2Config(vocab_size=9, n_embd=4, n_layer=1, n_head=1))
    >>> tokens, mask = torch.tensor([[3, 5, 0], [4, 4, 7]]), torch.tensor([[1, 1, 0], [1, 1, 1]])
    >>> as_records(model, {"input_ids": tokens, "attention_mask": mask}).gather(torch.tensor([0, 1])).target
    tensor([[   3,    5, -100],
            [   4,    4,    7]])
    """
    transformer = Transformer.of(model)
    if isinstance(data, Records):
        return _completed(transformer, data, labels_are_inputs=False)
    columns = _columns(data)
    known = [name for name in _LABELS if name in columns] if target is None else [target]
    if not known and not transformer.predicts_next_token:
        raise DataError(f"no column has the labels, got {_listed(columns)}: name it labels, or pass target=.")
    labels_are_inputs = not known
    target = "input_ids" if labels_are_inputs else known[0]
    inputs = [name for name in columns if name in transformer.arguments and (labels_are_inputs or name != target)]
    if not inputs or target not in columns:
        takes = ", ".join(transformer.arguments[:4])
        raise DataError(f"{type(transformer.base).__name__} takes {takes} and others, got columns {_listed(columns)}.")
    left_out = [name for name in columns if name not in inputs and name != target]
    if left_out:
        LOGGER.info(
            "columns that %s does not take are left out: %s", type(transformer.base).__name__, _listed(left_out)
        )
    if buckets is not None and buckets.mask in transformer.arguments and buckets.mask not in inputs:
        inputs.append(buckets.mask)  # it is added to rows without one
    records = plain_records(
        data,
        inputs=inputs,
        target=target,
        buckets=buckets,
        input_range=input_range,
        allow_single=allow_single,
        dtype=dtype,
        loading=loading,
    )
    return _completed(transformer, records, labels_are_inputs)


def records_of(model: nn.Module, data: Data | Budget) -> Records | Budget:
    """`as_records(model, data)`. A budget holds records already, and is refused if they do not fit the model."""
    if not isinstance(data, Budget):
        return as_records(model, data)
    made = as_records(model, data.records)
    if made.names != data.records.names:
        raise UsageError(
            "the budget holds rows that the model does not take as they are: make it by "
            "Budget(sordino.huggingface.as_records(model, data))."
        )
    return data


def _completed(transformer: Transformer, records: Records, labels_are_inputs: bool) -> Records:
    """The records with the labels and decoder inputs that follow from other columns."""
    if not records.names:
        raise UsageError(
            "rows for a transformer must be dictionaries, as a tuple does not say which argument of forward is which: "
            'pass {"input_ids": ..., "attention_mask": ..., "labels": ...}.'
        )
    unknown = [name for name in records.names if name not in transformer.arguments]
    if unknown:
        raise UsageError(f"{type(transformer.base).__name__} takes no argument {unknown[0]!r}.")
    config = transformer.base.config
    if labels_are_inputs:
        return replace(records, rows=_Derived(records.rows, _OwnLabels(records.names, _padding(config))))
    if transformer.needs_decoder_inputs and not {"decoder_input_ids", "decoder_inputs_embeds"} & {*records.names}:
        start, padding = getattr(config, "decoder_start_token_id", None), _padding(config)
        if start is None or padding is None:
            raise UsageError(
                "decoder inputs follow from the labels, the first token and the padding token: set "
                "config.decoder_start_token_id and config.pad_token_id, or give rows decoder_input_ids."
            )
        return replace(records, rows=_Derived(records.rows, _DecoderInputs(records.names, start, padding)))
    return records


class _Derivation(Protocol):
    """Computes columns of each row from others of the same row."""

    @property
    def names(self) -> tuple[str, ...]: ...

    def __call__(self, columns: tuple[Tensor, ...]) -> tuple[Tensor, ...]: ...


@dataclass(frozen=True)
class _OwnLabels:
    """Labels that are the inputs, and -100 where the attention mask is 0, or else where the token is the padding."""

    names: tuple[str, ...]
    padding: int | None

    def __call__(self, columns: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        *inputs, tokens = columns
        if "attention_mask" in self.names:
            is_padding = inputs[self.names.index("attention_mask")] == 0
        else:
            is_padding = torch.zeros_like(tokens, dtype=torch.bool) if self.padding is None else tokens == self.padding
        return *inputs, torch.where(is_padding, IGNORED, tokens.to(torch.int64))


@dataclass(frozen=True)
class _DecoderInputs:
    """An input `decoder_input_ids`: the labels, one place later, with padding for labels that are ignored."""

    given: tuple[str, ...]
    start: int
    padding: int

    @property
    def names(self) -> tuple[str, ...]:
        return *self.given, "decoder_input_ids"

    def __call__(self, columns: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        *inputs, labels = columns
        before = torch.where(labels == IGNORED, self.padding, labels)[:, :-1]
        return *inputs, torch.cat([labels.new_full((len(labels), 1), self.start), before], dim=1), labels


@dataclass(frozen=True)
class _Derived:
    """`Rows` with columns that follow from others."""

    rows: Rows
    derive: _Derivation

    @property
    def names(self) -> tuple[str, ...]:
        return self.derive.names

    @property
    def target_name(self) -> str:
        return self.rows.target_name

    @property
    def hashed(self) -> str:
        return self.rows.hashed

    def __len__(self) -> int:
        return len(self.rows)

    def take(self, indices: Tensor, at: ReadAt | None = None) -> tuple[tuple[Tensor, ...], Tensor]:
        taken, usable = self.rows.take(indices, at)
        return self.derive(taken), usable

    def empty(self) -> tuple[Tensor, ...]:
        return self.derive(self.rows.empty())

    def hash_into(self, digest: hashlib.blake2b, at: ReadAt) -> None:
        self.rows.hash_into(digest, at)

    def are_repeatable(self, at: ReadAt) -> bool:
        return self.rows.are_repeatable(at)


def _columns(data: object) -> tuple[str, ...]:
    """The names of the columns. Of a dataset, a few rows are read, and most of them decide."""
    if isinstance(data, DataLoader):
        return _columns(data.dataset)
    if isinstance(data, Mapping):
        return tuple(map(str, data))
    named = getattr(data, "column_names", None)
    if isinstance(named, Sequence) and not isinstance(named, str):
        return tuple(map(str, named))
    rows: Any = data
    if isinstance(data, (tuple, list)) or not hasattr(data, "__getitem__") or not hasattr(data, "__len__"):
        raise UsageError(
            f"rows for a transformer must be dictionaries, got {type(data).__name__}: pass a dictionary of arrays, or "
            "a dataset whose rows are dictionaries."
        )
    inspected = range(0, len(rows), -(-max(1, len(rows)) // _ROWS_TO_INSPECT))
    keys = most_of([_keys(rows, index) for index in inspected])
    if keys is None:
        raise DataError("rows for a transformer must be dictionaries with the same keys, and most rows are not.")
    return keys


def _keys(rows: Any, index: int) -> tuple[str, ...] | None:
    try:
        row = rows[index]
    except MemoryError:
        raise
    except Exception:  # its message may quote the row, which is found again, and counted, when records are made
        return None
    return tuple(map(str, row)) if isinstance(row, Mapping) else None


def _padding(config: Any) -> int | None:
    padding = getattr(config, "pad_token_id", None)
    return padding if isinstance(padding, int) else None


def _listed(names: Sequence[str]) -> str:
    return ", ".join(repr(name) for name in names) or "none"
