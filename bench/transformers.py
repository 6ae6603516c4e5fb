"""Time and memory of a private step on a transformer, against a plain step and the steps of peers, in one run.

    .venv-peers/bin/python -m bench.transformers --peers opacus opake --save results/bench_transformers.json
    python -m bench.transformers --models bert-mini-lora-float32 --batch-size 8

`make peers` makes the environment of the peers. A plain step is forward, backward and SGD. A private step adds
sampling, clipping and noise. Each side uses its fastest mode and micro-batch size, except Sordino, whose run chooses
the size. The sides take turns, each in a process of its own, and peak memory is that of two steps in a new process.
`error` is the distance of a side's sum of clipped gradients from the sum over single rows in single precision, relative
to that sum. A mode that refuses a model has its message instead of a time.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor

import sordino as so
from bench.sides import TIE, Stepper, alternating, in_process, peak_mib, take_turns, turn
from bench.step import origin
from bench.transformer_models import WORKLOADS, Rows, Task, Workload, split, trained
from bench.transformer_peers import PEERS
from sordino.huggingface import as_records, loss_for
from sordino.kernel.clipping import SCALED_TO

_MODULE = "bench.transformers"
_PHYSICAL = (1, 4, 16, 64)
_BYTES_OF_GRADIENTS = 2 << 30  # of all rows of a micro-batch together
_WITHOUT_GRADIENTS = ("plain", "ghost")  # modes that hold no gradients of rows
_COMPARED_ROWS, _CLIP_NORM = 3, 1.0


def plain_step(workload: Task, rows: Rows, _: str, physical: int) -> Callable[[], None]:
    """Forward, backward and SGD, in micro-batches of `physical`."""
    model = workload.make().train()
    optimizer, parts = torch.optim.SGD(trained(model), lr=0.01), split(rows, physical)

    def step() -> None:
        optimizer.zero_grad()
        for inputs, labels in parts:
            with workload.precision():
                loss = workload.loss(model(**inputs), labels)
            (loss / len(rows["labels"])).backward()
        optimizer.step()

    return step


def private_step(workload: Workload, rows: Rows, _: str, __: int) -> Callable[[], None]:
    """A step of a run of Sordino on twice the rows, of which it draws half."""
    model, number = workload.make().train(), len(rows["labels"])
    records = as_records(model, {name: torch.cat([x, x]) for name, x in rows.items()})
    gradient = so.LossGradient(loss_for(model, records), workload.autocast)
    sampler = so.FixedSize(number, 2 * number, 10**6)
    plan = so.Plan(sampler, gradient, so.ClipByNorm(_CLIP_NORM), so.Gaussian(1.0))
    run = so.PrivateRun(plan, model, records)
    optimizer = torch.optim.SGD(trained(model), lr=0.01)

    def step() -> None:
        next(run).divide(number).write_to(model)
        optimizer.step()

    return step


Maker = Callable[[Workload, Rows, str, int], Callable[[], object]]
_SIDES: dict[str, tuple[Maker, tuple[str, ...]]] = {
    "plain": (plain_step, ("plain",)),
    "sordino": (private_step, ("taped",)),
    **PEERS,
}
Tried = dict[str, dict[str, float | str]]


def measure(workload: Workload, batch_size: int, repeats: int, peers: list[str]) -> dict[str, Any]:
    """Measures one row of the table."""
    tried = {side: try_modes(workload, batch_size, side) for side in ("plain", *peers)}
    fast = {side: fastest(found) for side, found in tried.items()}
    chosen = {"sordino": ("taped", 0)} | {side: choice for side, choice in fast.items() if choice is not None}
    work = {side: (workload.name, str(batch_size), side, *map(str, choice)) for side, choice in chosen.items()}
    steppers = [Stepper(_MODULE, "turns", *words) for words in work.values()]
    times = dict(zip(work, alternating([stepper.turn for stepper in steppers], repeats), strict=True))
    for stepper in steppers:
        stepper.close()
    memory = {side: in_process(_MODULE, "memory", *words) for side, words in work.items()}
    return {
        "model": workload.name,
        "batch_size": batch_size,
        "tokens": workload.transformer.tokens,
        "trained_parameters": sum(p.numel() for p in trained(workload.make())),
        "milliseconds": times,
        "peak_mib": memory,
        "ratio_to_plain": {side: times[side] / times["plain"] for side in times if side != "plain"},
        "memory_ratio_to_plain": {side: memory[side] / memory["plain"] for side in memory if side != "plain"},
        "ratio_to_peer": {side: times["sordino"] / times[side] for side in peers if side in times},
        "mode_and_physical": {side: choice for side, choice in chosen.items() if side != "sordino"},
        "tried_ms": tried,
        "error": {side: errors(workload, side) for side in ("sordino", *peers)},
    }


def fastest(tried: Tried) -> tuple[str, int] | None:
    """The fastest mode, with the largest micro-batch size that is about as fast; None if no mode takes the model."""
    known = [(ms, mode, int(size)) for mode, found in tried.items() for size, ms in found.items() if type(ms) is float]
    if not known:
        return None
    least, best, _ = min(known)
    return best, max(size for ms, mode, size in known if mode == best and ms <= (1 + TIE) * least)


def try_modes(workload: Workload, batch_size: int, side: str) -> Tried:
    """Milliseconds by mode and micro-batch size. A mode that refuses the model has its message instead."""
    tried: Tried = {}
    gradient = 4 * sum(p.numel() for p in trained(workload.make()))
    for mode in _SIDES[side][1]:
        tried[mode], at_most = {}, batch_size if mode in _WITHOUT_GRADIENTS else _BYTES_OF_GRADIENTS // gradient
        for size in [size for size in _PHYSICAL if size <= min(batch_size, max(at_most, 1))]:
            words = (workload.name, str(batch_size), side, mode, str(size))
            tried[mode][str(size)] = in_process(_MODULE, "once", *words)
            if isinstance(tried[mode][str(size)], str):
                break
    return tried


def errors(workload: Workload, side: str) -> dict[str, float | str]:
    """The relative error of the sum of clipped gradients by mode, or the message of a mode that refuses the model."""
    return {
        mode: in_process(_MODULE, "error", workload.name, str(_COMPARED_ROWS), side, mode, str(_COMPARED_ROWS))
        for mode in _SIDES[side][1]
    }


def error_of(workload: Workload, rows: Rows, side: str, mode: str, physical: int) -> float:
    """The relative error of a side's sum of clipped gradients."""
    if side == "sordino":
        exact = looped_sum(workload, rows, _CLIP_NORM * SCALED_TO)
        found = clipped_sum(workload, rows)
    else:
        exact, found = looped_sum(workload, rows, _CLIP_NORM), PEERS[side][0](workload, rows, mode, physical, 0.0)()()
    return float((found.double() - exact).norm() / exact.norm())


def looped_sum(workload: Task, rows: Rows, norm: float) -> Tensor:
    """The sum of clipped gradients, from a pass over each row alone in single precision."""
    model, total = workload.make().train(), torch.zeros(())
    for inputs, labels in split(rows, 1):
        gradient = torch.autograd.grad(workload.loss(model(**inputs), labels), trained(model))
        flat = torch.cat([part.flatten() for part in gradient]).double()
        total = total + flat * min(1.0, norm / float(flat.norm()))
    return total


def clipped_sum(workload: Workload, rows: Rows) -> Tensor:
    """The sum of clipped gradients of Sordino."""
    model, number = workload.make().train(), torch.arange(len(rows["labels"]))
    records = as_records(model, rows, allow_single=True)
    gradient = so.LossGradient(loss_for(model, records), workload.autocast)
    each = gradient.of(model, records.gather(number), number)
    return so.ClipByNorm(_CLIP_NORM)(each).value


def _step(workload: Workload, rows: Rows, side: str, mode: str, physical: int) -> Callable[[], object]:
    return _SIDES[side][0](workload, rows, mode, physical)


def _memory(*side: Any) -> float:
    return peak_mib(lambda: _step(*side))


_WORKERS: dict[str, Callable[[Workload, Rows, str, str, int], Any]] = {
    "turns": lambda *side: take_turns(_step(*side)),
    "once": lambda *side: median(turn(_step(*side))),
    "memory": _memory,
    "error": error_of,
}


def answer(work: str, name: str, number: str, side: str, mode: str, physical: str) -> Any:
    """The result of the work of a process. A peer may raise anything; its message is then the result."""
    workload = WORKLOADS[name]
    try:
        return _WORKERS[work](workload, workload.transformer.rows(int(number)), side, mode, int(physical))
    except Exception as error:
        if side not in PEERS or work in ("turns", "memory"):
            raise
        return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--models", nargs="+", choices=list(WORKLOADS), default=list(WORKLOADS))
    arguments.add_argument(
        "--batch-size", type=int, help="rows of a step: 64 of BERT-mini and 16 of GPT-2 if not given"
    )
    arguments.add_argument("--repeats", type=int, default=9)
    arguments.add_argument("--peers", nargs="*", choices=list(PEERS), default=[])
    arguments.add_argument("--save", type=Path, help="where to write the rows as JSON, after each row")
    arguments.add_argument("--worker", nargs=6, help=argparse.SUPPRESS)
    chosen = arguments.parse_args()
    if chosen.worker:
        print(json.dumps(answer(*chosen.worker)))
        return
    rows = list[dict[str, Any]]()
    for name in chosen.models:
        workload = WORKLOADS[name]
        rows.append(
            measure(workload, chosen.batch_size or workload.transformer.batch_size, chosen.repeats, chosen.peers)
        )
        print(_line(rows[-1]), flush=True)
        if chosen.save:
            result = {**origin(_MODULE), "seeds": [0], "versions": _versions(chosen.peers), "rows": rows}
            chosen.save.write_text(json.dumps(result, indent=2) + "\n")


def _versions(peers: list[str]) -> dict[str, str]:
    return {name: version(name) for name in ("torch", "transformers", "peft", *peers)}


def _line(row: dict[str, Any]) -> str:
    peers = "".join(f"  to {peer} {ratio:.2f}" for peer, ratio in row["ratio_to_peer"].items())
    ratio, memory = row["ratio_to_plain"]["sordino"], row["memory_ratio_to_plain"]["sordino"]
    return f"{row['model']:24} batch {row['batch_size']:3}  to plain {ratio:.2f}  memory {memory:.2f}{peers}"


if __name__ == "__main__":
    main()
