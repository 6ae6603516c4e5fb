"""Noise chosen so that it hurts a weighted cost least, under the constraint of pure differential privacy."""

from sordino.optimized.block_norm import BlockNorm as BlockNorm
from sordino.optimized.constraints import PerDistance as PerDistance
from sordino.optimized.constraints import WithinSensitivity as WithinSensitivity
from sordino.optimized.costs import AbsoluteCost as AbsoluteCost
from sordino.optimized.costs import Cost as Cost
from sordino.optimized.costs import SignedCost as SignedCost
from sordino.optimized.costs import SquaredCost as SquaredCost
from sordino.optimized.fits import best_blocks as best_blocks
from sordino.optimized.fits import isotropic as isotropic
from sordino.optimized.fits import of_blocks as of_blocks
from sordino.optimized.fits import weighted_laplace as weighted_laplace
from sordino.optimized.gaps import Gap as Gap
from sordino.optimized.gaps import gaps as gaps
from sordino.optimized.learnt import FromPublicRows as FromPublicRows
from sordino.optimized.learnt import FromReleases as FromReleases
from sordino.optimized.noise import OptimizedNoise as OptimizedNoise
from sordino.optimized.problem import NoiseProblem as NoiseProblem
from sordino.optimized.problem import Solved as Solved
from sordino.optimized.sources import Fixed as Fixed
from sordino.optimized.sources import Flat as Flat
from sordino.optimized.sources import Unweighted as Unweighted
from sordino.optimized.weights import Weights as Weights
from sordino.optimized.weights import usable_weights as usable_weights
