"""A recipe: everything that decides a training from the command line, as a value and as a TOML file."""

from __future__ import annotations

import secrets
from dataclasses import MISSING, asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

import tomli_w
import torch

from sordino._input.files import read_bytes
from sordino._input.strict_toml import LARGEST_TEXT, Table
from sordino.accounting import Adjacency
from sordino.errors import DataError, StateError, UsageError
from sordino.kernel.augmentation import Views
from sordino.kernel.calibration import check_target
from sordino.recipes.checks import CHECKS
from sordino.recipes.defaults import Settings
from sordino.recipes.methods import METHODS, Method
from sordino.recipes.networks import CONVEX_NAMES
from sordino.recipes.planning import Question, SamplerName, make_sampler
from sordino.recipes.spelled import PRECISIONS, parse_augmentation, parse_averaging
from sordino.training.run_folder import RunFolder
from sordino.training.schedules import parse as parse_schedule

_MANY = 10**9  # examples: stands for a number that is not known yet


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
    gates: int | None = None
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
    sparsify: float = 0.0
    freeze: float = 0.0
    trailing_steps: int | None = None
    radius: float | None = None
    views: int = 1
    augment: str = "none"
    precision: str = "float32"
    sampler: str | None = None
    adjacency: str | None = None
    expected_examples: int | None = None
    seed: int | None = None
    initial_seed: int | None = None
    physical_batch_size: int | None = None
    allow_weak: bool = False
    allow_large_delta: bool = False

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if value is not None or field.default is not None:
                CHECKS[field.name](**{field.name: value})
        if self.gates is not None and self.model not in CONVEX_NAMES:
            raise UsageError(f"gates go with {' and '.join(CONVEX_NAMES)}, got model {self.model!r}.")
        check_target(self.epsilon, self.delta, allow_weak=self.allow_weak)
        self.way.check(self)
        if self.epochs is not None and self.steps is not None:
            raise UsageError("epochs and steps exclude each other.")
        if (self.relation is Adjacency.ADD_OR_REMOVE) != (self.expected_examples is not None):
            raise UsageError("expected_examples goes with add-or-remove, where the number of examples is secret.")
        trial = self.question(self.expected_examples or _MANY, self.batch_size or 1)
        make_sampler(replace(trial, epochs=None, steps=1))
        parse_schedule(self.schedule or "constant")
        parse_averaging(self.averaging or "none")
        self.make_views()

    @classmethod
    def read(cls, path: Path) -> Recipe:
        """The recipe in a file that a person wrote."""
        try:
            text = read_bytes(path, at_most=LARGEST_TEXT)
        except DataError as error:
            raise UsageError(str(error)) from None
        return cls.parse(text, what=repr(str(path)))

    @classmethod
    def of_run(cls, folder: RunFolder) -> Recipe:
        """The recipe that a run was begun with. One that cannot be read was changed since."""
        shown = repr(str(folder.path))
        if not folder.is_run:
            raise UsageError(f"there is no run in {shown}.")
        try:
            return cls.parse(folder.recipe(), what=f"the recipe in {shown}")
        except UsageError as error:
            raise StateError(str(error)) from None

    @classmethod
    def parse(cls, text: str | bytes, *, what: str) -> Recipe:
        """The recipe in a TOML text. `what` names it in messages."""
        table = Table.parse(text, what=what)
        table.allow(*(field.name for field in fields(cls)))
        for field in fields(cls):
            if field.default is MISSING and field.name not in table:
                raise UsageError(f"{what}: {field.name} is missing.")
        entries: dict[str, Any] = dict(table.entries)
        with table.named():
            recipe = cls(**entries)
        return recipe

    def text(self) -> str:
        """As TOML. What is undecided is left out."""
        text = tomli_w.dumps({name: value for name, value in asdict(self).items() if value is not None})
        return text.replace("'''", r"\u0027" * 3)  # in a path; a reader takes three of them for a long string

    def changed(self, **settings: Any) -> Recipe:
        """With other settings. Steps take the place of epochs, and epochs that of steps."""
        for one, other in (("steps", "epochs"), ("epochs", "steps")):
            if one in settings:
                settings.setdefault(other, None)
        return replace(self, **settings)

    def settings(self, defaults: Settings) -> Settings:
        """What was said, and a default for what was left open.

        First weights are public, and so is their seed. With a seed of the noise it is always the same: whatever follows
        from a number that can be guessed gives it away.
        """
        drawn = secrets.randbits(32) if self.seed is None else defaults.initial_seed
        said = {field.name: getattr(self, field.name) for field in fields(Settings)}
        known = {name: value for name, value in said.items() if value is not None}
        return replace(defaults, **({"initial_seed": drawn} | known))

    def decided(self, settings: Settings) -> Recipe:
        """With nothing left open."""
        chosen = asdict(settings)
        if self.steps is not None:
            del chosen["epochs"]
        return replace(self, sampler=self.drawn_by.value, **chosen)

    def question(self, examples: int, batch_size: int) -> Question:
        """What planning needs to know of the batches, for a public number of examples."""
        drawn_by, relation = self.drawn_by, self.relation
        return Question(examples, batch_size, self.epochs, self.steps, sampler=drawn_by, adjacency=relation)

    def divisor(self, examples: int) -> int:
        """The batch size that is promised for a public number of examples."""
        return self.way.divisor(self, examples)

    @property
    def way(self) -> Method:
        """How it is trained."""
        return METHODS[self.method]

    @property
    def drawn_by(self) -> SamplerName:
        return self.way.sampler if self.sampler is None else SamplerName(self.sampler)

    @property
    def relation(self) -> Adjacency | None:
        return None if self.adjacency is None else Adjacency(self.adjacency)

    def make_views(self) -> Views:
        """Each row as often as asked, changed by what `augment` names."""
        return Views(self.views, parse_augmentation(self.augment))

    @property
    def autocast(self) -> torch.dtype | None:
        """In which half precision products are taken, if in any."""
        return PRECISIONS[self.precision]
