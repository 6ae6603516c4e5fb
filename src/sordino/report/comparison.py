"""Comparison of several runs: accuracy against epsilon, and the settings in which the runs differ."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from sordino.accounting import Adjacency
from sordino.accounting.guarantee import rounded_up
from sordino.errors import UsageError
from sordino.recipes.own_model import is_own_run
from sordino.report.card import FORMAT, write_report
from sordino.report.evidence import Evidence
from sordino.report.markup import (
    ACCENT,
    INK,
    Html,
    element,
    gallery,
    in_percent,
    joined,
    paragraphs,
    picture,
    shortened,
    table,
)
from sordino.report.promise import OBSERVERS
from sordino.report.provenance import SAID_ELSEWHERE, settings_of
from sordino.report.quality import Accuracy, RegressionErrors, Unmeasured
from sordino.report.sections import Section, page
from sordino.training.run_folder import RunFolder

_MARKERS = {Adjacency.ZERO_OUT: "o", Adjacency.ADD_OR_REMOVE: "s", Adjacency.REPLACE_ONE: "^"}
_HEADINGS = ("", "run", "ε", "δ", "adjacency", "unit", "observer sees", "on public test rows")


@dataclass(frozen=True)
class _Meaning:
    """A property that must be equal in all runs, so that their epsilons and accuracies can be compared."""

    name: str
    of: Callable[[Evidence], str]


_MEANINGS = (
    _Meaning("adjacency", lambda run: str(run.guarantee.adjacency)),
    _Meaning("unit", lambda run: str(run.guarantee.unit)),
    _Meaning("delta", lambda run: repr(run.guarantee.delta)),
    _Meaning("what the observer sees", lambda run: OBSERVERS[run.guarantee.view]),
    _Meaning("data set", lambda run: run.saved.facts.name),  # the name is a key of report.json
)


def write_comparison(paths: Sequence[Path], out: Path, *, model: str | None = None, data: str | None = None) -> Path:
    """Writes report.html and report.json about two or more finished runs into `out`. Returns the page's path.

    `model` and `data` are for the runs of a model of one's own among them.

    >>> write_comparison([Path("only")], Path("out"))
    Traceback (most recent call last):
        ...
    sordino.errors.UsageError: a comparison needs at least two runs, got 1.
    """
    if len(paths) < 2:
        raise UsageError(f"a comparison needs at least two runs, got {len(paths)}.")
    own = {path: is_own_run(RunFolder(path)) for path in paths}
    if (model is not None or data is not None) and not any(own.values()):
        raise UsageError("model and data go with runs of a model of your own, and all of these have recipes.")
    runs = [Evidence.read(path, model=model, data=data) if own[path] else Evidence.read(path) for path in paths]
    sections = (_results(runs), _differences(runs))
    text = page("Comparison", f"{len(runs)} private runs", _warnings(runs), sections)
    facts = {"format": FORMAT, "kind": "comparison"} | {section.name: section.facts for section in sections}
    return write_report(out, text, facts | {"not_comparable": _unlike(runs)})


def _unlike(runs: Sequence[Evidence]) -> dict[str, list[str]]:
    """The properties in which the runs differ, so that their numbers cannot be compared."""
    by_name = {meaning.name: list(dict.fromkeys(meaning.of(run) for run in runs)) for meaning in _MEANINGS}
    return {name: values for name, values in by_name.items() if len(values) > 1}


def _warnings(runs: Sequence[Evidence]) -> Html:
    unlike = _unlike(runs)
    if not unlike:
        return element("div", element("p", "The epsilons of these runs are comparable."), class_="headline")
    warnings = [f"These runs are not comparable: they differ in {name} ({', '.join(v)})." for name, v in unlike.items()]
    return element("div", paragraphs(*warnings), class_="warning")


def _results(runs: Sequence[Evidence]) -> Section:
    rows = [
        (
            str(number),
            str(run.path),
            rounded_up(run.guarantee.epsilon),
            repr(run.guarantee.delta),
            str(run.guarantee.adjacency),
            str(run.guarantee.unit),
            OBSERVERS[run.guarantee.view],
            _measured(run),
        )
        for number, run in enumerate(runs, start=1)
    ]
    drawn = [_picture(runs)] if any(isinstance(run.quality, Accuracy) for run in runs) else []
    html = joined((gallery(drawn), table(_HEADINGS, rows)))
    return Section("results", "Accuracy against epsilon", html, {"runs": [_facts(run) for run in runs]}, 10)


def _measured(run: Evidence) -> str:
    match run.quality:
        case Accuracy(overall=overall):
            return f"{overall.text} of {overall.rows:,}"
        case RegressionErrors(regression=errors, rows=rows):
            return f"mean squared error {errors.mse:.4g} on {rows:,}"
        case Unmeasured(reason=reason):
            return f"not measured: {reason}"


def _facts(run: Evidence) -> dict[str, Any]:
    promise = run.guarantee
    known: dict[str, Any] = {"run": str(run.path), "model_sha256": run.model_sha256, "settings": settings_of(run)}
    known |= {"epsilon": promise.epsilon, "delta": promise.delta, "adjacency": str(promise.adjacency)}
    known |= {"unit": str(promise.unit), "view": str(promise.view), "accountant": promise.accountant}
    match run.quality:
        case Accuracy(overall=overall):
            return known | {"test": overall.as_dict()}
        case RegressionErrors(regression=errors, rows=rows):
            return known | {"test": {"mse": errors.mse, "r2": errors.r2, "rows": rows}}
        case Unmeasured(reason=reason):
            return known | {"absent": reason}


def _picture(runs: Sequence[Evidence]) -> Html:
    measured = [(number, run, run.quality) for number, run in enumerate(runs, start=1)]
    points = [(number, run, quality.overall) for number, run, quality in measured if isinstance(quality, Accuracy)]
    shapes = list(dict.fromkeys(run.guarantee.adjacency for _, run, _ in points))

    def draw(axes: Axes) -> None:
        for number, run, accuracy in points:
            epsilon = run.guarantee.epsilon
            axes.plot((epsilon, epsilon), accuracy.interval, color=INK, linewidth=0.8)
            axes.plot(epsilon, accuracy.value, _MARKERS[run.guarantee.adjacency], color=ACCENT, markersize=4.5)
            axes.annotate(str(number), (epsilon, accuracy.value), (5, 3), textcoords="offset points")
        for shape in shapes:
            axes.plot([], [], _MARKERS[shape], color=ACCENT, label=f"{shape} adjacency")
        axes.set(xlabel="epsilon", ylabel="test accuracy, with its 95 % interval")
        axes.margins(0.12)
        axes.xaxis.set_major_locator(MaxNLocator(6))
        in_percent(axes.yaxis)

    caption = "Accuracy on public test rows against epsilon; numbers refer to the table."
    values = "; ".join(
        f"run {number}: {accuracy.text} at epsilon {rounded_up(run.guarantee.epsilon)} under {run.guarantee.adjacency}"
        for number, run, accuracy in points
    )
    return picture(
        "accuracy", draw, caption=caption, words=f"Accuracy against epsilon. {values}.", height=3.0, legend=True
    )


def _differences(runs: Sequence[Evidence]) -> Section:
    each = [settings_of(run) for run in runs]
    names = dict.fromkeys(name for settings in each for name in settings if name not in SAID_ELSEWHERE)
    differing = [name for name in names if len({repr(settings.get(name)) for settings in each}) > 1]
    if not differing:
        return Section("differences", "Settings that differ", paragraphs("All settings are equal."), {}, 20)
    headings = ("setting", *(str(number) for number in range(1, len(runs) + 1)))
    rows = [(name.replace("_", " "), *(_shown(settings.get(name)) for settings in each)) for name in differing]
    facts = {name: [settings.get(name) for settings in each] for name in differing}
    return Section("differences", "Settings that differ", table(headings, rows), facts, 20)


def _shown(value: object) -> str:
    return "" if value is None else f"{value:.6g}" if isinstance(value, float) else shortened(str(value), 40)
