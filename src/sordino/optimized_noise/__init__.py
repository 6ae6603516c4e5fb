"""Noise chosen so that it hurts a weighted cost least, under the constraint of pure differential privacy."""

from sordino.optimized_noise.block_norm import BlockNorm as BlockNorm
from sordino.optimized_noise.costs import AbsoluteCost as AbsoluteCost
from sordino.optimized_noise.costs import CheckedWeights as CheckedWeights
from sordino.optimized_noise.costs import Cost as Cost
from sordino.optimized_noise.costs import SignedCost as SignedCost
from sordino.optimized_noise.costs import SquaredCost as SquaredCost
from sordino.optimized_noise.costs import usable_weights as usable_weights
from sordino.optimized_noise.fits import best_blocks as best_blocks
from sordino.optimized_noise.fits import isotropic as isotropic
from sordino.optimized_noise.fits import of_blocks as of_blocks
from sordino.optimized_noise.fits import weighted_laplace as weighted_laplace
from sordino.optimized_noise.noise import OptimizedNoise as OptimizedNoise
from sordino.optimized_noise.problem import Gap as Gap
from sordino.optimized_noise.problem import LinearProgramSolution as LinearProgramSolution
from sordino.optimized_noise.problem import NoiseProblem as NoiseProblem
from sordino.optimized_noise.problem import PerDistance as PerDistance
from sordino.optimized_noise.problem import WithinSensitivity as WithinSensitivity
from sordino.optimized_noise.problem import gaps as gaps
from sordino.optimized_noise.sources import Fixed as Fixed
from sordino.optimized_noise.sources import Flat as Flat
from sordino.optimized_noise.sources import FromPublicRows as FromPublicRows
from sordino.optimized_noise.sources import FromReleases as FromReleases
from sordino.optimized_noise.sources import Unweighted as Unweighted
