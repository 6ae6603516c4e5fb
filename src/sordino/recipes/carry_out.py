"""From a recipe to a folder with a private model: data, features, network and run put together."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sordino.checkpoint import Checkpoints
from sordino.data import DataSet, Split, load
from sordino.errors import StateError, UsageError
from sordino.files import read_bytes
from sordino.models import Built, build
from sordino.planning import make_sampler
from sordino.recipes.defaults import Settings, defaults_for
from sordino.recipes.network_inputs import network_inputs
from sordino.recipes.recipe import Recipe
from sordino.recipes.spelled import parse_averaging
from sordino.records import Records, as_records, by_user
from sordino.schedule import parse as parse_schedule
from sordino.store import RunFolder
from sordino.strict_toml import LARGEST_TEXT
from sordino.train import fit
from sordino.validation import Public

OnRow = Callable[[dict[str, Any]], None]


@dataclass(frozen=True)
class Prepared:
    """A recipe with nothing left open, and what it is about to use."""

    recipe: Recipe
    settings: Settings
    data: DataSet
    built: Built
    records: Records
    examples: int  # public


def prepare(recipe: Recipe, *, progress: bool = True) -> Prepared:
    """Reads the data, decides what was left open, and builds the network and its features."""
    data = load(recipe.data, schema=recipe.schema)
    # Under add-or-remove the true number is secret, and nothing may be decided by it.
    examples = recipe.expected_examples or _units(data)
    settings = recipe.settings(defaults_for(recipe.model, examples=examples, epsilon=recipe.epsilon))
    built = build(recipe.model, data.facts, seed=settings.initial_seed)
    records = _records(network_inputs(built, data.facts, data.train.inputs, progress=progress), data)
    return Prepared(recipe.decided(settings), settings, data, built, records, examples)


def carry_out(
    recipe: Recipe,
    out: Path,
    *,
    resume: bool = False,
    draw_again: bool = False,
    progress: bool = True,
    on_row: OnRow | None = None,
) -> RunFolder:
    """Trains by the recipe into the folder `out`, which ends with the model, what was promised and what was measured.

    The recipe that is kept there has every setting. With `resume` it is the recipe of the run that is there.

    >>> import tempfile
    >>> recipe = Recipe("digits", "linear", epsilon=3.0, delta=1e-4, steps=2, seed=0)
    >>> folder = carry_out(recipe, Path(tempfile.mkdtemp()) / "run", progress=False)
    >>> folder.privacy()["epsilon"] <= 3.0
    True
    >>> sorted(path.name for path in folder.path.iterdir())
    ['facts.json', 'metrics.jsonl', 'model.safetensors', 'privacy.json', 'recipe.toml']
    """
    folder = RunFolder(out)
    if resume:
        folder.sweep()
        if folder.is_finished:
            folder.tidy()
            return folder
    elif not folder.is_free:
        raise UsageError(f"{str(out)!r} is not empty: choose another folder, or resume the run that is there.")
    folder.make()  # now, so that nobody else takes the name while features are computed
    try:
        prepared = prepare(recipe, progress=progress)
        if not folder.is_begun:
            folder.write_recipe(prepared.recipe.text())
            folder.write_facts(asdict(prepared.data.facts), _schema(recipe))
        then = _forgetting_the_seed(folder, prepared.recipe, on_row)
        _fit(prepared, folder, resume=resume, draw_again=draw_again, progress=progress, on_row=then)
    except BaseException:
        if not resume and not folder.is_begun:
            _take_back(folder)
        raise
    folder.tidy()
    return folder


def _forgetting_the_seed(folder: RunFolder, recipe: Recipe, on_row: OnRow | None) -> OnRow:
    """With the first row the key lies in the private folder, and the seed is not needed any more.

    The folder may be given away, and whoever knows the seed can remove the noise.
    """

    known = recipe.seed is not None

    def then(row: dict[str, Any]) -> None:
        nonlocal known
        if known:
            folder.write_recipe(replace(recipe, seed=None).text())
            known = False
        if on_row is not None:
            on_row(row)

    return then


def _take_back(folder: RunFolder) -> None:
    """Removes a run in which nothing was promised, so that no step was taken; not one that another process works on."""
    if folder.private.exists():
        try:
            Checkpoints.open(folder.private).destroy()
        except StateError:
            return
    folder.clear()


def _fit(prepared: Prepared, folder: RunFolder, **options: Any) -> None:
    recipe, settings, data = prepared.recipe, prepared.settings, prepared.data
    public = None if data.test is None else _public(prepared, data.test)
    fit(
        prepared.built.module,
        prepared.records,
        epsilon=recipe.epsilon,
        delta=recipe.delta,
        batch_size=settings.batch_size,
        sampler=make_sampler(recipe.question(prepared.examples, settings.batch_size)),
        loss=F.mse_loss if data.facts.num_classes is None else F.cross_entropy,
        clip=settings.clip,
        views=recipe.make_views(),
        optimizer=_optimizer(settings, recipe.weight_decay),
        schedule=parse_schedule(settings.schedule),
        averaging=parse_averaging(settings.averaging),
        validation=public,
        test=public,
        out=folder.path,
        physical_batch_size=recipe.physical_batch_size or "auto",
        seed=recipe.seed,
        allow_weak=recipe.allow_weak,
        allow_large_delta=recipe.allow_large_delta,
        **options,
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


def _public(prepared: Prepared, test: Split) -> Public:
    """The test rows that can be judged. A row that cannot be read, or has no label, is nobody's mistake."""
    inputs = network_inputs(prepared.built, prepared.data.facts, test.inputs)
    has_target = test.target.isfinite() if test.target.is_floating_point() else test.target >= 0
    judged = inputs.flatten(1).isfinite().all(dim=1) & has_target
    return Public((inputs[judged], test.target[judged]))


def _schema(recipe: Recipe) -> str | None:
    return None if recipe.schema is None else read_bytes(Path(recipe.schema), at_most=LARGEST_TEXT).decode()


def _optimizer(settings: Settings, decay: float) -> Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]:
    if settings.optimizer == "adam":
        return lambda parameters: torch.optim.Adam(parameters, lr=settings.lr, weight_decay=decay)
    lr, momentum = settings.lr, settings.momentum
    return lambda parameters: torch.optim.SGD(parameters, lr=lr, momentum=momentum, weight_decay=decay)
