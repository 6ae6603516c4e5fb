"""A finished run read from its folder, and its model applied to new rows.

`read_run` returns a `SavedRun` for a run with a recipe, and an `OwnRun` for a run of the user's own model.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field, fields
from pathlib import Path

import torch
from torch import Tensor, nn

from sordino._input.strict_toml import Table
from sordino.data import Facts
from sordino.data.loading import load_inputs, named_rows
from sordino.errors import StateError, UsageError
from sordino.gradients.row_loss import logits_of
from sordino.models import Built
from sordino.recipes.methods import method_of
from sordino.recipes.named_code import load_weights
from sordino.recipes.networks import build, network_inputs, prepared_by
from sordino.recipes.own_model import WITH_PROBABILITIES, OwnRun, class_predictions, is_own_run, per_row
from sordino.recipes.recipe import Recipe
from sordino.recipes.transformer_settings import is_transformer
from sordino.training.evaluation import evaluating
from sordino.training.run_folder import RunFolder

_ROWS_AT_A_TIME = 1024


@dataclass(frozen=True)
class SavedRun:
    """A finished run: its recipe, the public facts about its data, and its network with the released weights."""

    folder: RunFolder = field(repr=False)
    recipe: Recipe
    facts: Facts
    built: Built = field(repr=False)

    @classmethod
    def read(cls, path: Path, *, model: str | None = None, loss: str | None = None) -> SavedRun:
        """Reads a run folder. The training data is not needed, only the public facts about it.

        Functions of the user's own that the recipe names have to be named again (`Recipe.with_code`).
        """
        folder = RunFolder(path)
        recipe = Recipe.of_run(folder).with_code(model=model, loss=loss)
        if not folder.is_finished:
            raise UsageError(f"the run in {str(path)!r} is not finished: resume it first.")
        facts = facts_of(folder)
        trained_on = folder.facts().get("prepared_by")  # missing in folders of earlier versions
        is_own = ":" in recipe.model
        try:
            # On "meta", shapes take no memory: a damaged file cannot request an allocation.
            with nullcontext() if is_own else torch.device("meta"):
                built = build(recipe.model, facts, seed=0, gates=recipe.gates)
        except UsageError as error:
            if is_own:
                raise
            raise StateError(f"the files in {str(path)!r} do not belong together: {error}") from None
        if trained_on not in (None, prepared_by(built)):
            raise StateError(
                f"the model in {str(path)!r} was trained on rows prepared by {trained_on!r:.200}, but this version of "
                f"Sordino prepares them by {prepared_by(built)!r}: use the version that trained it, or train again."
            )
        if is_own:
            load_weights(built.module, folder, of=f"run of {recipe.model}")
        else:
            built.module.load_state_dict(folder.model(like=built.module.state_dict()), assign=True)
        return cls(folder, recipe, facts, built)

    @property
    def model_name(self) -> str:
        return self.recipe.model

    @property
    def data_name(self) -> str:
        return self.recipe.data

    @property
    def module(self) -> nn.Module:
        return self.built.module

    @property
    def has_probabilities(self) -> bool:
        """Whether outputs are logits of classes. Otherwise they are scores."""
        loss = self.recipe.loss
        if loss is not None:
            return loss.rpartition(":")[2] in WITH_PROBABILITIES
        return method_of(self.recipe).has_probabilities

    def network_inputs(self, raw: Tensor) -> Tensor:
        """What the network is given for raw rows."""
        return network_inputs(self.built, self.facts, raw)

    def fresh_network(self, seed: int) -> nn.Module:
        """Another untrained network of the same kind."""
        return build(self.recipe.model, self.facts, seed=seed, gates=self.recipe.gates).module

    def predict(self, source: str) -> list[dict[str, object]]:
        """Predictions for each row of the source: class and probability of each class, or the value of a regression.

        If outputs of the network are not logits, they are given as scores in place of probabilities. A row with a value
        that is not finite has empty predictions.
        """
        outputs = self.outputs(load_inputs(source, self.facts, schema=self.folder.schema))
        known = outputs.reshape(len(outputs), -1).isfinite().all(dim=1).tolist()
        answers = (
            self._numbers(outputs)
            if self.facts.num_classes is None
            else class_predictions(outputs, self.facts.class_names, self.has_probabilities)
        )
        shown = (
            {name: value if is_known else "" for name, value in answer.items()}
            for is_known, answer in zip(known, answers, strict=True)
        )
        return named_rows(source, shown)

    def outputs(self, inputs: Tensor) -> Tensor:
        """Outputs of the network for each row; NaN if the row has a value that is not finite."""
        prepared = self.network_inputs(inputs)
        batches = []
        with evaluating(self.built.module), torch.inference_mode():
            for rows in torch.split(prepared, _ROWS_AT_A_TIME):
                usable = rows.flatten(1).isfinite().all(dim=1)
                outputs = logits_of(self.built.module(torch.where(per_row(usable, rows), rows, 0).float()))
                batches.append(torch.where(per_row(usable, outputs), outputs, torch.nan))
        return torch.cat(batches)

    def _numbers(self, outputs: Tensor) -> list[dict[str, object]]:
        low, high = self.facts.target_range or (-1.0, 1.0)
        return [{"prediction": low + (number + 1) / 2 * (high - low)} for number in outputs.double().tolist()]


FinishedRun = SavedRun | OwnRun


def read_run(path: Path, *, model: str | None = None, loss: str | None = None, data: str | None = None) -> FinishedRun:
    """A finished run. `model` and `loss` name the functions and `data` the rows that a run of one's own model needs."""
    folder = RunFolder(path)
    if not is_own_run(folder):
        if folder.has_recipe and is_transformer(Recipe.of_run(folder).model):
            from sordino.recipes.transformer_runs import TransformerRun

            return TransformerRun.read(path, model=model, loss=loss, data=data)
        return SavedRun.read(path, model=model, loss=loss)
    if loss is not None:
        raise UsageError("--loss goes with a recipe: return the loss with the model, in a sordino.TrainingSetup.")
    return OwnRun.read(path, model, data)


def facts_of(folder: RunFolder) -> Facts:
    """The public facts about the data of a run with a recipe."""
    saved = {name: value for name, value in folder.facts().items() if name != "prepared_by"}
    return parse_facts(saved, what=f"facts.json in {str(folder.path)!r}")


def parse_facts(saved: Mapping[str, object], *, what: str) -> Facts:
    """Reads facts from a JSON object. Raises `StateError` if a run cannot have written it.

    >>> parse_facts({"name": "digits", "input_shape": [1, 8, 8], "num_classes": 10}, what="facts.json").input_shape
    (1, 8, 8)
    >>> parse_facts({"name": "digits", "input_shape": "8 by 8"}, what="facts.json")
    Traceback (most recent call last):
        ...
    sordino.errors.StateError: facts.json: input_shape must be a list of numbers, got '8 by 8'.
    """
    known = Table({name: value for name, value in saved.items() if value is not None}, what)
    try:
        known.allow(*(field.name for field in fields(Facts)))
        facts = Facts(
            name=known.text("name"),
            input_shape=tuple(_whole(length, what) for length in known.numbers("input_shape")),
            num_classes=known.whole("num_classes", at_least=2) if "num_classes" in known else None,
            input_range=_pair(known, "input_range"),
            mean=known.numbers("mean") if "mean" in known else None,
            std=known.numbers("std") if "std" in known else None,
            class_names=known.texts("class_names") if "class_names" in known else (),
            target_range=_pair(known, "target_range"),
        )
    except UsageError as error:
        raise StateError(str(error)) from None
    if not facts.input_shape or len(facts.class_names) not in (0, facts.num_classes):
        raise StateError(f"{what}: input_shape is empty, or class_names does not match num_classes.")
    return facts


def _whole(length: float, what: str) -> int:
    if not isinstance(length, int) or not 1 <= length <= 1 << 24:
        raise UsageError(f"{what}: input_shape must be whole numbers above 0, got {length!r}.")
    return length


def _pair(known: Table, key: str) -> tuple[float, float] | None:
    if key not in known:
        return None
    numbers = known.numbers(key)
    if len(numbers) != 2 or not numbers[0] < numbers[1]:
        raise UsageError(f"{known.what}: {key} must be [low, high] with low < high, got {numbers!r:.80}.")
    return numbers[0], numbers[1]
