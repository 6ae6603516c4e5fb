"""What tuning costs: noise beside that of one training, by payment, and accuracy on digits with and without.

python -m bench.tuning > results/tuning.json
"""

from __future__ import annotations

import json
import statistics
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dp_accounting.dp_event import ComposedDpEvent, DpEvent

from bench.step import origin
from sordino import Adjacency, Gaussian, Poisson
from sordino.accounting import smallest
from sordino.recipes import Recipe, carry_out
from sordino.training.run_folder import RunFolder
from sordino.tuning import Compose, NegativeBinomialNumber, PoissonNumber, Repeat
from sordino.tuning.payments import Payment
from sordino.tuning.recipe_search import tune_by_recipe
from sordino.tuning.search import Search

SCORE_STD = 0.01
TRAININGS = {  # examples, batch size, steps, delta
    "fashion-mnist": (60_000, 2048, 1172, 1e-5),
    "digits": (1_437, 205, 140, 1e-4),
}
LINE, GRID = (3, 2), (15,)
PAYMENTS: dict[str, tuple[Payment, tuple[int, ...]]] = {
    "compose, 5 candidates": (Compose(), LINE),
    "compose, 15 candidates": (Compose(), GRID),
    "repeat, two stages of 6, Poisson": (Repeat(PoissonNumber(6)), LINE),
    "repeat, two stages of 6, logarithmic": (Repeat(NegativeBinomialNumber(6, 0)), LINE),
    "repeat, one stage of 6, Poisson": (Repeat(PoissonNumber(6)), GRID),
    "repeat, one stage of 6, logarithmic": (Repeat(NegativeBinomialNumber(6, 0)), GRID),
    "repeat, one stage of 15, logarithmic": (Repeat(NegativeBinomialNumber(15, 0)), GRID),
    "repeat, one stage of 30, logarithmic": (Repeat(NegativeBinomialNumber(30, 0)), GRID),
}
EPSILONS, SEEDS = (3.0, 1.0), (0, 1, 2)


def main() -> None:
    found = {"noise": [noise(name, epsilon) for name in TRAININGS for epsilon in EPSILONS], "digits": accuracies()}
    print(json.dumps(origin("bench.tuning") | found, indent=2))


def noise(name: str, epsilon: float) -> dict[str, object]:
    """Multipliers that a target needs, each over that of one training."""
    examples, batch_size, steps, delta = TRAININGS[name]
    sampler, score = Poisson(batch_size / examples, steps), Gaussian(SCORE_STD * examples).event

    def multiplier(paid: Callable[[DpEvent], DpEvent]) -> float:
        def event(noise_multiplier: float) -> DpEvent:
            return paid(sampler.compose(Gaussian(noise_multiplier).event, steps))

        return smallest(event, Adjacency.ZERO_OUT, epsilon=epsilon, delta=delta)

    def paid(payment: Payment, sizes: tuple[int, ...]) -> Callable[[DpEvent], DpEvent]:
        return lambda training: payment.event(ComposedDpEvent((training, score)), sizes)  # type: ignore[arg-type]

    alone = multiplier(lambda training: training)
    tuned = {title: multiplier(paid(payment, sizes)) / alone for title, (payment, sizes) in PAYMENTS.items()}
    return {"data": name, "epsilon": epsilon, "one_training": alone, "factors": tuned}


def accuracies() -> dict[str, object]:
    """Test accuracies of a linear model on digits, each the mean of three seeds."""
    ways: dict[str, Callable[[Recipe, Path], RunFolder]] = {
        "untuned": lambda recipe, out: carry_out(recipe, out, progress=False),
        "compose": lambda recipe, out: tune_by_recipe(recipe, Search(payment="compose"), out, progress=False),
        "repeat": lambda recipe, out: tune_by_recipe(recipe, Search(payment="repeat"), out, progress=False),
    }
    return {name: _mean(way) for name, way in ways.items()}


def _mean(way: Callable[[Recipe, Path], RunFolder]) -> dict[str, object]:
    values: list[Any] = []
    for seed in SEEDS:
        recipe = Recipe("digits", "linear", epsilon=3.0, delta=1e-4, seed=seed)
        with tempfile.TemporaryDirectory() as folder:
            values.append(way(recipe, Path(folder) / "run").metrics()[-1]["test_accuracy"])
    return {"mean": statistics.mean(values), "by_seed": values, "seeds": list(SEEDS), "epsilon": 3.0, "delta": 1e-4}


if __name__ == "__main__":
    main()
