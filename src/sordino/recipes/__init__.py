"""Trainings from the command line: what to do, done, and applied.

Names are imported when they are used, so that planning needs no torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sordino.recipes.networks import names
    from sordino.recipes.predict import Saved
    from sordino.recipes.recipe import Recipe
    from sordino.recipes.run import carry_out

__all__ = ["Recipe", "Saved", "carry_out", "names"]

if not TYPE_CHECKING:
    _HOMES = {"Recipe": "recipe", "Saved": "predict", "carry_out": "run", "names": "networks"}

    def __getattr__(name: str) -> Any:
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        globals()[name] = value = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
        return value
