"""Convergence bounds of private SGD with random sparsification, and measurements of their terms."""

from sordino_papers.sparsification.convergence.bound import ClippedDescent as ClippedDescent
from sordino_papers.sparsification.convergence.bound import Objective as Objective
from sordino_papers.sparsification.convergence.bound import Tradeoff as Tradeoff
from sordino_papers.sparsification.convergence.bound import noisy_sgd_bound as noisy_sgd_bound
from sordino_papers.sparsification.convergence.bound import supposed_kappa as supposed_kappa
from sordino_papers.sparsification.convergence.measurement import BoundMeasurement as BoundMeasurement
from sordino_papers.sparsification.convergence.measurement import measure as measure
from sordino_papers.sparsification.convergence.measurement import random_masks as random_masks
from sordino_papers.sparsification.convergence.measurement import secant_smoothness as secant_smoothness
