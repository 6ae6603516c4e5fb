"""A synthetic world with known features: the effect of privacy on each group, and its causes."""

from sordino_papers.side_effects.two_patch_world.descent import PatchDescent as PatchDescent
from sordino_papers.side_effects.two_patch_world.descent import train as train
from sordino_papers.side_effects.two_patch_world.descent import train_without_noise as train_without_noise
from sordino_papers.side_effects.two_patch_world.network import GroupOutcome as GroupOutcome
from sordino_papers.side_effects.two_patch_world.network import PatchNetwork as PatchNetwork
from sordino_papers.side_effects.two_patch_world.network import outcomes as outcomes
from sordino_papers.side_effects.two_patch_world.pictures import ImageRatio as ImageRatio
from sordino_papers.side_effects.two_patch_world.pictures import ObjectBox as ObjectBox
from sordino_papers.side_effects.two_patch_world.pictures import (
    feature_to_noise_of_pictures as feature_to_noise_of_pictures,
)
from sordino_papers.side_effects.two_patch_world.pictures import object_boxes as object_boxes
from sordino_papers.side_effects.two_patch_world.ratio import FeatureToNoise as FeatureToNoise
from sordino_papers.side_effects.two_patch_world.ratio import clipping_factor as clipping_factor
from sordino_papers.side_effects.two_patch_world.ratio import feature_to_noise as feature_to_noise
from sordino_papers.side_effects.two_patch_world.robustness import adversarial_term_l2 as adversarial_term_l2
from sordino_papers.side_effects.two_patch_world.robustness import adversarial_term_linf as adversarial_term_linf
from sordino_papers.side_effects.two_patch_world.robustness import l1_growth as l1_growth
from sordino_papers.side_effects.two_patch_world.robustness import l2_growth as l2_growth
from sordino_papers.side_effects.two_patch_world.robustness import move_to_high_loss as move_to_high_loss
from sordino_papers.side_effects.two_patch_world.swarm import train_side_by_side as train_side_by_side
from sordino_papers.side_effects.two_patch_world.terms import LossTerms as LossTerms
from sordino_papers.side_effects.two_patch_world.terms import harmful_angle as harmful_angle
from sordino_papers.side_effects.two_patch_world.terms import lower_terms as lower_terms
from sordino_papers.side_effects.two_patch_world.terms import starting_loss as starting_loss
from sordino_papers.side_effects.two_patch_world.terms import starting_margins as starting_margins
from sordino_papers.side_effects.two_patch_world.terms import upper_terms as upper_terms
from sordino_papers.side_effects.two_patch_world.world import PatchGroup as PatchGroup
from sordino_papers.side_effects.two_patch_world.world import PatchRows as PatchRows
from sordino_papers.side_effects.two_patch_world.world import TwoPatches as TwoPatches
from sordino_papers.side_effects.two_patch_world.world import one_feature_each as one_feature_each
