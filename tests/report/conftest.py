"""Folders of finished runs, written without training."""

from dataclasses import asdict, replace

import pytest
import torch

from sordino.accounting import Adjacency
from sordino.data import load
from sordino.models import build
from sordino.recipes import Recipe
from sordino.recipes.planning import Question, SamplerName, solve
from sordino.training.run_folder import RunFolder

EXAMPLES = 1437


@pytest.fixture(scope="session")
def make_run(tmp_path_factory):
    """Writes the folder of a finished run. Arguments change its recipe; `facts`, `privacy` and `metrics` its files."""

    def make(*, facts=None, privacy=None, metrics=None, name="run", epsilon=3.0, noise_multiplier=5.0, **settings):
        chosen = {"sampler": "poisson", "batch_size": 205, "steps": 20, "learning_rate": 0.5, "seed": None} | settings
        recipe = Recipe(**({"data": "digits", "model": "linear", "epsilon": epsilon, "delta": 1e-4} | chosen))
        known = replace(load("digits").facts, **(facts or {}))
        folder = RunFolder(tmp_path_factory.mktemp("runs") / name)
        folder.write_recipe(recipe.text())
        folder.write_facts(asdict(known), None)
        folder.write_privacy(_promise(recipe, noise_multiplier) | (privacy or {}))
        for row in metrics or [{"step": 20, "epsilon": 1.0, "delta": 1e-4, "test_accuracy": 0.5}]:
            folder.add_metrics(row)
        torch.manual_seed(0)
        folder.write_model(build(recipe.model, known, seed=0).module.state_dict())
        return folder.path

    return make


def _promise(recipe, noise_multiplier):
    question = Question(
        examples=EXAMPLES,
        batch_size=recipe.batch_size,
        steps=recipe.steps,
        noise_multiplier=noise_multiplier,
        delta=recipe.delta,
        sampler=SamplerName(recipe.sampler),
        adjacency=None if recipe.adjacency is None else Adjacency(recipe.adjacency),
    )
    return solve(question).as_dict()


@pytest.fixture(scope="session")
def run(make_run):
    """A run with default settings, which no test changes."""
    return make_run()


@pytest.fixture(scope="session")
def evidence(run):
    """The evidence of that run."""
    from sordino.report.evidence import Evidence

    return Evidence.read(run)
