"""Trainings from the command line: what to do, done, and applied."""

from sordino.recipes.carry_out import carry_out as carry_out
from sordino.recipes.networks import names as names
from sordino.recipes.predict import Saved as Saved
from sordino.recipes.recipe import Recipe as Recipe
