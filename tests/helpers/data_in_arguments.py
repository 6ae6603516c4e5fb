"""Data of all kinds, passed by mistake to each public argument.

The values are easy to find in messages: 0.1234..., 424242 and ALICE represent the contents of rows.
"""

from __future__ import annotations

import importlib
import inspect
import traceback
from collections.abc import Callable, Collection, Iterator
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

import sordino as so
from sordino.accounting import PureDpEvent
from sordino.convex import GatedReLU, NoisyCGD
from sordino.data import Facts
from sordino.encodings import RandomSparsify
from sordino.kernel.augmentation import Flip
from sordino.kernel.encoding import Unchanged
from sordino.kernel.randomness import Key
from sordino.kernel.records import as_records
from sordino.kernel.states import Layout
from sordino.opacus import PrivacyEngine
from sordino.optimized_noise import FromReleases
from sordino.training.averaging import Ema
from sordino.training.schedules import Cosine
from sordino.tuning import Candidate, Clips, PoissonNumber, Repeat

NUMBER, COUNT, NAME = 0.123456789, 424242, "ALICE-SECRET"
TRACES = ("0.123", ".1235", "424242", "4.24e+05", "4.2424", "424,242", "ALICE")

PACKAGES = (
    "accounting", "attacks.audit", "attacks.membership", "attacks.reconstruction", "convex", "data",
    "effects", "encodings", "models.features", "opacus", "optimized_noise", "recipes", "sklearn",
    "training.communication", "training.transfer", "tuning", "verification",
)  # fmt: skip
MODULES = (
    "kernel.augmentation", "recipes.planning", "releases.gradient_sizes", "releases.moments", "training.averaging",
    "training.callbacks", "training.evaluation", "training.schedules",
)  # fmt: skip


class Diary(Dataset[Any]):
    """A dataset whose rows raise errors that quote them."""

    def __len__(self) -> int:
        return 6

    def __getitem__(self, index: int) -> Any:
        raise KeyError(NAME)

    def __repr__(self) -> str:
        return f"Diary({NAME}, {NUMBER})"


DATA: dict[str, Callable[[], Any]] = {
    "inputs and target": lambda: (torch.full((6, 3), NUMBER), torch.full((6,), COUNT)),
    "a tensor": lambda: torch.full((4,), NUMBER, dtype=torch.float64),
    "a tensor of labels": lambda: torch.full((4,), COUNT),
    "one number of a tensor": lambda: torch.tensor(NUMBER, dtype=torch.float64),
    "an array": lambda: np.full((4, 2), NUMBER),
    "an array of texts": lambda: np.array([NAME, NAME]),
    "an array of objects": lambda: np.array([NAME, NUMBER, None], dtype=object),
    "a structured array": lambda: np.array([(COUNT, NUMBER)], dtype=[("age", "i8"), ("b", "f8")]),
    "one label of an array": lambda: np.int64(COUNT),
    "a list of numbers": lambda: [NUMBER, float(COUNT)],
    "a pair of numbers": lambda: (float(COUNT), NUMBER),
    "rows of numbers": lambda: [(NUMBER, COUNT), (NUMBER, COUNT)],
    "a list of texts": lambda: [NAME, NAME],
    "rows by name": lambda: {NAME: NUMBER, "label": COUNT},
    "a set": lambda: {NAME, COUNT},
    "a data set": Diary,
    "a data set in memory": lambda: TensorDataset(torch.full((6, 3), NUMBER), torch.full((6,), COUNT)),
    "bytes": lambda: f"{NAME} {COUNT}".encode(),
}

GENERATOR = torch.Generator().manual_seed(0)
INPUTS, LABELS = torch.randn(20, 4, generator=GENERATOR), torch.arange(20) % 3


def plan() -> so.Plan:
    return so.Plan(so.Poisson(0.5, 2), so.LossGradient(F.cross_entropy), so.ClipByNorm(1.0), so.Gaussian(20.0))


def model() -> nn.Module:
    return nn.Linear(4, 3)


def hidden() -> NoisyCGD:
    return NoisyCGD(so.Cyclic(2, 1), GatedReLU(4), clip=1.5, noise_multiplier=5.0, learning_rate=0.1)


def sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1)


LAYOUT = Layout(("weight", "bias"), ((3, 4), (3,)))
FACTS = Facts("synthetic", (4,), 3)

# The valid value of an argument by name, used while another argument is tested.
SOUND: dict[str, Callable[[], Any]] = {
    "adjacency": lambda: so.Adjacency.ZERO_OUT, "batch_size": lambda: 5, "bins": lambda: 4, "bound": lambda: 1.0,
    "budget": lambda: so.Budget((INPUTS, LABELS)), "canaries": lambda: 4, "classes": lambda: 3, "clients": lambda: 2,
    "clip": lambda: so.ClipByNorm(1.0), "contribution": lambda: so.LossGradient(F.cross_entropy),
    "data": lambda: (INPUTS, LABELS), "delta": lambda: 1e-3, "divisor": lambda: 10, "epochs": lambda: 2,
    "epsilon": lambda: 3.0, "evaluations": lambda: 1, "event": lambda: PureDpEvent(10.0), "examples": lambda: 20,
    "facts": lambda: FACTS, "first": Unchanged, "second": Unchanged, "inputs": lambda: INPUTS,
    "key": lambda: Key.from_seed(0), "layout": lambda: LAYOUT, "loss": lambda: F.cross_entropy, "model": model,
    "module": model, "noise": lambda: so.Gaussian(20.0), "noise_multiplier": lambda: 20.0, "num_classes": lambda: 3,
    "optimizer": lambda: sgd, "owners": lambda: torch.arange(20) // 2, "outputs": lambda: 3, "plan": plan,
    "public": lambda: so.Public((INPUTS, LABELS)), "rate": lambda: 0.5, "rows_per_user": lambda: 2, "seed": lambda: 0,
    "sampler": lambda: so.Poisson(0.5, 2), "sensitivity": lambda: 1.0, "steps": lambda: 2, "target": lambda: LABELS,
    "vector": lambda: torch.zeros(5), "step": lambda: 0, "weights": FromReleases, "random_state": lambda: 0,
    "final_rate": lambda: 0.5, "steps_per_epoch": lambda: 2, "largest_batch": lambda: 20, "X": lambda: INPUTS.numpy(),
    "y": lambda: LABELS.numpy(), "batches_per_epoch": lambda: 2, "bounds": lambda: (0, 3), "progress": lambda: False,
    "target_range": lambda: (0, 3), "outs": lambda: None, "number": lambda: 1, "names": lambda: ("weight",),
    "start": lambda: Candidate(1.0, 0.9), "stages": lambda: (Clips((0.5,)),),
    "payment": lambda: Repeat(PoissonNumber(2)),
    "what": lambda: "a release", "data_loader": lambda: DataLoader(TensorDataset(INPUTS, LABELS), batch_size=5),
    "max_grad_norm": lambda: 1.0, "value": lambda: torch.zeros(15), "low": lambda: 0.0, "high": lambda: 1.0,
}  # fmt: skip

FLAGS = ("progress", "resume", "draw_again", "allow_weak", "allow_large_delta", "allow_single", "callbacks", "self")

# Functions that use the network, run for minutes, or pass errors of a dataset on to the owner's code.
LEFT_OUT = ("data.fetch", "transfer.pretrain", "RandomSparsify.codec", "tuning.tune_on_public")

# Valid values for methods whose arguments differ from the functions' arguments of the same name.
SOUND_FOR: dict[str, dict[str, Callable[[], Any]]] = {
    "fit_hidden_state": {"plan": hidden},
    "PrivacyEngine.make_private": {"optimizer": lambda: torch.optim.SGD(model().parameters(), lr=0.1)},
    "ConvexReLUClassifier": {"epochs": lambda: 1},
}

INSTANCES: dict[str, Callable[[], Any]] = {
    "Budget": lambda: so.Budget((INPUTS, LABELS)),
    "Charged": lambda: so.Charged(so.Budget((INPUTS, LABELS)), 20.0, 1),
    "Plan": plan,
    "PrivateRun": lambda: so.PrivateRun(plan(), model(), (INPUTS, LABELS)),
    "Records": lambda: as_records((INPUTS, LABELS)),
    "ClipByNorm": lambda: so.ClipByNorm(1.0),
    "Gaussian": lambda: so.Gaussian(20.0),
    "OptimizedNoise": lambda: so.OptimizedNoise(20.0),
    "LossGradient": lambda: so.LossGradient(F.cross_entropy),
    "Views": lambda: so.Views(2, (Flip(),)),
    "Key": lambda: Key.from_seed(0),
    "Layout": lambda: LAYOUT,
    "Private": lambda: so.Private(torch.zeros(15), LAYOUT),
    "Poisson": lambda: so.Poisson(0.5, 2),
    "RandomSparsify": lambda: RandomSparsify(0.5, 2, 2),
    "PrivacyEngine": PrivacyEngine,
    "Cosine": Cosine,
    "Ema": Ema,
}


def estimators() -> dict[str, Callable[[], Any]]:
    sklearn = importlib.import_module("sordino.sklearn")
    quick = {"epochs": 1, "random_state": 0}
    return {
        "PrivateClassifier": lambda: sklearn.PrivateClassifier(delta=1e-3, **quick),
        "PrivateRegressor": lambda: sklearn.PrivateRegressor(bounds=(0, 3), delta=1e-3, **quick),
        "ConvexReLUClassifier": lambda: sklearn.ConvexReLUClassifier(delta=1e-3, **quick),
        "PublicScaler": lambda: sklearn.PublicScaler(0, 1),
        "NoisyAccuracy": lambda: sklearn.NoisyAccuracy(so.Budget((INPUTS, LABELS)), 20.0),
    }


def callables() -> Iterator[tuple[str, Callable[..., Any]]]:
    """All public functions and classes of the package, and the methods of some of their objects."""
    yield from ((name, function) for name, function in _all_callables() if not name.endswith(LEFT_OUT))


def _all_callables() -> Iterator[tuple[str, Callable[..., Any]]]:
    seen = set[int]()
    for module in ("sordino", *(f"sordino.{name}" for name in (*PACKAGES, *MODULES))):
        loaded = importlib.import_module(module)
        for name in sorted({*vars(loaded), *dir(loaded)}):  # public names of sordino are imported when they are used
            value = getattr(loaded, name)
            public = not name.startswith("_") and getattr(value, "__module__", "").startswith("sordino")
            if public and callable(value) and id(value) not in seen and not isinstance(value, type(so.Adjacency)):
                seen.add(id(value))
                if not (isinstance(value, type) and issubclass(value, Exception)):
                    yield f"{module}.{name}", value
    for kind, make in (INSTANCES | estimators()).items():
        for name in dir(type(make())):
            if (not name.startswith("_") or name == "__call__") and callable(getattr(type(make()), name, None)):
                yield f"{kind}.{name}", partial(_called, make, name)


def _called(make: Callable[[], Any], method: str, *positional: Any, **named: Any) -> Any:
    return getattr(make(), method)(*positional, **named)


def messages(name: str, function: Callable[..., Any], kinds: Collection[str]) -> Iterator[tuple[str, str]]:
    """Yields (name of argument and kind of data, message) for each argument that is replaced by data."""
    for parameter in arguments(function):
        for kind in kinds:
            make = DATA[kind]
            given = sound(name, function) | {parameter: make()}
            for other in arguments(function, required=True):
                given.setdefault(other, make())
            try:
                result = function(**given)
                if isinstance(result, Iterator):
                    next(result, None)
            except Exception as error:
                yield f"{name}({parameter}={kind})", full_message(error)


def arguments(function: Callable[..., Any], *, required: bool = False) -> list[str]:
    """The names of the arguments, without those that are only tested for truth or called."""
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    found = [each for each in _parameters(function).values() if each.kind in kinds]
    wanted = [each for each in found if each.default is each.empty or not required]
    return [each.name for each in wanted if required or each.name not in FLAGS]


def _parameters(function: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    called = getattr(function.args[0](), function.args[1]) if isinstance(function, partial) else function
    try:
        return dict(inspect.signature(called).parameters)
    except (ValueError, TypeError):  # a function written in C has no signature
        return {}


def sound(name: str, function: Callable[..., Any]) -> dict[str, Any]:
    of_this = next((found for key, found in SOUND_FOR.items() if name.endswith(key)), {})
    known = SOUND | of_this
    needed = arguments(function, required=True)
    quiet = {"progress": False} if "progress" in _parameters(function) else {}
    return {each: known[each]() for each in needed if each in known} | quiet


def full_message(error: BaseException) -> str:
    """The message of an error and of the errors that a traceback shows with it, without source lines."""
    return "".join(traceback.TracebackException.from_exception(error, limit=0).format())


def betrayed(message: str) -> list[str]:
    return [trace for trace in TRACES if trace in message]
