"""Clipped sums of many kinds of models, compared with a loop over single examples in plain PyTorch.

    python -m bench.architectures --save results/architectures.json
    python -m bench.architectures --only resnet lstm
    python -m bench.architectures --list

A model and its rows are made anew for each side. `error` is the relative distance of the two sums. The loop runs in
double precision if the model does, otherwise in single precision; `rounding` is the error of the loop in single
precision. About half of the rows are clipped. Rows that are already in the file are kept: a stopped survey continues.

`path` has the shares of the trained numbers by method, as `sordino.explain` shows them. `ratio_to_plain` compares the
processor time of a clipped sum on one thread with that of plain PyTorch (forward and backward pass at its best
micro-batch), and `ratio_to_loop` with that of the loop (forward, backward, clip and add, one example at a time).
"""

from __future__ import annotations

import argparse
import copy
import json
import multiprocessing
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import sordino as so
from bench.architecture_models import KINDS, Case, Kind
from bench.architecture_models.kinds import Loss
from bench.kept import keep
from sordino.errors import SordinoError
from sordino.gradients.row_randomness import RowRandomness
from sordino.gradients.transformers_settings import transformers_model
from sordino.huggingface import as_records as transformer_records
from sordino.huggingface import loss_for
from sordino.kernel.clipping import SCALED_TO
from sordino.kernel.contribution import SlowGradients
from sordino.kernel.records import Records, as_records

_MODULE = "bench.architectures"
ROWS, SEED, TOLERANCE = 16, 0, 1e-5
_SECONDS, _LIMIT = 0.3, 120.0  # of the timing of each side, and of a kind
_PHYSICAL = (1, 4, 16)
_MOST_ROUNDING = 1e-3  # a loop that rounds more than this says nothing
# Words of torch's own errors. A refusal names a layer and what to do, and none of these.
_INTERNAL = (
    "vmap",
    "functorch",
    "torch.func",
    "dynamo",
    "batchedtensor",
    "transformtype",
    "autograd.function",
    "aten::",
)


@dataclass(frozen=True)
class Part:
    """Inputs of some rows, by position or by name, and their targets; None if the labels are among the inputs."""

    inputs: tuple[Tensor, ...] | dict[str, Tensor]
    target: Tensor | None


@dataclass(frozen=True)
class Side:
    """A model with its records and loss, made from a seed."""

    case: Case
    records: Records
    loss: Loss

    @classmethod
    def of(cls, kind: Kind, rows: int, seed: int) -> Side:
        torch.manual_seed(seed)
        case = kind.make(rows)
        if transformers_model(case.model) is not None and isinstance(case.inputs, dict):
            records = transformer_records(case.model, {**case.inputs, "labels": case.target}, allow_single=True)
            return cls(case, records, loss_for(case.model, records))
        if isinstance(case.inputs, dict):
            return cls(case, as_records({**case.inputs, "labels": case.target}, allow_single=True), case.loss)
        return cls(case, as_records((*case.inputs, case.target), allow_single=True), case.loss)

    def parts(self, size: int) -> list[Part]:
        """The rows in parts of `size`."""
        return [
            self._part(start, min(start + size, self.records.num_units))
            for start in range(0, self.records.num_units, size)
        ]

    def _part(self, start: int, stop: int) -> Part:
        columns = self.case.inputs
        if self.case.loss_alone is not None and isinstance(columns, dict) and stop == start + 1:
            return Part({name: x[start:stop] for name, x in {**columns, "labels": self.case.target}.items()}, None)
        batch = self.records.gather(torch.arange(start, stop))
        return Part(dict(zip(batch.names, batch.inputs, strict=True)) if batch.names else batch.inputs, batch.target)

    def loss_of(self, part: Part, model: nn.Module) -> Any:
        """The loss of a part in plain PyTorch; of a single row, the one that the model computes itself, if it does."""
        if part.target is None:
            assert self.case.loss_alone is not None and isinstance(part.inputs, dict)
            return self.case.loss_alone(model, part.inputs)
        dtype = _dtype(model)
        if isinstance(part.inputs, dict):
            outputs = model(**{name: _in(dtype, x) for name, x in part.inputs.items()})
        else:
            outputs = model(*(_in(dtype, x) for x in part.inputs))
        return self.summed(outputs, _in(dtype, part.target))

    @property
    def summed(self) -> Loss:
        """The loss as a sum over examples, which Sordino makes of a mean."""
        means: tuple[Any, ...] = F.cross_entropy, F.mse_loss
        return partial(self.loss, **{"reduction": "sum"}) if self.loss in means else self.loss


def measure(kind: Kind, rows: int = ROWS, seed: int = SEED, timed: bool = True) -> dict[str, Any]:
    """Compares the clipped sums of a kind, and their times if `timed`."""
    row: dict[str, Any] = {"kind": kind.name, "family": kind.family, "expected": kind.refused or "exact"}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        row |= compare(kind, rows, seed)
        if row["outcome"] in ("exact", "wrong"):
            side = Side.of(kind, rows, seed)
            row["path"] = path_of(side)
            if timed:
                row |= times(kind, side, rows, seed, row["clip_norm"])
    slow = [str(w.message) for w in caught if issubclass(w.category, SlowGradients)]
    return {**row, "warning": slow[0][:300]} if slow else row


def compare(kind: Kind, rows: int, seed: int) -> dict[str, Any]:
    """The outcome: "exact", "wrong", "refused", or "raw error" for an error that Sordino did not phrase."""
    try:
        side = Side.of(kind, rows, seed)
    except SordinoError as error:
        return {"outcome": "refused" if is_clear(str(error), kind) else "raw error", "message": str(error)[:500]}
    numbers = sum(p.numel() for p in side.case.model.parameters() if p.requires_grad)
    known: dict[str, Any] = {"trained_numbers": numbers}
    norm, expected = 1.0, None
    if not kind.refused:
        single = gradients_of_loop(kind, rows, seed, torch.float32)
        norm = float(single.norm(dim=1).median())
        exact = _in_double(kind, rows, seed)
        expected, in_single = (clipped(each, norm) for each in (single if exact is None else exact, single))
        known |= {"clip_norm": norm, "loop_in_double": exact is not None, "rounding": _error(in_single, expected)}
    try:
        gradient = so.LossGradient(side.loss)
        gradient.check(side.case.model, side.records)
        found = clipped_sum(side, gradient, norm)
    except SordinoError as error:
        text = str(error)
        return {**known, "outcome": "refused" if is_clear(text, kind) else "raw error", "message": text[:500]}
    except Exception as error:
        place = traceback.extract_tb(error.__traceback__)[-1]
        message = f"{type(error).__name__}: {error} ({place.filename.rpartition('/')[2]}:{place.lineno})"
        return {**known, "outcome": "raw error", "message": message[:500]}
    if expected is None:
        return {**known, "outcome": "accepted"}
    distance = _error(found, expected)
    allowed = min(max(TOLERANCE, 4 * float(known["rounding"])), _MOST_ROUNDING)
    return {**known, "error": distance, "outcome": "exact" if distance <= allowed else "wrong"}


def is_clear(text: str, kind: Kind) -> bool:
    """Whether a refusal is one line that says what is expected, or that names a layer without torch's own words."""
    if "\n" in text:
        return False
    if kind.refused:
        return kind.refused in text
    names_place = any(words in text for words in ("layer '", "the model (", "the loss"))
    return names_place and not any(word in text.lower() for word in _INTERNAL)


def clipped_sum(side: Side, gradient: so.LossGradient, norm: float) -> Tensor:
    """The clipped sum of Sordino."""
    units = torch.arange(side.records.num_units)
    each = gradient.of(side.case.model, side.records.gather(units), units)
    return so.ClipByNorm(norm)(each).value.double()


def gradients_of_loop(kind: Kind, rows: int, seed: int, dtype: torch.dtype) -> Tensor:
    """The gradient of each row from a pass over that row alone, in plain PyTorch. Shape (rows, numbers)."""
    side = Side.of(kind, rows, seed)
    model = side.case.model if dtype == torch.float32 else copy.deepcopy(side.case.model).to(dtype)
    found = []
    with _default_dtype(dtype):
        for row, part in enumerate(side.parts(1)):
            with RowRandomness(torch.tensor([row])) if kind.draws else nullcontext():
                loss = side.loss_of(part, model)
            found.append(torch.cat([part.flatten() for part in _gradient(loss, model)]).double())
    return torch.stack(found)


def _in_double(kind: Kind, rows: int, seed: int) -> Tensor | None:
    """The loop in double precision, or None if the model does not run in it."""
    try:
        return gradients_of_loop(kind, rows, seed, torch.float64)
    except Exception:  # a model that cannot be copied or converted may raise any error
        return None


def clipped(gradients: Tensor, norm: float) -> Tensor:
    """The sum of the gradients after clipping to `norm`, in double precision."""
    lengths = gradients.norm(dim=1, keepdim=True).clamp(min=1e-300)
    total: Tensor = (gradients * (norm * SCALED_TO / lengths).clamp(max=1.0)).sum(dim=0)
    return total


def path_of(side: Side) -> dict[str, float]:
    """The share of the trained numbers by method of gradients."""
    rows = side.records
    explained = so.explain(side.case.model, rows, side.loss)
    shares: dict[str, float] = {}
    for layer in explained.layers:
        shares[layer.method.value] = shares.get(layer.method.value, 0.0) + layer.trained
    total = sum(shares.values())
    return {method: round(number / total, 4) for method, number in shares.items()}


def times(kind: Kind, side: Side, rows: int, seed: int, norm: float) -> dict[str, Any]:
    """Processor seconds of a clipped sum, of the loop, and of a plain pass, each the least of several turns."""
    gradient = so.LossGradient(side.loss)
    plain = Side.of(kind, rows, seed)
    sides: dict[str, Callable[[], object]] = {
        "sordino": lambda: clipped_sum(side, gradient, norm),
        "loop": partial(loop, plain, plain.parts(1), norm),
    }
    sides |= {f"plain {size}": partial(plain_pass, plain, plain.parts(size)) for size in _PHYSICAL}
    least = dict.fromkeys(sides, float("inf"))
    failed = set[str]()
    start = time.perf_counter()
    while least["loop"] == float("inf") or time.perf_counter() - start < len(sides) * _SECONDS:
        for name, step in sides.items():
            if name in failed:
                continue
            before = time.process_time()
            try:
                step()
            except Exception:
                if not name.startswith("plain"):  # a batch need not work in plain PyTorch, as for a branch on values
                    raise
                failed.add(name)
                continue
            least[name] = min(least[name], time.process_time() - before)
    best = min(seconds for name, seconds in least.items() if name.startswith("plain"))
    known = {"sordino": least["sordino"], "loop": least["loop"], "plain": best}
    return {
        "milliseconds": {name: round(1e3 * seconds, 3) for name, seconds in known.items()},
        "ratio_to_plain": round(known["sordino"] / best, 3) if best < float("inf") else None,
        "ratio_to_loop": round(known["sordino"] / known["loop"], 3),
    }


def loop(side: Side, parts: list[Part], norm: float) -> Tensor:
    """The clipped sum of the loop in single precision: forward, backward, clip and add for each example."""
    model = side.case.model
    totals = [torch.zeros_like(p) for p in _trained(model)]
    for part in parts:
        found = _gradient(side.loss_of(part, model), model)
        length = torch.stack([g.norm() for g in found]).norm()
        weight = float((norm * SCALED_TO / length.clamp(min=1e-30)).clamp(max=1.0))
        for total, g in zip(totals, found, strict=True):
            total.add_(g, alpha=weight)
    return torch.cat([total.flatten() for total in totals])


def plain_pass(side: Side, parts: list[Part]) -> None:
    """Forward and backward pass of plain training."""
    for part in parts:
        _gradient(side.loss_of(part, side.case.model), side.case.model)


def _gradient(loss: Any, model: nn.Module) -> list[Tensor]:
    """The gradients by `backward`, because the older form of checkpoints does not allow `torch.autograd.grad`."""
    model.zero_grad()
    loss.backward()
    return [torch.zeros_like(p) if p.grad is None else p.grad for p in _trained(model)]


def _trained(model: nn.Module) -> list[Tensor]:
    return [p for p in model.parameters() if p.requires_grad]


def _in(dtype: torch.dtype, x: Tensor) -> Tensor:
    return x.to(dtype) if x.is_floating_point() else x


def _dtype(model: nn.Module) -> torch.dtype:
    return next(p.dtype for p in model.parameters() if p.requires_grad)


def _error(found: Tensor, expected: Tensor) -> float:
    return float((found - expected).norm() / expected.norm())


@contextmanager
def _default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def in_process(kind: Kind, limit: float = _LIMIT, **settings: Any) -> dict[str, Any]:
    """`measure` in a process of its own, which is ended after `limit` seconds: a model may hang, or change torch."""
    context = multiprocessing.get_context("fork")  # torch and transformers are loaded once
    ours, theirs = context.Pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # one thread is running
        process = context.Process(target=_answer, args=(theirs, kind, settings))
        process.start()
    theirs.close()
    named = {"kind": kind.name, "family": kind.family, "expected": kind.refused or "exact"}
    try:
        if not ours.poll(limit):
            return {**named, "outcome": "no end", "message": f"no result after {limit:.0f} seconds"}
        answer: dict[str, Any] = ours.recv()
        return answer
    except EOFError:
        process.join()
        return {**named, "outcome": "crash", "message": f"the process ended with code {process.exitcode}"}
    finally:
        process.kill()
        process.join()


def _answer(connection: Connection, kind: Kind, settings: dict[str, Any]) -> None:
    torch.set_num_threads(1)
    try:
        connection.send(measure(kind, **settings))
    except Exception as error:  # of the model itself or of the loop, which is shown as the outcome
        place = traceback.extract_tb(error.__traceback__)[-1]
        message = f"{type(error).__name__}: {error} ({place.filename.rpartition('/')[2]}:{place.lineno})"
        connection.send(
            {"kind": kind.name, "family": kind.family, "outcome": "the loop fails", "message": message[:500]}
        )


def kept(path: Path) -> dict[str, dict[str, Any]]:
    """The rows of a result file by name; the last one of each kind."""
    if not path.exists():
        return {}
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    return {row["kind"]: row for row in rows}


def shown(row: dict[str, Any]) -> str:
    path = " ".join(f"{method} {share:.0%}" for method, share in row.get("path", {}).items())
    if "error" not in row:
        return f"{row['kind']:28} {row['outcome']:10} {row.get('message', '')}"
    ratios = f"plain {row['ratio_to_plain']} loop {row['ratio_to_loop']}" if "ratio_to_loop" in row else ""
    return f"{row['kind']:28} {row['outcome']:10} {row['error']:.1e} ({row['rounding']:.0e})  {ratios}  {path}"


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--only", nargs="+", choices=list(KINDS), metavar="NAME", help="measure these kinds again")
    arguments.add_argument("--family", help="measure the kinds of one family")
    arguments.add_argument("--list", action="store_true", help="print the names and end")
    arguments.add_argument("--untimed", action="store_true", help="compare sums only")
    arguments.add_argument("--limit", type=float, default=_LIMIT, help="seconds for each kind")
    arguments.add_argument("--save", type=Path, help="where to append the rows as JSON lines")
    chosen = arguments.parse_args()
    names = chosen.only or [name for name, kind in KINDS.items() if chosen.family in (None, kind.family)]
    if chosen.list:
        print("\n".join(f"{KINDS[name].family:16} {name}" for name in names))
        return
    torch.set_num_threads(1)
    done = kept(chosen.save) if chosen.save and not chosen.only else {}
    for name in names:
        if name not in done:
            row = in_process(KINDS[name], chosen.limit, timed=not chosen.untimed)
            print(shown(row), flush=True)
            if chosen.save:
                keep(row, _MODULE, chosen.save)


if __name__ == "__main__":
    main()
