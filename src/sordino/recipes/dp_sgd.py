"""DP-SGD by a recipe: any network, any torch optimizer, every step counted as seen."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sordino.encodings import Combined, Freeze, RandomSparsify
from sordino.encodings.freeze_by_magnitude import equal_stages
from sordino.errors import UsageError
from sordino.kernel.calibration import calibrate
from sordino.kernel.clipping import ClipByNorm
from sordino.kernel.contribution import LossGradient
from sordino.kernel.encoding import Encoding, Unchanged
from sordino.kernel.noise import Gaussian
from sordino.kernel.sampling import steps_per_epoch
from sordino.kernel.step import Plan
from sordino.recipes.defaults import Settings, defaults_for
from sordino.recipes.planning import SamplerName, make_sampler
from sordino.recipes.spelled import parse_averaging
from sordino.training.fit import fit
from sordino.training.run_folder import RunFolder
from sordino.training.schedules import parse as parse_schedule

if TYPE_CHECKING:
    from sordino.recipes.prepared import Prepared
    from sordino.recipes.recipe import Recipe

_OF_HIDDEN_STATES = ("trailing_steps", "radius")
_OF_ADAM = (0.9, 0.999)  # the two betas unless said; the first is its momentum


class DpSgd:
    """Poisson batches, clipped gradients, noise, and then whatever the optimizer does with them."""

    sampler: ClassVar = SamplerName.POISSON
    has_probabilities: ClassVar = True

    def check(self, recipe: Recipe) -> None:
        for name in _OF_HIDDEN_STATES:
            if getattr(recipe, name) is not None:
                raise UsageError(f"{name} goes with --method noisy-cgd, got {recipe.method}.")

    def check_drawing_again(self) -> None:
        """It is the way to go on where steps cannot be repeated."""

    def defaults(self, recipe: Recipe, examples: int) -> Settings:
        found = defaults_for(recipe.model, examples=examples, epsilon=recipe.epsilon)
        return replace(found, momentum=_OF_ADAM[0]) if recipe.optimizer == "adam" else found

    def divisor(self, recipe: Recipe, examples: int) -> int:
        return recipe.batch_size or examples

    def plan(self, prepared: Prepared) -> Plan:
        recipe = prepared.recipe
        weak = recipe.allow_weak
        return calibrate(_stages(prepared), epsilon=recipe.epsilon, delta=recipe.delta, allow_weak=weak)

    def train(self, prepared: Prepared, folder: RunFolder, **options: Any) -> None:
        recipe, settings = prepared.recipe, prepared.settings
        public, stages = prepared.public_rows(), _stages(prepared)
        fit(
            prepared.built.module,
            prepared.records,
            epsilon=recipe.epsilon,
            delta=recipe.delta,
            batch_size=settings.batch_size,
            sampler=stages.sampler,
            loss=_loss(prepared),
            clip=stages.clip,
            noise=stages.noise,
            encoding=stages.encoding,
            views=recipe.make_views(),
            autocast=recipe.autocast,
            optimizer=optimizer_of(settings, recipe.weight_decay),
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


def _stages(prepared: Prepared) -> Plan:
    """All but the scale of the noise, which is calibrated."""
    recipe, settings = prepared.recipe, prepared.settings
    sampler = make_sampler(recipe.question(prepared.examples, settings.batch_size))
    sparsified = sparsifying(prepared, sampler.steps)
    frozen = _freezing(prepared.built.module, recipe.freeze, sampler.steps)
    encodings = [encoding for encoding in (frozen, sparsified) if encoding is not None]
    gradient = gradient_of(prepared)
    encoding = Combined(*encodings) if len(encodings) == 2 else encodings[0] if encodings else Unchanged()
    return Plan(sampler, gradient, ClipByNorm(settings.clip), Gaussian(1.0), encoding)


def gradient_of(prepared: Prepared) -> LossGradient:
    """Of the loss that goes with the labels, in the precision and in the views that the recipe says."""
    return LossGradient(_loss(prepared), prepared.recipe.autocast, prepared.recipe.make_views())


def _loss(prepared: Prepared) -> Callable[..., Tensor]:
    return F.mse_loss if prepared.data.facts.num_classes is None else F.cross_entropy


def sparsifying(prepared: Prepared, steps: int) -> Encoding | None:
    """One mask per epoch, whose rate rises to the final one."""
    per_epoch = steps_per_epoch(prepared.examples, prepared.settings.batch_size)
    rate = prepared.recipe.sparsify
    return RandomSparsify.throughout(steps, final_rate=rate, steps_per_epoch=per_epoch) if rate else None


def _freezing(model: nn.Module, final: float, steps: int) -> Encoding | None:
    """The smallest weights rest, in three stages that cut the steps into quarters."""
    return Freeze.by_magnitude(model, stages=equal_stages(steps), final=final) if final else None


def optimizer_of(settings: Settings, decay: float) -> Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]:
    """What makes the optimizer that the settings name, of the parameters that it is given."""
    if settings.optimizer == "adam":
        betas = (settings.momentum, _OF_ADAM[1])
        return lambda parameters: torch.optim.Adam(parameters, lr=settings.lr, betas=betas, weight_decay=decay)
    lr, momentum = settings.lr, settings.momentum
    return lambda parameters: torch.optim.SGD(parameters, lr=lr, momentum=momentum, weight_decay=decay)
