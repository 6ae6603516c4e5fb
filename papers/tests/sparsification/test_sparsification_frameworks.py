"""The largest rate of sparsification in each framework: what is trained at each scale, and how the rate is read off."""

from __future__ import annotations

import json

import pytest

from sordino.data import root
from sordino.data.standard import is_complete
from sordino_papers.harness.entry import Entry, Measurement, RunScale
from sordino_papers.harness.reproduce import reproduce
from sordino_papers.harness.results_file import ResultsFile
from sordino_papers.sparsification.frameworks import FRAMEWORKS, RATES, SPARSIFICATION_FRAMEWORKS
from sordino_papers.sparsification.largest_rate import RateCurve, largest_rates
from sordino_papers.sparsification.methods import kept_pretrained

needs_cifar = pytest.mark.skipif(
    not is_complete("cifar10", root()), reason="CIFAR-10 is not here: sordino data fetch cifar10"
)
RATES_OF_A_TEST = (0.0, 0.5, 0.9)


def a_curve(accuracies, folder, seeds):
    """A framework whose accuracy is `accuracies`[rate] with a deviation of 1 between seeds."""

    def entry(rate):
        return Entry(f"r* {rate}", "digits", 1.0, "zero-out", {"rate": rate}, lambda seed: Measurement(0.0))

    curve = RateCurve("linear", 1.0, RATES_OF_A_TEST, tuple(entry(rate) for rate in RATES_OF_A_TEST))
    results = ResultsFile(folder / "runs.jsonl")
    for one, accuracy in zip(curve.entries, accuracies, strict=True):
        for seed in range(seeds):
            results.add(one, seed=seed, measured=Measurement(accuracy + (-1) ** seed), seconds=1.0, origin={})
    return curve


def largest(accuracies, folder, seeds=4):
    side = largest_rates([a_curve(accuracies, folder, seeds)], folder, RunScale.QUICK, seeds, "a test")
    return side.lines[1][2], side


@pytest.mark.parametrize(
    ("accuracies", "expected"),
    [((60.0, 59.9, 59.5), "0.9"), ((60.0, 60.0, 59.0), "0.5"), ((60.0, 55.0, 50.0), "0"), ((60.0, 61.0, 62.0), "0.9")],
)
def test_the_largest_rate_is_within_one_standard_error_of_none(accuracies, expected, tmp_path) -> None:
    assert largest(accuracies, tmp_path)[0] == expected  # the standard error of 1, -1, 1, -1 is 0.58


def test_one_seed_does_not_say_which_rate_is_as_good_as_none(tmp_path) -> None:
    assert largest((60.0, 60.0, 60.0), tmp_path, seeds=1)[0] == "-"


def test_a_side_keeps_its_numbers_and_a_picture(tmp_path) -> None:
    _, side = largest((60.0, 59.9, 50.0), tmp_path)
    picture, numbers = side.files
    assert picture.read_bytes().startswith(b"<?xml")
    [found] = json.loads(numbers.read_text())["frameworks"]
    assert (found["rates"], found["means"], found["largest"]) == ([0.0, 0.5, 0.9], [60.0, 59.9, 50.0], 0.5)


@pytest.mark.parametrize("scale", list(RunScale))
def test_every_framework_is_trained_without_and_with_sparsification(scale) -> None:
    entries = SPARSIFICATION_FRAMEWORKS.entries(scale)
    assert len(entries) == len(FRAMEWORKS[scale]) * len(RATES[scale])
    assert sum(entry.settings["rate"] == 0.0 for entry in entries) == len(FRAMEWORKS[scale])


def test_a_network_is_pretrained_once(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("SORDINO_DATA", str(tmp_path))
    first = kept_pretrained("lenet", (1, 28, 28), 64)
    [file] = (tmp_path / "pretrained").iterdir()
    written = file.stat().st_mtime_ns
    again = kept_pretrained("lenet", (1, 28, 28), 64)
    assert file.stat().st_mtime_ns == written
    assert all((first.weights[name] == again.weights[name]).all() for name in first.weights)


@needs_cifar
@pytest.mark.parametrize("framework", [pytest.param("GEP", marks=pytest.mark.slow), "transfer, linear probe"])
def test_a_framework_trains_on_cifar10_and_promises_no_more_than_its_epsilon(framework, tmp_path) -> None:
    found = reproduce(
        SPARSIFICATION_FRAMEWORKS, tmp_path, scale=RunScale.QUICK, seeds=1, only=framework, progress=False
    )
    run = [row for row in found.rows if row.ours is not None]
    assert [row.settings["rate"] for row in run] == [0.0, 0.9]
    assert all(row.more["epsilon"] <= row.epsilon for row in run)


@needs_cifar
@pytest.mark.slow
def test_the_quick_table_is_whole(tmp_path) -> None:
    found = reproduce(SPARSIFICATION_FRAMEWORKS, tmp_path, scale=RunScale.QUICK, seeds=1, progress=False)
    assert all(row.ours is not None for row in found.rows)
