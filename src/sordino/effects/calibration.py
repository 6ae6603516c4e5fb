"""The expected calibration error: whether a model is right as often as its confidence says (Guo et al. 2017)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from sordino.effects.bootstrap import Interval, bootstrap_of_distance
from sordino.training.evaluation import correctness

BINS = 15
_DRAWS = 200


@dataclass(frozen=True)
class Bin:
    """Rows with about the same confidence, with their mean confidence and accuracy."""

    rows: int
    confidence: float
    accuracy: float


@dataclass(frozen=True)
class CalibrationError:
    """The mean distance of confidence and accuracy over bins of equal width, weighted by their numbers of rows.

    In each bin a calibrated model is off by chance too; this bias is subtracted (`bootstrap_of_distance`).
    """

    error: Interval
    bins: tuple[Bin, ...]

    @property
    def words(self) -> str:
        excess = sum(each.rows * (each.confidence - each.accuracy) for each in self.bins)
        side = "overconfident" if excess > 0 else "underconfident"
        return f"Calibration error: {self.error.points} points ({BINS} bins). The model is mostly {side}."


def calibration_error(outputs: Tensor, target: Tensor, *, seed: int) -> CalibrationError:
    """The calibration error of a classifier from its logits and the labels.

    >>> import torch
    >>> calibration_error(torch.tensor([[9.0, 0.0]] * 400), torch.arange(400) % 2, seed=0).error.points
    '50.3 (45.0 to 55.5)'
    """
    confidence: NDArray[np.float64] = outputs.double().softmax(dim=1).amax(dim=1).numpy()
    right: NDArray[np.float64] = correctness(outputs, target).numpy()
    bin_of_row = np.minimum((confidence * BINS).astype(np.int64), BINS - 1)

    def error(rows: NDArray[np.int64]) -> float:
        gaps = np.bincount(bin_of_row[rows], weights=(confidence - right)[rows], minlength=BINS)
        return float(np.abs(gaps).sum() / len(rows))

    bins = [
        Bin(int(inside.sum()), float(confidence[inside].mean()), float(right[inside].mean()))
        for inside in (bin_of_row == number for number in range(BINS))
        if inside.any()
    ]
    return CalibrationError(bootstrap_of_distance(error, len(right), seed=seed, draws=_DRAWS), tuple(bins))
