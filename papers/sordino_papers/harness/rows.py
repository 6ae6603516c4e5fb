"""Rows of an experiment: private rows to train on, and public rows to measure accuracy on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial

from torch import Tensor

from sordino import models
from sordino.data import DataSet, Facts, Split, load
from sordino.errors import DataError
from sordino.training.evaluation import Public


@dataclass(frozen=True)
class ExperimentRows:
    """Private rows, public test rows, and the public facts of the dataset."""

    inputs: Tensor
    target: Tensor
    test: Public
    facts: Facts

    @property
    def num_classes(self) -> int:
        if self.facts.num_classes is None:
            raise DataError(f"the target of {self.facts.name!r} is a number: a table of accuracies needs classes.")
        return self.facts.num_classes

    @property
    def data(self) -> tuple[Tensor, Tensor]:
        return self.inputs, self.target

    def __len__(self) -> int:
        return len(self.target)


@lru_cache(maxsize=1)  # entries that follow one another share their rows
def network_rows(data: str, network: str, *, examples: int | None = None, left_out: int = 0) -> ExperimentRows:
    """A standard dataset, prepared for a network of `sordino.models`; or its first `examples` private and public rows.

    With `left_out`, the last private rows are not trained on and replace the test rows, so that settings can be
    compared without using the test rows.
    """
    loaded = load(data)
    prepare = partial(models.build(network, loaded.facts, seed=0).prepare, progress=False)
    return prepared_rows(loaded, prepare, examples=examples, left_out=left_out)


def prepared_rows(
    loaded: DataSet, prepare: Callable[[Tensor], Tensor], *, examples: int | None = None, left_out: int = 0
) -> ExperimentRows:
    """Rows of a dataset after any public preparation of single rows. `examples` and `left_out` as in `network_rows`."""
    if loaded.test is None:
        raise DataError(f"{loaded.facts.name} has no public rows, which a table of accuracies needs.")
    private, count = loaded.train, len(loaded.train.target) - left_out
    held = Split(private.inputs[count:], private.target[count:]) if left_out else loaded.test
    kept = slice(min(count, examples or count))
    test = Public((prepare(held.inputs[:examples]), held.target[:examples]))
    return ExperimentRows(prepare(private.inputs[kept]), private.target[kept], test, loaded.facts)
