"""What a trained model does to groups of people, and what it lets attackers do."""

from sordino.effects.attacks import L2 as L2
from sordino.effects.attacks import Attack as Attack
from sordino.effects.attacks import LInfinity as LInfinity
from sordino.effects.attacks import pgd as pgd
from sordino.effects.attacks import robust_accuracy as robust_accuracy
from sordino.effects.masking import MaskingSigns as MaskingSigns
from sordino.effects.masking import masking_signs as masking_signs
