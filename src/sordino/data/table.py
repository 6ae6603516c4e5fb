"""Loading of tables (CSV, TSV or Parquet) with a schema of public facts.

A file without the declared structure is refused. The values of cells are private and never raise an error: a missing or
unknown value is encoded as no information, a number that cannot be parsed or a missing owner makes the whole row count
as absent, and an unknown class becomes a label that no loss counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sordino.data.cells import Cells, Texts
from sordino.data.dataset import DataSet, Split
from sordino.data.schema import Schema
from sordino.data.table_readers import pieces_in
from sordino.errors import DataError


def load_table(path: Path, schema_path: Path, *, test_path: Path | None = None) -> DataSet:
    """Loads private rows from `path`, and public ones from `test_path` or from the `test` file of the schema.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> _ = (folder / "people.csv").write_text("age,ill\\n30,no\\n60,yes\\n")
    >>> _ = (folder / "people.toml").write_text('''
    ... confirmed_public = true
    ... target = {column = "ill", classes = ["no", "yes"]}
    ... columns.age = {kind = "number", bounds = [0, 120]}
    ... ''')
    >>> people = load_table(folder / "people.csv", folder / "people.toml")
    >>> people.train.inputs, people.train.target
    (tensor([[-0.5000],
            [ 0.0000]]), tensor([0, 1]))
    """
    schema = Schema.read(schema_path)
    test_path = test_path or schema.test
    train = read_split(path, schema)
    test = None if test_path is None else read_split(test_path, replace(schema, user=None, units=None))
    return DataSet(schema.facts(), train, test, schema.user.most_rows if schema.user else None)


def load_features(path: Path, schema: Schema) -> Tensor:
    """Loads the inputs of new rows. Only the feature columns are needed."""
    pieces = [schema.encode(cells) for cells in pieces_in(path, tuple(schema.columns), schema.dialect)]
    _refuse_empty(pieces, repr(str(path)))
    return torch.cat(pieces)


def read_split(path: Path, schema: Schema) -> Split:
    """Reads all rows of a file, with their targets, owners and groups."""
    return split_of(pieces_in(path, schema.needed, schema.dialect), schema, repr(str(path)))


def split_of(pieces: Iterable[Mapping[str, Cells]], schema: Schema, shown: str) -> Split:
    """Joins the pieces of a table. `shown` names it in messages."""
    numbers: dict[str | None, int] = {}
    splits = [_split(cells, schema, numbers) for cells in pieces]
    _refuse_empty(splits, shown)
    whole = _joined(splits)
    found = len(whole.inputs) if whole.owners is None else len(numbers)
    if schema.units not in (None, found):
        raise DataError(f"{shown} has {found} {'users' if schema.user else 'rows'}, the schema says {schema.units}.")
    return whole


def _split(cells: Mapping[str, Cells], schema: Schema, numbers: dict[str | None, int]) -> Split:
    """Encodes one piece of a table. `numbers` maps each user seen so far to an index, and grows."""
    inputs, owners = schema.encode(cells), None
    if schema.user:
        users = cells[schema.user.name]

        def numbered(texts: Texts) -> NDArray[np.int64]:
            names = (None if text in schema.missing else text for text in texts)
            return np.fromiter((numbers.setdefault(name, len(numbers)) for name in names), np.int64, len(texts))

        owners = torch.from_numpy(users.mapped(numbered))
        # A row without an owner belongs to no privacy unit, so it counts as absent.
        inputs[torch.from_numpy(users.are_missing(schema.missing))] = torch.nan
    return Split(inputs, schema.labels(cells), owners, schema.group_labels(cells))


def _joined(splits: Sequence[Split]) -> Split:
    owners = [split.owners for split in splits if split.owners is not None]
    return Split(
        torch.cat([split.inputs for split in splits]),
        torch.cat([split.target for split in splits]),
        torch.cat(owners) if owners else None,
        {name: torch.cat([split.groups[name] for split in splits]) for name in splits[0].groups},
    )


def _refuse_empty(pieces: Sequence[object], shown: str) -> None:
    if not pieces:
        raise DataError(f"{shown} has no rows.")
