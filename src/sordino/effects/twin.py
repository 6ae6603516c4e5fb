"""What privacy took from whom: the model beside a twin that was trained on the same private rows without any.

The twin has seen private rows without a clip and without noise. Whatever is computed from it is not private, carries no
epsilon, and is kept out of the folder of the run and out of its report.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sordino.effects.bootstrap import Interval, mean_of
from sordino.effects.groups import GroupAccuracy, accuracies, who_lost
from sordino.effects.measurements import HARMED, Subject
from sordino.effects.rare_examples import WORDS, HarmedExample, PublicEnsemble, by_decile, most_harmed, train_plainly
from sordino.effects.robustness import MaskingSigns, RobustnessCurve
from sordino.errors import SordinoError
from sordino.recipes import SavedRun
from sordino.recipes.networks import network_inputs
from sordino.recipes.prepared import prepare
from sordino.training.evaluation import correctness
from sordino.training.not_private import ExposedResult, NotPrivate

NOT_PRIVATE = "not private: computed from private rows without a clip and without noise, to be kept inside"
_ROWS_AT_A_TIME = 1024


@dataclass(frozen=True)
class TwinEffects(ExposedResult):
    """What each group lost to privacy, on public rows; by how rare a row is; under attack. Not private."""

    headline: str
    trained: str
    twin: Interval
    lost: Interval
    groups: tuple[GroupAccuracy, ...]
    deciles: tuple[GroupAccuracy, ...]
    harmed: tuple[HarmedExample, ...]
    curves: tuple[RobustnessCurve, ...]
    masking: MaskingSigns | None
    warning: str = field(default=NOT_PRIVATE, init=False)


def train_twin(saved: SavedRun, *, seed: int = 0) -> NotPrivate:
    """The same network from the same first weights, trained on the private rows as one does without privacy."""
    prepared = prepare(saved.recipe, progress=False)
    train = prepared.data.train
    inputs = network_inputs(prepared.built, prepared.data.facts, train.inputs)
    usable = inputs.flatten(1).isfinite().all(dim=1) & (train.target >= 0)
    model = train_plainly(prepared.built.module, inputs[usable], train.target[usable], seed=seed)
    return NotPrivate(model, "the same network without a clip and without noise")


def compare(
    subject: Subject, twin: NotPrivate, ensemble: PublicEnsemble, *, attacked: int = 500, seed: int = 0
) -> TwinEffects:
    """The model beside its twin on public rows, which are sorted into deciles by the public ensemble."""
    outputs = _outputs(subject, twin)
    right, reference = subject.right, _numbers(correctness(outputs, subject.rows.target))
    likelihoods = _numbers(outputs.softmax(1).gather(1, subject.rows.target[:, None]).squeeze(1))
    groups = [group for each in subject.groupings for group in accuracies(each, right, reference, seed=seed)]
    curves, masking = _under_attack(subject, twin, attacked, seed)
    return TwinEffects(
        headline=who_lost(groups, "a twin that was trained without privacy"),
        trained=WORDS,
        twin=mean_of(reference, seed=seed),
        lost=mean_of(reference - right, seed=seed),
        groups=tuple(groups),
        deciles=accuracies(by_decile(ensemble.margins), right, reference, seed=seed),
        harmed=most_harmed(likelihoods, subject.likelihoods, right < 1, HARMED),
        curves=curves,
        masking=masking,
    )


def _outputs(subject: Subject, twin: NotPrivate) -> Tensor:
    inputs = network_inputs(subject.saved.built, subject.saved.facts, subject.rows.inputs)
    with torch.no_grad():
        return torch.cat([twin.model(rows.float()) for rows in torch.split(inputs, _ROWS_AT_A_TIME)]).double()


def _under_attack(
    subject: Subject, twin: NotPrivate, attacked: int, seed: int
) -> tuple[tuple[RobustnessCurve, ...], MaskingSigns | None]:
    if attacked == 0:
        return (), None
    try:
        pictures = subject.pictures(attacked)
        signs = pictures.signs(subject.saved.built.module, seed=seed, other=twin.model)
        return pictures.curves(twin.model, seed=seed), signs
    except SordinoError:  # the public page says why
        return (), None


def _numbers(values: Tensor) -> NDArray[np.float64]:
    found: NDArray[np.float64] = values.double().numpy()
    return found
