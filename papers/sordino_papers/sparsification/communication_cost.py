"""Bytes sent by clients and server, by final rate, kind of mask and wire format, counted on real messages."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from sordino.encodings import RandomSparsify
from sordino.kernel.states import Layout
from sordino.report.markup import ACCENT, DASHES, FAINT, INK
from sordino.training.communication import DenseFormat, IndexFormat, SeedFormat, Wire, federated_sgd
from sordino_papers.harness.entry import Entry, Measurement, RunScale, SideTable
from sordino_papers.harness.page import drawing
from sordino_papers.harness.results_file import write_numbers
from sordino_papers.harness.rows import ExperimentRows
from sordino_papers.harness.training import DELTA, DpSgdTrial
from sordino_papers.harness.training_entries import SetPart

WIRES: tuple[Wire, ...] = (DenseFormat(), IndexFormat(), SeedFormat())
_NOISE_MULTIPLIER = 4.0  # no byte depends on it
_COLOURS = {"dense": FAINT, "index-coded": INK, "seed-coded": ACCENT}


@dataclass(frozen=True)
class CommunicationCost:
    """Bytes of all messages of a run, and the mean fraction of coordinates that masks keep."""

    masks: str
    final_rate: float
    wire: str
    up: int
    down: int
    kept: float


def communication_entry(trial: DpSgdTrial, masks: str, part: SetPart, *, clients: int, wire: Wire) -> Entry:
    """An entry for a federated run. The number of bytes does not depend on the seed."""

    def measure(seed: int) -> Measurement:
        found = measure_communication(trial, masks, part.rows(trial), clients=clients, wire=wire)
        return Measurement(found.up + found.down, asdict(found))

    settings = {"training": trial, "rows": part, "clients": clients, "wire": wire.name}
    return Entry(f"{masks}, {wire.name}", part.data, None, None, settings, measure)


def measure_communication(
    trial: DpSgdTrial, masks: str, rows: ExperimentRows, *, clients: int, wire: Wire
) -> CommunicationCost:
    """Trains with a server and clients that encode, send and decode every update."""
    model = trial.build(rows.facts, seed=0)
    plan = trial.plan(trial.poisson(len(rows)), _NOISE_MULTIPLIER, len(rows))
    trained = federated_sgd(
        plan, model, rows.data, clients=clients, delta=DELTA, optimizer=trial.optimizer_for, wire=wire, seed=0
    )
    rate = 0.0 if trial.sparsity is None else trial.sparsity.final_rate
    kept = kept_share(trial, len(rows), Layout.of(model).size)
    return CommunicationCost(masks, rate, wire.name, trained.bytes_up, trained.bytes_down, kept)


def kept_share(trial: DpSgdTrial, examples: int, size: int) -> float:
    """Mean fraction of `size` coordinates that a step keeps, computed from the plan alone.

    >>> trial = DpSgdTrial("linear", batch_size=10, epochs=2, learning_rate=1.0, clip=1.0, momentum=0.0)
    >>> kept_share(trial, examples=100, size=50)
    1.0
    """
    encoding, steps = trial.encoding(examples), trial.steps(examples)
    if not isinstance(encoding, RandomSparsify):
        return 1.0
    return 1 - sum(encoding.zeroed(step, size) for step in range(steps)) / (steps * size)


def in_every_format(found: Iterable[CommunicationCost]) -> tuple[CommunicationCost, ...]:
    """The runs that were measured in all wire formats."""
    found = tuple(found)
    whole = {wire.name for wire in WIRES}
    return tuple(one for one in found if _by_wire(one.masks, one.final_rate, found).keys() == whole)


def traffic(found: Sequence[CommunicationCost], scale: RunScale, folder: Path, command: str) -> SideTable:
    """Bytes by rate and wire format, next to the fraction of coordinates kept, as a table and a figure."""
    picture, numbers = folder / f"bytes-{scale}.svg", folder / f"bytes-{scale}.json"
    write_numbers(numbers, {"runs": [asdict(one) | {"share": _share(one, found)} for one in found]}, command)
    _draw(found, picture)
    wires = (f"{wire.name}, up / down" for wire in WIRES)
    head = ("masks", "final rate", "kept", *wires, "seed-coded, of dense", "in proportion")
    title = "Bytes of all messages of a federated run, beside the share of coordinates that masks keep on average:"
    runs = dict.fromkeys((one.masks, one.final_rate) for one in found)
    return SideTable(title, (head, *(_line(masks, rate, found) for masks, rate in runs)), (picture, numbers))


def _by_wire(masks: str, rate: float, found: Iterable[CommunicationCost]) -> dict[str, CommunicationCost]:
    return {one.wire: one for one in found if (one.masks, one.final_rate) == (masks, rate)}


def _share(one: CommunicationCost, found: Iterable[CommunicationCost]) -> float:
    """Bytes relative to the same run with dense messages."""
    dense = _by_wire(one.masks, one.final_rate, found)[DenseFormat.name]
    return (one.up + one.down) / (dense.up + dense.down)


def _line(masks: str, rate: float, found: Sequence[CommunicationCost]) -> tuple[str, ...]:
    by_wire = _by_wire(masks, rate, found)
    seeded = by_wire[SeedFormat.name]
    share = _share(seeded, found)
    return (
        masks,
        f"{rate:g}",
        f"{seeded.kept:.3f}",
        *(f"{by_wire[wire.name].up:,} / {by_wire[wire.name].down:,}" for wire in WIRES),
        f"{share:.3f}",
        "yes" if abs(share - seeded.kept) <= 1e-9 else "no",
    )


def _draw(found: Sequence[CommunicationCost], path: Path) -> None:
    names = list(dict.fromkeys(one.masks for one in found))
    with drawing(path, width=2.6 * len(names), height=2.4) as figure:
        for name, axes in zip(names, figure.subplots(1, len(names), squeeze=False, sharey=True).flatten(), strict=True):
            for wire, dashes in zip(WIRES, ("-", *DASHES), strict=False):
                points = [
                    (one.final_rate, _share(one, found)) for one in found if (one.masks, one.wire) == (name, wire.name)
                ]
                rates, shares = zip(*sorted(points), strict=True)
                axes.plot(rates, shares, label=wire.name, color=_COLOURS[wire.name], linestyle=dashes)
            axes.set(title=name, xlabel="final rate", ylim=(0, None))
            axes.legend()
        figure.supylabel("bytes, of dense")
