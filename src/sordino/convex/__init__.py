"""Convex models: gated ReLU networks, and the baselines that they are compared with."""

from sordino.convex.batch_choice import choose_batches as choose_batches
from sordino.convex.hidden_run import HiddenStateFit as HiddenStateFit
from sordino.convex.hidden_run import fit_hidden_state as fit_hidden_state
from sordino.convex.losses import CrossEntropy as CrossEntropy
from sordino.convex.losses import Logistic as Logistic
from sordino.convex.losses import Squared as Squared
from sordino.convex.model import GatedReLU as GatedReLU
from sordino.convex.model import Linear as Linear
from sordino.convex.model import PairedReLU as PairedReLU
from sordino.convex.noisy_cgd import NoisyCGD as NoisyCGD
