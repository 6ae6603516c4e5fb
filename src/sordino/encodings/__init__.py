"""What may be done to a gradient before the clip and undone after the noise: masks, projections, scales."""

from sordino.encodings.combined import Combined as Combined
from sordino.encodings.freeze import Freeze as Freeze
from sordino.encodings.freeze import FreezeByMagnitude as FreezeByMagnitude
from sordino.encodings.freeze import Neurons as Neurons
from sordino.encodings.freeze import Weights as Weights
from sordino.encodings.matched import Matched as Matched
from sordino.encodings.matched import MatchedBought as MatchedBought
from sordino.encodings.project import Project as Project
from sordino.encodings.project import ProjectBiased as ProjectBiased
from sordino.encodings.project import Subspace as Subspace
from sordino.encodings.public_gradients import PublicGradients as PublicGradients
from sordino.encodings.sparsify import ConstantRate as ConstantRate
from sordino.encodings.sparsify import Cooling as Cooling
from sordino.encodings.sparsify import RandomSparsify as RandomSparsify
from sordino.encodings.sparsify import RankedSparsify as RankedSparsify
