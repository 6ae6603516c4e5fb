"""A world in which it is known what a row is recognised by: what privacy costs each group there, and why."""

from sordino.patches.descent import Descent as Descent
from sordino.patches.descent import exposed as exposed
from sordino.patches.descent import train as train
from sordino.patches.descent import train_without_noise as train_without_noise
from sordino.patches.network import PatchNetwork as PatchNetwork
from sordino.patches.outcome import Outcome as Outcome
from sordino.patches.outcome import outcomes as outcomes
from sordino.patches.ratio import FeatureToNoise as FeatureToNoise
from sordino.patches.ratio import clipping_factor as clipping_factor
from sordino.patches.ratio import feature_to_noise as feature_to_noise
from sordino.patches.swarm import train_side_by_side as train_side_by_side
from sordino.patches.world import Group as Group
from sordino.patches.world import Patches as Patches
from sordino.patches.world import TwoPatches as TwoPatches
from sordino.patches.world import one_feature_each as one_feature_each
