"""Reference models of a membership attack, and the rows that are attacked.

The attacked rows (suspects) are members of the training data and other rows of the same distribution. A reference model
is trained by the run's own recipe, so with privacy, on the run's data with a random half of the suspects in place of
the attacked members. The likelihood ratio needs this: references without noise would be confident about everything
they learned, and a private model, which is not, would look like one that never saw the example.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from sordino._input import validate
from sordino.data import Split
from sordino.errors import DataError, Interrupted, UsageError
from sordino.kernel.records import as_records
from sordino.recipes.methods import method_of
from sordino.recipes.networks import build, network_inputs
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

    @classmethod
    def of(cls, prepared: PreparedRecipe, rows: int, seed: int) -> Lineup:
        test = prepared.data.test
        if test is None:
            raise DataError("an attack needs public test rows to compare members with, and the dataset has none.")
        private, public = _rows(prepared, prepared.data.train), _rows(prepared, test)
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
