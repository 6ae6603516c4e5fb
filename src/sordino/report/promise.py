"""The guarantee in plain words and as a table, and what it does and does not promise."""

from __future__ import annotations

import math

from sordino.accounting import Adjacency, Guarantee, Unit, View
from sordino.accounting.guarantee import rounded_up
from sordino.report.evidence import Evidence
from sordino.report.markup import Html, bullets, element, joined, pairs, paragraphs
from sordino.report.sections import Section

OBSERVERS = {View.EVERY_STEP: "every step of the training", View.FINAL_MODEL: "the final model only"}


def guarantee(run: Evidence) -> Section:
    """What is promised."""
    promise, guess = run.guarantee, _best_guess(run)
    unit, observer = promise.unit, OBSERVERS[promise.view]
    apart = f", apart from a probability of {promise.delta!r}" if promise.delta else ""
    words = paragraphs(
        f"Whether or not one {unit}'s data was used, whatever is seen of this training is about as likely: no outcome "
        f"becomes more than {_factor(promise.epsilon)} times as likely{apart}.",
        f"So whoever sees {observer} and has to guess whether a given {unit} was used, at even odds, is right in at "
        f"most {rounded_up(100 * guess, 3)} of 100 cases. Tossing a coin is right in 50.",
    )
    rows = (
        ("epsilon", f"{rounded_up(promise.epsilon)}, rounded up"),
        ("delta", repr(promise.delta)),
        ("whose privacy", f"every {unit}'s"),
        ("adjacency", f"{promise.adjacency}: {promise.adjacency.in_words.replace('unit', str(unit))}"),
        ("the observer sees", observer),
        ("proved by", f"the accountant {promise.accountant}"),
        ("assumed", "; ".join(promise.assumptions) or "nothing beyond the mechanism itself"),
    )
    facts = promise.as_dict() | {"best_guess": guess}
    return Section("guarantee", "The guarantee", joined((element("div", words, class_="lead"), pairs(rows))), facts, 10)


def limits(run: Evidence) -> Section:
    """What the guarantee does and does not promise."""
    does, does_not = _does(run), _does_not(run)
    columns = (_column("It promises", does), _column("It does not promise", does_not))
    html = element("div", *columns, class_="columns")
    return Section("limits", "What this means", html, {"promised": does, "not_promised": does_not}, 20)


def _column(title: str, texts: list[str]) -> Html:
    return element("div", element("h3", title), bullets(texts))


def _does(run: Evidence) -> list[str]:
    unit, steps = run.guarantee.unit, run.num_steps
    counted = f"It counts all {steps:,} steps that were planned"
    if run.searched is not None:
        counted = (
            f"It counts a whole search for settings, {run.searched}, with {steps:,} steps and a score in each trial"
        )
    return [
        f"It holds for every {unit}, the unusual ones too, and whatever their data is.",
        f"It holds against somebody who knows every other {unit}, the code, the settings and the first weights.",
        "It cannot be undone: whatever is computed from the model later, with whatever else is known, stays within it.",
        f"{counted}." if _is_alone(run) else counted + ", and everything that was charged to the same budget.",
    ]


def _is_alone(run: Evidence) -> bool:
    """Whether the run shares a budget with other releases that its guarantee does not count."""
    return any(each.startswith("this run is counted alone") for each in run.guarantee.assumptions)


def _does_not(run: Evidence) -> list[str]:
    promise = run.guarantee
    texts = ["What is true of people in general. A model may well reveal that smoking harms, whoever took part."]
    if promise.unit is Unit.EXAMPLE:
        texts.append("As much to somebody who has several examples: they are a group, see the table below.")
    else:
        texts.append("As much to users who act together: they are a group, see the table below.")
    if promise.adjacency is not Adjacency.ADD_OR_REMOVE:
        texts.append(f"That the number of {promise.unit}s is secret: under {promise.adjacency} adjacency it is public.")
    if run.has_seed:
        texts.append(
            "Anything against whoever knows the seed of this run: they can remove the noise. "
            "Keep it secret, and use it once."
        )
    texts.append("Other releases from the same data. They add up with this one, and nothing here counts them.")
    texts.append("Secrecy of the machine: its memory, the time that steps take, who else reads the data.")
    return texts


def _best_guess(run: Evidence) -> float:
    """The largest share of right guesses if present and absent are equally likely: (1 + delta(0)) / 2."""
    return (1 + run.curve.delta(0.0)) / 2


def _factor(epsilon: float) -> str:
    return rounded_up(math.exp(epsilon), 3) if epsilon < 12 else f"exp({rounded_up(epsilon)})"


def headline(promise: Guarantee) -> Html:
    """The numbers that everything else explains. No epsilon stands without its adjacency."""
    numbers = element("p", f"ε = {rounded_up(promise.epsilon)}, δ = {promise.delta!r}", class_="numbers")
    around = (
        f"for every {promise.unit}, under {promise.adjacency} adjacency; the observer sees {OBSERVERS[promise.view]}"
    )
    return element("div", numbers, element("p", around), class_="headline")
