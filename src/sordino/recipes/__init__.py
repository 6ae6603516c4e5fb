"""Recipes: trainings described by a TOML file or by command-line options, and the models that they give.

Names are imported when they are used, so that planning does not import torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sordino.recipes.methods import method_of as method_of
    from sordino.recipes.networks import names as names
    from sordino.recipes.own_model import OwnRun as OwnRun
    from sordino.recipes.predict import FinishedRun as FinishedRun
    from sordino.recipes.predict import SavedRun as SavedRun
    from sordino.recipes.predict import read_run as read_run
    from sordino.recipes.recipe import Recipe as Recipe
    from sordino.recipes.run import carry_out as carry_out

_HOMES = {"carry_out": "run", "method_of": "methods", "names": "networks", "Recipe": "recipe", "OwnRun": "own_model"}
_HOMES |= dict.fromkeys(("FinishedRun", "SavedRun", "read_run"), "predict")


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
