"""Rows and accuracies that nobody measured: what an experiment of sparsification does with them is quick to see."""

from __future__ import annotations

import torch

from sordino.data import DataSet, Facts, Split
from sordino.training.evaluation import Public
from sordino_papers.harness import training_entries
from sordino_papers.harness.entry import Measurement
from sordino_papers.harness.results_file import ResultsFile
from sordino_papers.harness.rows import ExperimentRows


def noise_for_pictures(monkeypatch, folder):
    """Every part of a standard set is noise, and trainings that can be stopped are kept in this folder."""

    def rows(data, network, *, examples, left_out):
        pictures, labels = torch.randn(examples, 1, 28, 28), torch.arange(examples) % 10
        facts = Facts("made-up", (1, 28, 28), 10, (0.0, 1.0))
        return ExperimentRows(pictures, labels, Public((pictures[:50], labels[:50])), facts)

    monkeypatch.setattr(training_entries, "network_rows", rows)
    monkeypatch.setenv("SORDINO_DATA", str(folder))


def told(entries, folder, accuracy, seeds=1, more=None):
    """A results in this folder that says of each entry and seed what `accuracy` says."""
    results = ResultsFile(folder / "runs.jsonl")
    for entry in entries:
        for seed in range(seeds):
            results.add(
                entry, seed=seed, measured=Measurement(accuracy(entry, seed), more or {}), seconds=1.0, origin={}
            )
    return results


def pictures_of(*, rows, public):
    """A set of raw pictures whose middle is as bright as their class: quick to learn, and always the same."""
    generator = torch.Generator().manual_seed(1)

    def split(count):
        target = torch.arange(count) % 10
        pictures = torch.randint(0, 40, (count, 1, 28, 28), generator=generator)
        pictures[:, :, 10:18, 10:18] += 20 * target[:, None, None, None]
        return Split(pictures.to(torch.uint8), target)

    facts = Facts("made-up", (1, 28, 28), 10, (0.0, 255.0), (0.13,), (0.31,))
    return DataSet(facts, split(rows), split(public) if public else None)
