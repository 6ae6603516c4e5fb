"""Feature transforms without trained parameters. Each maps single examples, so they cost no privacy."""

from sordino.models.features.cache import cached as cached
from sordino.models.features.prepared import GroupedScattering as GroupedScattering
from sordino.models.features.prepared import Pixels as Pixels
from sordino.models.features.prepared import ScatteringFeatures as ScatteringFeatures
from sordino.models.features.prepared import StandardisedScattering as StandardisedScattering
from sordino.models.features.prepared import scattering_features as scattering_features
from sordino.models.features.scattering import Scattering2D as Scattering2D
from sordino.models.features.spectrum import Spectrum as Spectrum
