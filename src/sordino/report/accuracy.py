"""The card's section on accuracy: on public test rows, by class, and during training."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from sordino.accounting import View
from sordino.report.evidence import Evidence
from sordino.report.markup import (
    ACCENT,
    DASHES,
    FAINT,
    INK,
    Html,
    element,
    gallery,
    in_percent,
    joined,
    picture,
    shortened,
)
from sordino.report.quality import Accuracy, RegressionErrors, Share, Unmeasured
from sordino.report.sections import Section
from sordino.training.metrics import constant_is_better

_MOST_CLASSES = 20  # in the figure; report.json has all
_NAME_LENGTH = 16


def measured(run: Evidence) -> Section:
    """The section on accuracy or regression errors on public test rows."""
    quality, end, warning = run.quality, _end(run), None
    facts: dict[str, Any] = {"at_the_end_of_training": end}
    figures: list[Html] = []
    match quality:
        case Accuracy():
            overall, by_class = quality.overall, quality.by_class
            words = f"Accuracy on {overall.rows:,} public test rows, with its 95 % interval (Wilson): {overall.text}."
            words += f" {quality.metrics.in_words}"
            figures.append(_classes(by_class, overall))
            facts |= {"test": overall.as_dict(), "by_class": {name: x.as_dict() for name, x in by_class.items()}}
            facts |= {"metrics": asdict(quality.metrics)}
            warning = constant_is_better({"accuracy": overall.value, **asdict(quality.metrics)})
        case RegressionErrors(regression=errors, rows=rows, is_scaled=is_scaled):
            words = (
                f"On {rows:,} public test rows the mean squared error is {errors.mse:.4g}, and R² is {errors.r2:.3g}."
            )
            words += " The target is scaled to lie between -1 and 1." if is_scaled else ""
            words += " A regression model has no accuracy by class."
            facts |= {"test": {"mse": errors.mse, "r2": errors.r2, "rows": rows}}
            warning = constant_is_better({"r2": errors.r2})
        case Unmeasured(reason=reason):
            words = f"{_recorded(end)} There is no interval and no accuracy by class: {reason}"
            facts |= {"absent": reason}
    if warning:
        words += f" {warning}"
        facts["warning"] = warning
    course = _course(run)
    facts["course"] = [dict(row) for row in course]
    if course:
        figures.append(_training_curve(course))
    figures.append(element("p", _about_course(run, bool(course)), class_="small"))
    html = joined((element("p", words), gallery(figures)))
    return Section("measured", "How good the model is", html, facts, 40)


def _end(run: Evidence) -> dict[str, Any]:
    last = run.metrics[-1] if run.metrics else {}
    return {name: value for name, value in last.items() if name.startswith(("test_", "validation_"))}


def _recorded(end: dict[str, Any]) -> str:
    values = [f"{name.replace('_', ' ')} {value:.4g}" for name, value in end.items() if isinstance(value, float)]
    return f"At the end of training: {', '.join(values)}." if values else "Nothing was measured at the end of training."


def _course(run: Evidence) -> list[dict[str, Any]]:
    """Measurements during training. None may be shown if the guarantee is for the final model only."""
    if run.guarantee.view is View.FINAL_MODEL:
        return []
    rows = [{name: value for name, value in row.items() if _is_drawn(name, value)} for row in run.metrics]
    return [row for row in rows if "step" in row and len(row) > 1]


def _is_drawn(name: str, value: object) -> bool:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and (name == "step" or name.startswith("validation_"))


def _about_course(run: Evidence, is_shown: bool) -> str:
    if run.guarantee.view is View.FINAL_MODEL:
        return "The guarantee is for the final model only, so measurements during training are not shown."
    if is_shown:
        return "Measurements during training used public rows, or were charged to the budget."
    return "Nothing was measured during training, so there is no training curve."


def _classes(by_class: dict[str, Share], overall: Share) -> Html:
    shown = sorted(by_class.items(), key=lambda item: item[1].value)[:_MOST_CLASSES]
    if len(shown) == len(by_class):
        shown = list(by_class.items())
    places = range(len(shown))[::-1]

    def draw(axes: Axes) -> None:
        axes.axvline(overall.value, color=FAINT, linewidth=0.8, linestyle="--")
        for place, (_, accuracy) in zip(places, shown, strict=True):
            axes.plot(accuracy.interval, (place, place), color=INK, linewidth=0.8)
            axes.plot(accuracy.value, place, "o", color=ACCENT, markersize=3.8)
        axes.set_yticks(list(places), [shortened(name, _NAME_LENGTH) for name, _ in shown])
        axes.tick_params(axis="y", length=0)
        axes.set(xlabel="accuracy, with its 95 % interval", ylim=(-0.7, len(shown) - 0.3))
        in_percent(axes.xaxis)
        axes.xaxis.set_major_locator(MaxNLocator(5))

    fewer = f"the {len(shown)} of {len(by_class)} classes with the lowest accuracy"
    which = "each class" if len(shown) == len(by_class) else fewer
    caption = f"Accuracy on test rows of {which}; dashed: all rows."
    words = "Accuracy by class: " + "; ".join(f"{name} {accuracy.text}" for name, accuracy in shown) + "."
    return picture("classes", draw, caption=caption, words=words, height=0.7 + 0.17 * max(6, len(shown)))


def _training_curve(course: list[dict[str, Any]]) -> Html:
    names = list(dict.fromkeys(name for row in course for name in row if name != "step"))
    styles = ("-", *DASHES)

    def draw(axes: Axes) -> None:
        for name, style in zip(names, styles, strict=False):
            rows = [row for row in course if name in row]
            steps, values = [row["step"] for row in rows], [row[name] for row in rows]
            label = name.removeprefix("validation_").replace("_", " ")
            axes.plot(steps, values, color=ACCENT if style == "-" else INK, linestyle=style, label=label)
        axes.set(xlabel="step")
        axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))

    last = ", ".join(f"{name.replace('_', ' ')} {course[-1][name]:.4g}" for name in names if name in course[-1])
    words = f"Measurements from step {course[0]['step']} to step {course[-1]['step']}; at the end {last}."
    return picture("training", draw, caption="Validation during training.", words=words, legend=True)
