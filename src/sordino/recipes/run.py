"""From a recipe to a folder with a private model: data, features, network and run put together."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from sordino._input.files import read_bytes
from sordino._input.strict_toml import LARGEST_TEXT
from sordino.errors import StateError, UsageError
from sordino.recipes.methods import method_of
from sordino.recipes.prepared import prepare
from sordino.recipes.recipe import Recipe
from sordino.training.checkpoint import Checkpoints
from sordino.training.run_folder import RunFolder

OnRow = Callable[[dict[str, Any]], None]


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
    if draw_again:
        method_of(recipe).check_drawing_again()
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
            folder.write_facts(prepared.public_facts(), schema_of(recipe))
        then = _forgetting_the_seed(folder, prepared.recipe, on_row)
        again = {"resume": resume, "draw_again": draw_again}
        method_of(recipe).train(prepared, folder, **again, progress=progress, on_row=then)
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


def schema_of(recipe: Recipe) -> str | None:
    """The text of the schema that the recipe names."""
    return None if recipe.schema is None else read_bytes(Path(recipe.schema), at_most=LARGEST_TEXT).decode()
