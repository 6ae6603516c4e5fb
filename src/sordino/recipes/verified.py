"""A recipe put to the test before it is trained: its own plan and network, on synthetic rows of the public shape."""

from __future__ import annotations

from dataclasses import dataclass, field

from sordino.convex.noisy_cgd import NoisyCGD
from sordino.recipes.methods import method_of
from sordino.recipes.prepared import rehearse
from sordino.recipes.recipe import Recipe
from sordino.verification import Verdict, verify
from sordino.verification.hidden_state import NOT_CHECKED, lasting_kernel, verify_hidden_state
from sordino.verification.noise_picture import NoisePicture, noise_picture


@dataclass(frozen=True)
class Verified:
    """What was found about a recipe, its noise, and what no run can show."""

    recipe: Recipe
    verdict: Verdict
    noise: NoisePicture = field(repr=False)
    not_checked: tuple[str, ...]

    @property
    def title(self) -> str:
        return f"{self.recipe.model} on {self.recipe.data} by {self.recipe.method}"


def verify_recipe(recipe: Recipe, *, seed: int = 0) -> Verified:
    """Tries to refute what a training by this recipe would promise. No private row is looked at.

    >>> verify_recipe(Recipe("digits", "linear", epsilon=3.0, delta=1e-4)).verdict.says
    'not refuted'
    """
    rehearsed = rehearse(recipe)
    plan, module, records = method_of(recipe).plan(rehearsed), rehearsed.built.module, rehearsed.records
    if isinstance(plan, NoisyCGD):
        outputs = rehearsed.data.facts.num_classes or 1
        verdict = verify_hidden_state(plan, records, outputs=outputs, delta=rehearsed.delta, seed=seed)
        noise = noise_picture(lasting_kernel(plan), module, records, seed=seed)
        return Verified(rehearsed.recipe, verdict, noise, NOT_CHECKED)
    verdict = verify(plan, module, records, delta=rehearsed.delta, seed=seed)
    return Verified(rehearsed.recipe, verdict, noise_picture(plan, module, records, seed=seed), ())
