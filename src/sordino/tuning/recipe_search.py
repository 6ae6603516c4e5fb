"""Search for clipping norm and momentum of a recipe, into the folder of the best run.

RUN/tuning.json          the search; at the end also the scores, if they may be published
RUN/privacy.json         the guarantee, which counts all trials, written before the first one
RUN.private/             recipe with its seed, key and state during the search, deleted at the end

RUN/recipe.toml is written last: until then, other commands do not see a run in the folder.
"""

from __future__ import annotations

import copy
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as ProgressBar

from sordino._input.files import read_bytes, write_atomically
from sordino._input.strict_toml import LARGEST_TEXT
from sordino.accounting import Guarantee
from sordino.errors import StateError, UsageError
from sordino.kernel.clipping import ClipByNorm
from sordino.kernel.encoding import Unchanged
from sordino.kernel.noise import Gaussian
from sordino.kernel.randomness import Key
from sordino.kernel.step import Plan
from sordino.recipes.planning import make_sampler
from sordino.recipes.prepared import PreparedRecipe, prepare
from sordino.recipes.recipe import Recipe
from sordino.recipes.run import carry_out, schema_of
from sordino.recipes.stages import gradient_of, parse_averaging, sparsifying, with_declared_stages
from sordino.training.callbacks import CallOnEvaluation
from sordino.training.checkpoint import Checkpoints, Progress
from sordino.training.evaluation import Public
from sordino.training.loop import stop_requests
from sordino.training.run_folder import RunFolder
from sordino.training.run_writer import promised_fields
from sordino.training.schedules import parse as parse_schedule
from sordino.tuning.candidates import Adam, Candidate, Optimizer, Sgd
from sordino.tuning.search import PUBLIC, Search, shown
from sordino.tuning.search_state import SearchCheckpoint
from sordino.tuning.task import PrivateAccuracy, PublicScore, Score, Task
from sordino.tuning.tune import TuningResult, multiplier_of, sizes_of, tune, tune_on_public

_OPTIMIZERS: dict[str, type[Sgd] | type[Adam]] = {"sgd": Sgd, "adam": Adam}


def task_of(prepared: PreparedRecipe, score: Score) -> Task:
    """The training that all trials of a recipe share. Its noise is not calibrated yet."""
    recipe, settings, examples = prepared.recipe, prepared.settings, prepared.examples
    sampler = make_sampler(recipe.question(examples, settings.batch_size))
    encoding = sparsifying(prepared, sampler.steps) or Unchanged()
    optimizer: Optimizer = _OPTIMIZERS[settings.optimizer](settings.learning_rate, recipe.weight_decay)
    return Task(
        lambda: copy.deepcopy(prepared.built.module),
        with_declared_stages(
            Plan(sampler, gradient_of(prepared), ClipByNorm(settings.clip), Gaussian(1.0), encoding), prepared
        ),
        optimizer,
        score,
        divisor=settings.batch_size,
        schedule=parse_schedule(settings.schedule),
        averaging=parse_averaging(settings.averaging),
        test=prepared.public_rows(),
        physical_batch_size=recipe.physical_batch_size or "auto",
    )


def start_of(prepared: PreparedRecipe) -> Candidate:
    """The first candidate: the settings of the recipe, or their defaults."""
    return Candidate(prepared.settings.clip, prepared.settings.momentum)


Then = Callable[[RunFolder], None]


def tune_by_recipe(
    recipe: Recipe, search: Search, out: Path, *, progress: bool = True, then: Then | None = None
) -> RunFolder:
    """Searches, and writes the run folder of the best model to `out`.

    `then` is called with the folder when it is complete, before a signal that came too late to stop the search is
    raised again.

    >>> import tempfile
    >>> recipe = Recipe("digits", "linear", epsilon=3.0, delta=1e-4, batch_size=100, steps=2, seed=0)
    >>> folder = tune_by_recipe(recipe, Search(momenta=(0.9,)), Path(tempfile.mkdtemp()) / "run", progress=False)
    >>> 2.9 < folder.privacy()["epsilon"] <= 3.0
    True
    """
    search.check(recipe)
    folder = RunFolder(out)
    if not folder.is_free:
        raise UsageError(f"{str(out)!r} is not empty: choose another folder, or resume the search that is there.")
    if search.payment == PUBLIC:
        try:
            return _shown(_train_by_public_choice(recipe, search, folder, progress=progress), then)
        except BaseException:
            if not folder.is_begun:
                folder.clear()
            raise
    folder.make()
    try:
        prepared = prepare(recipe, progress=progress)
        folder.private.mkdir(mode=0o700)  # fails if another process has made it
    except FileExistsError:
        raise UsageError(
            f"{str(folder.private)!r} exists already: another command is searching in {str(out)!r}."
        ) from None
    except BaseException:
        folder.clear()
        raise
    try:
        search.write(folder.path)
        write_atomically(folder.private / "recipe.toml", prepared.recipe.text().encode(), private=True)
        key = Key.fresh() if recipe.seed is None else Key.from_seed(recipe.seed)
        with Checkpoints.begin(_standing(folder), key) as checkpoints:
            _tune(prepared, search, folder, checkpoints, progress=progress, then=then)
    except BaseException:
        if not folder.is_begun:
            _take_back(folder)
        raise
    return folder


def resume_tuning(out: Path, *, progress: bool = True, then: Then | None = None) -> RunFolder:
    """Resumes a search that was stopped. A finished one is returned unchanged."""
    folder, search = RunFolder(out), Search.read(out)
    if folder.is_run and folder.is_finished:
        shutil.rmtree(folder.private, ignore_errors=True)
        return _shown(folder, then)
    path = folder.private / "recipe.toml"
    if search.payment == PUBLIC:
        raise UsageError(f"the search in {str(out)!r} is finished: run `sordino train --resume {str(out)!r}`.")
    if not path.is_file():
        raise StateError(f"{str(folder.private)!r} is missing, and the key with it: the search cannot be continued.")
    recipe = Recipe.parse(read_bytes(path, at_most=LARGEST_TEXT), what=repr(str(path)))
    with Checkpoints.open(_standing(folder)) as checkpoints:
        _tune(prepare(recipe, progress=progress), search, folder, checkpoints, progress=progress, then=then)
    return folder


def _shown(folder: RunFolder, then: Then | None) -> RunFolder:
    if then is not None:
        then(folder)
    return folder


def _tune(
    prepared: PreparedRecipe,
    search: Search,
    folder: RunFolder,
    checkpoints: Checkpoints,
    *,
    progress: bool,
    then: Then | None,
) -> None:
    if prepared.data.facts.num_classes is None:
        raise UsageError(
            "the search compares accuracies, so it needs classes, but the target of this dataset is a number."
        )
    recipe = prepared.recipe
    task = task_of(prepared, PrivateAccuracy(noise_multiplier=search.score_std * prepared.examples))
    stages = search.stages(task.optimizer, task.plan.encoding)
    start = start_of(prepared)
    sizes = sizes_of(stages, start)
    visible_trials = sum(sizes) if search.paid.shows_trials else None
    with stop_requests() as asked:
        kept = SearchCheckpoint(checkpoints, asked)

        def promise(guarantee: Guarantee, calibrated: Task) -> None:
            kept.identity = _identity(prepared, calibrated, search, checkpoints)
            kept.last()  # raises if the checkpoint belongs to another search, before its guarantee is overwritten
            _write_promise(folder, prepared, calibrated, guarantee, search, sizes)

        with _bar(visible_trials, wanted=progress) as advance:
            tuned = tune(
                task,
                prepared.records,
                stages,
                start,
                payment=search.paid,
                epsilon=recipe.epsilon,
                delta=prepared.delta,
                key=checkpoints.key(Progress()),
                keeper=kept,
                on_promise=promise,
                on_trial=advance,
                allow_weak=recipe.allow_weak,
                allow_large_delta=recipe.allow_large_delta,
            )
        _write_best(folder, prepared, task, tuned, search)
        checkpoints.destroy()
        shutil.rmtree(folder.private)
        folder.tidy()
        _shown(folder, then)


def _write_promise(
    folder: RunFolder,
    prepared: PreparedRecipe,
    task: Task,
    guarantee: Guarantee,
    search: Search,
    sizes: tuple[int, ...],
) -> None:
    numbers = {"examples": prepared.examples, "batch_size": task.divisor, "steps": task.plan.steps}
    promised = promised_fields(task.plan.sampler, numbers, multiplier_of(task), guarantee)
    about = {"rule": search.rule, "payment": search.payment, "candidates": list(sizes)}
    folder.write_privacy(promised | {"tuning": about})


def _identity(prepared: PreparedRecipe, task: Task, search: Search, checkpoints: Checkpoints) -> dict[str, str]:
    """Identity of a search, by which its checkpoint is recognized."""
    stages = (task.plan.sampler, task.plan.noise, task.plan.encoding)
    data = prepared.records.fingerprint(checkpoints.fingerprint_key())
    return {"plan": repr(stages), "data": data, "recipe": prepared.recipe.text(), "search": repr(search)}


def _write_best(folder: RunFolder, prepared: PreparedRecipe, task: Task, tuned: TuningResult, search: Search) -> None:
    """Writes the best model. Its metrics have the epsilon of all trials: that of the best one alone is no bound."""
    recipe, steps = prepared.recipe, task.plan.steps
    row = {
        "step": steps,
        "epoch": round(steps * task.divisor / prepared.examples, 4),
        "epsilon": tuned.guarantee.epsilon,
        "delta": tuned.guarantee.delta,
        "validation_accuracy": tuned.score,
    }
    folder.forget_after(0)
    folder.add_metrics(row | {f"test_{name}": value for name, value in tuned.measured.items()})
    folder.write_facts(prepared.public_facts(), schema_of(recipe))
    folder.write_model(tuned.model.state_dict())
    search.write(folder.path, **shown(tuned.scores))
    chosen = replace(recipe, clip=tuned.candidate.clip, momentum=tuned.candidate.momentum, seed=None)
    folder.write_recipe(chosen.text())


def _train_by_public_choice(recipe: Recipe, search: Search, folder: RunFolder, *, progress: bool) -> RunFolder:
    """Tries candidates on public rows, then trains once on the private rows with the best one."""
    public = prepare(search.on_public_rows(recipe), progress=progress)
    rows = public.public_rows()
    if rows is None:
        raise UsageError(f"{search.public_data!r:.80} has no test rows to compare candidates by.")
    task = task_of(public, PublicScore(rows))
    stages = search.stages(task.optimizer, task.plan.encoding)
    target = {"epsilon": recipe.epsilon, "delta": public.delta if recipe.delta is None else recipe.delta}
    chosen = tune_on_public(task, Public(public.records), stages, start_of(public), **target, seed=recipe.seed or 0)
    best = recipe.changed(clip=chosen.candidate.clip, momentum=chosen.candidate.momentum)

    def note(row: dict[str, object]) -> None:
        search.write(folder.path, **shown(chosen.scores))

    return carry_out(best, folder.path, progress=progress, callbacks=[CallOnEvaluation(note)])


@contextmanager
def _bar(trials: int | None, *, wanted: bool) -> Iterator[Callable[[], None] | None]:
    """A progress bar over trials. There is none if their number is secret, because the bar would reveal it."""
    if trials is None or not wanted:
        yield None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with ProgressBar(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task("trials", total=trials)
        yield lambda: bar.advance(task)


def _standing(folder: RunFolder) -> Path:
    return folder.private / "standing"


def _take_back(folder: RunFolder) -> None:
    """Removes a search that has no guarantee yet, so no trial has begun."""
    shutil.rmtree(folder.private, ignore_errors=True)
    Search.remove(folder.path)
    folder.clear()
