"""A finished run under attack by somebody who has every row, its recipe and its first weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from sordino._input import validate
from sordino.accounting import PrivacyCurve
from sordino.accounting.attack import best_true_positive_rate
from sordino.attacks.membership.attack import attack
from sordino.attacks.membership.references import Lineup, OwnReferences, train_reference
from sordino.attacks.membership.roc import Auc, Curve, Detection, Roc
from sordino.attacks.membership.suspects import FEWEST, check_references
from sordino.errors import DataError, UsageError
from sordino.recipes.own_model import OwnRun, is_own_run
from sordino.recipes.prepared import Prepared, prepare
from sordino.report.evidence import Evidence
from sordino.report.inference import TradeOff
from sordino.training.not_private import Exposed
from sordino.training.run_folder import RunFolder

NOT_PRIVATE = "not private: computed from the rows that the model learnt from, to be kept inside"
RATES = (0.001, 0.01)
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
    model: str | None = None,
    references: int = 4,
    rows: int = 1000,
    epochs: float | None = None,
    rates: Sequence[float] = RATES,
    seed: int = 0,
    progress: bool = True,
) -> MembershipAttack:
    """Attacks so many `rows` of each kind at most. Fewer `epochs` than the run had make references cheaper, and worse.

    `data` is where the rows lie now, if that is not what the recipe says. A run of a model of one's own needs it, with
    `model` (MODULE:FUNCTION).
    """
    check_references(references)
    validate.count(at_least=FEWEST, rows=rows)
    for rate in rates:
        validate.between(0, 1, low_open=True, high_open=True, false_alarm_rate=rate)
    own_data = data if is_own_run(RunFolder(run)) else None
    evidence = Evidence.read(run, model=model, data=own_data)
    saved = evidence.saved
    if isinstance(saved, OwnRun):
        return _attack_own(evidence, saved, references, rows, epochs, rates, seed)
    if saved.facts.num_classes is None:
        raise UsageError(f"the attacks are about classes, and the target of {saved.facts.name!r} is a number.")
    recipe = saved.recipe if data is None else saved.recipe.changed(data=data)
    prepared = prepare(recipe if epochs is None else recipe.changed(epochs=epochs), progress=progress)
    if prepared.data.train.owners is not None:
        raise UsageError("the attacks are about single examples, and the unit of this run is a user.")
    found_shape, expected = prepared.data.facts.input_shape, saved.facts.input_shape
    if found_shape != expected:
        raise DataError(f"the rows have shape {found_shape}, the model takes {expected}.")
    lineup = Lineup.of(prepared, rows, seed)
    found = attack(
        saved.built.module,
        lineup.suspects,
        lambda chosen, place: train_reference(prepared, lineup, chosen, place, references, seed, progress),
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
        trained=_words(prepared),
        rates=tuple(rates),
        guarantee=str(evidence.guarantee),
        allowed=Allowed.of(evidence.curve, rates),
        attacks=tuple(Attacked.of(name, roc, rates) for name, roc in found.items()),
    )


def _attack_own(
    evidence: Evidence,
    own: OwnRun,
    references: int,
    rows: int,
    epochs: float | None,
    rates: Sequence[float],
    seed: int,
) -> MembershipAttack:
    module = own.built.module
    lineup = Lineup.of_own(own, rows, seed)
    if own.facts.num_classes is None:
        raise UsageError(f"the attacks are about classes, and the {own.model_name} has no outputs for several.")
    trainer = OwnReferences(own, lineup, evidence.guarantee.delta, seed, epochs)
    found = attack(module, lineup.suspects, trainer.train, references=references, seed=seed)
    members = int(lineup.suspects.is_member.sum())
    return MembershipAttack(
        title=f"{own.model_name} on {own.data_name}",
        members=members,
        others=len(lineup.suspects) - members,
        population=len(lineup.suspects.population_target),
        references=references,
        trained=trainer.in_words,
        rates=tuple(rates),
        guarantee=str(evidence.guarantee),
        allowed=Allowed.of(evidence.curve, rates),
        attacks=tuple(Attacked.of(name, roc, rates) for name, roc in found.items()),
    )


def _words(prepared: Prepared) -> str:
    recipe, settings = prepared.recipe, prepared.settings
    length = f"{recipe.steps} steps" if recipe.steps is not None else f"{settings.epochs:g} epochs"
    return f"by {recipe.method} with the settings of the run, {length} to the same epsilon and delta"
