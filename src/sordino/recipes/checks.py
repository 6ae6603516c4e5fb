"""What each setting of a recipe may be, by itself."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from sordino._input import validate
from sordino.accounting import Adjacency
from sordino.errors import UsageError
from sordino.recipes.methods import METHODS
from sordino.recipes.networks import names
from sordino.recipes.planning import SamplerName
from sordino.recipes.spelled import PRECISIONS

_LARGEST_SEED = 2**63 - 1
_MOST_GATES = 1 << 16
_MOST_TRAILING_STEPS = 100_000


def _text(**arguments: object) -> None:
    """A text that a file can hold, and a file name."""
    validate.instance(str, **arguments)
    for name, value in arguments.items():
        text = str(value)
        if not text or "\0" in text or text.encode(errors="replace").decode() != text:
            raise UsageError(f"{name} must be a text in UTF-8 without NUL, got {text!r:.80}.")


def _one_of(*allowed: str) -> Callable[..., None]:
    def check(**arguments: object) -> None:
        for name, value in arguments.items():
            if value not in allowed:
                raise UsageError(f"{name} must be one of {', '.join(allowed)}, got {validate.option(value)}.")

    return check


_seed = partial(validate.count, at_least=0, at_most=_LARGEST_SEED)
_truth = partial(validate.instance, bool)

CHECKS: dict[str, Callable[..., None]] = {
    "data": _text,
    "model": _one_of(*(name for name, _ in names())),
    "epsilon": validate.positive,
    "delta": validate.positive,
    "method": _one_of(*METHODS),
    "schema": _text,
    "batch_size": validate.count,
    "epochs": partial(validate.between, 0, 1e9, low_open=True),
    "steps": validate.count,
    "gates": partial(validate.count, at_most=_MOST_GATES),
    "lr": validate.positive,
    "clip": validate.positive,
    "optimizer": _one_of("sgd", "adam"),
    "momentum": partial(validate.between, 0, 1, high_open=True),
    "trailing_steps": partial(validate.count, at_least=0, at_most=_MOST_TRAILING_STEPS),
    "radius": validate.positive,
    "weight_decay": partial(validate.between, 0, 1e6),
    "schedule": _text,
    "averaging": _text,
    "sparsify": partial(validate.between, 0, 1, high_open=True),
    "freeze": partial(validate.between, 0, 1, high_open=True),
    "views": validate.count,
    "augment": _text,
    "precision": _one_of(*PRECISIONS),
    "sampler": _one_of(*SamplerName),
    "adjacency": _one_of(*Adjacency),
    "expected_examples": validate.count,
    "seed": _seed,
    "initial_seed": _seed,
    "physical_batch_size": validate.count,
    "allow_weak": _truth,
    "allow_large_delta": _truth,
}
