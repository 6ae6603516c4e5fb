"""Reconstruction attacks: recover an image from its gradient, plain or with noise and a mask."""

from sordino.attacks.reconstruction.attack import KnownNetwork as KnownNetwork
from sordino.attacks.reconstruction.attack import ObservedGradient as ObservedGradient
from sordino.attacks.reconstruction.attack import ReconstructionAttack as ReconstructionAttack
from sordino.attacks.reconstruction.attack import observe as observe
from sordino.attacks.reconstruction.attack import public_pictures as public_pictures
from sordino.attacks.reconstruction.inverting import GradientInversion as GradientInversion
from sordino.attacks.reconstruction.linear_layer import FirstLayer as FirstLayer
from sordino.attacks.reconstruction.r_gap import Recursive as Recursive
from sordino.attacks.reconstruction.similarity import Likeness as Likeness
from sordino.attacks.reconstruction.theorem import SingleLayer as SingleLayer
