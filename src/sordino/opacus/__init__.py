"""The interface of Opacus (`PrivacyEngine`): a script migrates by changing its imports.

The kernel's steps are used as everywhere: a sampler draws each batch, the gradient of each row is computed separately,
and noise is added once to the sum of clipped gradients. Only the training loop is the script's.
"""

from sordino.opacus.constants import public as public
from sordino.opacus.engine import PrivacyEngine as PrivacyEngine
