"""The ways to train by name. Each knows what it needs of a recipe, what it decides, and how it is done."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from sordino.convex.noisy_cgd import NoisyCGD
from sordino.kernel.step import Plan
from sordino.recipes.defaults import Settings
from sordino.recipes.dp_sgd import DpSgd
from sordino.recipes.hidden_state import HiddenState
from sordino.recipes.planning import SamplerName
from sordino.training.run_folder import RunFolder

if TYPE_CHECKING:
    from sordino.recipes.prepared import Prepared
    from sordino.recipes.recipe import Recipe


class Method(Protocol):
    """A way to train. Nothing but `train` touches data."""

    @property
    def sampler(self) -> SamplerName:
        """How batches are drawn unless a recipe says otherwise."""
        ...

    @property
    def has_probabilities(self) -> bool:
        """Whether the outputs of a trained network are logarithms of odds. Otherwise they are scores of each class."""
        ...

    def check(self, recipe: Recipe) -> None:
        """Refuses what the method cannot do, with the reason."""
        ...

    def check_drawing_again(self) -> None:
        """Refuses to draw steps again with fresh noise where there is no reason to pay for that."""
        ...

    def defaults(self, recipe: Recipe, examples: int) -> Settings:
        """A value for everything that the recipe may leave open."""
        ...

    def divisor(self, recipe: Recipe, examples: int) -> int:
        """The public number by which a sum of gradients is divided: the batch size that is promised."""
        ...

    def plan(self, prepared: Prepared) -> Plan | NoisyCGD:
        """The theorem that `train` carries out, its noise calibrated. Nothing of a record is looked at."""
        ...

    def train(
        self,
        prepared: Prepared,
        folder: RunFolder,
        *,
        resume: bool,
        draw_again: bool,
        progress: bool,
        on_row: Callable[[dict[str, Any]], None],
    ) -> None:
        """Ends with the model, what was promised and what was measured in the folder."""
        ...


METHODS: dict[str, Method] = {"dp-sgd": DpSgd(), "noisy-cgd": HiddenState()}
