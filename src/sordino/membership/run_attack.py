"""A finished run under attack by somebody who has every row, its recipe and its first weights.

References are trained by the recipe of the run itself, the private way, on the rows of the run of which some suspects
were exchanged: LiRA then compares the model with what such a training gives with a row and without. References without
noise would be sure of all that they learnt, and the model, which is not, would look like that of a stranger.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from sordino import validate
from sordino.accounting import PrivacyCurve
from sordino.accounting.attack import best_true_positive_rate
from sordino.data import Split
from sordino.diagnostics import Exposed
from sordino.errors import DataError, Interrupted, UsageError
from sordino.membership.attack import attack
from sordino.membership.roc import Auc, Curve, Detection, Roc
from sordino.membership.suspects import Suspects
from sordino.recipes.network_inputs import network_inputs
from sordino.recipes.networks import build
from sordino.recipes.prepared import Prepared, prepare
from sordino.records import as_records
from sordino.report.evidence import Evidence
from sordino.report.inference import TradeOff
from sordino.store import RunFolder

NOT_PRIVATE = "not private: computed from the rows that the model learnt from, to be kept inside"
RATES = (0.001, 0.01)
_FEWEST = 20
_GRID, _DECADES = 10_000, 4


@dataclass(frozen=True)
class Attacked:
    """One attack: what it found at each rate of false alarms, and over all of them."""

    name: str
    detections: tuple[Detection, ...]
    auc: Auc
    curve: Curve = field(repr=False)

    @classmethod
    def of(cls, name: str, roc: Roc, rates: Sequence[float]) -> Attacked:
        return cls(name, tuple(roc.at(rate) for rate in rates), roc.auc(), roc.curve())


@dataclass(frozen=True)
class Allowed:
    """What the guarantee leaves possible to the best attack: at each rate of false alarms, and over all of them.

    The bound holds for every row by itself, over the randomness of training. It is concave, so it holds for the means
    over rows too, if those who were absent are accused as often as members would be who were left out.
    """

    detections: tuple[float, ...]
    auc: float
    curve: Curve = field(repr=False)

    @classmethod
    def of(cls, privacy: PrivacyCurve, rates: Sequence[float]) -> Allowed:
        trade_off, grid = TradeOff.of(privacy), np.linspace(0.0, 1.0, _GRID + 1)
        alarms = np.logspace(-_DECADES, 0, 40 * _DECADES)
        return cls(
            tuple(min(1.0, best_true_positive_rate(privacy, rate)) for rate in rates),
            float(trade_off.detected(grid)[1:].mean()),  # it rises, so the right end of each piece is above it
            Curve(tuple(alarms.tolist()), tuple(trade_off.detected(alarms).tolist())),
        )


@dataclass(frozen=True)
class MembershipAttack(Exposed):
    """What attacks found in a run, and what its guarantee leaves possible to any attack. Not private."""

    title: str
    members: int
    others: int
    population: int
    references: int
    trained: str
    rates: tuple[float, ...]
    guarantee: str
    allowed: Allowed
    attacks: tuple[Attacked, ...]
    warning: str = field(default=NOT_PRIVATE, init=False)


def attack_run(
    run: Path,
    *,
    data: str | None = None,
    references: int = 4,
    rows: int = 1000,
    epochs: float | None = None,
    rates: Sequence[float] = RATES,
    seed: int = 0,
    progress: bool = True,
) -> MembershipAttack:
    """Attacks so many `rows` of each kind at most. Fewer `epochs` than the run had make references cheaper, and worse.

    `data` is where the rows lie now, if that is not what the recipe says.
    """
    validate.count(at_least=_FEWEST, rows=rows)
    for rate in rates:
        validate.between(0, 1, low_open=True, high_open=True, false_alarm_rate=rate)
    evidence = Evidence.read(run)
    saved = evidence.saved
    if saved.facts.num_classes is None:
        raise UsageError(f"the attacks are about classes, and the target of {saved.facts.name!r} is a number.")
    recipe = saved.recipe if data is None else saved.recipe.changed(data=data)
    prepared = prepare(recipe, progress=progress)
    if prepared.data.train.owners is not None:
        raise UsageError("the attacks are about single examples, and the unit of this run is a user.")
    if prepared.data.facts.input_shape != saved.facts.input_shape:
        raise DataError(
            f"the rows have shape {prepared.data.facts.input_shape}, got a model for {saved.facts.input_shape}."
        )
    lineup = _Lineup.of(prepared, rows, seed)
    shorter = prepared if epochs is None else _with_epochs(prepared, epochs)
    found = attack(
        saved.built.module,
        lineup.suspects,
        lambda chosen, place: _reference(shorter, lineup, chosen, place, references, seed, progress),
        references=references,
        seed=seed,
    )
    members = int(lineup.suspects.is_member.sum())
    return MembershipAttack(
        title=f"{recipe.model} on {recipe.data}",
        members=members,
        others=len(lineup.suspects) - members,
        population=len(lineup.suspects.population_target),
        references=references,
        trained=_words(shorter),
        rates=tuple(rates),
        guarantee=str(evidence.guarantee),
        allowed=Allowed.of(evidence.curve, rates),
        attacks=tuple(Attacked.of(name, roc, rates) for name, roc in found.items()),
    )


@dataclass(frozen=True)
class _Lineup:
    """The suspects, and the private rows that every reference learns from beside its half of them."""

    suspects: Suspects
    rest_inputs: Tensor
    rest_target: Tensor

    @classmethod
    def of(cls, prepared: Prepared, rows: int, seed: int) -> _Lineup:
        test = prepared.data.test
        if test is None:
            raise DataError("an attack compares members with public rows of the same kind, and there are none.")
        private, public = _rows(prepared, prepared.data.train), _rows(prepared, test)
        generator = np.random.default_rng(seed)
        some_public = generator.permutation(public.usable)
        number = min(rows, len(private.usable), len(some_public) // 2)
        if number < _FEWEST:
            raise DataError(
                f"an attack needs at least {_FEWEST} members and {2 * _FEWEST} public rows that can be read."
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


def _rows(prepared: Prepared, split: Split) -> _Rows:
    """As the network is given them. Rows that cannot be read, or have no label, cannot be accused."""
    inputs = network_inputs(prepared.built, prepared.data.facts, split.inputs)
    usable = inputs.flatten(1).isfinite().all(dim=1) & (split.target >= 0)
    return _Rows(inputs, split.target, usable.nonzero()[:, 0].numpy())


def _with_epochs(prepared: Prepared, epochs: float) -> Prepared:
    recipe = prepared.recipe.changed(epochs=epochs)
    return replace(prepared, recipe=recipe, settings=replace(prepared.settings, epochs=epochs))


def _reference(
    prepared: Prepared,
    lineup: _Lineup,
    chosen: NDArray[np.bool_],
    place: int,
    references: int,
    seed: int,
    progress: bool,
) -> nn.Module:
    """Trained by the recipe on as many rows as the run had, from the same first weights, with noise of its own."""
    some = torch.from_numpy(np.flatnonzero(chosen))
    inputs = torch.cat([lineup.rest_inputs, lineup.suspects.inputs[some]])
    target = torch.cat([lineup.rest_target, lineup.suspects.target[some]])
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
            own.recipe.way.train(own, kept, **options, on_row=lambda row: None)
        except Interrupted:
            raise Interrupted(f"stopped in reference {place + 1} of {references}: nothing was written.") from None
        built.module.load_state_dict(kept.model(like=built.module.state_dict()))
    return built.module


def _own_seed(seed: int, place: int) -> int:
    """Apart from that of the run, which is not known here, and of the other references."""
    return int(np.random.SeedSequence([seed, place]).generate_state(1, np.uint64)[0] >> np.uint64(1))


def _words(prepared: Prepared) -> str:
    recipe, settings = prepared.recipe, prepared.settings
    length = f"{recipe.steps} steps" if recipe.steps is not None else f"{settings.epochs:g} epochs"
    return f"by {recipe.method} with the settings of the run, {length} to the same epsilon and delta"
