"""Time and memory of a private step on models of the sizes that are trained in practice, with the steps of peers.

    .venv-peers/bin/python -m bench.large_steps --peers opacus opake --save results/bench_large_steps.json
    python -m bench.large_steps --models mlp-4096 --batch-size 64 --repeats 1

`make peers` makes the environment of the peers. Rows are written as they are measured, and a restart skips those that
are in the file. `plain` is forward, backward and SGD in the fastest micro-batches. `loop` is the plain loop over single
rows: forward, backward, clip and accumulate. Sides take turns, each in a process of its own. A peer that refuses a
model, or is not done in the time of the row, has its message instead of a time. The time that a row leaves is for those
after it. `error` is the distance of a side's sum of clipped gradients from the sum over single rows, relative to it.
"""

from __future__ import annotations

import argparse
import importlib
import json
import resource
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import nn

import sordino as so
from bench.asked import Asked, NoAnswer, answer_questions, in_fork
from bench.large_models import LARGE_MODELS, LargeModel
from bench.sides import TIE, turn
from bench.step import origin
from bench.transformer_models import Rows, split, trained
from bench.transformer_peers import opacus_step, opake_step
from bench.transformers import looped_sum, plain_step
from sordino.kernel.clipping import SCALED_TO
from sordino.kernel.states import BoundedSum
from sordino.verification import explanation

_MODULE = "bench.large_steps"
_PHYSICAL = (256, 64, 16, 4, 1)
_BYTES_OF_GRADIENTS = 2 << 30  # of all rows of a micro-batch together
_COMPARED_ROWS, _CLIP_NORM = 2, 1.0
_WORSE = 1.3  # micro-batches this much slower than larger ones end the search
_LONG_STEP = 2.0  # seconds; it is not repeated in a turn
_SHARE_OF_TUNING, _SHARE_OF_CHECKS, _SHARE_OF_A_PEER = 0.15, 0.25, 0.4  # of the time of a row, or of what is left
_LEAST_PATIENCE, _OWN_PATIENCE = 15.0, 150.0  # seconds for a peer, and for the sides of each row
_LONGEST_ROW = 4.0  # times the minutes of a row, with the time that rows before it left
Maker = Callable[[LargeModel, Rows, str, int], Callable[[], object]]


def loop_step(task: LargeModel, rows: Rows, _: str, __: int) -> Callable[[], None]:
    """Plain PyTorch over single rows: forward, backward, clip, accumulate; then SGD, without noise."""
    model = task.make().train()
    parameters, parts = trained(model), split(rows, 1)
    optimizer = torch.optim.SGD(parameters, lr=0.01)

    def step() -> None:
        total = [torch.zeros_like(parameter) for parameter in parameters]
        for inputs, labels in parts:
            gradient = torch.autograd.grad(task.loss(model(**inputs), labels), parameters)
            weight = min(1.0, _CLIP_NORM / float(nn.utils.get_total_norm(gradient)))
            torch._foreach_add_(total, gradient, alpha=weight / len(parts))
        for parameter, value in zip(parameters, total, strict=True):
            parameter.grad = value
        optimizer.step()

    return step


def private_step(task: LargeModel, rows: Rows, _: str, __: int) -> Callable[[], None]:
    """A step of a run of Sordino on twice the rows, of which it draws half."""
    model, number = task.make().train(), len(rows["labels"])
    run, optimizer = _run(task, model, rows), torch.optim.SGD(trained(model), lr=0.01)

    def step() -> None:
        next(run).divide(number).write_to(model)
        optimizer.step()

    return step


def _run(task: LargeModel, model: nn.Module, rows: Rows) -> so.PrivateRun:
    records, number = task.records(model, {name: torch.cat([x, x]) for name, x in rows.items()}), len(rows["labels"])
    gradient = so.LossGradient(task.private_loss(model, records))
    sampler = so.FixedSize(number, 2 * number, 10**6)
    return so.PrivateRun(so.Plan(sampler, gradient, so.ClipByNorm(_CLIP_NORM), so.Gaussian(1.0)), model, records)


@dataclass(frozen=True)
class Side:
    """What makes a step, and the modes of which the first that takes a model is used."""

    make: Maker
    modes: tuple[str, ...]
    library: str = "torch"
    has_micro_batches: bool = True
    holds_gradients: bool = False


OWN = {
    "plain": Side(plain_step, ("plain",)),
    "sordino": Side(private_step, ("taped",), has_micro_batches=False),
    "loop": Side(loop_step, ("loop",), has_micro_batches=False),
}
PEERS = {
    "opacus": {
        "opacus-ghost": Side(opacus_step, ("ghost",), "opacus"),
        "opacus-hooks": Side(opacus_step, ("hooks",), "opacus", holds_gradients=True),
    },
    "opake": {"opake": Side(opake_step, ("functional", "no mask", "patched"), "opake", holds_gradients=True)},
}
SIDES = OWN | PEERS["opacus"] | PEERS["opake"]


# The process of a side: it answers one question at a time.


@dataclass
class Worker:
    """A side of one model, in a process of its own."""

    task: LargeModel
    side: Side
    batch_size: int
    before: float = 0.0
    _step: Callable[[], object] | None = None

    def parameters(self) -> int:
        """The number of trained numbers. It also tells that the imports are done."""
        return in_fork(lambda: sum(p.numel() for p in trained(self.task.make())))

    def tune(self, mode: str, seconds: float) -> dict[str, float]:
        """Milliseconds by size of micro-batches, in a process of its own, whose memory does not count."""
        return in_fork(lambda: self._milliseconds(mode, seconds))

    def _milliseconds(self, mode: str, seconds: float) -> dict[str, float]:
        """From the largest size, until they are slower or the time is up."""
        start, times = time.perf_counter(), dict[str, float]()
        for size in self._sizes():
            step = self.side.make(self.task, self.task.rows(self.batch_size), mode, size)
            times[str(size)] = median(_turn(step))
            if times[str(size)] > _WORSE * min(times.values()) or time.perf_counter() - start > seconds:
                break
        return times

    def _sizes(self) -> list[int]:
        if not self.side.has_micro_batches:
            return [self.batch_size]
        most = min(self.batch_size, self.task.most_together)
        if self.side.holds_gradients:
            most = min(most, _BYTES_OF_GRADIENTS // (4 * sum(p.numel() for p in trained(self.task.make()))))
        return [size for size in _PHYSICAL if size <= max(most, 1)]

    def turn(self, mode: str, physical: int) -> list[float]:
        if self._step is None:
            self._step = self.side.make(self.task, self.task.rows(self.batch_size), mode, physical)
        return _turn(self._step)

    def peak(self) -> float:
        """The increase of peak resident memory since the imports, in MiB."""
        return _peak() - self.before

    def error(self, mode: str, _: int) -> float:
        """The relative error of the sum of clipped gradients of a few rows."""
        rows = self.task.rows(_COMPARED_ROWS)
        if self.side.make is private_step:
            exact, found = looped_sum(self.task, rows, _CLIP_NORM * SCALED_TO), self._sum(rows)[0].value
        else:
            step: Any = (opacus_step if self.side.library == "opacus" else opake_step)(
                self.task, rows, mode, _COMPARED_ROWS, 0.0
            )
            exact, found = looped_sum(self.task, rows, _CLIP_NORM), step()()
        return float((found.double() - exact).norm() / exact.norm())

    def path(self) -> dict[str, float]:
        """The share of trained numbers by the way in which their gradients are computed."""
        model, rows, shares = self.task.make().train(), self.task.rows(2), defaultdict[str, float](float)
        data: Any = rows if self.task.is_transformer else tuple(rows.values())
        explanation._MOST_ROWS_TIMED = 1  # its times are not used here
        layers = so.explain(model, data).layers
        for layer in layers:
            shares[layer.method.value] += layer.trained / sum(each.trained for each in layers)
        return {method: round(share, 4) for method, share in shares.items()}

    def after_the_sum(self) -> float:
        """Milliseconds of noise, division and SGD, with the sum given."""
        (total, model), times = self._sum(self.task.rows(_COMPARED_ROWS)), list[float]()
        run = _run(self.task, model, self.task.rows(self.batch_size))
        optimizer = torch.optim.SGD(trained(model), lr=0.01)
        for _ in range(4):
            begun, given = run.begin(), replace(total, value=total.value.clone())
            start = time.perf_counter()
            run.finish(begun, given).divide(self.batch_size).write_to(model)
            optimizer.step()
            times.append(1e3 * (time.perf_counter() - start))
        return median(times[1:])

    def _sum(self, rows: Rows) -> tuple[BoundedSum, nn.Module]:
        model, number = self.task.make().train(), torch.arange(len(rows["labels"]))
        records = self.task.records(model, rows)
        gradient = so.LossGradient(self.task.private_loss(model, records))
        return so.ClipByNorm(_CLIP_NORM)(gradient.of(model, records.gather(number), number)), model


def _turn(step: Callable[[], object]) -> list[float]:
    """Milliseconds of one step if it is long, or else of some after it."""
    start = time.perf_counter()
    step()
    seconds = time.perf_counter() - start
    return [1e3 * seconds] if seconds > _LONG_STEP else turn(step)


def _peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


# The process that asks them.


def measure(name: str, batch_size: int, repeats: int, peers: list[str], seconds: float) -> dict[str, Any]:
    """Measures one row of the table, in about `seconds`."""
    end = time.perf_counter() + seconds
    sides = [*OWN, *(side for peer in peers for side in PEERS[peer])]
    row = _Row(name, batch_size, sides, end, end - _SHARE_OF_CHECKS * seconds)
    try:
        row.parameters = max(asked.ask(seconds, "parameters") for asked in row.asked.values())
        for side in OWN:
            row.tune(side, _SHARE_OF_TUNING * seconds)
            if side not in row.asked:
                raise SystemExit(f"{name} cannot be measured: {row.messages[side]}")
        row.take_turns(list(OWN))
        for side in sides[len(OWN) :]:
            row.tune(side, _SHARE_OF_A_PEER * row.left())
        row.take_turns([side for side in sides[len(OWN) :] if side in row.asked])
        for _ in range(1, repeats):
            if row.left() < row.seconds_of_round():
                break
            row.take_turns(list(row.asked))
        return row.result()
    finally:
        for asked in row.asked.values():
            asked.close()


class _Row:
    def __init__(self, name: str, batch_size: int, sides: list[str], end: float, end_of_turns: float) -> None:
        self.name, self.batch_size, self._end, self._end_of_turns = name, batch_size, end, end_of_turns
        self.messages, self.tried = dict[str, str](), dict[str, dict[str, Any]]()
        self.parameters = 0
        self.asked = {side: Asked(_MODULE, name, side, str(batch_size)) for side in sides}

    def left(self) -> float:
        """Seconds that are left for turns."""
        return self._end_of_turns - time.perf_counter()

    def seconds_of_round(self) -> float:
        """About how long the next turn of all sides takes."""
        return sum(max(median(asked.times) / 1e3, 1.0) for asked in self.asked.values())

    def tune(self, side: str, seconds: float) -> None:
        """Finds the mode and the size of micro-batches of a side, or ends it if no mode takes the model."""
        asked, found = self.asked[side], dict[str, Any]()
        if not SIDES[side].has_micro_batches:
            asked.mode, asked.physical = SIDES[side].modes[0], self.batch_size
            return
        self.tried[side] = found
        for mode in SIDES[side].modes if LARGE_MODELS[self.name].is_transformer else SIDES[side].modes[:1]:
            try:
                times = asked.ask(self._patience(side, seconds), "tune", mode, seconds / 2)
            except NoAnswer as reason:
                found[mode] = str(reason)
                if asked.has_ended:
                    break
                continue
            found[mode] = times
            asked.mode = mode
            asked.physical = max(int(size) for size, ms in times.items() if ms <= (1 + TIE) * min(times.values()))
            return
        self._end_side(side, "; ".join(f"{mode}: {reason}" for mode, reason in found.items()))

    def _patience(self, side: str, seconds: float) -> float:
        return max(seconds, self.left(), _OWN_PATIENCE) if side in OWN else max(seconds, _LEAST_PATIENCE)

    def _end_side(self, side: str, message: str) -> None:
        self.messages[side] = message
        self.asked.pop(side).close()

    def take_turns(self, sides: list[str]) -> None:
        for side in sides:
            asked = self.asked[side]
            try:
                seconds = self._patience(side, max(self.left(), 2 * _LEAST_PATIENCE))
                asked.times += asked.ask(seconds, "turn", asked.mode, asked.physical)
            except NoAnswer as reason:
                measured = f"{median(asked.times):.1f} ms, then " if asked.times else ""
                tuned = f" (found for micro-batches: {self.tried[side]})" if side in self.tried else ""
                self._end_side(side, f"{measured}{reason}{tuned}")

    def result(self) -> dict[str, Any]:
        """The row. What a side could not do is its message."""
        times = {side: median(asked.times) for side, asked in self.asked.items() if asked.times}
        memory = {side: self._answer(side, "peak") for side in times}
        ours, plain = times.get("sordino"), times.get("plain")
        known = {side: mib for side, mib in memory.items() if isinstance(mib, float)}
        return {
            "model": self.name,
            "batch_size": self.batch_size,
            "trained_parameters": self.parameters,
            "milliseconds": times | self.messages,
            "ratio_to_plain": {side: ms / plain for side, ms in times.items() if side != "plain"} if plain else {},
            "ratio_of_sordino_to": {side: ours / ms for side, ms in times.items() if side != "sordino"} if ours else {},
            "peak_mib": memory,
            "memory_ratio_to_plain": {
                side: mib / known["plain"] for side, mib in known.items() if side != "plain" and "plain" in known
            },
            "path": self._answer("sordino", "path"),
            "after_the_sum_ms": self._answer("sordino", "after_the_sum"),
            "error": {
                side: self._answer(side, "error", asked.mode, asked.physical)
                for side, asked in list(self.asked.items())
                if side not in ("plain", "loop")
            },
            "mode_and_physical": {side: (asked.mode, asked.physical) for side, asked in self.asked.items()},
            "turns": {side: len(asked.times) for side, asked in self.asked.items()},
            "tried_ms": {side: found for side, found in self.tried.items() if found},
        }

    def _answer(self, side: str, question: str, *arguments: object) -> Any:
        if side not in self.asked:
            return self.messages[side]
        try:
            return self.asked[side].ask(max(self._end - time.perf_counter(), 20.0), question, *arguments)
        except NoAnswer as reason:
            return str(reason)


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--models", nargs="+", choices=list(LARGE_MODELS), default=list(LARGE_MODELS))
    arguments.add_argument("--batch-size", type=int, help="rows of a step, if not the number that the model has")
    arguments.add_argument("--repeats", type=int, default=5, help="turns of each side, if there is time")
    arguments.add_argument("--peers", nargs="*", choices=list(PEERS), default=[])
    arguments.add_argument("--minutes-per-model", type=float, default=1.9)
    arguments.add_argument("--save", type=Path, help="where to write the rows as JSON, after each row")
    arguments.add_argument("--worker", nargs=3, help=argparse.SUPPRESS)
    chosen = arguments.parse_args()
    if chosen.worker:
        name, side, rows_of_step = chosen.worker
        importlib.import_module(SIDES[side].library)
        answer_questions(Worker(LARGE_MODELS[name], SIDES[side], int(rows_of_step), _peak()))
        return
    rows = json.loads(chosen.save.read_text())["rows"] if chosen.save and chosen.save.exists() else []
    there, about, spare = {(row["model"], row["batch_size"]) for row in rows}, origin(_MODULE), 0.0
    for name in chosen.models:
        batch_size, start = chosen.batch_size or LARGE_MODELS[name].batch_size, time.perf_counter()
        if (name, batch_size) in there:
            continue
        seconds = 60 * chosen.minutes_per_model
        given = min(seconds + max(spare, 0.0), _LONGEST_ROW * seconds)
        row = measure(name, batch_size, chosen.repeats, chosen.peers, given)
        taken = time.perf_counter() - start
        spare += seconds - taken
        rows.append({**row, "seconds": round(taken), "commit": about["commit"]})
        print(_line(rows[-1]), flush=True)
        if chosen.save:
            versions = {library: version(library) for library in ("torch", "transformers", "peft", *chosen.peers)}
            result = {**about, "seeds": [0], "versions": versions, "rows": rows}
            part = chosen.save.with_suffix(".part")  # a stop while writing leaves the rows before it
            part.write_text(json.dumps(result, indent=2) + "\n")
            part.replace(chosen.save)


def _line(row: dict[str, Any]) -> str:
    sides = "  ".join(
        f"{side} {ms:.0f} ms" if isinstance(ms, float) else f"{side}: {ms[:60]}"
        for side, ms in row["milliseconds"].items()
    )
    ratio, memory = row["ratio_to_plain"].get("sordino"), row["memory_ratio_to_plain"].get("sordino")
    to_plain = "" if ratio is None or memory is None else f"to plain {ratio:.2f}  memory {memory:.2f}  "
    return f"{row['model']:15} batch {row['batch_size']:3}  {to_plain}{sides}  ({row['seconds']} s)"


if __name__ == "__main__":
    main()
