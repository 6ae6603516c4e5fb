"""Public test rows beside what a finished model says about them."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor

from sordino.data import Split
from sordino.errors import DataError
from sordino.recipes import FinishedRun, OwnRun, Recipe
from sordino.report.public_rows import public_rows


@dataclass(frozen=True)
class Judged:
    """Rows that can be judged: those that can be read and have a label, as in training. `outputs` are the model's."""

    rows: Split = field(repr=False)
    outputs: Tensor = field(repr=False)


def judge(saved: FinishedRun, recipe: Recipe | None = None) -> Judged:
    """Applies the model to the public rows of its own recipe, or of another; a model of one's own to those passed.

    Guarantee: nothing here is computed from training rows.
    """
    if isinstance(saved, OwnRun):
        return Judged(*saved.judged_rows())
    recipe = recipe or saved.recipe
    rows = public_rows(recipe, saved.facts, saved.folder.schema)
    found, expected = tuple(rows.inputs.shape[1:]), saved.facts.input_shape
    if found != expected:
        raise DataError(f"the test rows have shape {found}, the model takes {expected}.")
    outputs = saved.outputs(rows.inputs)
    judged = rows.inputs.flatten(1).isfinite().all(dim=1)
    if saved.facts.num_classes is not None:
        judged &= rows.target >= 0
    if not bool(judged.any()):
        raise DataError("no test row can be judged.")
    groups = {name: labels[judged] for name, labels in rows.groups.items()}
    return Judged(Split(rows.inputs[judged], rows.target[judged], groups=groups), outputs[judged])
