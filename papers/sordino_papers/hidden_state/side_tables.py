"""Side tables of the hidden-state experiment: growth of epsilon, costs of random batches, decrease of the risk."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from sordino._input.files import read_bytes
from sordino._input.strict_json import parse
from sordino.accounting.guarantee import rounded_up
from sordino_papers.harness.entry import RunScale, SideTable
from sordino_papers.harness.results_file import read_numbers, write_numbers
from sordino_papers.hidden_state.batch_problems import BatchStatistics, batch_problems
from sordino_papers.hidden_state.epsilon_curves import EPOCHS, EpsilonCurve, curves, draw
from sordino_papers.hidden_state.utility_law import RiskPoint, Slope, UtilityLaw, laws, measure, of_whole_seeds

_FEW_EPOCHS = (1, 10, 50, 150, 400)
_LARGEST = 1 << 24


def measure_sides(scale: RunScale, seeds: int, folder: Path, command: str) -> None:
    """Computes epsilon curves, measures the samplers, and trains on random data where no result is kept."""
    folder.mkdir(parents=True, exist_ok=True)
    found = curves(epochs=_FEW_EPOCHS if scale is RunScale.QUICK else EPOCHS)
    draw(found, folder / f"epsilon-{scale}.svg")
    write_numbers(folder / f"epsilon-{scale}.json", {"curves": [_plain(curve) for curve in found]}, command)
    write_numbers(folder / "batches.json", {"samplers": [_plain(one) for one in batch_problems()]}, command)
    kept = folder / "utility.jsonl"
    measure(scale, seeds, lambda point: _keep(kept, point), known=_kept(kept))


def sides(scale: RunScale, seeds: int, folder: Path, command: str) -> Sequence[SideTable]:
    """The three side tables, in the order of the poster."""
    return epsilons(scale, folder), batches(folder), law(scale, seeds, folder, command)


def epsilons(scale: RunScale, folder: Path) -> SideTable:
    """Epsilon against epochs, by what is released."""
    picture, numbers = folder / f"epsilon-{scale}.svg", folder / f"epsilon-{scale}.json"
    title = "Epsilon after so many epochs of 60 batches, replace-one, delta 1e-5, by noise multiplier:"
    if (found := read_numbers(numbers)) is None:
        return SideTable.not_measured(title)
    head = ("method", *(f"{epochs} epochs" for epochs in _FEW_EPOCHS))
    return SideTable(title, (head, *(_epsilon_line(curve) for curve in found["curves"])), (picture, numbers))


def batches(folder: Path) -> SideTable:
    """Practical costs of random batches."""
    numbers, title = folder / "batches.json", "Batches of 1000 of 60,000 examples:"
    if (found := read_numbers(numbers)) is None:
        return SideTable.not_measured(title)
    head = ("sampler", "batch sizes", "deviation", "peak memory", "never seen in 1 epoch", "in 10", "draw", "gather")
    return SideTable(title, (head, *(_batch_line(one) for one in found["samplers"])), (numbers,))


def law(scale: RunScale, seeds: int, folder: Path, command: str) -> SideTable:
    """How fast the training risk falls with n * epsilon on random data, from seeds with all points measured."""
    kept, numbers = folder / "utility.jsonl", folder / f"utility-{scale}.json"
    title = "Powers of n and epsilon with which the training risk falls, random data, n / d = 10 (95 % intervals):"
    points = of_whole_seeds(scale, seeds, _kept(kept))
    if not points:
        return SideTable.not_measured(title)
    found = laws(points)
    write_numbers(
        numbers, {"laws": [asdict(one) for one in found], "points": [asdict(point) for point in points]}, command
    )
    head = ("method", "risk", "slope in n epsilon", "claimed", "in n", "in epsilon")
    return SideTable(title, (head, *(_law_line(one) for one in found)), (kept, numbers))


def _epsilon_line(curve: dict[str, Any]) -> tuple[str, ...]:
    by_epochs = dict(zip(curve["epochs"], curve["epsilons"], strict=True))
    name = f"{curve['method']}, noise {curve['setting']['noise_multiplier']:g}"
    return name, *(str(rounded_up(by_epochs[epochs], 4)) for epochs in _FEW_EPOCHS)


def _batch_line(one: dict[str, Any]) -> tuple[str, ...]:
    shares = dict(one["never_seen"])
    return (
        one["sampler"],
        f"{one['smallest']} to {one['largest']}",
        f"{one['size_deviation']:.1f}",
        f"{one['peak_memory']:.2f}",
        f"{shares[1]:.1%}",
        f"{shares[10]:.2%}",
        f"{1e3 * one['draw_seconds']:.2f} ms",
        f"{1e3 * (one['slice_seconds'] or one['gather_seconds']):.2f} ms",
    )


def _law_line(one: UtilityLaw) -> tuple[str, ...]:
    return (
        one.method,
        one.risk,
        _shown(one.in_both),
        f"{one.claimed:g}",
        _shown(one.in_examples),
        _shown(one.in_epsilon),
    )


def _shown(slope: Slope) -> str:
    return f"{slope.value:.2f} ({slope.low:.2f} to {slope.high:.2f})"


def _plain(value: EpsilonCurve | BatchStatistics) -> dict[str, Any]:
    plain = asdict(value)
    if isinstance(value, EpsilonCurve):
        plain["setting"]["adjacency"] = str(value.setting.adjacency)
    return plain


def _keep(path: Path, point: RiskPoint) -> None:
    with open(path, "ab") as file:
        file.write(json.dumps(asdict(point), allow_nan=False).encode() + b"\n")
        file.flush()
        os.fsync(file.fileno())


def _kept(path: Path) -> list[RiskPoint]:
    if not path.exists():
        return []
    lines = read_bytes(path, at_most=_LARGEST).split(b"\n")[:-1]
    return [RiskPoint(**fields) for line in lines if isinstance(fields := parse(line), dict)]
