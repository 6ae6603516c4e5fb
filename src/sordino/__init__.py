"""Sordino trains neural networks on sensitive data with a proof of differential privacy.

The names follow the pipeline: who joins each step, what each contributes, how it is bounded, what noise is added, what
that is worth. `fit` does all of it at once.
"""

from sordino.accounting import Adjacency as Adjacency
from sordino.accounting import Guarantee as Guarantee
from sordino.accounting import Unit as Unit
from sordino.accounting import View as View
from sordino.averaging import Ema as Ema
from sordino.averaging import Tail as Tail
from sordino.batchnorm import replace_batchnorm as replace_batchnorm
from sordino.budget import Budget as Budget
from sordino.calibration import calibrate as calibrate
from sordino.clipping import ClipByNorm as ClipByNorm
from sordino.clipping import ClipPerLayer as ClipPerLayer
from sordino.clipping import Normalise as Normalise
from sordino.contribution import LossGradient as LossGradient
from sordino.encoding import Unchanged as Unchanged
from sordino.errors import BudgetError as BudgetError
from sordino.errors import DataError as DataError
from sordino.errors import Interrupted as Interrupted
from sordino.errors import SordinoError as SordinoError
from sordino.errors import StateError as StateError
from sordino.errors import UnsupportedEvent as UnsupportedEvent
from sordino.errors import UsageError as UsageError
from sordino.gradients.registered import register_gradient as register_gradient
from sordino.noise import Gaussian as Gaussian
from sordino.optimized.noise import OptimizedNoise as OptimizedNoise
from sordino.randomness import Key as Key
from sordino.records import as_records as as_records
from sordino.records import by_user as by_user
from sordino.run import Plan as Plan
from sordino.run import PrivateRun as PrivateRun
from sordino.sampling import BallsInBins as BallsInBins
from sordino.sampling import Cyclic as Cyclic
from sordino.sampling import FixedSize as FixedSize
from sordino.sampling import Poisson as Poisson
from sordino.sampling import Shuffled as Shuffled
from sordino.sampling import TruncatedPoisson as TruncatedPoisson
from sordino.schedule import Cosine as Cosine
from sordino.schedule import Step as Step
from sordino.schedule import Warmup as Warmup
from sordino.sensitivity import release_sensitivity as release_sensitivity
from sordino.single_release import Released as Released
from sordino.single_release import release as release
from sordino.states import BoundedSum as BoundedSum
from sordino.states import Layout as Layout
from sordino.states import PerExample as PerExample
from sordino.states import Private as Private
from sordino.statistics import release_moments as release_moments
from sordino.store import RunFolder as RunFolder
from sordino.train import Fitted as Fitted
from sordino.train import fit as fit
from sordino.validation import Charged as Charged
from sordino.validation import Public as Public
from sordino.validation import accuracy as accuracy
from sordino.verification import Verdict as Verdict
from sordino.verification import verify as verify
from sordino.views import Crop as Crop
from sordino.views import Flip as Flip
from sordino.views import Jitter as Jitter
from sordino.views import Views as Views
