"""What a gradient tells of the picture that it was computed from: attacks, and what noise and masks leave to them."""

from sordino.reconstruction.attack import Attack as Attack
from sordino.reconstruction.inverting import Inverting as Inverting
from sordino.reconstruction.known import Known as Known
from sordino.reconstruction.known import public_pictures as public_pictures
from sordino.reconstruction.likeness import Likeness as Likeness
from sordino.reconstruction.linear import FirstLayer as FirstLayer
from sordino.reconstruction.observed import Observed as Observed
from sordino.reconstruction.observed import observe as observe
from sordino.reconstruction.recursive import Recursive as Recursive
from sordino.reconstruction.theorem import SingleLayer as SingleLayer
