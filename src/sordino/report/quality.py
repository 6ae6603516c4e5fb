"""Accuracy or regression errors of a finished model on public test rows.

Test rows are public by declaration. Accuracies are kept as counts, from which intervals are computed.

*Guarantee:* if the test rows are in files of their own, no other file of the dataset is opened.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from torch import Tensor

from sordino._input.files import read_bytes
from sordino._input.strict_toml import LARGEST_TEXT
from sordino.data import Facts, Split, load
from sordino.data.image_folder import load_pictures
from sordino.data.published import SOURCES
from sordino.data.schema import Schema
from sordino.data.standard import NAMES, adult_schema, read_batches, read_digits, read_pictures, read_rows, root
from sordino.data.table import read_split
from sordino.data.table_readers import is_table
from sordino.errors import DataError, SordinoError
from sordino.recipes import FinishedRun, OwnRun, Recipe
from sordino.recipes.transformer_runs import TransformerRun
from sordino.training.evaluation import Regression, correctness, wilson
from sordino.training.metrics import ClassMetrics


def public_rows(recipe: Recipe, facts: Facts, schema: Path | None) -> Split:
    """The public test rows of the recipe's dataset. Raises `DataError` with the reason if there are none.

    `schema` is the path of the run's own copy of the schema.

    >>> recipe = Recipe("digits", "linear", epsilon=1.0, delta=1e-4)
    >>> len(public_rows(recipe, Facts("digits", (1, 8, 8), 10), None).target)
    360
    """
    path = Path(recipe.data)
    if recipe.data in SOURCES:
        return _published(recipe.data)
    if recipe.data not in NAMES and schema is not None and is_table(path):
        return _of_table(recipe, schema)
    if recipe.data not in NAMES and path.is_dir():
        return _of_folder(path / "test", facts)
    test = load(recipe.data, schema=recipe.schema).test  # training and test rows are in the same file, or generated
    if test is None:
        raise DataError("the dataset has no test rows.")
    return test


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
            images, labels = files[-2:]
            return read_pictures(images.verify(folder), labels.verify(folder))


def _of_table(recipe: Recipe, copy: Path) -> Split:
    original = Path(recipe.schema or copy)  # the path of the test rows is relative to the original schema
    text = read_bytes(copy, at_most=LARGEST_TEXT)
    schema = Schema.parse(text, shown=repr(str(copy)), name=original.stem, folder=original.parent)
    if schema.test is None:
        raise DataError("the schema of the table names no test rows.")
    return read_split(schema.test, replace(schema, user=None, units=None))


def _of_folder(folder: Path, facts: Facts) -> Split:
    if not folder.is_dir():
        raise DataError("the dataset has no folder 'test' of test images.")
    classes = [(label, folder / name) for label, name in enumerate(facts.class_names) if (folder / name).is_dir()]
    if not classes:
        raise DataError(f"{str(folder)!r} has no images of the classes of the model.")
    images = [load_pictures(path, facts.input_shape) for _, path in classes]
    labels = [torch.full((len(of_class),), label) for (label, _), of_class in zip(classes, images, strict=True)]
    return Split(torch.cat(images), torch.cat(labels))


@dataclass(frozen=True)
class JudgedRows:
    """Rows that can be read and have a label, as in training, with the `outputs` of the model."""

    rows: Split = field(repr=False)
    outputs: Tensor = field(repr=False)


def judge(saved: FinishedRun, recipe: Recipe | None = None) -> JudgedRows:
    """Applies the model to the public test rows of its own recipe, or of another; the user's own model to those passed.

    *Guarantee:* nothing here is computed from training rows.
    """
    if isinstance(saved, OwnRun):
        return JudgedRows(*saved.judged_rows())
    if isinstance(saved, TransformerRun) and saved.reader is not None:
        return JudgedRows(*saved.judged_rows())
    recipe = recipe or saved.recipe
    rows = public_rows(recipe, saved.facts, saved.folder.schema)
    shape, expected = tuple(rows.inputs.shape[1:]), saved.facts.input_shape
    if shape != expected:
        raise DataError(f"the test rows have shape {shape}, but the model takes {expected}.")
    outputs = saved.outputs(rows.inputs)
    usable = rows.inputs.flatten(1).isfinite().all(dim=1)
    if saved.facts.num_classes is not None:
        usable &= rows.target >= 0
    if not bool(usable.any()):
        raise DataError("no test row is usable: each has values that are not finite, or no label.")
    groups = {name: labels[usable] for name, labels in rows.groups.items()}
    return JudgedRows(Split(rows.inputs[usable], rows.target[usable], groups=groups), outputs[usable])


@dataclass(frozen=True)
class Share:
    """An accuracy: `right` of `rows` predictions are right.

    >>> Share(9, 10).text
    '90.0 % (59.6 to 98.2)'
    """

    right: int
    rows: int

    @property
    def value(self) -> float:
        return self.right / self.rows

    @property
    def interval(self) -> tuple[float, float]:
        """Wilson's 95 % interval."""
        return wilson(self.right, self.rows)

    @property
    def text(self) -> str:
        low, high = self.interval
        return f"{100 * self.value:.1f} % ({100 * low:.1f} to {100 * high:.1f})"

    def as_dict(self) -> dict[str, object]:
        return {"right": self.right, "rows": self.rows, "accuracy": self.value, "interval_95": list(self.interval)}


@dataclass(frozen=True)
class Accuracy:
    """Accuracy on all test rows, and on those of each class that occurs."""

    overall: Share
    by_class: dict[str, Share]
    metrics: ClassMetrics


@dataclass(frozen=True)
class RegressionErrors:
    """Errors of a regression model, in units of its target, which a recipe scales to [-1, 1]."""

    regression: Regression
    rows: int
    is_scaled: bool = True


@dataclass(frozen=True)
class Unmeasured:
    """No measurement, with the reason."""

    reason: str


Quality = Accuracy | RegressionErrors | Unmeasured


def quality_of(saved: FinishedRun) -> Quality:
    """Measures the model on the test rows, if there are any. Unusable rows are left out, as in training.

    *Guarantee:* nothing here is computed from training rows.
    """
    try:
        if isinstance(saved, OwnRun):
            return _of_own(saved)
        judged = judge(saved)
    except SordinoError as error:
        return Unmeasured(str(error))
    outputs, target = judged.outputs, judged.rows.target
    if saved.facts.num_classes is None:
        is_scaled = not isinstance(saved, TransformerRun)
        return RegressionErrors(Regression.of(outputs, target), len(target), is_scaled=is_scaled)
    names = saved.facts.class_names or tuple(str(label) for label in range(saved.facts.num_classes))
    return _accuracy(outputs, target, names)


def _of_own(own: OwnRun) -> Quality:
    """Accuracy where each row has one label, errors where the target is a number or several."""
    if own.data is None or not own.has_model:
        return Unmeasured(
            "the folder holds neither rows nor the code of the model. Pass --data FILE (public rows) and "
            "--model MODULE:FUNCTION (a function that returns the untrained module)."
        )
    rows = own.public_rows()
    rows = rows.take(rows.usable)
    if rows.target is None or not len(rows.target):
        return Unmeasured("no test row can be judged.")
    outputs = own.outputs_of(rows.inputs)
    if rows.target.is_floating_point():
        return RegressionErrors(Regression.of(outputs, rows.target), len(rows.target), is_scaled=False)
    if rows.target.ndim > 1:
        return Unmeasured("each row has several labels, and accuracy is about one label of a row.")
    names = own.facts.class_names or tuple(str(label) for label in range(own.facts.num_classes or 2))
    return _accuracy(outputs, rows.target, names)


def _accuracy(outputs: Tensor, target: Tensor, names: tuple[str, ...]) -> Accuracy:
    right = correctness(outputs, target)
    by_class = {
        names[label] if label < len(names) else str(label): _share(right[target == label])
        for label in torch.unique(target).tolist()
    }
    return Accuracy(_share(right), by_class, ClassMetrics.of(outputs, target))


def _share(right: Tensor) -> Share:
    return Share(int(right.sum()), len(right))
