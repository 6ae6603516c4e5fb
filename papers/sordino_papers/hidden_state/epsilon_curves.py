"""Epsilon against epochs at equal noise: when every iterate is released, and when only the last one is.

All methods add Gaussian noise of one multiplier to sums over `batches` batches per epoch. With random batches every
iterate is visible to the adversary; hidden-state analyses use fixed batches and release the last iterate.

No accountant covers random allocation under replace-one. A replacement is two zero-out steps, so the curve is that of a
group of two zero-out neighbors, which is not tight.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dp_accounting.dp_event import DpEvent, GaussianDpEvent
from matplotlib.axes import Axes

from sordino._input import validate
from sordino.accounting import Adjacency, Guarantee
from sordino.convex import Linear, NoisyCGD
from sordino.kernel.sampling import BallsInBins, Cyclic, Poisson, Sampler
from sordino.report.markup import ACCENT, FAINT, INK, decimal_logarithmic
from sordino_papers.harness.page import drawing

EPOCHS = (1, 2, 3, 5, 7, 10, 15, 20, 30, 40, 50, 70, 100, 150, 200, 250, 300, 350, 400)
RIDGE = 1e-4  # step size times strength


@dataclass(frozen=True)
class CurveSetting:
    """Settings that all methods share."""

    noise_multiplier: float
    batches: int
    delta: float
    adjacency: Adjacency


@dataclass(frozen=True)
class EpsilonCurve:
    """Epsilon of one method by number of epochs."""

    method: str
    setting: CurveSetting
    epochs: tuple[int, ...]
    epsilons: tuple[float, ...]


def curves(
    *,
    noise_multipliers: tuple[float, ...] = (5.0, 15.0),
    batches: int = 60,
    delta: float = 1e-5,
    adjacency: Adjacency = Adjacency.REPLACE_ONE,
    epochs: tuple[int, ...] = EPOCHS,
) -> tuple[EpsilonCurve, ...]:
    """One curve per method and noise multiplier, each by the accountant that the library uses for guarantees.

    >>> found = curves(noise_multipliers=(15.0,), epochs=(400,))
    >>> [(curve.method, round(curve.epsilons[0], 2)) for curve in found if "hidden" in curve.method]
    [('hidden state', 1.42), ('hidden state, ridge', 1.2), ('hidden state, trailing steps', 1.32)]
    """
    validate.instance(Adjacency, adjacency=adjacency)
    settings = [CurveSetting(noise, batches, delta, adjacency) for noise in noise_multipliers]
    return tuple(
        EpsilonCurve(method, setting, epochs, tuple(epsilon(setting, number) for number in epochs))
        for setting in settings
        for method, epsilon in _METHODS.items()
    )


def draw(drawn: tuple[EpsilonCurve, ...], path: Path) -> None:
    """Draws one panel per noise multiplier, both axes logarithmic, as SVG. Equal curves give equal bytes."""
    settings = list(dict.fromkeys(curve.setting for curve in drawn))
    with drawing(path, width=4.2 * len(settings), height=3.6) as figure:
        panels = figure.subplots(1, len(settings), squeeze=False)[0]
        for setting, panel in zip(settings, panels, strict=True):
            _fill(panel, setting, [curve for curve in drawn if curve.setting == setting])
        figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower left", ncols=2)


def _fill(panel: Axes, setting: CurveSetting, shown: list[EpsilonCurve]) -> None:
    for curve in shown:
        panel.plot(curve.epochs, curve.epsilons, label=curve.method, **_LOOKS[curve.method])
    where = f"{setting.batches} batches, {setting.adjacency}, delta {setting.delta:g}"
    panel.set(xscale="log", yscale="log", xlabel="epochs", ylabel="epsilon")
    panel.set_title(f"noise multiplier {setting.noise_multiplier:g}\n{where}", fontsize=8)
    decimal_logarithmic(panel.xaxis)
    decimal_logarithmic(panel.yaxis)


def _seen(sampler: Sampler, setting: CurveSetting) -> float:
    """Epsilon if every iterate is released."""
    return Guarantee.of(_event(sampler, setting), sampler.adjacency, delta=setting.delta).epsilon


def _event(sampler: Sampler, setting: CurveSetting) -> DpEvent:
    return sampler.compose(GaussianDpEvent(setting.noise_multiplier), sampler.steps)


def _composition(setting: CurveSetting, epochs: int) -> float:
    return _seen(Cyclic(setting.batches, epochs, setting.adjacency), setting)


def _poisson(setting: CurveSetting, epochs: int) -> float:
    return _seen(Poisson(1 / setting.batches, setting.batches * epochs, setting.adjacency), setting)


def _random_allocation(setting: CurveSetting, epochs: int) -> float:
    if setting.adjacency is not Adjacency.REPLACE_ONE:
        return _seen(BallsInBins(setting.batches, epochs, setting.adjacency), setting)
    event = _event(BallsInBins(setting.batches, epochs), setting)
    return Guarantee.of(event, Adjacency.ZERO_OUT, delta=setting.delta).for_group(2)


def _hidden(setting: CurveSetting, epochs: int, *, ridge: float = 0.0, trailing_epochs: int = 0) -> float:
    plan = NoisyCGD(
        Cyclic(setting.batches, epochs, setting.adjacency),
        Linear(),
        clip=1.0,
        noise_multiplier=setting.noise_multiplier,
        learning_rate=1.0,
        strength=ridge,
        trailing_steps=trailing_epochs * setting.batches,
    )
    return plan.guarantee(delta=setting.delta).epsilon


def _hidden_with_ridge(setting: CurveSetting, epochs: int) -> float:
    return _hidden(setting, epochs, ridge=RIDGE)


def _hidden_with_trailing_steps(setting: CurveSetting, epochs: int) -> float:
    return _hidden(setting, epochs, trailing_epochs=1)


_METHODS: dict[str, Callable[[CurveSetting, int], float]] = {
    "composition": _composition,
    "Poisson sampling": _poisson,
    "random allocation": _random_allocation,
    "hidden state": _hidden,
    "hidden state, ridge": _hidden_with_ridge,
    "hidden state, trailing steps": _hidden_with_trailing_steps,
}

# Poisson sampling and trailing steps nearly coincide: thin dashes on a broad line show both.
_SEEN, _HIDDEN = {"color": INK, "linewidth": 1.0, "zorder": 3}, {"color": ACCENT, "linewidth": 2.4}
_LOOKS: dict[str, dict[str, Any]] = {
    "composition": _SEEN | {"linestyle": "-"},
    "Poisson sampling": _SEEN | {"linestyle": "--", "color": FAINT, "linewidth": 1.2},
    "random allocation": _SEEN | {"linestyle": ":"},
    "hidden state": _HIDDEN | {"linestyle": "-", "linewidth": 1.2},
    "hidden state, ridge": _HIDDEN | {"linestyle": "-.", "linewidth": 1.2},
    "hidden state, trailing steps": _HIDDEN | {"linestyle": "-"},
}
