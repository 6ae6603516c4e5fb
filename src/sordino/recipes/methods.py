"""Training methods by name, DP-SGD and NoisyCGD: their checks and defaults of a recipe, their plan, their training."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from sordino._input import validate
from sordino.accounting import Adjacency
from sordino.convex.hidden_run import fit_hidden_state
from sordino.convex.losses import Squared
from sordino.convex.model import ConvexModel, PairedReLU
from sordino.convex.noisy_cgd import NoisyCGD
from sordino.errors import UsageError
from sordino.kernel.calibration import calibrate, check_delta_for
from sordino.kernel.sampling import Cyclic, steps_per_epoch
from sordino.kernel.step import Plan
from sordino.recipes.defaults import PrivacyTarget, TaskFacts, TrainingSettings, defaults_for, hidden_defaults_for
from sordino.recipes.networks import convex_model
from sordino.recipes.settings import MethodName, SamplerName, SettingError
from sordino.recipes.stages import (
    ADAM_BETAS,
    optimizer_of,
    parse_averaging,
    parse_schedule,
    stages_of,
)
from sordino.training.callbacks import Callback
from sordino.training.evaluation import Evaluation
from sordino.training.fit import fit
from sordino.training.run_folder import RunFolder

if TYPE_CHECKING:
    from sordino.recipes.prepared import PreparedRecipe
    from sordino.recipes.recipe import Recipe


_MANY = 10**6  # placeholder for a number of examples that is not known yet
_TRIAL_STEPS = 200
MOST_STEPS = 1_000_000  # the time of the accountant grows with steps times batches per epoch


class HiddenState:
    """NoisyCGD on a convex network: its guarantee holds if only the last iterate is released."""

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
        plan_of(recipe, settings, PairedReLU(), Cyclic(1, _TRIAL_STEPS), _MANY)  # a schedule may raise the rate

    def check_drawing_again(self) -> None:
        raise UsageError(
            "--draw-again is not needed with noisy-cgd: its iterates are not released, so repeated steps cost nothing."
        )

    def defaults(self, recipe: Recipe, examples: int, task: TaskFacts | None = None) -> TrainingSettings:
        return hidden_defaults_for(
            recipe.model,
            examples=examples,
            target=PrivacyTarget(recipe.epsilon, recipe.delta_for(examples), recipe.adjacency or Adjacency.ZERO_OUT),
            weight_decay=recipe.weight_decay,
            batch_size=recipe.batch_size,
        )

    def divisor(self, recipe: Recipe, examples: int) -> int:
        sampler = batches_of(recipe, recipe.settings(self.defaults(recipe, examples)), examples)
        return -(-examples // sampler.batches_per_epoch)

    def plan(self, prepared: PreparedRecipe) -> NoisyCGD:
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
        prepared: PreparedRecipe,
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


def plan_of(recipe: Recipe, settings: TrainingSettings, model: ConvexModel, sampler: Cyclic, examples: int) -> NoisyCGD:
    """The NoisyCGD of a recipe, before its noise is calibrated. Raises if an assumption of the theorem fails."""
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


def batches_of(recipe: Recipe, settings: TrainingSettings, examples: int) -> Cyclic:
    """Cyclic batches in whole epochs, with the number of batches whose size is nearest to the requested one."""
    per_epoch = steps_per_epoch(examples, settings.batch_size)
    epochs = settings.epochs if recipe.steps is None else recipe.steps / per_epoch
    return Cyclic(per_epoch, max(1, math.ceil(epochs)), recipe.adjacency or Adjacency.ZERO_OUT)


class TrainingMethod(Protocol):
    """A training method. Only `train` reads data."""

    @property
    def sampler(self) -> SamplerName:
        """The default sampler."""
        ...

    @property
    def has_probabilities(self) -> bool:
        """Whether outputs of the network are logits. Otherwise they are scores, which are not probabilities."""
        ...

    def check(self, recipe: Recipe) -> None:
        """Refuses settings that the method does not support, with the reason."""
        ...

    def check_drawing_again(self) -> None:
        """Refuses `--draw-again` if the method never needs to repeat steps with fresh noise."""
        ...

    def defaults(self, recipe: Recipe, examples: int, task: TaskFacts | None = None) -> TrainingSettings:
        """Default settings for a public number of examples, and a task."""
        ...

    def divisor(self, recipe: Recipe, examples: int) -> int:
        """The public number by which a sum of gradients is divided: the expected batch size."""
        ...

    def plan(self, prepared: PreparedRecipe) -> Plan | NoisyCGD:
        """The calibrated plan that `train` carries out. Computed without reading any record."""
        ...

    def train(
        self,
        prepared: PreparedRecipe,
        folder: RunFolder,
        *,
        resume: bool,
        draw_again: bool,
        progress: bool,
        callbacks: Sequence[Callback],
    ) -> None:
        """Trains, and writes model, guarantee and metrics into the folder."""
        ...


class DpSgd:
    """DP-SGD: noisy sums of clipped per-example gradients over random batches, for any network and optimizer."""

    sampler: ClassVar = SamplerName.POISSON
    has_probabilities: ClassVar = True

    def check(self, recipe: Recipe) -> None:
        """Accepts every valid recipe."""

    def check_drawing_again(self) -> None:
        """Accepts `--draw-again`."""

    def defaults(self, recipe: Recipe, examples: int, task: TaskFacts | None = None) -> TrainingSettings:
        delta = recipe.delta_for(examples)
        choose = partial(
            defaults_for,
            recipe.model,
            examples=examples,
            epsilon=recipe.epsilon,
            delta=delta,
            task=task,
            optimizer=recipe.optimizer,
        )
        given = {name: getattr(recipe, name) for name in ("batch_size", "epochs", "clip", "momentum")}
        given = {name: value for name, value in given.items() if value is not None}
        if recipe.steps is not None:
            given["epochs"] = recipe.steps * (recipe.batch_size or choose().batch_size) / examples
        found = choose(given=given)
        return replace(found, momentum=ADAM_BETAS[0]) if found.optimizer == "adam" else found

    def divisor(self, recipe: Recipe, examples: int) -> int:
        return recipe.batch_size or examples

    def plan(self, prepared: PreparedRecipe) -> Plan:
        recipe = prepared.recipe
        weak = recipe.allow_weak
        return calibrate(stages_of(prepared), epsilon=recipe.epsilon, delta=prepared.delta, allow_weak=weak)

    def train(self, prepared: PreparedRecipe, folder: RunFolder, **options: Any) -> None:
        recipe, settings = prepared.recipe, prepared.settings
        public, stages = prepared.public_rows(), stages_of(prepared)
        gradient: Any = stages.contribution  # a setting may have changed its fields
        fit(
            prepared.built.module,
            prepared.records,
            epsilon=recipe.epsilon,
            delta=prepared.delta,
            batch_size=settings.batch_size,
            sampler=stages.sampler,
            loss=gradient.loss,
            clip=stages.clip,
            noise=stages.noise,
            encoding=stages.encoding,
            views=gradient.views,
            autocast=gradient.autocast,
            optimizer=optimizer_of(settings, recipe.weight_decay),
            schedule=parse_schedule(settings.schedule),
            averaging=parse_averaging(settings.averaging),
            evaluation=None if public is None else Evaluation(during=public, at_end=public),
            out=folder.path,
            physical_batch_size=recipe.physical_batch_size or "auto",
            seed=recipe.seed,
            allow_weak=recipe.allow_weak,
            allow_large_delta=recipe.allow_large_delta,
            **options,
        )


METHODS: dict[MethodName, TrainingMethod] = {MethodName.DP_SGD: DpSgd(), MethodName.NOISY_CGD: HiddenState()}


def method_of(recipe: Recipe) -> TrainingMethod:
    """The method that a recipe names."""
    return METHODS[recipe.method]
