"""Side effects of private training on public rows: accuracy by group, calibration and adversarial robustness."""

from sordino.effects.input_attacks import L2 as L2
from sordino.effects.input_attacks import LInfinity as LInfinity
from sordino.effects.input_attacks import PgdAttack as PgdAttack
from sordino.effects.input_attacks import pgd as pgd
from sordino.effects.input_attacks import robust_accuracy as robust_accuracy
from sordino.effects.robustness import MaskingSigns as MaskingSigns
from sordino.effects.robustness import masking_signs as masking_signs
