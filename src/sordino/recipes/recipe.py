"""A recipe: everything that decides a training from the command line, as a value and as a TOML file."""

from __future__ import annotations

import secrets
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

import tomli_w

from sordino import validate
from sordino.accounting import Adjacency
from sordino.averaging import Averaging, Ema, Tail
from sordino.calibration import check_target
from sordino.errors import DataError, UsageError
from sordino.files import read_bytes
from sordino.planning import SamplerName
from sordino.schedule import parse as parse_schedule
from sordino.strict_toml import LARGEST_TEXT, Table
from sordino.views import Crop, Flip, Jitter, Transform, Views

METHODS = ("dp-sgd",)
OPTIMIZERS = ("sgd", "adam")


@dataclass(frozen=True)
class Recipe:
    """What to train on what, and how privately. A setting that is None is decided without looking at the data.

    >>> recipe = Recipe(data="digits", model="linear", epsilon=3.0, delta=1e-4)
    >>> Recipe.parse(recipe.text(), what="the recipe") == recipe
    True
    """

    data: str
    model: str
    epsilon: float
    delta: float
    method: str = "dp-sgd"
    schema: str | None = None
    batch_size: int | None = None
    epochs: float | None = None
    steps: int | None = None
    lr: float | None = None
    clip: float | None = None
    optimizer: str | None = None
    momentum: float | None = None
    weight_decay: float = 0.0
    schedule: str | None = None
    averaging: str | None = None
    views: int = 1
    augment: str = "none"
    sampler: str = SamplerName.POISSON.value
    adjacency: str | None = None
    expected_examples: int | None = None
    seed: int | None = None
    initial_seed: int | None = None
    physical_batch_size: int | None = None
    allow_weak: bool = False
    allow_large_delta: bool = False

    def __post_init__(self) -> None:
        for name in ("data", "model"):
            validate.instance(str, **{name: getattr(self, name)})
        for name, allowed in _CHOICES.items():
            value = getattr(self, name)
            if value is not None and value not in allowed:
                raise UsageError(f"{name} must be one of {', '.join(allowed)}, got {value!r:.80}.")
        check_target(self.epsilon, self.delta, allow_weak=self.allow_weak)
        for name in ("epochs", "lr", "clip"):
            if getattr(self, name) is not None:
                validate.positive(**{name: getattr(self, name)})
        for name in ("batch_size", "steps", "physical_batch_size", "views", "expected_examples"):
            if getattr(self, name) is not None:
                validate.count(**{name: getattr(self, name)})
        if self.epochs is not None and self.steps is not None:
            raise UsageError("epochs and steps exclude each other.")
        if self.momentum is not None:
            validate.between(0, 1, high_open=True, momentum=self.momentum)
        validate.between(0, 1e6, weight_decay=self.weight_decay)
        for name in ("seed", "initial_seed"):
            if getattr(self, name) is not None:
                validate.count(at_least=0, at_most=2**63 - 1, **{name: getattr(self, name)})
        if (self.relation is Adjacency.ADD_OR_REMOVE) != (self.expected_examples is not None):
            raise UsageError("expected_examples goes with add-or-remove, where the number of examples is secret.")
        parse_schedule(self.schedule or "constant")
        parse_averaging(self.averaging or "none")
        self.make_views()

    @classmethod
    def read(cls, path: Path) -> Recipe:
        """The recipe in a file."""
        try:
            text = read_bytes(path, at_most=LARGEST_TEXT)
        except DataError as error:
            raise UsageError(str(error)) from None
        return cls.parse(text, what=repr(str(path)))

    @classmethod
    def parse(cls, text: str | bytes, *, what: str) -> Recipe:
        table = Table.parse(text, what=what)
        names = [field.name for field in fields(cls)]
        table.allow(*names)
        for name in ("data", "model", "epsilon", "delta"):
            if name not in table:
                raise UsageError(f"{what}: {name} is missing.")
        with table.named():
            return cls(**dict(table.entries))  # type: ignore[arg-type]

    def text(self) -> str:
        """As TOML. What is undecided is left out."""
        return tomli_w.dumps({name: value for name, value in asdict(self).items() if value is not None})

    def changed(self, **settings: Any) -> Recipe:
        """With other settings; None changes nothing."""
        return replace(self, **{name: value for name, value in settings.items() if value is not None})

    def decided(self, defaults: dict[str, Any]) -> Recipe:
        """With a default for everything that was left open, and a first seed for the weights, which is public."""
        given = {name for name, value in asdict(self).items() if value is not None}
        chosen = {name: value for name, value in defaults.items() if name not in given}
        if "steps" in given:
            chosen.pop("epochs", None)
        if self.initial_seed is None:
            chosen["initial_seed"] = secrets.randbits(32) if self.seed is None else self.seed
        return replace(self, **chosen)

    @property
    def relation(self) -> Adjacency | None:
        return None if self.adjacency is None else Adjacency(self.adjacency)

    def make_views(self) -> Views:
        """Each row as often as asked, changed by what `augment` names: "flip,crop:4", "jitter:0.1" or "none"."""
        transforms = tuple(_transform(part) for part in self.augment.split(",")) if self.augment != "none" else ()
        return Views(self.views, transforms)


_CHOICES = {
    "method": METHODS,
    "optimizer": OPTIMIZERS,
    "sampler": tuple(name.value for name in SamplerName),
    "adjacency": tuple(relation.value for relation in Adjacency),
}


def parse_averaging(text: str) -> Averaging | None:
    """An average of the iterates from its name and setting: "none", "ema:0.999" or "tail:0.5".

    >>> parse_averaging("tail:0.25")
    Tail(fraction=0.25)
    """
    kind, _, setting = text.partition(":")
    makers: dict[str, type[Ema] | type[Tail]] = {"ema": Ema, "tail": Tail}
    if kind == "none" and not setting:
        return None
    try:
        return makers[kind](float(setting)) if setting else makers[kind]()
    except (KeyError, ValueError) as error:
        if isinstance(error, UsageError):
            raise
        raise UsageError(f"averaging must be none, ema:DECAY or tail:FRACTION, got {text!r:.80}.") from None


def _transform(text: str) -> Transform:
    kind, _, setting = text.strip().partition(":")
    try:
        if kind == "flip" and not setting:
            return Flip()
        if kind == "crop":
            return Crop(int(setting))
        if kind == "jitter":
            return Jitter(float(setting))
    except UsageError:
        raise
    except ValueError:
        pass  # the same answer as to an unknown name
    raise UsageError(f"augment must be none, or a list of flip, crop:PIXELS and jitter:STD, got {text!r:.80}.")
