"""The names that users of Opacus know: a script migrates by changing its imports.

The kernel is the same as everywhere: a sampler draws each batch, the loss of each row is computed apart, and noise is
added once to the sum of clipped gradients. Only who drives the loop differs.
"""

from sordino.opacus.constants import public as public
from sordino.opacus.engine import PrivacyEngine as PrivacyEngine
