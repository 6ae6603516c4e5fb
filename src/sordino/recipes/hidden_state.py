"""Hidden-state training by a recipe: a convex network, fixed batches in turn, plain steps, and only the end is seen."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

from sordino._input import validate
from sordino.accounting import Adjacency
from sordino.convex.hidden_run import fit_hidden_state
from sordino.convex.losses import Squared
from sordino.convex.model import ConvexModel, PairedReLU
from sordino.convex.noisy_cgd import NoisyCGD
from sordino.errors import UsageError
from sordino.kernel.calibration import check_delta_for
from sordino.kernel.sampling import Cyclic, steps_per_epoch
from sordino.recipes.defaults import Settings, Target, hidden_defaults_for
from sordino.recipes.networks import convex_model
from sordino.recipes.settings import SamplerName, SettingError
from sordino.training.callbacks import Callback
from sordino.training.run_folder import RunFolder
from sordino.training.schedules import parse as parse_schedule

if TYPE_CHECKING:
    from sordino.recipes.prepared import Prepared
    from sordino.recipes.recipe import Recipe

_MANY = 10**6  # examples: stands for a number that is not known yet
_TRIAL_STEPS = 200
MOST_STEPS = 1_000_000  # the bound looks at each of them, for every batch of an epoch


class HiddenState:
    """NoisyCGD, whose guarantee is for whoever sees the last iterate and nothing before."""

    sampler: ClassVar = SamplerName.CYCLIC
    has_probabilities: ClassVar = False

    def check(self, recipe: Recipe) -> None:
        settings = recipe.settings(self.defaults(recipe, _MANY))
        longest = 2 / (Squared().curvature(PairedReLU().feature_bound, settings.clip).smoothness + recipe.weight_decay)
        if settings.learning_rate >= longest:
            raise SettingError(
                "{learning_rate} must be below 2 / (1 + {weight_decay}) = {longest} with noisy-cgd, "
                "got {given}: longer steps do not contract.",
                longest=f"{longest:.6g}",
                given=validate.shown(settings.learning_rate),
            )
        plan_of(recipe, settings, PairedReLU(), Cyclic(1, _TRIAL_STEPS), _MANY)  # a schedule may make steps longer

    def check_drawing_again(self) -> None:
        raise UsageError(
            "--draw-again is not needed with noisy-cgd: nobody has seen the steps, so they are taken again for nothing."
        )

    def defaults(self, recipe: Recipe, examples: int) -> Settings:
        return hidden_defaults_for(
            recipe.model,
            examples=examples,
            target=Target(recipe.epsilon, recipe.delta_for(examples), recipe.adjacency or Adjacency.ZERO_OUT),
            weight_decay=recipe.weight_decay,
            batch_size=recipe.batch_size,
        )

    def divisor(self, recipe: Recipe, examples: int) -> int:
        sampler = batches_of(recipe, recipe.settings(self.defaults(recipe, examples)), examples)
        return -(-examples // sampler.batches_per_epoch)

    def plan(self, prepared: Prepared) -> NoisyCGD:
        recipe, settings = prepared.recipe, prepared.settings
        check_delta_for(prepared.examples, prepared.delta, allow_large_delta=recipe.allow_large_delta)
        model = convex_model(prepared.data.facts, gates=settings.gates, seed=settings.initial_seed)
        validate.count(at_most=prepared.examples, batch_size=settings.batch_size)
        sampler = batches_of(recipe, settings, prepared.examples)
        validate.count(at_most=MOST_STEPS, steps=sampler.steps + (settings.trailing_steps or 0))
        plan = plan_of(recipe, settings, model, sampler, prepared.examples)
        return plan.calibrated(epsilon=recipe.epsilon, delta=prepared.delta)

    def train(
        self,
        prepared: Prepared,
        folder: RunFolder,
        *,
        resume: bool,
        draw_again: bool,
        progress: bool,
        callbacks: Sequence[Callback],
    ) -> None:
        recipe = prepared.recipe
        fit_hidden_state(
            self.plan(prepared),
            prepared.records,
            outputs=prepared.data.facts.num_classes or 1,
            delta=prepared.delta,
            evaluation=prepared.public_rows(),
            callbacks=callbacks,
            out=folder.path,
            resume=resume,
            seed=recipe.seed,
            physical_batch_size=recipe.physical_batch_size or "auto",
            progress=progress,
        )


def plan_of(recipe: Recipe, settings: Settings, model: ConvexModel, sampler: Cyclic, examples: int) -> NoisyCGD:
    """The theorem that the recipe asks for, with noise still to be found. What breaks a hypothesis is refused."""
    return NoisyCGD(
        sampler,
        model,
        clip=settings.clip,
        noise_multiplier=1.0,
        learning_rate=settings.learning_rate,
        strength=recipe.weight_decay,
        radius=recipe.radius,
        schedule=parse_schedule(settings.schedule),
        trailing_steps=settings.trailing_steps or 0,
        examples=examples,
    )


def batches_of(recipe: Recipe, settings: Settings, examples: int) -> Cyclic:
    """Whole epochs, each of so many batches that their size is nearest to what was asked for."""
    per_epoch = steps_per_epoch(examples, settings.batch_size)
    epochs = settings.epochs if recipe.steps is None else recipe.steps / per_epoch
    return Cyclic(per_epoch, max(1, math.ceil(epochs)), recipe.adjacency or Adjacency.ZERO_OUT)
