"""All experiments by name, in the order of the papers."""

from __future__ import annotations

from sordino_papers.attacks.audit import AUDIT
from sordino_papers.attacks.reconstruction import RECONSTRUCTION
from sordino_papers.harness.entry import Experiment
from sordino_papers.hidden_state import HIDDEN_STATE
from sordino_papers.optimized_noise.table import OPTIMIZED_NOISE
from sordino_papers.side_effects.adult import ADULT
from sordino_papers.side_effects.augmentation import AUGMENTATION
from sordino_papers.side_effects.class_size import CLASS_SIZE
from sordino_papers.side_effects.disparity_causes import DISPARITY_CAUSES
from sordino_papers.side_effects.feature_to_noise import FEATURE_TO_NOISE
from sordino_papers.side_effects.freezing import FREEZING
from sordino_papers.side_effects.padding import PADDING
from sordino_papers.side_effects.phase_transition import PHASE_TRANSITION
from sordino_papers.side_effects.rotated_patches import ROTATED_PATCHES
from sordino_papers.side_effects.rotation import ROTATION
from sordino_papers.side_effects.vit_padding import VIT_PADDING
from sordino_papers.sparsification.frameworks import SPARSIFICATION_FRAMEWORKS
from sordino_papers.sparsification.masks import SPARSIFICATION_ABLATION
from sordino_papers.sparsification.ranked import RANKED_TABLE
from sordino_papers.sparsification.ratios import SPARSIFICATION_RATIOS
from sordino_papers.sparsification.sampling import SPARSIFICATION_SAMPLING
from sordino_papers.sparsification.scaling_rule import SCALING_RULE
from sordino_papers.sparsification.symmetry import SYMMETRY
from sordino_papers.sparsification.table import SPARSIFICATION
from sordino_papers.sparsification.tradeoff import SPARSIFICATION_TRADEOFF

_ALL: tuple[Experiment, ...] = (
    HIDDEN_STATE,
    SPARSIFICATION,
    SPARSIFICATION_SAMPLING,
    SPARSIFICATION_TRADEOFF,
    SPARSIFICATION_ABLATION,
    SPARSIFICATION_RATIOS,
    SPARSIFICATION_FRAMEWORKS,
    SCALING_RULE,
    RANKED_TABLE,
    SYMMETRY,
    OPTIMIZED_NOISE,
    PHASE_TRANSITION,
    FEATURE_TO_NOISE,
    DISPARITY_CAUSES,
    ROTATED_PATCHES,
    PADDING,
    ROTATION,
    CLASS_SIZE,
    VIT_PADDING,
    FREEZING,
    AUGMENTATION,
    ADULT,
    AUDIT,
    RECONSTRUCTION,
)
EXPERIMENTS = {experiment.name: experiment for experiment in _ALL}
