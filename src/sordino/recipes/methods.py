"""The methods of training by name. Each knows what it needs of a recipe, what it decides, and how it is done."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from sordino.convex.noisy_cgd import NoisyCGD
from sordino.kernel.calibration import calibrate
from sordino.kernel.step import Plan
from sordino.recipes.defaults import Settings, defaults_for
from sordino.recipes.hidden_state import HiddenState
from sordino.recipes.settings import MethodName, SamplerName
from sordino.recipes.stages import (
    ADAM_BETAS,
    autocast_of,
    loss_of,
    optimizer_of,
    parse_averaging,
    parse_schedule,
    stages_of,
    views_of,
)
from sordino.training.callbacks import Callback
from sordino.training.evaluation import Evaluation
from sordino.training.fit import fit
from sordino.training.run_folder import RunFolder

if TYPE_CHECKING:
    from sordino.recipes.prepared import Prepared
    from sordino.recipes.recipe import Recipe


class Method(Protocol):
    """A method of training. Nothing but `train` touches data."""

    @property
    def sampler(self) -> SamplerName:
        """How batches are drawn unless a recipe says otherwise."""
        ...

    @property
    def has_probabilities(self) -> bool:
        """Whether the outputs of a trained network are logits. Otherwise they are scores of each class."""
        ...

    def check(self, recipe: Recipe) -> None:
        """Refuses what the method cannot do, with the reason."""
        ...

    def check_drawing_again(self) -> None:
        """Refuses to draw steps again with fresh noise where there is no reason to pay for that."""
        ...

    def defaults(self, recipe: Recipe, examples: int) -> Settings:
        """A value for everything that the recipe may leave open."""
        ...

    def divisor(self, recipe: Recipe, examples: int) -> int:
        """The public number by which a sum of gradients is divided: the batch size that is promised."""
        ...

    def plan(self, prepared: Prepared) -> Plan | NoisyCGD:
        """The theorem that `train` carries out, its noise calibrated. Nothing of a record is looked at."""
        ...

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
        """Ends with the model, what was promised and what was measured in the folder."""
        ...


class DpSgd:
    """DP-SGD: clipped gradients of random batches with noise, for any network and any torch optimizer."""

    sampler: ClassVar = SamplerName.POISSON
    has_probabilities: ClassVar = True

    def check(self, recipe: Recipe) -> None:
        """Any recipe that says what it should is one for DP-SGD."""

    def check_drawing_again(self) -> None:
        """Drawing again is how to go on where steps cannot be repeated."""

    def defaults(self, recipe: Recipe, examples: int) -> Settings:
        found = defaults_for(recipe.model, examples=examples, epsilon=recipe.epsilon)
        return replace(found, momentum=ADAM_BETAS[0]) if recipe.optimizer == "adam" else found

    def divisor(self, recipe: Recipe, examples: int) -> int:
        return recipe.batch_size or examples

    def plan(self, prepared: Prepared) -> Plan:
        recipe = prepared.recipe
        weak = recipe.allow_weak
        return calibrate(stages_of(prepared), epsilon=recipe.epsilon, delta=prepared.delta, allow_weak=weak)

    def train(self, prepared: Prepared, folder: RunFolder, **options: Any) -> None:
        recipe, settings = prepared.recipe, prepared.settings
        public, stages = prepared.public_rows(), stages_of(prepared)
        fit(
            prepared.built.module,
            prepared.records,
            epsilon=recipe.epsilon,
            delta=prepared.delta,
            batch_size=settings.batch_size,
            sampler=stages.sampler,
            loss=loss_of(prepared),
            clip=stages.clip,
            noise=stages.noise,
            encoding=stages.encoding,
            views=views_of(recipe),
            autocast=autocast_of(recipe),
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


METHODS: dict[MethodName, Method] = {MethodName.DP_SGD: DpSgd(), MethodName.NOISY_CGD: HiddenState()}


def method_of(recipe: Recipe) -> Method:
    """The method that a recipe names."""
    return METHODS[recipe.method]
