"""What raw gradients look like while a run goes on. None of it is private, and none of it can be part of a report."""

from sordino.diagnostics.exposed import NOT_PRIVATE as NOT_PRIVATE
from sordino.diagnostics.exposed import Exposed as Exposed
from sordino.diagnostics.exposed import ExposedRun as ExposedRun
from sordino.diagnostics.exposed import ExposedStep as ExposedStep
from sordino.diagnostics.mask_counts import MaskCounts as MaskCounts
from sordino.diagnostics.mask_counts import count_masks as count_masks
from sordino.diagnostics.mask_counts import expected_counts as expected_counts
from sordino.diagnostics.ratios import GradientRatio as GradientRatio
from sordino.diagnostics.ratios import gradient_ratios as gradient_ratios
from sordino.diagnostics.ratios import noise_ratio as noise_ratio
from sordino.diagnostics.symmetry import Deviations as Deviations
from sordino.diagnostics.symmetry import Symmetry as Symmetry
from sordino.diagnostics.symmetry import deviations as deviations
from sordino.diagnostics.symmetry import symmetry as symmetry
