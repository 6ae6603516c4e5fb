"""Search for clipping norm and momentum, with a guarantee that counts every trial."""

from sordino.tuning.candidates import Adam as Adam
from sordino.tuning.candidates import AlongTheLine as AlongTheLine
from sordino.tuning.candidates import Candidate as Candidate
from sordino.tuning.candidates import CandidateGrid as CandidateGrid
from sordino.tuning.candidates import Clips as Clips
from sordino.tuning.candidates import Momenta as Momenta
from sordino.tuning.candidates import Sgd as Sgd
from sordino.tuning.candidates import Stage as Stage
from sordino.tuning.candidates import clip_momentum as clip_momentum
from sordino.tuning.payments import Compose as Compose
from sordino.tuning.payments import NegativeBinomialNumber as NegativeBinomialNumber
from sordino.tuning.payments import Payment as Payment
from sordino.tuning.payments import PoissonNumber as PoissonNumber
from sordino.tuning.payments import Prepaid as Prepaid
from sordino.tuning.payments import Repeat as Repeat
from sordino.tuning.task import PrivateAccuracy as PrivateAccuracy
from sordino.tuning.task import PublicScore as PublicScore
from sordino.tuning.task import Task as Task
from sordino.tuning.tune import Chosen as Chosen
from sordino.tuning.tune import TuningResult as TuningResult
from sordino.tuning.tune import tune as tune
from sordino.tuning.tune import tune_on_public as tune_on_public
