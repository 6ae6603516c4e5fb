"""The test rows that a run was measured on. They are public by declaration; training rows stay closed where they can.

Guarantee: where test rows lie in files of their own, no other file of the data set is opened.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch

from sordino._input.files import read_bytes
from sordino._input.strict_toml import LARGEST_TEXT
from sordino.data import Facts, Split, load
from sordino.data.adult import adult_schema, read_rows
from sordino.data.cifar import read_batches
from sordino.data.folder import load_pictures
from sordino.data.idx import read_pictures
from sordino.data.published import SOURCES
from sordino.data.schema import Schema
from sordino.data.standard import NAMES, root
from sordino.data.svhn import read_digits
from sordino.data.table import read_split
from sordino.errors import DataError
from sordino.recipes import Recipe


def public_rows(recipe: Recipe, facts: Facts, schema: Path | None) -> Split:
    """The public rows of the data set, or a refusal that says why there are none. `schema` is the run's own copy.

    >>> recipe = Recipe("digits", "linear", epsilon=1.0, delta=1e-4)
    >>> len(public_rows(recipe, Facts("digits", (1, 8, 8), 10), None).target)
    360
    """
    path = Path(recipe.data)
    if recipe.data in SOURCES:
        return _published(recipe.data)
    if recipe.data not in NAMES and schema is not None and path.suffix.lower() in (".csv", ".parquet"):
        return _of_table(recipe, schema)
    if recipe.data not in NAMES and path.is_dir():
        return _of_folder(path / "test", facts)
    found = load(recipe.data, schema=recipe.schema).test  # one file, or none, holds both parts
    if found is None:
        raise DataError("the data set has no test rows.")
    return found


def _published(name: str) -> Split:
    folder = root() / name
    files = [file for source in SOURCES[name] for file in source.kept]
    match name:
        case "cifar10":
            return read_batches([files[-1].verify(folder)])
        case "svhn":
            return read_digits(files[-1].verify(folder))
        case "adult":
            return read_rows(files[-1].verify(folder), adult_schema())
        case _:
            pictures, labels = files[-2:]
            return read_pictures(pictures.verify(folder), labels.verify(folder))


def _of_table(recipe: Recipe, copy: Path) -> Split:
    said = Path(recipe.schema or copy)  # the test rows are named from where the schema lay
    text = read_bytes(copy, at_most=LARGEST_TEXT)
    schema = Schema.parse(text, shown=repr(str(copy)), name=said.stem, folder=said.parent)
    if schema.test is None:
        raise DataError("the schema of the table names no test rows.")
    return read_split(schema.test, replace(schema, user=None, units=None))


def _of_folder(folder: Path, facts: Facts) -> Split:
    if not folder.is_dir():
        raise DataError("the data set has no folder of test pictures.")
    classes = [(label, folder / name) for label, name in enumerate(facts.class_names) if (folder / name).is_dir()]
    if not classes:
        raise DataError(f"{str(folder)!r} has no pictures of the classes that the model knows.")
    pictures = [load_pictures(path, facts.input_shape) for _, path in classes]
    labels = [torch.full((len(some),), label) for (label, _), some in zip(classes, pictures, strict=True)]
    return Split(torch.cat(pictures), torch.cat(labels))
