"""A recipe, or a run of a model of one's own, put to the test: its plan and network, on synthetic rows."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import nn

from sordino.convex.noisy_cgd import NoisyCGD
from sordino.kernel.noise import NormalNoise
from sordino.kernel.records import Records
from sordino.kernel.step import Plan
from sordino.recipes.methods import method_of
from sordino.recipes.own_model import OwnRun
from sordino.recipes.prepared import rehearse
from sordino.recipes.recipe import Recipe
from sordino.verification import Verdict, verify
from sordino.verification.hidden_state import NOT_CHECKED, lasting_kernel, verify_hidden_state
from sordino.verification.noise_picture import NoisePicture, noise_picture

_SYNTHETIC = 16  # units
_SMALLEST_DELTA = 1e-15  # stands for the delta of a pure guarantee


@dataclass(frozen=True)
class Verified:
    """What was found about a training, its noise, and what no run can show."""

    title: str
    verdict: Verdict
    noise: NoisePicture | None = field(repr=False)
    not_checked: tuple[str, ...]


def verify_recipe(recipe: Recipe, *, seed: int = 0) -> Verified:
    """Tries to refute what a training by this recipe would promise. No private row is looked at.

    >>> verify_recipe(Recipe("digits", "linear", epsilon=3.0, delta=1e-4)).verdict.says
    'not refuted'
    """
    rehearsed = rehearse(recipe)
    title = f"{recipe.model} on {recipe.data} by {recipe.method}"
    plan, module, records = method_of(recipe).plan(rehearsed), rehearsed.built.module, rehearsed.records
    if isinstance(plan, NoisyCGD):
        outputs = rehearsed.data.facts.num_classes or 1
        verdict = verify_hidden_state(plan, records, outputs=outputs, delta=rehearsed.delta, seed=seed)
        noise = noise_picture(lasting_kernel(plan), module, records, seed=seed)
        return Verified(title, verdict, noise, NOT_CHECKED)
    verdict = verify(plan, module, records, delta=rehearsed.delta, seed=seed)
    return Verified(title, verdict, _picture(plan, module, records, seed), ())


def _picture(plan: Plan, module: nn.Module, records: Records, seed: int) -> NoisePicture | None:
    """A picture of normal noise. Other noise has none."""
    return noise_picture(plan, module, records, seed=seed) if isinstance(plan.noise, NormalNoise) else None


def verify_own(own: OwnRun, *, seed: int = 0) -> Verified:
    """Tries to refute what a run of a model of one's own promises, on synthetic rows of the shapes in its folder."""
    description, records = own.description, own.description.records(_SYNTHETIC)
    promised = own.folder.privacy().get("delta")
    delta = float(promised) if isinstance(promised, float) and promised > 0 else _SMALLEST_DELTA
    title = f"{own.model_name} by the plan of {str(own.folder.path)!r}"
    if description.is_hidden:
        hidden, outputs = description.stage("hidden_state"), own.facts.num_classes or 1
        verdict = verify_hidden_state(hidden, records, outputs=outputs, delta=delta, seed=seed)
        noise = noise_picture(lasting_kernel(hidden), own.setup.model, records, seed=seed)
        return Verified(title, verdict, noise, NOT_CHECKED)
    plan, module = own.plan(), own.setup.model
    verdict = verify(plan, module, records, delta=delta, seed=seed)
    return Verified(title, verdict, _picture(plan, module, records, seed), ())
