"""Sordino trains neural networks on sensitive data with a proof of differential privacy.

The names follow the pipeline: samplers, records and augmentation, per-example gradients, encodings, clipping, noise,
and the guarantee. `fit` does all of it in one call.

Each name is imported from its module when it is first used, so `import sordino` is fast and does not import torch.

>>> import sordino as so
>>> so.Gaussian(1.1).event
GaussianDpEvent(noise_multiplier=1.1)
"""

import warnings
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sordino.accounting import Adjacency, Guarantee

    # names that left this module in 0.2, see `_DEPRECATED_MODULES`
    from sordino.accounting import Unit as Unit
    from sordino.accounting import View as View
    from sordino.convex.noisy_cgd import NoisyCGD
    from sordino.encodings.freeze import Freeze
    from sordino.encodings.sparsify import RandomSparsify
    from sordino.errors import BudgetError as BudgetError
    from sordino.errors import DataError as DataError
    from sordino.errors import Interrupted as Interrupted
    from sordino.errors import SordinoError
    from sordino.errors import StateError as StateError
    from sordino.errors import UnsupportedEvent as UnsupportedEvent
    from sordino.errors import UsageError as UsageError
    from sordino.gradients.rules import register_gradient
    from sordino.kernel.augmentation import Crop as Crop
    from sordino.kernel.augmentation import Flip as Flip
    from sordino.kernel.augmentation import Jitter as Jitter
    from sordino.kernel.augmentation import Views
    from sordino.kernel.buckets import Buckets
    from sordino.kernel.budget import Budget
    from sordino.kernel.calibration import calibrate
    from sordino.kernel.clipping import ClipByNorm, ClipPerLayer, Normalise
    from sordino.kernel.contribution import LossGradient
    from sordino.kernel.encoding import Unchanged as Unchanged
    from sordino.kernel.loading import Loading
    from sordino.kernel.noise import Gaussian
    from sordino.kernel.randomness import Key as Key
    from sordino.kernel.records import Data, as_records, by_user
    from sordino.kernel.run import PrivateRun
    from sordino.kernel.sampling import BallsInBins, Cyclic, FixedSize, Poisson, Shuffled, TruncatedPoisson
    from sordino.kernel.states import BoundedSum as BoundedSum
    from sordino.kernel.states import Layout as Layout
    from sordino.kernel.states import PerExample as PerExample
    from sordino.kernel.states import Private
    from sordino.kernel.step import Plan
    from sordino.models.batchnorm import replace_batchnorm
    from sordino.optimized_noise.noise import OptimizedNoise
    from sordino.releases.gradient_sizes import release_sensitivity as release_sensitivity
    from sordino.releases.moments import release_moments
    from sordino.releases.vector import Released as Released
    from sordino.releases.vector import release
    from sordino.training.averaging import Ema as Ema
    from sordino.training.averaging import Tail as Tail
    from sordino.training.callbacks import Callback
    from sordino.training.description import TrainingSetup
    from sordino.training.evaluation import Charged, Evaluation, Public
    from sordino.training.evaluation import accuracy as accuracy
    from sordino.training.fit import Fitted as Fitted
    from sordino.training.fit import fit
    from sordino.training.plans import dp_sgd
    from sordino.training.run_folder import RunFolder as RunFolder
    from sordino.training.schedules import Cosine as Cosine
    from sordino.training.schedules import Step as Step
    from sordino.training.schedules import Warmup as Warmup
    from sordino.verification import Verdict as Verdict
    from sordino.verification import verify
    from sordino.verification.explanation import explain

__all__ = [  # noqa: RUF022, they follow the pipeline
    # which units join each step
    "Poisson",
    "TruncatedPoisson",
    "BallsInBins",
    "Shuffled",
    "Cyclic",
    "FixedSize",
    # records of a unit, how they are read, and augmented views of a record
    "Data",
    "as_records",
    "by_user",
    "Buckets",
    "Loading",
    "Views",
    # what each unit contributes
    "LossGradient",
    "register_gradient",
    "replace_batchnorm",
    # how a contribution is encoded
    "RandomSparsify",
    "Freeze",
    # how it is bounded
    "ClipByNorm",
    "ClipPerLayer",
    "Normalise",
    # what noise is added
    "Gaussian",
    "OptimizedNoise",
    "Private",
    # all steps together, and what they cost
    "Plan",
    "dp_sgd",
    "NoisyCGD",
    "calibrate",
    "Adjacency",
    "Guarantee",
    "Budget",
    # training
    "PrivateRun",
    "fit",
    "Callback",
    "Evaluation",
    "Public",
    "Charged",
    "TrainingSetup",
    # single releases
    "release",
    "release_moments",
    # checks of a plan
    "verify",
    "explain",
    # the base class of all errors
    "SordinoError",
]

_MODULES = {  # where each name is imported from when it is first used
    "accounting": "Adjacency Guarantee",
    "convex.noisy_cgd": "NoisyCGD",
    "encodings.freeze": "Freeze",
    "encodings.sparsify": "RandomSparsify",
    "errors": "SordinoError",
    "gradients.rules": "register_gradient",
    "kernel.augmentation": "Views",
    "kernel.buckets": "Buckets",
    "kernel.budget": "Budget",
    "kernel.calibration": "calibrate",
    "kernel.clipping": "ClipByNorm ClipPerLayer Normalise",
    "kernel.contribution": "LossGradient",
    "kernel.loading": "Loading",
    "kernel.noise": "Gaussian",
    "kernel.records": "Data as_records by_user",
    "kernel.run": "PrivateRun",
    "kernel.sampling": "BallsInBins Cyclic FixedSize Poisson Shuffled TruncatedPoisson",
    "kernel.states": "Private",
    "kernel.step": "Plan",
    "models.batchnorm": "replace_batchnorm",
    "optimized_noise.noise": "OptimizedNoise",
    "releases.moments": "release_moments",
    "releases.vector": "release",
    "training.callbacks": "Callback",
    "training.description": "TrainingSetup",
    "training.evaluation": "Charged Evaluation Public",
    "training.fit": "fit",
    "training.plans": "dp_sgd",
    "verification": "verify",
    "verification.explanation": "explain",
}
_DEPRECATED_MODULES = {  # names that left this module in 0.2, and stay in 0.2 with a warning
    "accounting": "Unit View",
    "errors": "BudgetError DataError Interrupted StateError UnsupportedEvent UsageError",
    "kernel.augmentation": "Crop Flip Jitter",
    "kernel.encoding": "Unchanged",
    "kernel.randomness": "Key",
    "kernel.states": "BoundedSum Layout PerExample",
    "releases.gradient_sizes": "release_sensitivity",
    "releases.vector": "Released",
    "training.averaging": "Ema Tail",
    "training.evaluation": "accuracy",
    "training.fit": "Fitted",
    "training.run_folder": "RunFolder",
    "training.schedules": "Cosine Step Warmup",
    "verification": "Verdict",
}


def _homes(modules: dict[str, str]) -> dict[str, str]:
    return {name: f"sordino.{module}" for module, names in modules.items() for name in names.split()}


_HOMES, _DEPRECATED = _homes(_MODULES), _homes(_DEPRECATED_MODULES)

if not TYPE_CHECKING:  # a type checker takes the names from the imports above, and refuses all others

    def __getattr__(name: str) -> Any:
        if name in _DEPRECATED:
            message = f"sordino.{name} is deprecated until 0.3: import {name} from {_DEPRECATED[name]}."
            warnings.warn(message, DeprecationWarning, stacklevel=2)
            return getattr(import_module(_DEPRECATED[name]), name)
        if name in _HOMES:
            value = getattr(import_module(_HOMES[name]), name)
        elif not name.startswith("_") and find_spec(f"sordino.{name}"):
            value = import_module(f"sordino.{name}")
        else:
            raise AttributeError(f"module 'sordino' has no attribute {name!r}")
        globals()[name] = value
        return value

    def __dir__() -> list[str]:
        return sorted(__all__)
