"""A recipe with its data, network and features prepared for training, and its verification on synthetic rows.

A recipe with nothing left open, and what it is about to use: data, network and features.

A recipe put to the test before it is trained: its own plan and network, on synthetic rows of the public shape.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace

import torch
from torch import Tensor

from sordino.convex.noisy_cgd import NoisyCGD
from sordino.data import DataSet, Facts, Split, load
from sordino.kernel.records import Records, as_records, by_user
from sordino.models import Built
from sordino.recipes.defaults import TrainingSettings
from sordino.recipes.methods import method_of
from sordino.recipes.networks import build, network_inputs, prepared_by
from sordino.recipes.recipe import Recipe
from sordino.training.evaluation import Public
from sordino.verification import Verdict, verify
from sordino.verification.hidden_state import NOT_CHECKED, lasting_kernel, verify_hidden_state
from sordino.verification.noise_histogram import NoisePicture, noise_picture

_REHEARSED = 16  # synthetic rows


@dataclass(frozen=True)
class PreparedRecipe:
    """All that a method needs to train. The number of `examples` is public: under add-or-remove, the expected one."""

    recipe: Recipe
    settings: TrainingSettings
    data: DataSet
    built: Built
    records: Records
    examples: int

    @property
    def delta(self) -> float:
        """The delta of the recipe, decided from the public number of examples if it was left open."""
        return self.recipe.delta_for(self.examples)

    def public_rows(self) -> Public | None:
        """The test rows that can be judged. A row that cannot be read, or has no label, is nobody's mistake."""
        test = self.data.test
        if test is None:
            return None
        inputs = network_inputs(self.built, self.data.facts, test.inputs)
        has_target = test.target.isfinite() if test.target.is_floating_point() else test.target >= 0
        judged = inputs.flatten(1).isfinite().all(dim=1) & has_target
        return Public((inputs[judged], test.target[judged]))

    def public_facts(self) -> dict[str, object]:
        """What whoever predicts needs to know: the facts of the data, and how rows were prepared."""
        return {**asdict(self.data.facts), "prepared_by": prepared_by(self.built)}


def prepare(recipe: Recipe, *, progress: bool = True) -> PreparedRecipe:
    """Reads the data, decides what was left open, and builds the network and its features."""
    data = load(recipe.data, schema=recipe.schema)
    return _prepared(recipe, data, _public_size(recipe, data), progress)


def rehearse(recipe: Recipe) -> PreparedRecipe:
    """The same with a few synthetic rows of the public shape in place of the private ones, which are not looked at.

    >>> rehearsed = rehearse(Recipe("digits", "linear", epsilon=1.0, delta=1e-4))
    >>> rehearsed.examples, rehearsed.records.num_units
    (1437, 16)
    """
    data = load(recipe.data, schema=recipe.schema)
    return _prepared(recipe, replace(data, train=_synthetic(data.train, data.facts)), _public_size(recipe, data), False)


def _prepared(recipe: Recipe, data: DataSet, examples: int, progress: bool) -> PreparedRecipe:
    settings = recipe.settings(method_of(recipe).defaults(recipe, examples))
    built = build(recipe.model, data.facts, seed=settings.initial_seed, gates=settings.gates)
    records = _records(network_inputs(built, data.facts, data.train.inputs, progress=progress), data)
    return PreparedRecipe(recipe.decided(settings, examples=examples), settings, data, built, records, examples)


def _public_size(recipe: Recipe, data: DataSet) -> int:
    """Under add-or-remove the true number is secret, and nothing may be decided by it."""
    return recipe.expected_examples or _units(data)


def _synthetic(private: Split, facts: Facts) -> Split:
    """Rows whose values are drawn and whose shape is that of the private ones."""
    bytes_of_pictures = (0.0, 255.0) if private.inputs.dtype == torch.uint8 else None
    rows = as_records((private.inputs, private.target), input_range=facts.input_range or bytes_of_pictures)
    batch = rows.template(_REHEARSED)
    return Split(batch.inputs[0].to(private.inputs.dtype), batch.target.to(private.target.dtype))


def _units(data: DataSet) -> int:
    """The number of privacy units: of examples, or of users."""
    owners = data.train.owners
    return len(data.train.target) if owners is None else len(torch.unique(owners))


def _records(inputs: Tensor, data: DataSet) -> Records:
    rows = (inputs, data.train.target)
    if data.train.owners is None:
        return as_records(rows)
    return by_user(rows, data.train.owners, rows_per_user=data.rows_per_user or 1)


@dataclass(frozen=True)
class RecipeVerification:
    """What was found about a recipe, its noise, and what no run can show."""

    recipe: Recipe
    verdict: Verdict
    noise: NoisePicture = field(repr=False)
    not_checked: tuple[str, ...]

    @property
    def title(self) -> str:
        return f"{self.recipe.model} on {self.recipe.data} by {self.recipe.method}"


def verify_recipe(recipe: Recipe, *, seed: int = 0) -> RecipeVerification:
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
        return RecipeVerification(rehearsed.recipe, verdict, noise, NOT_CHECKED)
    verdict = verify(plan, module, records, delta=rehearsed.delta, seed=seed)
    return RecipeVerification(rehearsed.recipe, verdict, noise_picture(plan, module, records, seed=seed), ())
