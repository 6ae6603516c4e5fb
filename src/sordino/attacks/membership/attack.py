"""Membership inference attacks (LiRA and RMIA) on a finished run, and their report.

The attacker knows every row, the recipe and the first weights, and trains reference models. The page and the JSON file
carry a warning that they are not private.
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
from sordino.attacks.membership.references import (
    FEWEST,
    Lineup,
    OwnReferences,
    Suspects,
    check_references,
    halves,
    train_reference,
)
from sordino.attacks.membership.rmia import Rmia
from sordino.attacks.membership.roc import Auc, Detection, Roc, RocCurve
from sordino.errors import DataError, UsageError
from sordino.recipes.own_model import OwnRun, is_own_run
from sordino.recipes.prepared import PreparedRecipe, prepare
from sordino.recipes.transformer_settings import refuse_transformer
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
from sordino.training.run_folder import RunFolder

Train = Callable[[NDArray[np.bool_], int], nn.Module]


def attack(
    model: nn.Module, suspects: Suspects, train: Train, *, references: int = 4, rmia: Rmia | None = None, seed: int = 0
) -> dict[str, Roc]:
    """Runs LiRA and RMIA on `model`, and returns the ROC of each by name.

    `train(chosen, place)` returns reference model number `place`, trained on the suspects in the mask `chosen`. Attacks
    are strongest if references are trained as the model was. "LiRA, online" needs at least four references.

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
    """Logits and likelihoods of one model for the labels of suspects and population."""

    def __init__(self, outputs: Tensor, population: Tensor, suspects: Suspects) -> None:
        self.logits = logits_of_labels(outputs, suspects.target)
        self.likelihoods = likelihoods_of_labels(outputs, suspects.target)
        self.population = likelihoods_of_labels(population, suspects.population_target)

    @classmethod
    def of(cls, model: nn.Module, suspects: Suspects) -> _Said:
        both = outputs_of(model, torch.cat([suspects.inputs, suspects.population_inputs]))
        return cls(both[: len(suspects)], both[len(suspects) :], suspects)


NOT_PRIVATE = "not private: computed from the training data of the model, for internal use only"
RATES = (0.001, 0.01)
_GRID, _DECADES = 10_000, 4


@dataclass(frozen=True)
class AttackResult:
    """Result of one attack: detection at each allowed false positive rate, and the area under the ROC curve."""

    name: str
    detections: tuple[Detection, ...]
    auc: Auc
    curve: RocCurve = field(repr=False)

    @classmethod
    def of(cls, name: str, roc: Roc, rates: Sequence[float]) -> AttackResult:
        return cls(name, tuple(roc.at(rate) for rate in rates), roc.auc(), roc.curve())


@dataclass(frozen=True)
class AttackBound:
    """Upper bound on any attack by the guarantee: at each allowed false positive rate, and on the area under the curve.

    The bound holds for each row, over the randomness of training. It is concave, so it also holds for means over rows,
    provided that public rows are accused as often as members would be if they had been left out.
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
            float(trade_off.detected(grid)[1:].mean()),  # an upper sum: the curve increases
            RocCurve(tuple(alarms.tolist()), tuple(trade_off.detected(alarms).tolist())),
        )


@dataclass(frozen=True)
class MembershipAttack(ExposedResult):
    """Results of the attacks on a run, and the bound on any attack by its guarantee. Not private."""

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
    model: str | None = None,
    loss: str | None = None,
    references: int = 4,
    rows: int = 1000,
    epochs: float | None = None,
    rates: Sequence[float] = RATES,
    seed: int = 0,
    progress: bool = True,
) -> MembershipAttack:
    """Attacks at most `rows` members and as many public rows of a finished run.

    Fewer `epochs` than the run had make the references faster to train, and the attacks weaker. `data` names the
    dataset if it is not where the recipe says; a run of the user's own model needs it, with `model`
    (MODULE:FUNCTION), and a recipe that names functions of the user's own needs `model` and `loss` again.
    """
    check_references(references)
    validate.count(at_least=FEWEST, rows=rows)
    for rate in rates:
        validate.between(0, 1, low_open=True, high_open=True, false_alarm_rate=rate)
    own_data = data if is_own_run(RunFolder(run)) else None
    evidence = Evidence.read(run, model=model, loss=loss, data=own_data)
    saved = evidence.saved
    refuse_transformer(saved.model_name, "a membership attack")
    if isinstance(saved, OwnRun):
        return _attack_own(evidence, saved, references, rows, epochs, rates, seed)
    if saved.facts.num_classes is None:
        raise UsageError(f"membership attacks need a classifier, and {saved.facts.name!r} has a regression target.")
    recipe = saved.recipe if data is None else saved.recipe.changed(data=data)
    prepared = prepare(recipe if epochs is None else recipe.changed(epochs=epochs), progress=progress)
    if prepared.data.train.owners is not None:
        raise UsageError("membership attacks are on single examples, but the privacy unit of this run is a user.")
    found_shape, expected = prepared.data.facts.input_shape, saved.facts.input_shape
    if found_shape != expected:
        raise DataError(f"the rows of the dataset have shape {found_shape}, but the model takes {expected}.")
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
        allowed=AttackBound.of(evidence.curve, rates),
        attacks=tuple(AttackResult.of(name, roc, rates) for name, roc in found.items()),
    )


def _words(prepared: PreparedRecipe) -> str:
    recipe, settings = prepared.recipe, prepared.settings
    length = f"{recipe.steps} steps" if recipe.steps is not None else f"{settings.epochs:g} epochs"
    return f"by {recipe.method} with the settings of the run, for {length} with the same epsilon and delta"


_LOWEST = 1e-4


def lines(found: MembershipAttack) -> list[tuple[str, ...]]:
    """The table as strings: headings, the bound by the guarantee, and a row for each attack."""
    head = ("", *(f"found at {100 * rate:g} % false alarms" for rate in found.rates), "area under the ROC curve")
    allowed = (*(f"{100 * rate:.2f} %" for rate in found.allowed.detections), f"{found.allowed.auc:.4f}")
    rows = [(each.name, *(at.percent for at in each.detections), each.auc.words) for each in found.attacks]
    return [head, ("allowed at most", *allowed), *rows]


def write_internal(found: MembershipAttack, folder: Path) -> Path:
    """Writes members.html and members.json, and returns the page's path.

    The folder of a run is refused, because its files may be published.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        found.write(folder / "members.json")  # first, because it refuses the folder of a run
        write_atomically(folder / "members.html", _page(found).encode(), private=True)
    except OSError as error:
        raise DataError(f"{str(folder)!r} cannot be written to: {error.strerror}.") from None
    return folder / "members.html"


def _page(found: MembershipAttack) -> str:
    head, *rows = lines(found)
    about = (
        f"{found.members:,} members and {found.others:,} public rows were attacked. The attacks use "
        f"{found.references} reference models, trained {found.trained}. Each was trained on the data of the run, with "
        "about half of the attacked members replaced by attacked public rows. RMIA also compares with "
        f"{found.population:,} further public rows.",
        "Public rows stand for people who were not in the training data. If their distribution differs from that of "
        "members, an attack may tell the two apart and exceed the bound, although the guarantee holds.",
        "Intervals are 95 %, over the rows of this run; another training would give other results. A weak attack does "
        "not prove privacy.",
    )
    sections = [
        Section("attacks", "Members found", joined((table(head, rows), paragraphs(*about))), {}, 10),
        Section("curves", "ROC curves", gallery([_curves(found)]), {}, 20),
        Section("proof", "The guarantee", paragraphs(found.guarantee), {}, 30),
    ]
    warning = element("div", paragraphs(f"This page is {found.warning}."), class_="warning")
    return page("Internal", f"{found.title}: membership inference", warning, sections)


def _curves(found: MembershipAttack) -> Html:
    def draw(axes: Axes) -> None:
        allowed = found.allowed.curve
        axes.plot(allowed.accused, allowed.found, color=INK, linewidth=1.8, label="allowed at most")
        for each, dashes in zip(found.attacks, DASHES, strict=False):
            axes.plot(each.curve.accused, each.curve.found, color=ACCENT, linestyle=dashes, label=each.name)
        axes.plot(allowed.accused, allowed.accused, color=FAINT, linewidth=1, label="guessing")
        axes.set(xscale="log", yscale="log", xlim=(_LOWEST, 1), ylim=(_LOWEST, 1.15))
        axes.set(xlabel="false alarms", ylabel="members found")
        for axis in (axes.xaxis, axes.yaxis):
            in_percent(axis)

    words = "; ".join(f"{each.name}: area {each.auc.words}" for each in found.attacks)
    caption = "Members found against false alarms (public rows called members), and the most that the guarantee allows."
    return picture("members", draw, caption=caption, words=words, height=3.6, legend=True)
