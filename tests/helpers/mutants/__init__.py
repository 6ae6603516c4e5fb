"""Known bugs of private training code, planted in the kernel one at a time to test which check detects each."""

from mutants.bugs import MUTANTS as MUTANTS
from mutants.bugs import OF_OPTIMIZED_NOISE as OF_OPTIMIZED_NOISE
from mutants.bugs import OF_PLACES as OF_PLACES
from mutants.planting import Mutant as Mutant
from mutants.planting import Patches as Patches
from mutants.planting import planted as planted
