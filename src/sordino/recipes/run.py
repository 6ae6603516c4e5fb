"""`carry_out`: trains by a recipe and writes a run folder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from sordino._input.files import read_bytes
from sordino._input.strict_toml import LARGEST_TEXT
from sordino.errors import StateError, UsageError
from sordino.recipes.methods import method_of
from sordino.recipes.prepared import prepare
from sordino.recipes.recipe import Recipe
from sordino.recipes.transformer_settings import is_transformer
from sordino.training.callbacks import Callback, Row
from sordino.training.checkpoint import Checkpoints
from sordino.training.run_folder import RunFolder


def carry_out(
    recipe: Recipe,
    out: Path,
    *,
    resume: bool = False,
    draw_again: bool = False,
    progress: bool = True,
    callbacks: Sequence[Callback] = (),
) -> RunFolder:
    """Trains by the recipe into the folder `out`, which then has the model, the guarantee and the metrics.

    The folder keeps the recipe with every setting chosen. With `resume`, `recipe` is the recipe of the run in `out`.

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
            _publish(recipe, folder)
            return folder
    elif not folder.is_free:
        raise UsageError(f"{str(out)!r} is not empty: choose another folder, or resume the run that is there.")
    folder.make()  # early, so that no other process takes the name while features are computed
    try:
        prepared = prepare(recipe, progress=progress)
        if not folder.is_begun:
            folder.write_recipe(prepared.recipe.text())
            folder.write_facts(prepared.public_facts(), schema_of(recipe))
        method_of(recipe).train(
            prepared,
            folder,
            resume=resume,
            draw_again=draw_again,
            progress=progress,
            callbacks=(_ForgetSeed(folder, prepared.recipe), *callbacks),
        )
    except BaseException:
        if not resume and not folder.is_begun:
            _take_back(folder)
        raise
    folder.tidy()
    _publish(prepared.recipe, folder)
    return folder


def _publish(recipe: Recipe, folder: RunFolder) -> None:
    """Writes the model of a finished run for other programs, if it is a transformer and they have none yet."""
    if is_transformer(recipe.model) and not folder.published.exists():
        from sordino.recipes.predict import facts_of
        from sordino.recipes.transformers import publish, reopen

        publish(folder, *reopen(recipe, facts_of(folder)))


class _ForgetSeed(Callback):
    """Removes the seed from the recipe of a run at the first evaluation. The private folder has the key by then.

    The run folder may be published, and whoever knows the seed can remove the noise.
    """

    def __init__(self, folder: RunFolder, recipe: Recipe) -> None:
        self._folder, self._recipe = folder, recipe

    def on_evaluation(self, row: Row) -> None:
        if self._recipe.seed is not None:
            self._recipe = replace(self._recipe, seed=None)
            self._folder.write_recipe(self._recipe.text())


def _take_back(folder: RunFolder) -> None:
    """Removes a run that has no guarantee yet, so no step was taken, unless another process works on it."""
    if folder.private.exists():
        try:
            Checkpoints.open(folder.private).destroy()
        except StateError:
            return
    folder.clear()


def schema_of(recipe: Recipe) -> str | None:
    """Content of the schema file of the recipe. That of arrays is by default beside them."""
    path = Path(recipe.data)
    beside = str(path.with_suffix(".toml")) if path.suffix.lower() == ".npz" else None
    schema = recipe.schema or beside
    return None if schema is None else read_bytes(Path(schema), at_most=LARGEST_TEXT).decode()
