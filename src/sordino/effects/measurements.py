"""Measurements of a finished model on public rows: accuracy by group, calibration and accuracy under attack.

*Guarantee:* nothing here is computed from private rows. The model is released, the rows are public, and the reference
model is an ensemble that was trained on public rows only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field

import numpy as np
from numpy.typing import NDArray

from sordino.data import Split
from sordino.effects.bootstrap import DRAWS, Interval, mean_of
from sordino.effects.calibration import BINS, CalibrationError, calibration_error
from sordino.effects.groups import (
    Disparity,
    GroupAccuracy,
    Grouping,
    accuracies,
    demographic_parity,
    equalized_odds,
    groupings,
    who_lost,
)
from sordino.effects.rare_examples import (
    MEMBERS,
    SCORE,
    HarmedExample,
    PublicEnsemble,
    by_decile,
    most_harmed,
    train_public_ensemble,
)
from sordino.effects.robustness import FromUnit, ImagesToAttack, MaskingSigns, RobustnessCurve, range_of, unit_pixels
from sordino.errors import DataError, SordinoError, UsageError
from sordino.recipes import FinishedRun, OwnRun, Recipe
from sordino.recipes.transformer_settings import refuse_transformer
from sordino.report.effects import FORMAT, KIND
from sordino.report.evidence import model_sha256
from sordino.report.quality import JudgedRows, judge
from sordino.training.evaluation import correctness
from sordino.training.metrics import ClassMetrics

HARMED = 12


@dataclass(frozen=True)
class Effects:
    """Results of `measure`. Losses are relative to networks trained on public rows; `notes` say what is missing."""

    data: str
    model_sha256: str
    rows: int
    headline: str
    overall: Interval
    groups: tuple[GroupAccuracy, ...]
    deciles: tuple[GroupAccuracy, ...]
    disparities: tuple[Disparity, ...]
    calibration: CalibrationError | None
    curves: tuple[RobustnessCurve, ...]
    masking: MaskingSigns | None
    harmed: tuple[HarmedExample, ...]
    notes: tuple[str, ...]

    def as_dict(self) -> dict[str, object]:
        """The contents of effects.json."""
        about = {
            "format": FORMAT,
            "kind": KIND,
            "intervals": f"95 %, by bootstrap over the rows of each group ({DRAWS} draws)",
            "score_of_deciles": SCORE,
            "calibration_bins": BINS,
            "signs_of_masking": [] if self.masking is None else list(self.masking.found),
        }
        return about | asdict(self)


@dataclass(frozen=True)
class Subject:
    """A finished model, and the public rows that it is evaluated on, in groups."""

    saved: FinishedRun = field(repr=False)
    rows: Split = field(repr=False)
    judged: JudgedRows = field(repr=False)
    groupings: tuple[Grouping, ...]
    data: str

    @classmethod
    def of(cls, saved: FinishedRun, *, data: str | None = None, columns: Sequence[str] = ()) -> Subject:
        """Reads the public rows of the run's data set, or of another with the same inputs and classes.

        A run of a model of one's own has those that it was read with.
        """
        refuse_transformer(saved.model_name, "effects")
        if isinstance(saved, OwnRun):
            saved.built  # noqa: B018  # without a model there are no classes
        if saved.facts.num_classes is None:
            raise UsageError(f"effects need a classifier, and {saved.facts.name!r} has a regression target.")
        name, recipe = saved.data_name, None
        if not isinstance(saved, OwnRun) and data is not None and data != name:
            own = saved.recipe
            name, recipe = data, Recipe(data=data, model=own.model, epsilon=own.epsilon, delta=own.delta)
        judged = judge(saved, recipe)
        if int(judged.rows.target.max()) >= saved.facts.num_classes:
            raise DataError(f"the public rows of {name!r:.80} have more classes than the model.")
        return cls(saved, judged.rows, judged, groupings(judged.rows, saved, columns), name)

    @property
    def right(self) -> NDArray[np.float64]:
        """1 for each row that the model classifies right, 0 for the others."""
        right: NDArray[np.float64] = correctness(self.judged.outputs, self.rows.target).numpy()
        return right

    @property
    def likelihoods(self) -> NDArray[np.float64]:
        """The probability of each row's label under the model; 0 or 1 if the model outputs no probabilities."""
        if not self.saved.has_probabilities:
            return self.right
        labels = self.rows.target[:, None]
        likelihoods: NDArray[np.float64] = self.judged.outputs.double().softmax(1).gather(1, labels).squeeze(1).numpy()
        return likelihoods

    def pictures(self, most: int) -> ImagesToAttack:
        """At most `most` images to attack, evenly spaced among the public rows."""
        pixels, facts = unit_pixels(self.rows.inputs, self.saved.facts), self.saved.facts
        chosen = np.linspace(0, len(pixels) - 1, min(most, len(pixels))).astype(np.int64)
        return ImagesToAttack(
            pixels[chosen], self.rows.target[chosen], facts, FromUnit(self.saved.built, range_of(facts))
        )


def public_ensemble(subject: Subject, *, seed: int = 0) -> PublicEnsemble:
    """Trains the reference networks on the public rows."""
    return train_public_ensemble(subject.saved, subject.rows.inputs, subject.rows.target, seed=seed)


def measure(subject: Subject, ensemble: PublicEnsemble, *, attacked: int = 500, seed: int = 0) -> Effects:
    """Measures everything that applies to the model. At most `attacked` rows are attacked, none if it is 0."""
    saved, rows, right = subject.saved, subject.rows, subject.right
    notes = [_note_on_empty(grouping) for grouping in subject.groupings if grouping.empty]
    groups = [group for each in subject.groupings for group in accuracies(each, right, ensemble.right, seed=seed)]
    beside = f"{2 * MEMBERS} networks that were trained without privacy on half of these public rows each"
    notes.append(f"On all public rows: {ClassMetrics.of(subject.judged.outputs, rows.target).in_words}")
    calibration = None
    if saved.has_probabilities:
        calibration = calibration_error(subject.judged.outputs, rows.target, seed=seed)
    else:
        notes.append("no calibration error: the outputs of this network are scores, not logits.")
    curves, masking = _under_attack(subject, attacked, seed, notes)
    return Effects(
        data=subject.data,
        model_sha256=model_sha256(saved.folder.path),
        rows=len(right),
        headline=who_lost(groups, beside),
        overall=mean_of(right, seed=seed),
        groups=tuple(groups),
        deciles=accuracies(by_decile(ensemble.margins), right, seed=seed),
        disparities=_disparities(subject, seed, notes),
        calibration=calibration,
        curves=curves,
        masking=masking,
        harmed=most_harmed(ensemble.likelihoods, subject.likelihoods, right < 1, HARMED),
        notes=tuple(dict.fromkeys(notes)),
    )


def _note_on_empty(grouping: Grouping) -> str:
    return f"not measured, because no public row belongs to it: {grouping.by} {'; '.join(grouping.empty)}."


def _disparities(subject: Subject, seed: int, notes: list[str]) -> tuple[Disparity, ...]:
    people = subject.groupings[1:]
    if people and subject.saved.facts.num_classes != 2:
        notes.append("no demographic parity and no equalized odds: they need two classes, and there are more.")
        return ()
    names = subject.saved.facts.class_names or ("0", "1")
    target, predicted = subject.rows.target.numpy(), subject.judged.outputs.argmax(dim=1).numpy()
    disparities = []
    for grouping in people:
        for measure_of in (demographic_parity, equalized_odds):
            try:
                disparities.append(measure_of(grouping, target, predicted, names[1], seed=seed))
            except DataError as reason:
                notes.append(str(reason))
    return tuple(disparities)


def _under_attack(
    subject: Subject, attacked: int, seed: int, notes: list[str]
) -> tuple[tuple[RobustnessCurve, ...], MaskingSigns | None]:
    if attacked == 0:
        return (), None
    module = subject.saved.built.module
    try:
        images = subject.pictures(attacked)
        return images.curves(module, seed=seed), images.signs(module, seed=seed)
    except SordinoError as reason:
        notes.append(f"no accuracy under attack: {reason}")
        return (), None
