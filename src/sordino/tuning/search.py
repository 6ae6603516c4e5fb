"""`Search`: the public settings of a hyperparameter search (rule, candidates, privacy accounting of trials)."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from sordino._input import strict_json, validate
from sordino._input.files import read_bytes, write_atomically
from sordino.accounting import Adjacency
from sordino.accounting.selection import LARGEST_MEAN as LARGEST_MEAN_OF_SHAPE
from sordino.errors import DataError, StateError, UsageError
from sordino.kernel.encoding import Encoding
from sordino.recipes import Recipe
from sordino.recipes.settings import SettingError
from sordino.tuning.candidates import (
    FACTORS,
    MOMENTA,
    Candidate,
    CandidateGrid,
    Optimizer,
    Stage,
    check_factors,
    check_momenta,
    clip_momentum,
)
from sordino.tuning.payments import LARGEST_MEAN, Compose, NegativeBinomialNumber, Payment, PoissonNumber, Repeat

RULES = ("clip-momentum",)
PUBLIC = "public"
_TRIALS = 6.0
_LARGEST_TEXT = 1 << 16
_FILE = "tuning.json"

Scores = tuple[tuple[Candidate, float], ...]


@dataclass(frozen=True)
class Search:
    """Settings of a search for clipping norm and momentum.

    `trials` is the mean of the random number of trials with payment "repeat": Poisson, or negative binomial with
    `shape`. `score_std` is the standard deviation of the noise on the accuracy by which trials are compared.
    `public_data` is the dataset on which candidates are tried with payment "public".

    >>> Search(payment="repeat", trials=4.0).paid
    Repeat(number=PoissonNumber(mean=4.0))
    """

    rule: str = RULES[0]
    payment: str = "compose"
    trials: float | None = None
    shape: float | None = None
    momenta: tuple[float, ...] = MOMENTA
    factors: tuple[float, ...] = FACTORS
    one_stage: bool = False
    score_std: float = 0.01
    public_data: str | None = None
    public_schema: str | None = None

    def __post_init__(self) -> None:
        _one_of(RULES, rule=self.rule)
        _one_of(tuple(PAYMENTS), payment=self.payment)
        check_momenta(self.momenta)
        check_factors(self.factors)
        validate.instance(bool, one_stage=self.one_stage)
        validate.between(0, 1, low_open=True, score_std=self.score_std)
        if self.trials is not None:
            validate.between(1, LARGEST_MEAN if self.shape is None else LARGEST_MEAN_OF_SHAPE, trials=self.trials)
        if self.shape is not None:
            validate.between(0, 1e6, shape=self.shape)
        for name in ("trials", "shape"):
            if (value := getattr(self, name)) is not None and self.payment != "repeat":
                raise SettingError(
                    f"{{{name}}} needs {{payment}} repeat, got {{{name}}} {{value}} with {{payment}} {{given}}, which "
                    "tries every candidate once.",
                    value=value,
                    given=self.payment,
                )
        if (self.public_data is not None) != (self.payment == PUBLIC):
            raise SettingError(
                "{public_data} and {payment} public need each other, got {payment} {given}: give both or neither.",
                given=self.payment,
            )
        if self.public_schema is not None and self.public_data is None:
            raise SettingError("{public_schema} needs {public_data}: give both or neither.")
        PAYMENTS[self.payment](self)  # raises if the number of trials has no valid distribution

    @property
    def paid(self) -> Payment:
        return PAYMENTS[self.payment](self)

    def stages(self, optimizer: Optimizer, encoding: Encoding) -> tuple[Stage, ...]:
        """The stages of the search: two, or one with `one_stage`."""
        first, second = clip_momentum(optimizer, encoding, momenta=self.momenta, factors=self.factors)
        return (CandidateGrid(first, second),) if self.one_stage else (first, second)

    def check(self, recipe: Recipe) -> None:
        """Refuses a recipe that the search does not support, before data is read."""
        if recipe.method != "dp-sgd":
            raise UsageError(
                f"method must be dp-sgd with rule {self.rule}, got {recipe.method}, which has no momentum."
            )
        if recipe.noise not in (None, "gaussian"):
            raise UsageError(f"noise must be gaussian in a search, got {validate.option(recipe.noise)}.")
        if recipe.freeze:
            raise UsageError(
                f"freeze must be 0 in a search, got {validate.shown(recipe.freeze)}: its masks depend on the "
                "trained weights, and every trial trains a copy of the model."
            )
        if self.public_data is not None and _is_same(self.public_data, recipe.data):
            raise UsageError(
                f"public_data must be another dataset than the private one, got {self.public_data!r:.80} for both: "
                "candidates are tried on it without privacy."
            )

    @classmethod
    def read(cls, folder: Path) -> Search:
        """Reads the search of a folder."""
        what = repr(str(folder / _FILE))
        try:
            saved = strict_json.parse(read_bytes(folder / _FILE, at_most=_LARGEST_TEXT), what=what)
            entries: Any = saved["search"] if isinstance(saved, dict) else {}
            lists = {name: tuple(entries[name]) for name in ("momenta", "factors")}
            return cls(**{field.name: entries[field.name] for field in fields(cls)} | lists)
        except DataError:
            raise UsageError(f"there is no search in {str(folder)!r}.") from None
        except (UsageError, KeyError, TypeError) as error:
            raise StateError(f"{what} is damaged: {error}") from None

    def write(self, folder: Path, **found: object) -> None:
        """Writes the search, and results in `found`, to tuning.json."""
        text = json.dumps({"search": asdict(self)} | found, indent=2, allow_nan=False) + "\n"
        write_atomically(folder / _FILE, text.encode())

    @staticmethod
    def remove(folder: Path) -> None:
        """Removes tuning.json."""
        (folder / _FILE).unlink(missing_ok=True)

    def on_public_rows(self, recipe: Recipe) -> Recipe:
        """The recipe for trials on the public dataset."""
        if self.public_data is None:
            raise UsageError("public_data is missing.")
        adjacency = None if recipe.adjacency is Adjacency.ADD_OR_REMOVE else recipe.adjacency  # its size is public
        return replace(
            recipe, data=self.public_data, schema=self.public_schema, adjacency=adjacency, expected_examples=None
        )


def _is_same(one: str, other: str) -> bool:
    """Whether two names of datasets are equal, or are paths of the same file or folder."""
    if one == other:
        return True
    return Path(one).exists() and Path(other).exists() and os.path.samefile(one, other)


def _repeat(search: Search) -> Payment:
    mean = _TRIALS if search.trials is None else search.trials
    if search.shape is None:
        return Repeat(PoissonNumber(mean))
    return Repeat(NegativeBinomialNumber(mean, search.shape))


PAYMENTS: dict[str, Callable[[Search], Payment]] = {
    "compose": lambda search: Compose(),
    "repeat": _repeat,
    PUBLIC: lambda search: Compose(),
}


def _one_of(allowed: tuple[str, ...], **arguments: str) -> None:
    for name, value in arguments.items():
        if value not in allowed:
            raise UsageError(f"{name} must be one of {', '.join(allowed)}, got {validate.option(value)}.")


def shown(scores: Scores) -> dict[str, object]:
    """Scores of trials, for JSON. A trial that diverged has the score None."""
    rows = [asdict(candidate) | {"score": score if math.isfinite(score) else None} for candidate, score in scores]
    return {"trials": rows} if rows else {}
