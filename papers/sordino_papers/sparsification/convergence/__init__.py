"""How far private SGD converges, and what random sparsification changes: bounds, and measures of what is in them."""

from sordino_papers.sparsification.convergence.bound import Descent as Descent
from sordino_papers.sparsification.convergence.bound import Objective as Objective
from sordino_papers.sparsification.convergence.bound import Tradeoff as Tradeoff
from sordino_papers.sparsification.convergence.bound import noisy_sgd_bound as noisy_sgd_bound
from sordino_papers.sparsification.convergence.bound import supposed_kappa as supposed_kappa
from sordino_papers.sparsification.convergence.measured import Measured as Measured
from sordino_papers.sparsification.convergence.measured import measure as measure
from sordino_papers.sparsification.convergence.measured import random_masks as random_masks
from sordino_papers.sparsification.convergence.measured import secant_smoothness as secant_smoothness
