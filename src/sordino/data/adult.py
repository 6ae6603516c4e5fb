"""Adult: does a person earn more than 50,000 dollars a year? A census extract of 1994, published by UCI."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

from sordino._input.files import read_bytes
from sordino.data.csv_rows import pieces_of
from sordino.data.dataset import DataSet, Split
from sordino.data.published import SOURCES
from sordino.data.schema import Schema
from sordino.data.table import split_of


def load_adult(root: Path) -> DataSet:
    """The 32,561 training and 16,281 test rows in `root`/adult, verified. Groups are sex and race."""
    schema = adult_schema()
    train, test = (source.file.verify(root / "adult") for source in SOURCES["adult"])
    return DataSet(schema.facts(), read_rows(train, schema), read_rows(test, schema))


def adult_schema() -> Schema:
    """The public facts of Adult.

    >>> adult_schema().num_features, adult_schema().facts().class_names
    (105, ('<=50K', '>50K'))
    """
    text = files("sordino.data").joinpath("adult.toml").read_text(encoding="utf-8")
    return Schema.parse(text, shown="adult.toml", name="adult", folder=Path())


def read_rows(path: Path, schema: Schema) -> Split:
    """The files have no header; that for testing begins with a remark, and its classes end in a full stop."""
    lines = read_bytes(path, at_most=1 << 23).decode("ascii").splitlines()
    rows = [line.removesuffix(".") for line in lines if not line.startswith("|")]
    # The columns of the schema stand in the order of the files, and the target comes last.
    return split_of(
        pieces_of([",".join(schema.needed), *rows], schema.needed, repr(str(path))), schema, repr(str(path))
    )
