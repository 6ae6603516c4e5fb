"""Sordino trains neural networks on sensitive data with a proof of differential privacy.

The names follow the pipeline: who joins each step, what each contributes, how it is bounded, what noise is added, what
that is worth. `fit` does all of it at once.
"""

from sordino.accounting import Adjacency as Adjacency
from sordino.accounting import Guarantee as Guarantee
from sordino.accounting import Unit as Unit
from sordino.accounting import View as View
from sordino.errors import BudgetError as BudgetError
from sordino.errors import DataError as DataError
from sordino.errors import Interrupted as Interrupted
from sordino.errors import SordinoError as SordinoError
from sordino.errors import StateError as StateError
from sordino.errors import UnsupportedEvent as UnsupportedEvent
from sordino.errors import UsageError as UsageError
from sordino.gradients.registered import register_gradient as register_gradient
from sordino.kernel.augmentation import Crop as Crop
from sordino.kernel.augmentation import Flip as Flip
from sordino.kernel.augmentation import Jitter as Jitter
from sordino.kernel.augmentation import Views as Views
from sordino.kernel.budget import Budget as Budget
from sordino.kernel.calibration import calibrate as calibrate
from sordino.kernel.clipping import ClipByNorm as ClipByNorm
from sordino.kernel.clipping import ClipPerLayer as ClipPerLayer
from sordino.kernel.clipping import Normalise as Normalise
from sordino.kernel.contribution import LossGradient as LossGradient
from sordino.kernel.encoding import Unchanged as Unchanged
from sordino.kernel.noise import Gaussian as Gaussian
from sordino.kernel.randomness import Key as Key
from sordino.kernel.records import as_records as as_records
from sordino.kernel.records import by_user as by_user
from sordino.kernel.run import PrivateRun as PrivateRun
from sordino.kernel.sampling import BallsInBins as BallsInBins
from sordino.kernel.sampling import Cyclic as Cyclic
from sordino.kernel.sampling import FixedSize as FixedSize
from sordino.kernel.sampling import Poisson as Poisson
from sordino.kernel.sampling import Shuffled as Shuffled
from sordino.kernel.sampling import TruncatedPoisson as TruncatedPoisson
from sordino.kernel.states import BoundedSum as BoundedSum
from sordino.kernel.states import Layout as Layout
from sordino.kernel.states import PerExample as PerExample
from sordino.kernel.states import Private as Private
from sordino.kernel.step import Plan as Plan
from sordino.models.batchnorm import replace_batchnorm as replace_batchnorm
from sordino.optimized_noise.noise import OptimizedNoise as OptimizedNoise
from sordino.releases.gradient_sizes import release_sensitivity as release_sensitivity
from sordino.releases.moments import release_moments as release_moments
from sordino.releases.vector import Released as Released
from sordino.releases.vector import release as release
from sordino.training.averaging import Ema as Ema
from sordino.training.averaging import Tail as Tail
from sordino.training.evaluation import Charged as Charged
from sordino.training.evaluation import Public as Public
from sordino.training.evaluation import accuracy as accuracy
from sordino.training.fit import Fitted as Fitted
from sordino.training.fit import fit as fit
from sordino.training.run_folder import RunFolder as RunFolder
from sordino.training.schedules import Cosine as Cosine
from sordino.training.schedules import Step as Step
from sordino.training.schedules import Warmup as Warmup
from sordino.verification import Verdict as Verdict
from sordino.verification import verify as verify
