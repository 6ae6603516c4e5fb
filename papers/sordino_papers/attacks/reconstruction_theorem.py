"""Theorem 5.1 of Zhu and Blaschko (2023), checked by attacks on a single layer with a scalar input."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import numpy as np

from sordino.attacks.reconstruction import SingleLayer
from sordino.kernel.randomness import Key
from sordino_papers.harness.entry import RunScale, SideTable
from sordino_papers.harness.results_file import read_numbers, write_numbers

WIDTH = 40
RATES = (0.0, 0.25, 0.5, 0.75, 0.9)
NOISE_STD = 0.1
ATTEMPTS = {RunScale.QUICK: 2000, RunScale.CPU: 20_000, RunScale.PAPER: 100_000}


def measure_theorem(folder: Path, command: str, scale: RunScale) -> None:
    """Attacks one layer at each rate, and writes the error with its expectation and the bound."""
    constraint = tuple(Key.from_seed(0).stream("constraint").normals(WIDTH, step=0).astype(np.float64).tolist())
    kept = []
    for rate in RATES:
        layer = SingleLayer(constraint, NOISE_STD, rate)
        found = layer.attacked(ATTEMPTS[scale], seed=0)
        expected, bound = layer.expected_squared_error, layer.lower_bound
        kept.append({"rate": rate, "measured": asdict(found), "expected": expected, "bound": bound})
    about = {"width": WIDTH, "noise_std": NOISE_STD, "attempts": ATTEMPTS[scale]}
    write_numbers(_path(folder, scale), about | {"rates": kept}, command)


def theorem_side(folder: Path, scale: RunScale) -> SideTable:
    """Measured error, expectation and lower bound by rate."""
    path = _path(folder, scale)
    title = f"Theorem 5.1: squared error of least squares on one number, {WIDTH} coordinates, noise {NOISE_STD:g}:"
    if (kept := read_numbers(path)) is None:
        return SideTable.not_measured(title)
    lines = []
    for one in kept["rates"]:
        numbers = (*(one["measured"][name] for name in ("value", "low", "high")), one["expected"], one["bound"])
        measured, low, high, *theory = (f"{number:.3e}" for number in numbers)
        lines.append((f"{one['rate']:g}", measured, f"{low} to {high}", *theory))
    head = ("rate", "measured", "95 % interval", "expected", "lower bound")
    return SideTable(title, (head, *lines), (path,))


def _path(folder: Path, scale: RunScale) -> Path:
    return folder / f"theorem-{scale}.json"
