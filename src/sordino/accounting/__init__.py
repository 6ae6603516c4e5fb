"""Privacy accounting: events, accountants, guarantees. Imports no torch. README.md says what each accountant proves."""

from sordino.accounting.adjacency import Adjacency as Adjacency
from sordino.accounting.calibrate import smallest as smallest
from sordino.accounting.curves import GaussianCurve as GaussianCurve
from sordino.accounting.curves import PrivacyCurve as PrivacyCurve
from sordino.accounting.events import PureDpEvent as PureDpEvent
from sordino.accounting.events import RandomAllocationDpEvent as RandomAllocationDpEvent
from sordino.accounting.guarantee import SEED_STAYS_SECRET as SEED_STAYS_SECRET
from sordino.accounting.guarantee import Guarantee as Guarantee
from sordino.accounting.guarantee import Unit as Unit
from sordino.accounting.guarantee import View as View
from sordino.accounting.tightest import Answer as Answer
from sordino.accounting.tightest import all_answers as all_answers
from sordino.accounting.tightest import privacy_of as privacy_of
