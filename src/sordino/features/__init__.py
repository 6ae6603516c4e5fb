"""Public transforms of single records, computed once: they have no parameters and cost no privacy."""

from sordino.features.cache import cached as cached
from sordino.features.pixels import Pixels as Pixels
from sordino.features.prepared import GroupedScattering as GroupedScattering
from sordino.features.prepared import ScatteringFeatures as ScatteringFeatures
from sordino.features.prepared import StandardisedScattering as StandardisedScattering
from sordino.features.prepared import scattering_features as scattering_features
from sordino.features.scattering import Scattering2D as Scattering2D
from sordino.features.spectrum import Spectrum as Spectrum
