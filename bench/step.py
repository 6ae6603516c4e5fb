"""Time and memory of a private step, as a ratio to a plain PyTorch step of the same model, measured in one run.

    python -m bench.step                                  every model at batch sizes 256 and 1024
    python -m bench.step --models mlp dp-cnn --batch-sizes 256 --json
    python -m bench.step --models dp-cnn-bfloat16         both sides in half precision
    .venv-peers/bin/python -m bench.step --peers opacus   the modes of Opacus side by side (make peers)
    python -m bench.step --sweep                          how cost grows with the batch and with the parameters

`python -m bench.large_steps` has transformers, residual networks, a U-Net and recommenders, beside Opacus and Opake.

A plain step is forward, backward and SGD at the physical batch size that is best for plain PyTorch. A private step adds
sampling, clipping and cryptographic noise, at the physical batch size that the run chooses. Each side of a row has
separate processes: one for time, in alternation with the other side, and one for the peak memory above that of the
imports.
"""

from __future__ import annotations

import argparse
import json
import math
import platform
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from statistics import median
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

import sordino as so
from bench.models import BENCHMARKS, HALVED, Benchmark, mlp
from bench.sides import FEWEST, TIE, Stepper, alternating, in_process, milliseconds, peak_mib, take_turns, turn
from sordino.gradients.tape import survey
from sordino.kernel.encoding import Encoding, Unchanged
from sordino.kernel.noise import NoiseAt
from sordino.kernel.randomness import Key
from sordino.kernel.states import BoundedSum, Layout

_PHYSICAL = (16, 64, 256, 1024)
_PLAIN_BYTES, _PEER_BYTES = 2 << 30, 1 << 30
_OPACUS_MODES = ("hooks", "functorch", "ew", "ghost")
_ALL = BENCHMARKS | HALVED


def plain_step(benchmark: Benchmark, batch_size: int, physical: int) -> Callable[[], None]:
    """Forward, backward and SGD, in micro-batches of `physical`."""
    model, data = benchmark.make(), benchmark.batch(batch_size)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def step() -> None:
        optimizer.zero_grad()
        for inputs, labels in zip(*(torch.split(x, physical) for x in data), strict=True):
            with torch.autocast("cpu", dtype=benchmark.autocast, enabled=benchmark.autocast is not None):
                loss = benchmark.loss(model(inputs), labels)
            (loss / batch_size).backward()
        optimizer.step()

    return step


def private_step(benchmark: Benchmark, batch_size: int, encoding: Encoding | None = None) -> Callable[[], None]:
    """A step of a run: sampling, taped gradients, clipping, noise, and SGD."""
    model, sampler = benchmark.make(), benchmark.sampler(batch_size)
    gradient = so.LossGradient(benchmark.loss, benchmark.autocast)
    plan = so.Plan(sampler, gradient, so.ClipByNorm(1.0), so.Gaussian(1.0), encoding or Unchanged())
    twice = tuple(torch.cat([x, x]) for x in benchmark.batch(batch_size))
    run = so.PrivateRun(plan, model, twice)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def step() -> None:
        next(run).divide(batch_size).write_to(model)
        optimizer.step()

    return step


def opacus_step(model: nn.Module, data: tuple[torch.Tensor, torch.Tensor], mode: str) -> Callable[[], None]:
    """A step of Opacus without its sampling, in the largest micro-batches whose gradients fit into a gibibyte."""
    from opacus import PrivacyEngine
    from opacus.validators import ModuleValidator

    model = ModuleValidator.fix(model)
    size = 4 * sum(p.numel() for p in model.parameters())
    physical = max(p for p in _PHYSICAL if p == _PHYSICAL[0] or (p <= len(data[0]) and p * size <= _PEER_BYTES))
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(*data), batch_size=len(data[0]))
    ghost = {"criterion": nn.CrossEntropyLoss()} if mode == "ghost" else {}
    made = PrivacyEngine().make_private(
        module=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.01), data_loader=loader,
        noise_multiplier=1.0, max_grad_norm=1.0, poisson_sampling=False, grad_sample_mode=mode, **ghost,
    )  # fmt: skip
    model, optimizer = made[0], made[1]
    loss = made[2] if mode == "ghost" else F.cross_entropy

    def step() -> None:
        parts = list(zip(*(torch.split(x, physical) for x in data), strict=True))
        for position, (inputs, labels) in enumerate(parts):
            optimizer.signal_skip_step(do_skip=position < len(parts) - 1)
            loss(model(inputs), labels).backward()
            optimizer.step()
            optimizer.zero_grad()

    return step


def time_row(name: str, batch_size: int, repeats: int, peers: list[str]) -> dict[str, Any]:
    """Median milliseconds of plain and private steps in alternation, and of the fastest mode of a peer."""
    size, opacus = _in_process("plain-size", name, batch_size, 0), dict[str, Any]()
    sides = [("plain", size), ("private", 0)]
    if "opacus" in peers:
        opacus = _in_process("opacus", name, batch_size, 0)
        known = {mode: ms for mode, ms in opacus.items() if isinstance(ms, float)}
        sides += [("opacus-mode", _OPACUS_MODES.index(min(known, key=known.__getitem__)))] if known else []
    steppers = [Stepper("bench.step", side, name, str(batch_size), str(number)) for side, number in sides]
    plain_ms, sordino_ms, *opacus_ms = alternating([stepper.turn for stepper in steppers], repeats)
    for stepper in steppers:
        stepper.close()
    noise_ms = _in_process("noise", name, batch_size, repeats)
    return {
        "plain_ms": plain_ms,
        "sordino_ms": sordino_ms,
        "plain_physical": size,
        "parameters": Layout.of(_ALL[name].make()).size,
        "noise_ms": noise_ms,
        "noise_share": noise_ms / (sordino_ms - noise_ms),
        "ratio_to_plain": sordino_ms / plain_ms,
        "ratio_to_best_opacus": sordino_ms / opacus_ms[0] if opacus_ms else None,
        **({"opacus_ms": opacus} if opacus else {}),
    }


def best_plain_size(name: str, batch_size: int, _: int) -> int:
    """The physical batch size at which plain training is fastest; the largest of those that are equally fast."""
    benchmark = _ALL[name]
    sizes = _affordable(benchmark, batch_size)
    turns = [partial(turn, plain_step(benchmark, batch_size, size)) for size in sizes]
    times = dict(zip(sizes, alternating(turns, FEWEST), strict=True))
    return max(size for size in sizes if times[size] <= (1 + TIE) * min(times.values()))


def noise_milliseconds(model: nn.Module, repeats: int) -> float:
    """Median milliseconds to draw and add a step's noise."""
    layout, stream = Layout.of(model), Key.fresh().stream("noise")
    total = BoundedSum(torch.zeros(layout.size, dtype=torch.float64), 1.0, layout)
    steps = iter(range(10**6))
    return milliseconds(lambda: so.Gaussian(1.0).add(total, NoiseAt(stream, next(steps))), max(repeats, 9))


def _affordable(benchmark: Benchmark, batch_size: int) -> list[int]:
    """Physical batch sizes for plain training whose activations fit."""
    per_row = survey(benchmark.make(), (benchmark.batch(1)[0],)).bytes_per_row
    return [size for size in _PHYSICAL if size <= batch_size and size * per_row <= _PLAIN_BYTES]


def plain_memory(name: str, batch_size: int, physical: int) -> float:
    return peak_mib(lambda: plain_step(_ALL[name], batch_size, physical))


def private_memory(name: str, batch_size: int, _: int) -> float:
    return peak_mib(lambda: private_step(_ALL[name], batch_size))


def opacus_row(name: str, batch_size: int, _: int) -> dict[str, Any]:
    """Milliseconds by mode; a mode that does not support the model has its message instead."""
    times: dict[str, Any] = {}
    for mode in _OPACUS_MODES:
        try:
            step = opacus_step(_ALL[name].make(), _ALL[name].batch(batch_size), mode)
            times[mode] = median(turn(step))
        except Exception as error:  # the peer may raise anything; its message is the result
            times[mode] = f"{type(error).__name__}: {str(error)[:80]}"
    return times


def sweep(repeats: int) -> dict[str, Any]:
    """Times steps of a one-layer network over batch sizes and widths, and fits the exponents of growth."""
    sizes, widths = (256, 512, 1024, 2048, 4096), (256, 512, 1024, 2048, 4096)
    by_batch = [_sweep_point(512, size, repeats) for size in sizes]
    by_parameters = [_sweep_point(width, 1024, repeats) for width in widths]
    return {
        "by_batch": by_batch,
        "by_parameters": by_parameters,
        "exponent_of_batch": _exponent([(row["batch_size"], row["sordino_ms"]) for row in by_batch]),
        "exponent_of_parameters": _exponent([(row["parameters"], row["sordino_ms"]) for row in by_parameters]),
    }


def _sweep_point(width: int, batch_size: int, repeats: int) -> dict[str, Any]:
    benchmark = Benchmark(lambda: mlp(width), (784,))
    plain, ours = plain_step(benchmark, batch_size, batch_size), private_step(benchmark, batch_size)
    plain_ms, sordino_ms = alternating([partial(turn, plain), partial(turn, ours)], repeats)
    parameters = Layout.of(mlp(width)).size
    return {"batch_size": batch_size, "parameters": parameters, "plain_ms": plain_ms, "sordino_ms": sordino_ms}


def _exponent(points: list[tuple[int, float]]) -> float:
    """The slope of a line through the logarithms; 1 means linear growth."""
    xs, ys = [math.log(x) for x, _ in points], [math.log(y) for _, y in points]
    x_mean, y_mean = sum(xs) / len(xs), sum(ys) / len(ys)
    covariance = sum((x - x_mean) * (y - y_mean) for x, y in zip(xs, ys, strict=True))
    return covariance / sum((x - x_mean) ** 2 for x in xs)


def measure(name: str, batch_size: int, repeats: int, peers: list[str]) -> dict[str, Any]:
    """Measures one row of the table."""
    timed = time_row(name, batch_size, repeats, peers)
    plain_mib = _in_process("plain-memory", name, batch_size, timed["plain_physical"])
    our_mib = _in_process("private-memory", name, batch_size, 0)
    return {"model": name, "batch_size": batch_size, **timed, "peak_memory_ratio": our_mib / max(plain_mib, 1.0)}


def _opacus_turns(name: str, batch_size: int, mode: int) -> None:
    benchmark = _ALL[name]
    take_turns(opacus_step(benchmark.make(), benchmark.batch(batch_size), _OPACUS_MODES[mode]))


_WORKERS: dict[str, Callable[[str, int, int], Any]] = {
    "plain-size": best_plain_size,
    "plain": lambda name, size, physical: take_turns(plain_step(_ALL[name], size, physical)),
    "private": lambda name, size, _: take_turns(private_step(_ALL[name], size)),
    "noise": lambda name, size, repeats: noise_milliseconds(_ALL[name].make(), repeats),
    "plain-memory": plain_memory,
    "private-memory": private_memory,
    "opacus": opacus_row,
    "opacus-mode": _opacus_turns,
    "sweep": lambda name, size, repeats: sweep(repeats),
}


def _in_process(work: str, name: str, batch_size: int, number: int) -> Any:
    return in_process("bench.step", work, name, str(batch_size), str(number))


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--models", nargs="+", choices=list(_ALL), default=list(BENCHMARKS))
    arguments.add_argument("--batch-sizes", nargs="+", type=int, default=[256, 1024])
    arguments.add_argument("--repeats", type=int, default=9)
    arguments.add_argument("--peers", nargs="*", choices=["opacus"], default=[])
    arguments.add_argument("--sweep", action="store_true")
    arguments.add_argument("--json", action="store_true")
    arguments.add_argument("--worker", nargs=4, help=argparse.SUPPRESS)
    chosen = arguments.parse_args()
    if chosen.worker:
        work, name, batch_size, number = chosen.worker
        print(json.dumps(_WORKERS[work](name, int(batch_size), int(number))))
        return
    if chosen.sweep:
        print(json.dumps(origin("bench.step") | _in_process("sweep", "mlp", 0, chosen.repeats), indent=2))
        return
    rows = []
    for name in chosen.models:
        for batch_size in chosen.batch_sizes:
            rows.append(measure(name, batch_size, chosen.repeats, chosen.peers))
            if not chosen.json:
                print(_line(rows[-1]), flush=True)
    if chosen.json:
        print(json.dumps(origin("bench.step") | {"rows": rows}, indent=2))


def origin(module: str) -> dict[str, str]:
    """The origin of a result: command, commit and machine."""
    commit = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=True).stdout.strip()
    machine = f"{platform.machine()}, {torch.get_num_threads()} threads, torch {torch.__version__}"
    return {"command": f"python -m {module} " + " ".join(sys.argv[1:]), "commit": commit, "machine": machine}


def _line(row: dict[str, Any]) -> str:
    peer = "" if row["ratio_to_best_opacus"] is None else f"  to best Opacus {row['ratio_to_best_opacus']:.2f}"
    times = f"plain {row['plain_ms']:8.1f} ms  sordino {row['sordino_ms']:8.1f} ms  ratio {row['ratio_to_plain']:.2f}"
    rest = f"memory {row['peak_memory_ratio']:.2f}  noise adds {row['noise_share']:.1%}{peer}"
    return f"{row['model']:9} batch {row['batch_size']:5}  {times}  {rest}"


if __name__ == "__main__":
    main()
