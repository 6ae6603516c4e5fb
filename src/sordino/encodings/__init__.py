"""What may be done to a gradient before the clip and undone after the noise: sparsification, freezing, projection."""

from sordino.encodings.combined import Combined as Combined
from sordino.encodings.freeze import Freeze as Freeze
from sordino.encodings.random_sparsify import RandomSparsify as RandomSparsify
from sordino.encodings.ranked_sparsify import RankedSparsify as RankedSparsify
from sordino.encodings.rates import ConstantRate as ConstantRate
from sordino.encodings.rates import Cooling as Cooling
