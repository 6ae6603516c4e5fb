"""What a private step costs, as a ratio to a plain PyTorch step of the same model, measured in one run.

    python -m bench.step                                  every model at batch sizes 256 and 1024
    python -m bench.step --models mlp dp-cnn --batch-sizes 256 --json
    python -m bench.step --peers opacus                   the fastest Opacus mode side by side

A plain step is forward, backward and SGD at plain PyTorch's best physical batch size. Ours adds sampling, clipping and
cryptographic noise. Each row is measured in processes of its own: one for time, in which the two alternate, and one per
side for the peak of memory above what the imports take.
"""

from __future__ import annotations

import argparse
import json
import platform
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from statistics import median
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

import sordino as so
from bench.models import BENCHMARKS

_PHYSICAL = (64, 256, 1024)
_OPACUS_MODES = ("hooks", "ew", "ghost")


def plain_step(model: nn.Module, data: tuple[torch.Tensor, torch.Tensor], physical: int) -> Callable[[], None]:
    """Forward, backward and SGD, in micro-batches of `physical`."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    batch_size = len(data[0])

    def step() -> None:
        optimizer.zero_grad()
        for inputs, labels in zip(*(torch.split(x, physical) for x in data), strict=True):
            (F.cross_entropy(model(inputs), labels, reduction="sum") / batch_size).backward()
        optimizer.step()

    return step


def private_step(model: nn.Module, data: tuple[torch.Tensor, torch.Tensor], physical: int) -> Callable[[], None]:
    """A step of a run: sampling, taped gradients, clipping, noise, and SGD."""
    batch_size = len(data[0])
    sampler = so.FixedSize(batch_size, 2 * batch_size, 10**6)
    plan = so.Plan(sampler, so.LossGradient(F.cross_entropy), so.ClipByNorm(1.0), so.Gaussian(1.0))
    twice = tuple(torch.cat([x, x]) for x in data)
    run = so.PrivateRun(plan, model, twice, physical_batch_size=physical)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def step() -> None:
        next(run).divide(batch_size).write_to(model)
        optimizer.step()

    return step


def opacus_step(model: nn.Module, data: tuple[torch.Tensor, torch.Tensor], mode: str) -> Callable[[], None]:
    """A step of Opacus at the whole batch, without its sampling."""
    from opacus import PrivacyEngine

    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(*data), batch_size=len(data[0]))
    ghost = {"criterion": nn.CrossEntropyLoss()} if mode == "ghost" else {}
    made = PrivacyEngine().make_private(
        module=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.01), data_loader=loader,
        noise_multiplier=1.0, max_grad_norm=1.0, poisson_sampling=False, grad_sample_mode=mode, **ghost,
    )  # fmt: skip
    model, optimizer = made[0], made[1]
    loss = made[2] if mode == "ghost" else F.cross_entropy

    def step() -> None:
        optimizer.zero_grad()
        loss(model(data[0]), data[1]).backward()
        optimizer.step()

    return step


def time_row(name: str, batch_size: int, repeats: int) -> dict[str, Any]:
    """Median milliseconds of a plain and a private step, alternating, each at its best physical batch size."""
    benchmark = BENCHMARKS[name]
    data = benchmark.batch(batch_size)
    sizes = [size for size in _PHYSICAL if size <= batch_size]
    plain = {size: plain_step(benchmark.make(), data, size) for size in sizes}
    ours = {size: private_step(benchmark.make(), data, size) for size in sizes}
    best_plain = min(sizes, key=lambda size: milliseconds(plain[size], 2))
    best_ours = min(sizes, key=lambda size: milliseconds(ours[size], 2))
    pairs = [(_once(plain[best_plain]), _once(ours[best_ours])) for _ in range(repeats)]
    return {
        "plain_ms": median(p for p, _ in pairs),
        "sordino_ms": median(o for _, o in pairs),
        "plain_physical": best_plain,
        "sordino_physical": best_ours,
    }


def peak_mib(name: str, batch_size: int, physical: int, make_step: Callable[..., Callable[[], None]]) -> float:
    """How far two steps lift the peak of resident memory."""
    data = BENCHMARKS[name].batch(batch_size)
    before = _peak()
    step = make_step(BENCHMARKS[name].make(), data, physical)
    step()
    step()
    return _peak() - before


def opacus_row(name: str, batch_size: int, repeats: int) -> dict[str, Any]:
    """Milliseconds by mode; a mode that does not support the model has its message instead."""
    times: dict[str, Any] = {}
    for mode in _OPACUS_MODES:
        try:
            step = opacus_step(BENCHMARKS[name].make(), BENCHMARKS[name].batch(batch_size), mode)
            times[mode] = milliseconds(step, repeats)
        except Exception as error:  # whatever the peer raises is its answer
            times[mode] = f"{type(error).__name__}: {str(error)[:80]}"
    return times


def measure(name: str, batch_size: int, repeats: int, peers: list[str]) -> dict[str, Any]:
    """One row of the table."""
    timed = _in_process("time", name, batch_size, repeats)
    plain_mib = _in_process("plain-memory", name, batch_size, timed["plain_physical"])
    our_mib = _in_process("private-memory", name, batch_size, timed["sordino_physical"])
    row = {"model": name, "batch_size": batch_size, **timed}
    row["ratio_to_plain"] = timed["sordino_ms"] / timed["plain_ms"]
    row["peak_memory_ratio"] = our_mib / max(plain_mib, 1.0)
    row["ratio_to_best_opacus"] = None
    if "opacus" in peers:
        row["opacus_ms"] = _in_process("opacus", name, batch_size, max(3, repeats // 3))
        best = min((ms for ms in row["opacus_ms"].values() if isinstance(ms, float)), default=None)
        row["ratio_to_best_opacus"] = timed["sordino_ms"] / best if best else None
    return row


_WORKERS: dict[str, Callable[[str, int, int], Any]] = {
    "time": time_row,
    "plain-memory": lambda name, size, physical: peak_mib(name, size, physical, plain_step),
    "private-memory": lambda name, size, physical: peak_mib(name, size, physical, private_step),
    "opacus": opacus_row,
}


def _in_process(work: str, name: str, batch_size: int, number: int) -> Any:
    command = [sys.executable, "-W", "ignore", "-m", "bench.step", "--worker", work, name, str(batch_size), str(number)]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()[-1])


def _once(step: Callable[[], object]) -> float:
    start = time.perf_counter()
    step()
    return 1e3 * (time.perf_counter() - start)


def milliseconds(step: Callable[[], object], repeats: int) -> float:
    """The median time of a call, after one that warms up."""
    step()
    return median(_once(step) for _ in range(repeats))


def _peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--models", nargs="+", choices=list(BENCHMARKS), default=list(BENCHMARKS))
    arguments.add_argument("--batch-sizes", nargs="+", type=int, default=[256, 1024])
    arguments.add_argument("--repeats", type=int, default=9)
    arguments.add_argument("--peers", nargs="*", choices=["opacus"], default=[])
    arguments.add_argument("--json", action="store_true")
    arguments.add_argument("--worker", nargs=4, help=argparse.SUPPRESS)
    chosen = arguments.parse_args()
    if chosen.worker:
        work, name, batch_size, number = chosen.worker
        print(json.dumps(_WORKERS[work](name, int(batch_size), int(number))))
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
    """How a result was made: command, commit, machine."""
    commit = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=True).stdout.strip()
    machine = f"{platform.machine()}, {torch.get_num_threads()} threads, torch {torch.__version__}"
    return {"command": f"python -m {module} " + " ".join(sys.argv[1:]), "commit": commit, "machine": machine}


def _line(row: dict[str, Any]) -> str:
    peer = "" if row["ratio_to_best_opacus"] is None else f"  to best Opacus {row['ratio_to_best_opacus']:.2f}"
    times = f"plain {row['plain_ms']:8.1f} ms  sordino {row['sordino_ms']:8.1f} ms  ratio {row['ratio_to_plain']:.2f}"
    return f"{row['model']:9} batch {row['batch_size']:5}  {times}  memory {row['peak_memory_ratio']:.2f}{peer}"


if __name__ == "__main__":
    main()
