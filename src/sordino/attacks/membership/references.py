"""Reference models of a membership attack, and the rows that are attacked.

The attacked rows (suspects) are members of the training data and other rows of the same distribution. A reference model
is trained by the run's own recipe, so with privacy, on the run's data with a random half of the suspects in place of
the attacked members. The likelihood ratio needs this: references without noise would be confident about everything
they learned, and a private model, which is not, would look like one that never saw the example.
"""

from __future__ import annotations

import math
import tempfile
from copy import deepcopy
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from sordino._input import validate
from sordino.accounting import Unit
from sordino.convex.hidden_run import fit_hidden_state
from sordino.data import Split
from sordino.errors import DataError, Interrupted, UsageError
from sordino.kernel.calibration import calibrate
from sordino.kernel.randomness import Key
from sordino.kernel.records import Records, as_records
from sordino.kernel.sampling import steps_per_epoch
from sordino.kernel.step import Plan
from sordino.recipes.methods import method_of
from sordino.recipes.networks import build, network_inputs
from sordino.recipes.own_model import ModelRows, OwnRun
from sordino.recipes.prepared import PreparedRecipe
from sordino.training.run_folder import RunFolder

FEWEST = 20  # the least number of members, and of other rows
_MOST_REFERENCES = 256


@dataclass(frozen=True)
class Suspects:
    """Attacked rows, and a population of further rows that are neither members nor suspects, as network inputs.

    Assumption: members and others come from one distribution. Otherwise an attack may tell the distributions apart,
    and exceed the bound of the guarantee.
    """

    inputs: Tensor = field(repr=False)
    target: Tensor = field(repr=False)
    is_member: NDArray[np.bool_] = field(repr=False)
    population_inputs: Tensor = field(repr=False)
    population_target: Tensor = field(repr=False)

    def __post_init__(self) -> None:
        members = int(self.is_member.sum())
        if not 0 < members < len(self.is_member):
            counts = f"{members} members and {len(self.is_member) - members} others"
            raise UsageError(f"an attack needs rows of both kinds, members and others, got {counts}.")
        if not len(self.population_target):
            raise UsageError("an attack needs at least one row of the population, got none.")

    def __len__(self) -> int:
        return len(self.target)


def check_references(references: int) -> None:
    validate.count(at_least=2, at_most=_MOST_REFERENCES, references=references)
    if references % 2:
        raise UsageError(
            f"references must be an even number, because they are trained on complementary halves: got {references}."
        )


def halves(rows: int, references: int, *, seed: int) -> NDArray[np.bool_]:
    """The mask of rows that each reference is trained on: a random half, and the other half for the next reference.

    So exactly half of the references are trained on each row, however few they are.

    >>> halves(4, 2, seed=0).sum(axis=0)
    array([1, 1, 1, 1])
    """
    check_references(references)
    validate.count(at_least=2, rows=rows)
    generator = np.random.default_rng(seed)
    chosen = np.zeros((references, rows), dtype=bool)
    for place in range(0, references, 2):
        chosen[place, generator.permutation(rows)[: rows // 2]] = True
        chosen[place + 1] = ~chosen[place]
    return chosen


@dataclass(frozen=True)
class Lineup:
    """The suspects, and the other private rows, on which every reference is trained too."""

    suspects: Suspects
    rest_inputs: Tensor
    rest_target: Tensor

    def __len__(self) -> int:
        """How many rows each training has."""
        return len(self.rest_target) + int(self.suspects.is_member.sum())

    @classmethod
    def of(cls, prepared: PreparedRecipe, rows: int, seed: int) -> Lineup:
        test = prepared.data.test
        if test is None:
            raise DataError(_NO_PUBLIC_ROWS)
        return cls.drawn(_rows(prepared, prepared.data.train), _rows(prepared, test), rows, seed)

    @classmethod
    def of_own(cls, own: OwnRun, rows: int, seed: int) -> Lineup:
        """Draws from the rows that were passed for a run of the user's own model."""
        train, test = own.training_rows()
        if train.owners is not None or own.description.unit is not Unit.EXAMPLE:
            raise UsageError("the attacks are about single examples, and the unit of this run is a user.")
        if test is None:
            raise DataError(f"{_NO_PUBLIC_ROWS[:-1]}: pass a file with test_inputs and test_target too.")
        examples, promised = len(train.inputs[0]), own.folder.privacy().get("examples")
        if own.has_public_size and examples != promised:
            raise DataError(
                f"the run in {str(own.folder.path)!r} was trained on {promised} examples, {own.data!r} has {examples}: "
                "pass the rows that it was trained on."
            )
        return cls.drawn(_rows_of_own(train), _rows_of_own(test), rows, seed)

    @classmethod
    def drawn(cls, private: _Rows, public: _Rows, rows: int, seed: int) -> Lineup:
        """Draws members and public rows at random."""
        generator = np.random.default_rng(seed)
        some_public = generator.permutation(public.usable)
        number = min(rows, len(private.usable), len(some_public) // 2)
        if number < FEWEST:
            raise DataError(
                f"an attack needs at least {FEWEST} readable members and {2 * FEWEST} readable public rows, "
                "and the dataset has fewer."
            )
        members = generator.permutation(private.usable)[:number]
        others, population = some_public[:number], some_public[number:]
        rest = np.setdiff1d(np.arange(len(private.target)), members)
        suspects = Suspects(
            torch.cat([private.inputs[members], public.inputs[others]]),
            torch.cat([private.target[members], public.target[others]]),
            np.arange(2 * number) < number,
            public.inputs[population],
            public.target[population],
        )
        return cls(suspects, private.inputs[rest], private.target[rest])


_NO_PUBLIC_ROWS = "an attack compares members with public rows of the same kind, and there are none."


@dataclass(frozen=True)
class _Rows:
    inputs: Tensor
    target: Tensor
    usable: NDArray[np.int64]


def _rows(prepared: PreparedRecipe, split: Split) -> _Rows:
    """The split as network inputs. Rows that cannot be read or have no label are not usable as suspects."""
    inputs = network_inputs(prepared.built, prepared.data.facts, split.inputs)
    usable = inputs.flatten(1).isfinite().all(dim=1) & (split.target >= 0)
    return _Rows(inputs, split.target, usable.nonzero()[:, 0].numpy())


def _rows_of_own(rows: ModelRows) -> _Rows:
    if len(rows.inputs) > 1 or rows.target is None:
        raise UsageError(f"the attacks need a model of one input, got {len(rows.inputs)}.")
    return _Rows(rows.inputs[0], rows.target, rows.usable.nonzero()[:, 0].numpy())


@dataclass(frozen=True)
class OwnReferences:
    """References for a run of a model of one's own: trained by its plan, from weights that the user's function gave."""

    own: OwnRun
    lineup: Lineup
    delta: float
    seed: int
    epochs: float | None = None

    def train(self, chosen: NDArray[np.bool_], place: int) -> nn.Module:
        """The reference number `place`, on as many rows as the run had, with noise of its own."""
        some = torch.from_numpy(np.flatnonzero(chosen))
        inputs = torch.cat([self.lineup.rest_inputs, self.lineup.suspects.inputs[some]])
        target = torch.cat([self.lineup.rest_target, self.lineup.suspects.target[some]])
        records, own_seed = self.own.records(ModelRows((inputs,), target)), _own_seed(self.seed, place)
        if self.own.description.is_hidden:
            return self._train_hidden(records, own_seed)
        model = deepcopy(self.own.setup.model)
        self.own.train(model, records, self.plan, Key.from_seed(own_seed))
        return model

    @cached_property
    def plan(self) -> Plan:
        """The plan of the run, or one of fewer epochs with noise for the same epsilon and delta."""
        plan, epochs = self.own.plan(), self.epochs
        if epochs is None:
            return plan
        sampler: Any = plan.sampler
        names = {each.name for each in fields(sampler)}
        if "epochs" in names:
            shorter = replace(sampler, epochs=math.ceil(epochs))
        else:
            per_epoch = steps_per_epoch(len(self.lineup), sampler.expected_batch_size(len(self.lineup)))
            shorter = replace(sampler, steps=max(1, round(epochs * per_epoch)))
        epsilon = plan.guarantee(delta=self.delta).epsilon
        return calibrate(replace(plan, sampler=shorter), epsilon=epsilon, delta=self.delta, allow_weak=True)

    def _train_hidden(self, records: Records, seed: int) -> nn.Module:
        if self.epochs is not None:
            raise UsageError("epochs must be left out with a hidden-state run: its plan fixes them.")
        plan, outputs = self.own.description.stage("hidden_state"), self.own.facts.num_classes or 1
        plan = replace(plan, shown_after=())
        return fit_hidden_state(plan, records, outputs=outputs, delta=self.delta, seed=seed, progress=False).model

    @property
    def in_words(self) -> str:
        """How references were trained, for the page."""
        length = "as many steps" if self.epochs is None else f"{self.epochs:g} epochs to the same epsilon and delta"
        return f"by the plan of the run, {length}, from first weights that the function of --model gave"


def train_reference(
    prepared: PreparedRecipe,
    lineup: Lineup,
    chosen: NDArray[np.bool_],
    place: int,
    references: int,
    seed: int,
    progress: bool,
) -> nn.Module:
    """Trains one reference by the recipe, with the run's number of examples and first weights, and noise of its own."""
    learned = torch.from_numpy(np.flatnonzero(chosen))
    inputs = torch.cat([lineup.rest_inputs, lineup.suspects.inputs[learned]])
    target = torch.cat([lineup.rest_target, lineup.suspects.target[learned]])
    facts, settings = prepared.data.facts, prepared.settings
    built = build(prepared.recipe.model, facts, seed=settings.initial_seed, gates=settings.gates)
    own = replace(
        prepared,
        recipe=prepared.recipe.changed(seed=_own_seed(seed, place)),
        data=replace(prepared.data, test=None),
        built=built,
        records=as_records((inputs, target)),
    )
    with tempfile.TemporaryDirectory() as folder:
        kept = RunFolder(Path(folder) / "reference")
        options = {"resume": False, "draw_again": False, "progress": progress}
        try:
            method_of(own.recipe).train(own, kept, **options, callbacks=())
        except Interrupted:
            raise Interrupted(f"stopped in reference model {place + 1} of {references}; nothing was written.") from None
        built.module.load_state_dict(kept.model(like=built.module.state_dict()))
    return built.module


def _own_seed(seed: int, place: int) -> int:
    """A seed that differs from those of the other references and, almost surely, from that of the run."""
    return int(np.random.SeedSequence([seed, place]).generate_state(1, np.uint64)[0] >> np.uint64(1))
