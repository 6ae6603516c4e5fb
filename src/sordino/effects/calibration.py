"""Whether a model is as often right as it says: the calibration error (Guo et al. 2017)."""

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
    """Rows with about the same confidence: how sure the model is of them on average, and how often right."""

    rows: int
    confidence: float
    accuracy: float


@dataclass(frozen=True)
class CalibrationError:
    """The mean distance of confidence and accuracy over bins of equal width, weighted by their rows.

    Even a model whose confidence is right is off by chance in each bin, so what chance adds is taken off.
    """

    error: Interval
    bins: tuple[Bin, ...]

    @property
    def words(self) -> str:
        excess = sum(each.rows * (each.confidence - each.accuracy) for each in self.bins)
        side = "surer than it is right" if excess > 0 else "less sure than it is right"
        return f"Its confidence is {self.error.points} points off on average ({BINS} bins): it is mostly {side}."


def calibration_error(outputs: Tensor, target: Tensor, *, seed: int) -> CalibrationError:
    """Of outputs that are logits.

    >>> import torch
    >>> calibration_error(torch.tensor([[9.0, 0.0]] * 400), torch.arange(400) % 2, seed=0).error.points
    '50.3 (45.0 to 55.5)'
    """
    sure: NDArray[np.float64] = outputs.double().softmax(dim=1).amax(dim=1).numpy()
    right: NDArray[np.float64] = correctness(outputs, target).numpy()
    places = np.minimum((sure * BINS).astype(np.int64), BINS - 1)

    def error(rows: NDArray[np.int64]) -> float:
        gaps = np.bincount(places[rows], weights=(sure - right)[rows], minlength=BINS)
        return float(np.abs(gaps).sum() / len(rows))

    bins = [
        Bin(int(here.sum()), float(sure[here].mean()), float(right[here].mean()))
        for here in (places == place for place in range(BINS))
        if here.any()
    ]
    return CalibrationError(bootstrap_of_distance(error, len(right), seed=seed, draws=_DRAWS), tuple(bins))
