"""Membership inference attacks (LiRA and RMIA) on a finished run, and their report.

Both attacks on one model, by references that are trained for the purpose.

A finished run under attack by somebody who has every row, its recipe and its first weights.

An attack on members, written down: a page that says of itself it is inner, and its numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from matplotlib.axes import Axes
from numpy.typing import NDArray
from torch import Tensor, nn

from sordino._input import validate
from sordino._input.files import write_atomically
from sordino.accounting import PrivacyCurve
from sordino.accounting.curves import best_true_positive_rate
from sordino.attacks.membership import lira
from sordino.attacks.membership.lira import likelihoods_of_labels, logits_of_labels, outputs_of
from sordino.attacks.membership.references import FEWEST, Lineup, Suspects, check_references, halves, train_reference
from sordino.attacks.membership.rmia import Rmia
from sordino.attacks.membership.roc import Auc, Detection, Roc, RocCurve
from sordino.errors import DataError, UsageError
from sordino.recipes.prepared import PreparedRecipe, prepare
from sordino.report.evidence import Evidence
from sordino.report.markup import (
    ACCENT,
    DASHES,
    FAINT,
    INK,
    Html,
    element,
    gallery,
    in_percent,
    joined,
    paragraphs,
    picture,
    table,
)
from sordino.report.promise import TradeOff
from sordino.report.sections import Section, page
from sordino.training.not_private import ExposedResult

Train = Callable[[NDArray[np.bool_], int], nn.Module]


def attack(
    model: nn.Module, suspects: Suspects, train: Train, *, references: int = 4, rmia: Rmia | None = None, seed: int = 0
) -> dict[str, Roc]:
    """How well each attack tells members of `model` from others.

    `train(chosen, place)` gives the reference number `place`, trained on the suspects that are chosen. It is strongest
    where it trains as the model was trained: LiRA compares the model with what such a training gives.

    >>> from sordino.effects.rare_examples import train_plainly
    >>> rows, labels = torch.randn(60, 30), torch.randint(0, 2, (60,))
    >>> suspects = Suspects(rows[:40], labels[:40], np.arange(40) < 20, rows[40:], labels[40:])
    >>> learn = lambda who: train_plainly(nn.Linear(30, 2), rows[:40][who], labels[:40][who], seed=0)
    >>> found = attack(learn(suspects.is_member), suspects, lambda who, place: learn(who))
    >>> list(found), found["LiRA, online"].auc().value > 0.8
    (['LiRA, online', 'LiRA, offline', 'RMIA, online', 'RMIA, offline'], True)
    """
    rmia = rmia or Rmia()
    included = halves(len(suspects), references, seed=seed)
    trained = [_Said.of(train(chosen, place), suspects) for place, chosen in enumerate(included)]
    said = _Said.of(model, suspects)
    logits, likelihoods, population = (
        np.stack([getattr(each, name) for each in trained]) for name in ("logits", "likelihoods", "population")
    )
    absent = np.stack([column[~chosen] for column, chosen in zip(likelihoods.T, included.T, strict=True)], axis=1)
    of_population = rmia.offline(population)
    scores = {} if references < 4 else {"LiRA, online": lira.online(said.logits, logits, included)}
    scores["LiRA, offline"] = lira.offline(said.logits, logits, included)
    for name, marginal in (("online", rmia.online(likelihoods, included)), ("offline", rmia.offline(absent))):
        scores[f"RMIA, {name}"] = rmia.scores(said.likelihoods, marginal, said.population, of_population)
    return {name: Roc.of(each, suspects.is_member) for name, each in scores.items()}


class _Said:
    """What one model says about all rows."""

    def __init__(self, outputs: Tensor, population: Tensor, suspects: Suspects) -> None:
        self.logits = logits_of_labels(outputs, suspects.target)
        self.likelihoods = likelihoods_of_labels(outputs, suspects.target)
        self.population = likelihoods_of_labels(population, suspects.population_target)

    @classmethod
    def of(cls, model: nn.Module, suspects: Suspects) -> _Said:
        both = outputs_of(model, torch.cat([suspects.inputs, suspects.population_inputs]))
        return cls(both[: len(suspects)], both[len(suspects) :], suspects)


NOT_PRIVATE = "not private: computed from the rows that the model learnt from, to be kept inside"
RATES = (0.001, 0.01)
_GRID, _DECADES = 10_000, 4


@dataclass(frozen=True)
class AttackResult:
    """One attack: what it found at each rate of false alarms, and over all of them."""

    name: str
    detections: tuple[Detection, ...]
    auc: Auc
    curve: RocCurve = field(repr=False)

    @classmethod
    def of(cls, name: str, roc: Roc, rates: Sequence[float]) -> AttackResult:
        return cls(name, tuple(roc.at(rate) for rate in rates), roc.auc(), roc.curve())


@dataclass(frozen=True)
class AttackBound:
    """What the guarantee leaves possible to the best attack: at each rate of false alarms, and over all of them.

    The bound holds for every row by itself, over the randomness of training. It is concave, so it holds for the means
    over rows too, if those who were absent are accused as often as members would be who were left out.
    """

    detections: tuple[float, ...]
    auc: float
    curve: RocCurve = field(repr=False)

    @classmethod
    def of(cls, privacy: PrivacyCurve, rates: Sequence[float]) -> AttackBound:
        trade_off, grid = TradeOff.of(privacy), np.linspace(0.0, 1.0, _GRID + 1)
        alarms = np.logspace(-_DECADES, 0, 40 * _DECADES)
        return cls(
            tuple(min(1.0, best_true_positive_rate(privacy, rate)) for rate in rates),
            float(trade_off.detected(grid)[1:].mean()),  # it rises, so the right end of each piece is above it
            RocCurve(tuple(alarms.tolist()), tuple(trade_off.detected(alarms).tolist())),
        )


@dataclass(frozen=True)
class MembershipAttack(ExposedResult):
    """What attacks found in a run, and what its guarantee leaves possible to any attack. Not private."""

    title: str
    members: int
    others: int
    population: int
    references: int
    trained: str
    rates: tuple[float, ...]
    guarantee: str
    allowed: AttackBound
    attacks: tuple[AttackResult, ...]
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
    check_references(references)
    validate.count(at_least=FEWEST, rows=rows)
    for rate in rates:
        validate.between(0, 1, low_open=True, high_open=True, false_alarm_rate=rate)
    evidence = Evidence.read(run)
    saved = evidence.saved
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
        allowed=AttackBound.of(evidence.curve, rates),
        attacks=tuple(AttackResult.of(name, roc, rates) for name, roc in found.items()),
    )


def _words(prepared: PreparedRecipe) -> str:
    recipe, settings = prepared.recipe, prepared.settings
    length = f"{recipe.steps} steps" if recipe.steps is not None else f"{settings.epochs:g} epochs"
    return f"by {recipe.method} with the settings of the run, {length} to the same epsilon and delta"


_LOWEST = 1e-4


def lines(found: MembershipAttack) -> list[tuple[str, ...]]:
    """The table: a row for each attack, and one for what is allowed."""
    head = ("", *(f"found at {100 * rate:g} % false alarms" for rate in found.rates), "area under the curve")
    allowed = (*(f"{100 * rate:.2f} %" for rate in found.allowed.detections), f"{found.allowed.auc:.4f}")
    rows = [(each.name, *(at.percent for at in each.detections), each.auc.words) for each in found.attacks]
    return [head, ("allowed at most", *allowed), *rows]


def write_internal(found: MembershipAttack, folder: Path) -> Path:
    """members.html and members.json. The folder of a run is refused: its files may leave."""
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        found.write(folder / "members.json")  # refuses first
        write_atomically(folder / "members.html", _page(found).encode(), private=True)
    except OSError as error:
        raise DataError(f"{str(folder)!r} cannot be written to: {error.strerror}.") from None
    return folder / "members.html"


def _page(found: MembershipAttack) -> str:
    head, *rows = lines(found)
    about = (
        f"{found.members:,} members and {found.others:,} public rows were attacked, by {found.references} references "
        f"that were trained {found.trained}, on the rows of the run of which some were exchanged. RMIA compares with "
        f"{found.population:,} further public rows.",
        "Public rows stand for people who were absent. If they are of another kind, an attack tells the kinds apart, "
        "and may exceed what is allowed without the guarantee being wrong.",
        "Intervals are 95 %, over rows at this threshold: another training would differ. A weak attack is no proof.",
    )
    sections = [
        Section("attacks", "What was found", joined((table(head, rows), paragraphs(*about))), {}, 10),
        Section("curves", "At every threshold", gallery([_curves(found)]), {}, 20),
        Section("proof", "What is proved", paragraphs(found.guarantee), {}, 30),
    ]
    warning = element("div", paragraphs(f"This page is {found.warning}."), class_="warning")
    return page("Internal", f"{found.title}: members under attack", warning, sections)


def _curves(found: MembershipAttack) -> Html:
    def draw(axes: Axes) -> None:
        allowed = found.allowed.curve
        axes.plot(allowed.accused, allowed.found, color=INK, linewidth=1.8, label="allowed at most")
        for each, dashes in zip(found.attacks, DASHES, strict=False):
            axes.plot(each.curve.accused, each.curve.found, color=ACCENT, linestyle=dashes, label=each.name)
        axes.plot(allowed.accused, allowed.accused, color=FAINT, linewidth=1, label="guessing")
        axes.set(xscale="log", yscale="log", xlim=(_LOWEST, 1), ylim=(_LOWEST, 1.15))
        axes.set(xlabel="absent ones accused", ylabel="members found")
        for axis in (axes.xaxis, axes.yaxis):
            in_percent(axis)

    words = "; ".join(f"{each.name}: area {each.auc.words}" for each in found.attacks)
    caption = "Members found against absent ones accused, below what the guarantee allows."
    return picture("members", draw, caption=caption, words=words, height=3.6, legend=True)
