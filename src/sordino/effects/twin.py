"""Accuracy lost to privacy: compares the model with a twin that was trained on the same private rows without privacy.

The twin was trained without clipping and noise. Everything computed from it is not private, has no epsilon, and is kept
out of the run's folder and report.
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
from sordino.effects.rare_examples import (
    WORDS,
    HarmedExample,
    PublicEnsemble,
    as_input,
    by_decile,
    most_harmed,
    train_plainly,
)
from sordino.effects.robustness import MaskingSigns, RobustnessCurve
from sordino.errors import DataError, SordinoError
from sordino.recipes import FinishedRun, OwnRun
from sordino.recipes.networks import network_inputs
from sordino.recipes.prepared import prepare
from sordino.training.evaluation import correctness
from sordino.training.not_private import ExposedResult, NotPrivate

NOT_PRIVATE = "not private: computed from private rows without clipping and noise, for internal use only"
_ROWS_AT_A_TIME = 1024


@dataclass(frozen=True)
class TwinEffects(ExposedResult):
    """Accuracy on public rows compared with the twin: by group, by how rare a row is, and under attack. Not private."""

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


def train_twin(saved: FinishedRun, *, seed: int = 0) -> NotPrivate:
    """Trains the run's network, from the same first weights, on the private rows without privacy.

    The user's own model starts from weights that its function returns, and is trained on the rows that were passed.
    """
    if isinstance(saved, OwnRun):
        rows, public = saved.training_rows()
        if public is None:
            raise DataError(
                f"{saved.data!r} must hold private rows to train a twin on, and public test rows beside them."
            )
        rows = rows.take(rows.usable)
        if rows.target is None:
            raise DataError("a twin needs the labels of the rows.")
        model = train_plainly(saved.fresh_network(seed), rows.inputs[0], rows.target, seed=seed)
        return NotPrivate(model, "the same network without a clip and without noise")
    prepared = prepare(saved.recipe, progress=False)
    train = prepared.data.train
    inputs = network_inputs(prepared.built, prepared.data.facts, train.inputs)
    usable = inputs.flatten(1).isfinite().all(dim=1) & (train.target >= 0)
    model = train_plainly(prepared.built.module, inputs[usable], train.target[usable], seed=seed)
    return NotPrivate(model, "the same network without clipping and noise")


def compare(
    subject: Subject, twin: NotPrivate, ensemble: PublicEnsemble, *, attacked: int = 500, seed: int = 0
) -> TwinEffects:
    """Compares the model with its twin on public rows. The public ensemble sorts the rows into deciles."""
    outputs = _outputs(subject, twin)
    right, reference = subject.right, _as_array(correctness(outputs, subject.rows.target))
    likelihoods = _as_array(outputs.softmax(1).gather(1, subject.rows.target[:, None]).squeeze(1))
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
    inputs = subject.saved.network_inputs(subject.rows.inputs)
    with torch.no_grad():
        return torch.cat([twin.model(as_input(rows)) for rows in torch.split(inputs, _ROWS_AT_A_TIME)]).double()


def _under_attack(
    subject: Subject, twin: NotPrivate, attacked: int, seed: int
) -> tuple[tuple[RobustnessCurve, ...], MaskingSigns | None]:
    if attacked == 0:
        return (), None
    try:
        images = subject.pictures(attacked)
        signs = images.signs(subject.saved.built.module, seed=seed, other=twin.model)
        return images.curves(twin.model, seed=seed), signs
    except SordinoError:  # the notes of the public page give the reason
        return (), None


def _as_array(values: Tensor) -> NDArray[np.float64]:
    array: NDArray[np.float64] = values.double().numpy()
    return array
