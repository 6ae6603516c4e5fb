"""Stages of a plan, optimizer, schedule and average, made from the settings of a recipe."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sordino._input import validate
from sordino.encodings import Combined, Freeze, RandomSparsify
from sordino.encodings.freeze import equal_stages
from sordino.errors import UsageError
from sordino.huggingface import loss_for
from sordino.kernel.augmentation import Crop, Flip, Jitter, Transform, Views
from sordino.kernel.clipping import ClipByNorm
from sordino.kernel.contribution import LossGradient
from sordino.kernel.encoding import Encoding, Unchanged
from sordino.kernel.noise import Gaussian, Noise
from sordino.kernel.sampling import steps_per_epoch
from sordino.kernel.step import Plan
from sordino.optimized_noise import (
    AbsoluteCost,
    Flat,
    FromReleases,
    OptimizedNoise,
    SquaredCost,
    best_blocks,
    isotropic,
    weighted_laplace,
)
from sordino.optimized_noise.costs import Cost
from sordino.optimized_noise.noise import Fit
from sordino.optimized_noise.sources import Source
from sordino.recipes.defaults import TrainingSettings
from sordino.recipes.named_code import named_loss
from sordino.recipes.planning import make_sampler
from sordino.recipes.settings import SettingError, declared
from sordino.recipes.transformer_settings import is_transformer
from sordino.training.averaging import Averaging, Ema, Tail
from sordino.training.schedules import parse as parse_schedule

if TYPE_CHECKING:
    from sordino.recipes.prepared import PreparedRecipe
    from sordino.recipes.recipe import Recipe

__all__ = [
    "autocast_of",
    "gradient_of",
    "loss_of",
    "noise_of",
    "optimizer_of",
    "parse_augmentation",
    "parse_averaging",
    "parse_class_weights",
    "parse_schedule",
    "sparsifying",
    "stages_of",
    "views_of",
    "with_declared_stages",
]

_PRECISIONS: dict[str, torch.dtype | None] = {"float32": None, "bfloat16": torch.bfloat16}  # dtype of autocast
ADAM_BETAS = (0.9, 0.999)  # the momentum of a recipe replaces the first


_FAMILIES: dict[str, Fit] = {"blocks": best_blocks, "laplace": weighted_laplace, "isotropic": isotropic}
_SOURCES: dict[str, Callable[[], Source]] = {"releases": FromReleases, "flat": Flat}
_COSTS: dict[str, Cost] = {"absolute": AbsoluteCost(), "squared": SquaredCost()}


def stages_of(prepared: PreparedRecipe) -> Plan:
    """The plan of a recipe, with noise multiplier 1, which has to be calibrated."""
    recipe, settings = prepared.recipe, prepared.settings
    sampler = make_sampler(recipe.question(prepared.examples, settings.batch_size))
    sparsified = sparsifying(prepared, sampler.steps)
    frozen = _freezing(prepared.built.module, recipe.freeze, sampler.steps)
    encodings = [encoding for encoding in (frozen, sparsified) if encoding is not None]
    encoding = Combined(*encodings) if len(encodings) == 2 else encodings[0] if encodings else Unchanged()
    return with_declared_stages(
        Plan(sampler, gradient_of(prepared), ClipByNorm(settings.clip), Gaussian(1.0), encoding), prepared
    )


def with_declared_stages(plan: Plan, prepared: PreparedRecipe) -> Plan:
    """The plan with the stages of all settings of the recipe that declare how they change it (`stage=`)."""
    for name, each in declared(type(prepared.recipe)).items():
        value = getattr(prepared.recipe, name)
        if each.setting.stage is not None and value is not None:
            plan = each.setting.stage(plan, value, prepared)
    return plan


def noise_of(text: str | None) -> Noise:
    """Parses a noise, with multiplier 1: "gaussian", or "optimized:FAMILY:WEIGHTS:COST".

    FAMILY is blocks, laplace or isotropic. WEIGHTS are those of noise by coordinate: "releases" (learned from past
    releases, which is post-processing) or "flat". COST is absolute or squared. The last ones may be left out. Weights
    that are tensors or come from public rows have no name: `Fixed` and `FromPublicRows` are for Python.

    >>> noise_of("optimized:laplace:flat")
    OptimizedNoise(1.0, weights=Flat(), cost=AbsoluteCost(), fit=weighted_laplace)
    """
    if text is None or text == "gaussian":
        return Gaussian(1.0)
    kind, *parts = text.split(":")
    family, source, cost = (parts + ["blocks", "releases", "absolute"][len(parts) :])[:3]
    known = family in _FAMILIES and source in _SOURCES and cost in _COSTS
    if kind != "optimized" or len(parts) > 3 or not known:
        families, sources, costs = (", ".join(each) for each in (_FAMILIES, _SOURCES, _COSTS))
        raise SettingError(
            "{noise} must be {requirement}, got {given}.",
            requirement=f"gaussian or optimized:FAMILY:WEIGHTS:COST with FAMILY of {families}, WEIGHTS of {sources} "
            f"and COST of {costs}",
            given=validate.option(text),
        )
    return OptimizedNoise(1.0, weights=_SOURCES[source](), cost=_COSTS[cost], fit=_FAMILIES[family])


def gradient_of(prepared: PreparedRecipe) -> LossGradient:
    """The loss gradient, with the precision and augmentation of the recipe."""
    return LossGradient(loss_of(prepared), autocast_of(prepared.recipe), views_of(prepared.recipe))


def loss_of(prepared: PreparedRecipe) -> Callable[..., Tensor]:
    """The loss that the user named, otherwise cross-entropy with the class weights of the recipe, or squared error.

    A transformer has the loss of its task.
    """
    if prepared.recipe.loss is not None:
        return named_loss(prepared.recipe.loss)
    if is_transformer(prepared.recipe.model):
        return loss_for(prepared.built.module, prepared.records)
    classes, weights = prepared.data.facts.num_classes, parse_class_weights(prepared.recipe.class_weights)
    if weights is None:
        return F.mse_loss if classes is None else F.cross_entropy
    if len(weights) != classes:
        expected = (
            "left out, because the target is a number" if classes is None else f"{classes} numbers, one per class"
        )
        raise SettingError(
            "{class_weights} must be {requirement}, got {given}.", requirement=expected, given=len(weights)
        )
    return partial(F.cross_entropy, weight=torch.tensor(weights))


def parse_class_weights(text: str | None) -> tuple[float, ...] | None:
    """Parses public weights of classes, or None.

    >>> parse_class_weights("1,4.5")
    (1.0, 4.5)
    """
    if text is None:
        return None
    requirement = "positive numbers, one per class, as 1,4"
    if text.strip() == "balanced":  # 1 / number of rows of the class
        requirement += ": weights balanced by the classes of the private rows would reveal how many there are of each"
    try:
        weights = tuple(float(each) for each in text.split(","))
    except ValueError:
        weights = ()
    if not weights or not all(0 < each < math.inf for each in weights):
        given = validate.option(text)
        raise SettingError("{class_weights} must be {requirement}, got {given}.", requirement=requirement, given=given)
    return weights


def views_of(recipe: Recipe) -> Views:
    """The augmentation of the recipe."""
    return Views(recipe.views, parse_augmentation(recipe.augment))


def autocast_of(recipe: Recipe) -> torch.dtype | None:
    """The half precision of forward and backward passes, or None for float32."""
    return _PRECISIONS[recipe.precision]


def sparsifying(prepared: PreparedRecipe, steps: int) -> Encoding | None:
    """Random sparsification with one mask per epoch and a rate that rises to the final one, or None if that is 0."""
    per_epoch = steps_per_epoch(prepared.examples, prepared.settings.batch_size)
    rate = prepared.recipe.sparsify
    return RandomSparsify.throughout(steps, final_rate=rate, steps_per_epoch=per_epoch) if rate else None


def _freezing(model: nn.Module, final: float, steps: int) -> Encoding | None:
    """Freezing of the smallest weights in three stages, after each quarter of the steps, or None if `final` is 0."""
    return Freeze.by_magnitude(model, stages=equal_stages(steps), final=final) if final else None


def optimizer_of(settings: TrainingSettings, decay: float) -> Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]:
    """A function from parameters to the optimizer of the settings."""
    if settings.optimizer == "adam":
        betas = (settings.momentum, ADAM_BETAS[1])
        return lambda parameters: torch.optim.Adam(
            parameters, lr=settings.learning_rate, betas=betas, weight_decay=decay
        )
    lr, momentum = settings.learning_rate, settings.momentum
    return lambda parameters: torch.optim.SGD(parameters, lr=lr, momentum=momentum, weight_decay=decay)


def parse_averaging(text: str) -> Averaging | None:
    """Parses an average of the iterates: "none", "ema:0.999" or "tail:0.5". The number may be left out.

    >>> parse_averaging("tail:0.25")
    Tail(fraction=0.25)
    """
    if text == "none":
        return None
    kind, colon, setting = text.partition(":")
    makers: dict[str, Callable[..., Averaging]] = {"ema": Ema, "tail": Tail}
    try:
        return makers[kind](float(setting)) if colon else makers[kind]()
    except (KeyError, ValueError):  # another name, no number, or one out of range
        raise UsageError(
            "averaging must be none, ema:DECAY with DECAY in [0, 1) or tail:FRACTION with FRACTION in (0, 1], "
            f"got {validate.option(text)}."
        ) from None


def parse_augmentation(text: str) -> tuple[Transform, ...]:
    """Parses a list of augmentations, applied in order: "flip,crop:4", "jitter:0.1" or "none".

    >>> parse_augmentation("flip,crop:4")
    (Flip(), Crop(padding=4))
    """
    return () if text == "none" else tuple(_transform(part.strip()) for part in text.split(","))


def _transform(text: str) -> Transform:
    try:
        match text.partition(":"):
            case "flip", "", "":
                return Flip()
            case "crop", ":", setting if setting.isdecimal():
                return Crop(int(setting[:10]))
            case "jitter", ":", setting:
                return Jitter(float(setting))
    except ValueError:  # no number, or one out of range
        pass
    raise UsageError(
        "augment must be none, or a list of flip, crop:PIXELS and jitter:STD with PIXELS and STD above 0, "
        f"got {validate.option(text)}."
    )
