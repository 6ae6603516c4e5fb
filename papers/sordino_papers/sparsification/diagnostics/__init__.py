"""Diagnostics of raw gradients during a run. They are not private and never part of a report."""

from sordino.training.not_private import NOT_PRIVATE as NOT_PRIVATE
from sordino.training.not_private import ExposedResult as ExposedResult
from sordino_papers.harness.raw_gradients import ExposedRun as ExposedRun
from sordino_papers.harness.raw_gradients import ExposedStep as ExposedStep
from sordino_papers.sparsification.diagnostics.mask_counts import MaskCounts as MaskCounts
from sordino_papers.sparsification.diagnostics.mask_counts import count_masks as count_masks
from sordino_papers.sparsification.diagnostics.mask_counts import expected_counts as expected_counts
from sordino_papers.sparsification.diagnostics.ratios import GradientRatio as GradientRatio
from sordino_papers.sparsification.diagnostics.ratios import gradient_ratios as gradient_ratios
from sordino_papers.sparsification.diagnostics.ratios import noise_ratio as noise_ratio
from sordino_papers.sparsification.diagnostics.symmetry import Deviations as Deviations
from sordino_papers.sparsification.diagnostics.symmetry import Symmetry as Symmetry
from sordino_papers.sparsification.diagnostics.symmetry import deviations as deviations
from sordino_papers.sparsification.diagnostics.symmetry import symmetry as symmetry
