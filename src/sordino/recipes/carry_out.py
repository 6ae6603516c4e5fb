"""From a recipe to a folder with a private model: data, features, network and run put together."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sordino.accounting import Unit
from sordino.data import DataSet, Split, load
from sordino.errors import UsageError
from sordino.files import read_bytes
from sordino.models import Built, build
from sordino.planning import Question, SamplerName, make_sampler
from sordino.recipes.defaults import defaults_for
from sordino.recipes.recipe import Recipe, parse_averaging
from sordino.records import Records, as_records, by_user
from sordino.schedule import parse as parse_schedule
from sordino.store import RunFolder
from sordino.strict_toml import LARGEST_TEXT
from sordino.train import Fitted, fit
from sordino.validation import Public


@dataclass(frozen=True)
class Prepared:
    """A recipe with nothing left open, and what it is about to use."""

    recipe: Recipe
    data: DataSet
    built: Built
    records: Records


def prepare(recipe: Recipe, *, progress: bool = True) -> Prepared:
    """Reads the data, decides what was left open, and builds the network and its features."""
    data = load(recipe.data, schema=recipe.schema)
    examples = recipe.expected_examples or _units(data)
    recipe = recipe.decided(defaults_for(recipe.model, examples=examples, epsilon=recipe.epsilon))
    built = build(recipe.model, data.facts, seed=recipe.initial_seed or 0)
    inputs = built.prepare(data.train.inputs, progress=progress)
    return Prepared(recipe, data, built, _records(inputs, data))


def carry_out(
    recipe: Recipe,
    out: Path,
    *,
    resume: bool = False,
    draw_again: bool = False,
    progress: bool = True,
    on_row: Callable[[dict[str, Any]], None] | None = None,
) -> Fitted:
    """Trains by the recipe into the folder `out`. The recipe that is kept there has every setting.

    >>> import tempfile
    >>> out = Path(tempfile.mkdtemp()) / "run"
    >>> recipe = Recipe("digits", "linear", epsilon=3.0, delta=1e-4, steps=2, seed=0)
    >>> carry_out(recipe, out, progress=False).guarantee.epsilon <= 3.0
    True
    >>> sorted(path.name for path in out.iterdir())
    ['metrics.jsonl', 'model.safetensors', 'privacy.json', 'recipe.toml']
    """
    folder = RunFolder(out)
    if not resume and (folder.is_begun or folder.private.exists() or (out / "recipe.toml").exists()):
        raise UsageError(f"{str(out)!r} holds a run already: resume it, or choose another folder.")
    prepared = prepare(recipe, progress=progress)
    recipe, module = prepared.recipe, prepared.built.module
    if not resume:
        folder.write_recipe(recipe.text())
        schema = None if recipe.schema is None else read_bytes(Path(recipe.schema), at_most=LARGEST_TEXT).decode()
        folder.write_facts(asdict(prepared.data.facts), schema)
    public = prepared.data.test
    return fit(
        module,
        prepared.records,
        epsilon=recipe.epsilon,
        delta=recipe.delta,
        batch_size=recipe.batch_size or 1,
        sampler=make_sampler(_question(recipe, prepared.records)),
        loss=F.cross_entropy if prepared.data.facts.num_classes is not None else F.mse_loss,
        clip=recipe.clip or 1.0,
        views=recipe.make_views(),
        optimizer=_optimizer(recipe),
        schedule=parse_schedule(recipe.schedule or "constant"),
        averaging=parse_averaging(recipe.averaging or "none"),
        test=None if public is None else _public(prepared.built, public),
        out=out,
        resume=resume,
        draw_again=draw_again,
        physical_batch_size=recipe.physical_batch_size or "auto",
        seed=recipe.seed,
        allow_weak=recipe.allow_weak,
        allow_large_delta=recipe.allow_large_delta,
        progress=progress,
        on_row=on_row,
    )


def _units(data: DataSet) -> int:
    """The number of privacy units: of examples, or of users."""
    owners = data.train.owners
    return len(data.train.target) if owners is None else len(torch.unique(owners))


def _records(inputs: Tensor, data: DataSet) -> Records:
    rows = (inputs, data.train.target)
    if data.train.owners is None:
        return as_records(rows)
    return by_user(rows, data.train.owners, rows_per_user=data.rows_per_user or 1)


def _public(built: Built, test: Split) -> Public:
    """The test rows that can be judged. A row that is not finite, or without a label, is nobody's mistake."""
    inputs = built.prepare(test.inputs, progress=False)
    judged = inputs.flatten(1).isfinite().all(dim=1)
    if not test.target.is_floating_point():
        judged &= test.target >= 0
    return Public((inputs[judged], test.target[judged]))


def _question(recipe: Recipe, records: Records) -> Question:
    unit = Unit.EXAMPLE if records.owners is None else Unit.USER
    sampler = SamplerName(recipe.sampler)
    size, epochs, steps = recipe.batch_size, recipe.epochs, recipe.steps
    examples = recipe.expected_examples or records.num_units
    known = Question(examples, size, epochs, steps, sampler=sampler, adjacency=recipe.relation, unit=unit)
    return replace(known, noise_multiplier=1.0, delta=recipe.delta)


def _optimizer(recipe: Recipe) -> Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]:
    lr, decay = recipe.lr or 0.0, recipe.weight_decay
    if recipe.optimizer == "adam":
        return lambda parameters: torch.optim.Adam(parameters, lr=lr, weight_decay=decay)
    momentum = recipe.momentum or 0.0
    return lambda parameters: torch.optim.SGD(parameters, lr=lr, momentum=momentum, weight_decay=decay)
