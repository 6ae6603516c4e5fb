"""Preparation of a recipe for training (data, network, features, all settings), and its verification without data.

A recipe, or a run of the user's own model, is verified with its own plan and network, on synthetic rows of the public
shape.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace

import torch
from torch import Tensor, nn

from sordino.convex.noisy_cgd import NoisyCGD
from sordino.data import DataSet, Facts, Split, load
from sordino.errors import UsageError
from sordino.gradients.probes import one_line
from sordino.kernel.noise import NormalNoise
from sordino.kernel.records import Data, Records, as_records, by_user
from sordino.kernel.step import Plan
from sordino.models import Built
from sordino.recipes.defaults import TaskFacts, TrainingSettings
from sordino.recipes.mapped_rows import MappedRows
from sordino.recipes.methods import method_of
from sordino.recipes.networks import build, network_inputs, prepared_by
from sordino.recipes.own_model import OwnRun
from sordino.recipes.recipe import Recipe
from sordino.recipes.transformer_settings import is_transformer
from sordino.training.evaluation import Public, evaluating
from sordino.verification import Verdict, verify
from sordino.verification.hidden_state import NOT_CHECKED, lasting_kernel, verify_hidden_state
from sordino.verification.noise_histogram import NoisePicture, noise_picture

_SYNTHETIC_ROWS = 16


@dataclass(frozen=True)
class PreparedRecipe:
    """Everything that a method needs to train. `examples` is public: under add-or-remove, the expected number."""

    recipe: Recipe
    settings: TrainingSettings
    data: DataSet
    built: Built
    records: Records
    examples: int

    @property
    def delta(self) -> float:
        """The delta of the recipe, or the default one for the public number of examples."""
        return self.recipe.delta_for(self.examples)

    def public_rows(self) -> Public | None:
        """The test rows that have finite inputs and a target. Others are not evaluated."""
        test = self.data.test
        if test is None:
            return None
        inputs = network_inputs(self.built, self.data.facts, test.inputs)
        has_target = test.target.isfinite() if test.target.is_floating_point() else test.target >= 0
        usable = inputs.flatten(1).isfinite().all(dim=1) & has_target
        return Public((inputs[usable], test.target[usable]))

    def public_facts(self) -> dict[str, object]:
        """Facts that predictions need: those of the data, and the identity of the feature transform."""
        return {**asdict(self.data.facts), "prepared_by": prepared_by(self.built)}


def prepare(recipe: Recipe, *, progress: bool = True) -> PreparedRecipe:
    """Reads the data, chooses open settings, builds the network and computes features."""
    if is_transformer(recipe.model):
        from sordino.recipes.transformers import prepare_transformer

        return prepare_transformer(recipe)
    data = load(recipe.data, schema=recipe.schema, map_large=True)
    return _prepared(recipe, data, _public_size(recipe, data), progress)


def rehearse(recipe: Recipe) -> PreparedRecipe:
    """Prepares a recipe with a few synthetic rows of the public shape in place of the private rows.

    >>> rehearsed = rehearse(Recipe("digits", "linear", epsilon=1.0, delta=1e-4))
    >>> rehearsed.examples, rehearsed.records.num_units
    (1437, 16)
    """
    if is_transformer(recipe.model):
        from sordino.recipes.transformers import prepare_transformer

        return prepare_transformer(recipe, rehearsed=True)
    data = load(recipe.data, schema=recipe.schema, map_large=True)
    return _prepared(recipe, replace(data, train=_synthetic(data.train, data.facts)), _public_size(recipe, data), False)


def _prepared(recipe: Recipe, data: DataSet, examples: int, progress: bool) -> PreparedRecipe:
    task = TaskFacts(data.rows_per_user or 1, is_regression=data.facts.num_classes is None)
    settings = recipe.settings(method_of(recipe).defaults(recipe, examples, task))
    built = build(recipe.model, data.facts, seed=settings.initial_seed, gates=settings.gates)
    if ":" in recipe.model and recipe.loss is None:
        _check_outputs(built, data.facts, network_inputs(built, data.facts, _synthetic(data.train, data.facts).inputs))
    records = _records(built, data, progress)
    return PreparedRecipe(recipe.decided(settings, examples=examples), settings, data, built, records, examples)


def _check_outputs(built: Built, facts: Facts, synthetic: Tensor) -> None:
    """Refuses a network of other code whose outputs do not fit the usual loss of the data."""
    wanted = (len(synthetic),) if facts.num_classes is None else (len(synthetic), facts.num_classes)
    try:
        with evaluating(built.module), torch.no_grad():
            found = tuple(built.module(synthetic.float()).shape)
    except (RuntimeError, IndexError, TypeError, ValueError, AttributeError) as error:
        shape = tuple(synthetic.shape[1:])
        raise UsageError(
            f"the model fails on rows of shape {shape}: {type(error).__name__}: {one_line(error)}"
        ) from None
    if found != wanted:
        meant = "one number" if facts.num_classes is None else f"{facts.num_classes} logits, one for each class,"
        raise UsageError(
            f"the model must return {meant} per row, of shape {wanted} for {len(synthetic)} rows, got {found}: change "
            "its last layer, or name a loss for these outputs (--loss)."
        )


def _public_size(recipe: Recipe, data: DataSet) -> int:
    """The public number of examples. Under add-or-remove the true number is secret, so no setting may depend on it."""
    return recipe.expected_examples or _units(data)


def _synthetic(private: Split, facts: Facts) -> Split:
    """Random rows with the shape, dtype and public range of the private ones."""
    byte_range = (0.0, 255.0) if private.inputs.dtype == torch.uint8 else None
    rows = as_records((private.inputs, private.target), input_range=facts.input_range or byte_range)
    batch = rows.template(_SYNTHETIC_ROWS)
    return Split(batch.inputs[0].to(private.inputs.dtype), batch.target.to(private.target.dtype))


def _units(data: DataSet) -> int:
    """Number of privacy units: examples or users."""
    owners = data.train.owners
    return len(data.train.target) if owners is None else len(torch.unique(owners))


def _records(built: Built, data: DataSet, progress: bool) -> Records:
    rows: Data
    if data.train.is_mapped and MappedRows.can_prepare(built):
        rows = MappedRows(data.train, built, data.facts)
    else:
        rows = (network_inputs(built, data.facts, data.train.inputs, progress=progress), data.train.target)
    if data.train.owners is None:
        return as_records(rows)
    return by_user(rows, data.train.owners, rows_per_user=data.rows_per_user or 1)


_SYNTHETIC = 16  # units
_SMALLEST_DELTA = 1e-15  # stands for the delta of a pure guarantee


@dataclass(frozen=True)
class RecipeVerification:
    """Verdict on a training, a histogram of its noise, and the claims that no run can check."""

    title: str
    verdict: Verdict
    noise: NoisePicture | None = field(repr=False)
    not_checked: tuple[str, ...]


def verify_recipe(recipe: Recipe, *, seed: int = 0) -> RecipeVerification:
    """Tries to refute the guarantee of a recipe, on synthetic rows. No private row is read.

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
        return RecipeVerification(title, verdict, noise, NOT_CHECKED)
    verdict = verify(plan, module, records, delta=rehearsed.delta, seed=seed)
    return RecipeVerification(title, verdict, _picture(plan, module, records, seed), ())


def _picture(plan: Plan, module: nn.Module, records: Records, seed: int) -> NoisePicture | None:
    """A picture of normal noise. Other noise has none."""
    return noise_picture(plan, module, records, seed=seed) if isinstance(plan.noise, NormalNoise) else None


def verify_own(own: OwnRun, *, seed: int = 0) -> RecipeVerification:
    """Tries to refute what a run of a model of one's own promises, on synthetic rows of the shapes in its folder."""
    description, records = own.description, own.description.records(_SYNTHETIC)
    promised = own.folder.privacy().get("delta")
    delta = float(promised) if isinstance(promised, float) and promised > 0 else _SMALLEST_DELTA
    title = f"{own.model_name} by the plan of {str(own.folder.path)!r}"
    if description.is_hidden:
        hidden, outputs = description.stage("hidden_state"), own.facts.num_classes or 1
        verdict = verify_hidden_state(hidden, records, outputs=outputs, delta=delta, seed=seed)
        noise = noise_picture(lasting_kernel(hidden), own.setup.model, records, seed=seed)
        return RecipeVerification(title, verdict, noise, NOT_CHECKED)
    plan, module = own.plan(), own.setup.model
    verdict = verify(plan, module, records, delta=delta, seed=seed)
    return RecipeVerification(title, verdict, _picture(plan, module, records, seed), ())
