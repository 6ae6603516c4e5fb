"""Sordino trains neural networks on sensitive data with a proof of differential privacy.

The names follow the pipeline: samplers, records and augmentation, per-example gradients, encodings, clipping, noise,
and the guarantee. `fit` does all of it in one call.

Each name is imported from its module when it is first used, so `import sordino` is fast and does not import torch.

>>> import sordino as so
>>> so.Gaussian(1.1).event
GaussianDpEvent(noise_multiplier=1.1)
"""

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sordino.accounting import Adjacency, Guarantee, Unit, View
    from sordino.convex.noisy_cgd import NoisyCGD
    from sordino.encodings.freeze import Freeze
    from sordino.encodings.sparsify import RandomSparsify
    from sordino.errors import (
        BudgetError,
        DataError,
        Interrupted,
        SordinoError,
        StateError,
        UnsupportedEvent,
        UsageError,
    )
    from sordino.gradients.rules import register_gradient
    from sordino.kernel.augmentation import Crop, Flip, Jitter, Views
    from sordino.kernel.budget import Budget
    from sordino.kernel.calibration import calibrate
    from sordino.kernel.clipping import ClipByNorm, ClipPerLayer, Normalise
    from sordino.kernel.contribution import LossGradient
    from sordino.kernel.encoding import Unchanged
    from sordino.kernel.noise import Gaussian
    from sordino.kernel.randomness import Key
    from sordino.kernel.records import as_records, by_user
    from sordino.kernel.run import PrivateRun
    from sordino.kernel.sampling import BallsInBins, Cyclic, FixedSize, Poisson, Shuffled, TruncatedPoisson
    from sordino.kernel.states import BoundedSum, Layout, PerExample, Private
    from sordino.kernel.step import Plan
    from sordino.models.batchnorm import replace_batchnorm
    from sordino.optimized_noise.noise import OptimizedNoise
    from sordino.releases.gradient_sizes import release_sensitivity
    from sordino.releases.moments import release_moments
    from sordino.releases.vector import Released, release
    from sordino.training.averaging import Ema, Tail
    from sordino.training.description import TrainingSetup
    from sordino.training.evaluation import Charged, Public, accuracy
    from sordino.training.fit import Fitted, fit
    from sordino.training.run_folder import RunFolder
    from sordino.training.schedules import Cosine, Step, Warmup
    from sordino.verification import Verdict, verify

__all__ = [  # noqa: RUF022, in the order of the pipeline
    # samplers: which examples join each step
    "Poisson",
    "TruncatedPoisson",
    "BallsInBins",
    "Shuffled",
    "Cyclic",
    "FixedSize",
    # records of a unit, and their augmentation
    "as_records",
    "by_user",
    "Views",
    "Flip",
    "Crop",
    "Jitter",
    # per-example gradients
    "LossGradient",
    "register_gradient",
    "replace_batchnorm",
    # encodings
    "Unchanged",
    "RandomSparsify",
    "Freeze",
    # clipping
    "ClipByNorm",
    "ClipPerLayer",
    "Normalise",
    # noise
    "Gaussian",
    "OptimizedNoise",
    "Key",
    # privacy states of a gradient
    "Layout",
    "PerExample",
    "BoundedSum",
    "Private",
    # all stages together
    "Plan",
    "PrivateRun",
    "NoisyCGD",
    # guarantees
    "calibrate",
    "Budget",
    "Adjacency",
    "Unit",
    "View",
    "Guarantee",
    # training
    "fit",
    "Fitted",
    "Warmup",
    "Cosine",
    "Step",
    "Ema",
    "Tail",
    "Public",
    "Charged",
    "accuracy",
    "RunFolder",
    "TrainingSetup",
    # other releases
    "release",
    "Released",
    "release_moments",
    "release_sensitivity",
    # checks of a plan
    "verify",
    "Verdict",
    # errors
    "SordinoError",
    "UsageError",
    "DataError",
    "BudgetError",
    "StateError",
    "UnsupportedEvent",
    "Interrupted",
]

_MODULES = {  # where each name is imported from when it is first used
    "accounting": "Adjacency Guarantee Unit View",
    "convex.noisy_cgd": "NoisyCGD",
    "encodings.freeze": "Freeze",
    "encodings.sparsify": "RandomSparsify",
    "errors": "BudgetError DataError Interrupted SordinoError StateError UnsupportedEvent UsageError",
    "gradients.rules": "register_gradient",
    "kernel.augmentation": "Crop Flip Jitter Views",
    "kernel.budget": "Budget",
    "kernel.calibration": "calibrate",
    "kernel.clipping": "ClipByNorm ClipPerLayer Normalise",
    "kernel.contribution": "LossGradient",
    "kernel.encoding": "Unchanged",
    "kernel.noise": "Gaussian",
    "kernel.randomness": "Key",
    "kernel.records": "as_records by_user",
    "kernel.run": "PrivateRun",
    "kernel.sampling": "BallsInBins Cyclic FixedSize Poisson Shuffled TruncatedPoisson",
    "kernel.states": "BoundedSum Layout PerExample Private",
    "kernel.step": "Plan",
    "models.batchnorm": "replace_batchnorm",
    "optimized_noise.noise": "OptimizedNoise",
    "releases.gradient_sizes": "release_sensitivity",
    "releases.moments": "release_moments",
    "releases.vector": "Released release",
    "training.averaging": "Ema Tail",
    "training.description": "TrainingSetup",
    "training.evaluation": "Charged Public accuracy",
    "training.fit": "Fitted fit",
    "training.run_folder": "RunFolder",
    "training.schedules": "Cosine Step Warmup",
    "verification": "Verdict verify",
}
_HOMES = {name: f"sordino.{module}" for module, names in _MODULES.items() for name in names.split()}

if not TYPE_CHECKING:  # a type checker reads the names from the imports above and refuses all others

    def __getattr__(name: str) -> Any:
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
