"""Both attacks on one model, by references that are trained for the purpose."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from sordino.attacks.membership import lira
from sordino.attacks.membership.confidence import likelihoods_of_labels, logits_of_labels, outputs_of
from sordino.attacks.membership.rmia import Rmia
from sordino.attacks.membership.roc import Roc
from sordino.attacks.membership.suspects import Suspects, halves

Train = Callable[[NDArray[np.bool_], int], nn.Module]


def attack(
    model: nn.Module, suspects: Suspects, train: Train, *, references: int = 4, rmia: Rmia | None = None, seed: int = 0
) -> dict[str, Roc]:
    """How well each attack tells members of `model` from others.

    `train(chosen, place)` gives the reference number `place`, trained on the suspects that are chosen. It is strongest
    where it trains as the model was trained: LiRA compares the model with what such a training gives.

    >>> from sordino.effects.plain_training import train_plainly
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
