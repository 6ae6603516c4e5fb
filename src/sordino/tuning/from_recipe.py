"""The training of a recipe, with clip norm and momentum left open."""

from __future__ import annotations

import copy

from sordino.kernel.clipping import ClipByNorm
from sordino.kernel.encoding import Unchanged
from sordino.kernel.noise import Gaussian
from sordino.kernel.step import Plan
from sordino.recipes.planning import make_sampler
from sordino.recipes.prepared import Prepared
from sordino.recipes.stages import gradient_of, parse_averaging, sparsifying
from sordino.training.schedules import parse as parse_schedule
from sordino.tuning.candidates import Candidate
from sordino.tuning.rule import Adam, Optimizer, Sgd
from sordino.tuning.scores import Score
from sordino.tuning.task import Task

_OPTIMIZERS: dict[str, type[Sgd] | type[Adam]] = {"sgd": Sgd, "adam": Adam}


def task_of(prepared: Prepared, score: Score) -> Task:
    """What the trials of a recipe have in common. The noise of its plan is still to be found."""
    recipe, settings, examples = prepared.recipe, prepared.settings, prepared.examples
    sampler = make_sampler(recipe.question(examples, settings.batch_size))
    encoding = sparsifying(prepared, sampler.steps) or Unchanged()
    optimizer: Optimizer = _OPTIMIZERS[settings.optimizer](settings.learning_rate, recipe.weight_decay)
    return Task(
        lambda: copy.deepcopy(prepared.built.module),
        Plan(sampler, gradient_of(prepared), ClipByNorm(settings.clip), Gaussian(1.0), encoding),
        optimizer,
        score,
        divisor=settings.batch_size,
        schedule=parse_schedule(settings.schedule),
        averaging=parse_averaging(settings.averaging),
        test=prepared.public_rows(),
        physical_batch_size=recipe.physical_batch_size or "auto",
    )


def start_of(prepared: Prepared) -> Candidate:
    """Where a search starts: what the recipe says, or its defaults."""
    return Candidate(prepared.settings.clip, prepared.settings.momentum)
