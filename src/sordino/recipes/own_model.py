"""Runs of a model of one's own: what `so.fit(own_model, ..., out=RUN)` wrote, for the commands that read run folders.

The folder has weights, promise, metrics and a description of the training (training.json), but no code. The model
comes from a function that the user names, as `package.module:function` or `path/to/file.py:function`.

Guarantee: nothing in a run folder is imported or executed, and no name in it leads to code. A function is imported
only because the user named it, and a file inside the run folder is refused even then.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from sordino.accounting import Adjacency
from sordino.data import Facts, Split, load
from sordino.data.image_folder import load_folder, load_pictures
from sordino.data.loading import named_rows
from sordino.data.npz import ArrayFacts, read_arrays
from sordino.data.standard import NAMES
from sordino.data.table_readers import is_table
from sordino.errors import DataError, StateError, UsageError
from sordino.gradients.probes import one_line
from sordino.gradients.row_loss import logits_of
from sordino.gradients.torch_state import device_of
from sordino.gradients.transformers_settings import transformers_settings
from sordino.kernel.randomness import Key
from sordino.kernel.records import Records
from sordino.kernel.run import PrivateRun
from sordino.kernel.step import Plan
from sordino.models import Built
from sordino.recipes.named_code import Setup, load_weights, named_function
from sordino.training.description import RowShape, TrainingDescription, TrainingSetup, name_of_loss
from sordino.training.evaluation import evaluating
from sordino.training.loop import Training, take_steps
from sordino.training.run_folder import RunFolder

_ROWS_AT_A_TIME = 1024
_MOST_NUMBERS = 4096  # of one row, in a table of predictions
WITH_PROBABILITIES = ("cross_entropy", "CrossEntropyLoss", "RowClassLoss()")

OnStep = Callable[[int, int], None]  # steps taken, steps planned


def _silent(taken: int, planned: int) -> None:
    """Shows no progress."""


def is_own_run(folder: RunFolder) -> bool:
    """Whether the folder holds a run of a model of one's own, which has no recipe."""
    return folder.is_run and not folder.has_recipe


@dataclass(frozen=True)
class ModelRows:
    """Rows as the model takes them: one tensor for each of its inputs, and their targets where they are known."""

    inputs: tuple[Tensor, ...] = field(repr=False)
    target: Tensor | None = field(repr=False, default=None)
    owners: Tensor | None = field(repr=False, default=None)

    @property
    def usable(self) -> Tensor:
        """Which rows have finite inputs and a label."""
        found = torch.ones(len(self.inputs[0]), dtype=torch.bool)
        for x in self.inputs:
            if x.is_floating_point():
                found &= x.reshape(len(x), -1).isfinite().all(dim=1)
        if self.target is not None:
            flat = self.target.reshape(len(found), -1)
            found &= (flat.isfinite() if flat.is_floating_point() else flat >= 0).all(dim=1)
        return found

    def take(self, chosen: Tensor) -> ModelRows:
        return ModelRows(tuple(x[chosen] for x in self.inputs), None if self.target is None else self.target[chosen])


@dataclass(frozen=True)
class OwnRun:
    """A finished run of a model of one's own. `make` is what the user named, `data` where rows lie that were passed.

    What needs the model says to pass --model where it was not passed, and what needs rows says to pass --data.
    """

    folder: RunFolder = field(repr=False)
    description: TrainingDescription
    make: Setup | None = field(repr=False, default=None)
    data: str | None = None

    @classmethod
    def read(cls, path: Path, model: str | None = None, data: str | None = None) -> OwnRun:
        """Reads the folder of a finished run. `model` names a function, as MODULE:FUNCTION."""
        folder = RunFolder(path)
        description = TrainingDescription.read(folder)
        if not folder.is_finished:
            raise UsageError(
                f"the run in {str(path)!r} is not finished: resume it first, by so.fit(..., out=, resume=True)."
            )
        description.check_stages(folder.promised())
        own = cls(folder, description, None if model is None else named_function(model, folder), data)
        if model is not None:
            own.built  # noqa: B018  # weights that do not fit are refused here
        return own

    @cached_property
    def setup(self) -> TrainingSetup:
        """The untrained model, with the parts of the training that are code of the user's own."""
        if self.make is not None:
            return self.make()
        if self.description.is_hidden and not self.description.is_own("hidden_state"):
            return TrainingSetup(self._hidden_model())
        raise UsageError(
            f"{str(self.folder.path)!r} was written by so.fit with a model of your own "
            f"({self.description.model_class}): pass --model MODULE:FUNCTION, a function that returns the untrained "
            "module."
        )

    @property
    def has_model(self) -> bool:
        """Whether the model can be made."""
        return self.make is not None or (self.description.is_hidden and not self.description.is_own("hidden_state"))

    @cached_property
    def built(self) -> Built:
        """The model with the weights that were released."""
        module = deepcopy(self.setup.model)
        load_weights(module, self.folder, of=self.description.model_class)
        return Built(module.eval(), None)

    @property
    def module(self) -> nn.Module:
        return self.built.module

    @property
    def model_name(self) -> str:
        return self.description.model_name

    @property
    def data_name(self) -> str:
        return self.facts.name

    @cached_property
    def facts(self) -> Facts:
        """Public facts of the data: shapes from the folder, classes from the model, names from a TOML file."""
        beside = self._facts_beside_data()
        classes = self._num_classes() if self.has_model else None
        name = "rows of your own" if self.data is None else Path(self.data).stem or self.data
        facts = Facts(name, self.description.inputs[0].shape, classes, self.description.input_range)
        if beside is None:
            return facts
        names = beside.class_names if beside.num_classes == classes else ()
        return replace(facts, class_names=names, input_range=facts.input_range or beside.input_range)

    @property
    def has_probabilities(self) -> bool:
        """Whether outputs are logits of classes: the loss is torch's cross-entropy."""
        given = self.setup.loss if self.make is not None else None
        if given is not None:
            return name_of_loss(given) in WITH_PROBABILITIES
        return self.description.text.get("loss") in WITH_PROBABILITIES

    def network_inputs(self, raw: Tensor) -> Tensor:
        """Rows as the model takes them, which they are already."""
        return raw

    def fresh_network(self, seed: int) -> nn.Module:
        """Another untrained model, with the global generators of torch at `seed`."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return deepcopy(self.setup.model) if self.make is None else self.make().model

    # Predictions

    def predict(self, source: str) -> list[dict[str, object]]:
        """One row of answers for each row of the source.

        With classes: the class, and the probability of each (a score if the loss is not cross-entropy). Otherwise the
        numbers of the output. A row with a number that is not finite has an empty answer.
        """
        rows = self.new_rows(source)
        outputs = self.outputs_of(rows.inputs)
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
        """Outputs of a model with one input."""
        return self.outputs_of((inputs,))

    def outputs_of(self, inputs: Sequence[Tensor]) -> Tensor:
        """Outputs of the model for each row; NaN if the row has a value that is not finite."""
        module, device = self.module, device_of(self.module)
        usable, batches = ModelRows(tuple(inputs)).usable, list[Tensor]()
        with evaluating(module), transformers_settings(module), torch.inference_mode():
            for rows in torch.split(torch.arange(len(usable)), _ROWS_AT_A_TIME):
                batch = [torch.where(per_row(usable[rows], x[rows]), x[rows], 0).to(x.dtype) for x in inputs]
                try:
                    on_device = [x.to(device) for x in batch]
                    named = dict(zip(self.description.names, on_device, strict=False))
                    outputs = logits_of(module(**named) if named else module(*on_device))
                except (RuntimeError, IndexError, TypeError, ValueError) as error:
                    raise UsageError(
                        f"the {self.model_name} fails on these rows: {type(error).__name__}: {one_line(error)}"
                    ) from error
                if not isinstance(outputs, Tensor) or len(outputs) != len(rows):
                    raise UsageError(
                        f"the {self.model_name} must return a tensor with one row of outputs for each row."
                    )
                outputs = outputs.cpu().float() if outputs.dtype != torch.float64 else outputs.cpu()
                batches.append(torch.where(per_row(usable[rows], outputs), outputs, torch.nan))
        return torch.cat(batches)

    def _numbers(self, outputs: Tensor) -> list[dict[str, object]]:
        flat = outputs.double().reshape(len(outputs), -1)
        if flat.shape[1] == 1:
            return [{"prediction": number} for number in flat[:, 0].tolist()]
        if flat.shape[1] > _MOST_NUMBERS:
            raise UsageError(
                f"each row has {flat.shape[1]} outputs, more than a table holds ({_MOST_NUMBERS}): load "
                "model.safetensors in Python, and apply the model there."
            )
        return [{f"output[{place}]": number for place, number in enumerate(row)} for row in flat.tolist()]

    # Rows

    def new_rows(self, source: str) -> ModelRows:
        """Inputs to predict for: arrays in .npz, a folder of images, or the public test rows of a standard dataset."""
        path = Path(source)
        if source in NAMES:
            return ModelRows(self._inputs(self._standard_test(source).inputs, source))
        if path.suffix.lower() == ".npz":
            return ModelRows(self._of_arrays(path, read_arrays(path), ""))
        if is_table(path):
            raise UsageError(
                f"{source!r} is a table, and how its rows were prepared for your model is not known: save them as an "
                "array named inputs in a .npz file."
            )
        if os.path.isdir(path):
            return ModelRows(self._inputs(load_pictures(path, self._one_input().shape), source))
        raise DataError(f"{source!r:.200} is neither a dataset, nor a readable .npz, nor a folder of images.")

    def public_rows(self) -> ModelRows:
        """The rows of --data that are declared public by passing them: test rows where the source has some."""
        source = self._source("public rows")
        path = Path(source)
        if source in NAMES:
            return self._split(self._standard_test(source), source)
        if path.suffix.lower() == ".npz":
            arrays = read_arrays(path)
            return self._rows_of(path, arrays, "test_" if any(name.startswith("test_") for name in arrays) else "")
        if os.path.isdir(path):
            found = load_folder(path)
            return self._split(found.test or found.train, source)
        raise DataError(f"{source!r:.200} is neither a dataset, nor a readable .npz, nor a folder of images.")

    def training_rows(self) -> tuple[ModelRows, ModelRows | None]:
        """The private rows of --data that the run was trained on, and public ones of the same kind if there are any."""
        source = self._source("the rows that it was trained on")
        path = Path(source)
        if path.suffix.lower() == ".npz":
            arrays = read_arrays(path)
            has_test = any(name.startswith("test_") for name in arrays)
            return self._rows_of(path, arrays, ""), self._rows_of(path, arrays, "test_") if has_test else None
        if source in NAMES or os.path.isdir(path):
            found = load(source)
            return self._split(found.train, source), None if found.test is None else self._split(found.test, source)
        raise DataError(f"{source!r:.200} is neither a dataset, nor a readable .npz, nor a folder of images.")

    def judged_rows(self) -> tuple[Split, Tensor]:
        """Public rows that can be read and have a label, as one tensor of inputs, and the model's outputs on them."""
        self._one_input()
        rows = self.public_rows()
        rows = rows.take(rows.usable)
        if not len(rows.inputs[0]) or rows.target is None:
            raise DataError("no test row can be judged.")
        return Split(rows.inputs[0], rows.target), self.outputs(rows.inputs[0])

    def plan(self) -> Plan:
        """The plan that was carried out."""
        setup = self.setup if self.make is not None else None
        return self.description.plan(self.folder.promised(), setup)

    @property
    def has_public_size(self) -> bool:
        """Whether the number of examples is public, so that privacy.json has it. Under add-or-remove it is secret."""
        return self.folder.privacy().get("adjacency") != str(Adjacency.ADD_OR_REMOVE)

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        """An optimizer of `model`, as the run had."""
        return self.description.optimizer(model, self.setup)

    def records(self, rows: ModelRows) -> Records:
        """Rows as the training took them."""
        if rows.target is None:
            raise DataError("rows to train on need a target.")
        return self.description.records_of((*rows.inputs, rows.target), rows.owners)

    def train(self, model: nn.Module, records: Records, plan: Plan, key: Key, on_step: OnStep = _silent) -> None:
        """Trains `model` in place as the run was trained, by `plan` on `records`. Nothing is written or promised."""
        run = PrivateRun(plan, model, records, key=key)
        setup = self.setup
        training = Training(
            model,
            self.optimizer(model),
            run,
            divisor=self.description.divisor,
            schedule=self.description.stage("schedule", setup),
            averaging=self.description.stage("averaging", setup),
        )
        take_steps(training, after_step=lambda: on_step(run.steps, len(run)))
        training.end()

    def _source(self, what: str) -> str:
        if self.data is None:
            raise UsageError(f"{str(self.folder.path)!r} does not say where its rows are: pass --data FILE, {what}.")
        return self.data

    def _standard_test(self, name: str) -> Split:
        test = load(name).test
        if test is None:
            raise UsageError(f"{name} has no public test rows: give a file.")
        return test

    def _one_input(self) -> RowShape:
        if len(self.description.inputs) > 1:
            raise UsageError(f"the {self.model_name} takes {len(self.description.inputs)} inputs, and this needs one.")
        return self.description.inputs[0]

    def _split(self, split: Split, source: str) -> ModelRows:
        return ModelRows(self._inputs(split.inputs, source), self._target(split.target, source), split.owners)

    def _inputs(self, inputs: Tensor, source: str) -> tuple[Tensor, ...]:
        return (self._as_declared(inputs, self._one_input(), f"{source!r}"),)

    def _target(self, target: Tensor, source: str) -> Tensor:
        return _typed(target, self.description.target, f"{source!r}: target")

    def _rows_of(self, path: Path, arrays: dict[str, NDArray[Any]], prefix: str) -> ModelRows:
        shown = repr(str(path))
        inputs = self._of_arrays(path, arrays, prefix)
        if f"{prefix}target" not in arrays:
            raise DataError(f"{shown} must hold an array named {prefix}target.")
        target = _typed(_tensor(arrays[f"{prefix}target"]), self.description.target, f"{shown}: {prefix}target")
        owners = _tensor(arrays["owners"]) if "owners" in arrays and not prefix else None
        lengths = {len(x) for x in (*inputs, target, *(() if owners is None else (owners,)))}
        if len(lengths) > 1:
            raise DataError(f"{shown}: the arrays differ in length.")
        return ModelRows(inputs, target, owners)

    def _of_arrays(self, path: Path, arrays: dict[str, NDArray[Any]], prefix: str) -> tuple[Tensor, ...]:
        """`inputs`, or `inputs_1`, `inputs_2`, ... of a model with several; by their names if inputs have names."""
        declared, shown = self.description.inputs, repr(str(path))
        several = self.description.names or tuple(f"inputs_{place}" for place in range(1, len(declared) + 1))
        names = [f"{prefix}{name}" for name in (several if self.description.names or len(declared) > 1 else ["inputs"])]
        for name in names:
            if name not in arrays:
                raise DataError(f"{shown} must hold an array named {name}.")
        found = tuple(
            self._as_declared(_tensor(arrays[name]), row, f"{shown}: {name}")
            for name, row in zip(names, declared, strict=True)
        )
        if not len(found[0]):
            raise DataError(f"{shown} has no rows.")
        if len({len(x) for x in found}) > 1:
            raise DataError(f"{shown}: the arrays differ in length.")
        return found

    def _as_declared(self, inputs: Tensor, declared: RowShape, shown: str) -> Tensor:
        inputs = _typed(inputs, declared, shown)
        bounds = self.description.input_range
        return inputs if bounds is None or not inputs.is_floating_point() else inputs.clamp(*bounds)

    def _facts_beside_data(self) -> Facts | None:
        """Public names and ranges, from the TOML file beside a .npz file where there is one."""
        if self.data is None or Path(self.data).suffix.lower() != ".npz":
            return None
        path = Path(self.data).with_suffix(".toml")
        return ArrayFacts.read(path).facts if path.exists() else None

    def _num_classes(self) -> int | None:
        """How many classes the outputs tell apart, seen on synthetic rows. None where the target is no single label."""
        if self.description.target.shape or self.description.target.dtype.is_floating_point:
            return None
        outputs = self.outputs_of(self.description.records(2).template(2).inputs)
        return outputs.shape[1] if outputs.ndim == 2 and outputs.shape[1] > 1 else None

    def _hidden_model(self) -> nn.Module:
        """The convex model of a hidden-state plan, which the folder describes."""
        outputs = self.description.stages.get("outputs")
        if isinstance(outputs, bool) or not isinstance(outputs, int) or not 1 <= outputs <= 1 << 20:
            raise StateError(f"training.json in {str(self.folder.path)!r} is damaged: outputs is {outputs!r:.80}.")
        shape = self.description.inputs[0].shape
        built: nn.Module = self.description.stage("hidden_state").model.build(int(np.prod(shape)), outputs)
        return built


def _tensor(array: NDArray[Any]) -> Tensor:
    if array.dtype.kind == "u" and array.dtype.itemsize > 1:
        array = array.astype(np.int64)
    return torch.from_numpy(np.array(array, order="C"))


def _typed(tensor: Tensor, declared: RowShape, shown: str) -> Tensor:
    found = tuple(tensor.shape[1:])
    if tensor.ndim == 0 or found != declared.shape:
        raise DataError(f"{shown} has rows of shape {found}, the model takes {declared.shape}.")
    if tensor.is_floating_point() and not declared.dtype.is_floating_point:
        raise DataError(f"{shown} must hold whole numbers, found {str(tensor.dtype).removeprefix('torch.')}.")
    return tensor.to(declared.dtype)


def class_predictions(outputs: Tensor, class_names: Sequence[str], has_probabilities: bool) -> list[dict[str, object]]:
    """The predicted class of each row, with the probability of each class, or its score if outputs are not logits."""
    names = tuple(class_names) or tuple(str(label) for label in range(outputs.shape[1]))
    kind, of_classes = "score", outputs.double()
    if has_probabilities:
        kind, of_classes = "p", of_classes.softmax(dim=1)
    columns = [f"{kind}({name})" for name in names]
    predicted = (names[label] for label in of_classes.argmax(dim=1).tolist())
    rows = (dict(zip(columns, row, strict=True)) for row in of_classes.tolist())
    return [{"prediction": name, **row} for name, row in zip(predicted, rows, strict=True)]


def per_row(mask: Tensor, rows: Tensor) -> Tensor:
    """A mask of rows, in a shape that broadcasts over the other axes of `rows`."""
    return mask.reshape(-1, *[1] * (rows.ndim - 1))
