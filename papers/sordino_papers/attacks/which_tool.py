"""Which planted bugs a verification and an audit detect.

Bugs are planted one at a time. A verification replays steps and tests the noise; an audit only sees how canaries change
the model, so it misses most bugs.
"""

from __future__ import annotations

import importlib
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from types import ModuleType

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sordino.accounting import Adjacency
from sordino.attacks.audit.lower_bounds import F_DP, GAUSSIAN, ONE_RUN
from sordino.attacks.audit.white_box import white_box_scores
from sordino.errors import SordinoError, UsageError
from sordino.kernel.clipping import ClipByNorm
from sordino.kernel.contribution import LossGradient
from sordino.kernel.noise import Gaussian, Noise
from sordino.kernel.randomness import Key
from sordino.kernel.records import Data, as_records
from sordino.kernel.sampling import Poisson
from sordino.kernel.step import Plan
from sordino.optimized_noise.noise import OptimizedNoise
from sordino.verification import Finding, Verdict, neighbor_replay, noise_checks, verify
from sordino_papers.harness.entry import RunScale, SideTable
from sordino_papers.harness.results_file import read_numbers, write_numbers

METHODS = (ONE_RUN, F_DP, GAUSSIAN)
CLEAN = "no bug"
_CONFIDENCE, _DELTA, _CLIP, _MULTIPLIER, _RATE, _STEPS = 0.95, 1e-5, 2.0, 1.0, 0.1, 50
_ROWS, _INPUTS, _CLASSES = 100, 150, 10


def small_run(*, seed: int = 0, noise: Noise | None = None) -> tuple[Plan, nn.Module, Data]:
    """A small plan and its model: network 12-16-4, a clip norm other than 1, add-or-remove."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = nn.Sequential(nn.Linear(12, 16), nn.Tanh(), nn.Linear(16, 4))
    sampler = Poisson(_RATE, 200, Adjacency.ADD_OR_REMOVE, _ROWS)
    plan = Plan(sampler, LossGradient(F.cross_entropy), ClipByNorm(_CLIP), noise or Gaussian(_MULTIPLIER))
    return plan, model, _nothing(12)


def verify_small_run(*, seed: int = 0, noise: Noise | None = None) -> Verdict:
    """Verifies the small plan."""
    return verify(*small_run(seed=seed, noise=noise), delta=_DELTA, seed=seed)


def findings_on_noise(noise: Noise) -> Iterator[Finding]:
    """Tests the noise only, on a network 12-24-2; the other checks do not use it."""
    model = nn.Sequential(nn.Linear(12, 24), nn.Tanh(), nn.Linear(24, 2))
    plan = Plan(Poisson(_RATE, 200), LossGradient(F.cross_entropy), ClipByNorm(_CLIP), noise)
    return noise_checks.examine(plan, model, as_records(_nothing(12)), seed=0, delta=_DELTA)


def verify_noise(noise: Noise) -> Verdict:
    """All findings on the noise."""
    return Verdict(tuple(findings_on_noise(noise)))


def findings_on_places() -> Iterator[Finding]:
    """Replays a layer that is applied at 32 positions, and an embedding."""
    layer = nn.Sequential(nn.Linear(192, 192), nn.AvgPool2d((32, 1)), nn.Flatten(), nn.Linear(192, 4))
    table = nn.Sequential(nn.Embedding(9, 32), nn.Flatten(), nn.Linear(3 * 32, 4))
    yield from _replayed(layer, torch.zeros(9, 32, 192))
    yield from _replayed(table, torch.zeros(9, 3, dtype=torch.int64))


def _replayed(model: nn.Module, inputs: Tensor) -> Iterator[Finding]:
    plan = Plan(Poisson(_RATE, 200), LossGradient(F.cross_entropy), ClipByNorm(_CLIP), Gaussian(_MULTIPLIER))
    labels = torch.zeros(len(inputs), dtype=torch.int64)
    return neighbor_replay.replay(plan, model, as_records((inputs, labels)), seed=0)


@dataclass(frozen=True)
class AuditBounds:
    """Lower bounds on epsilon by method, as means over trainings, with the claimed epsilon and the time."""

    claim: float
    bounds: Mapping[str, float]
    seconds: float

    def refutes(self, method: str) -> bool:
        return self.bounds[method] > self.claim


def run_audits(*, canaries: int, repeats: int) -> AuditBounds | None:
    """White-box audits of a softmax regression. None if the run fails, which a user would notice."""
    begun = time.monotonic()
    plan = Plan(Poisson(_RATE, _STEPS), LossGradient(F.cross_entropy), ClipByNorm(_CLIP), Gaussian(_MULTIPLIER))
    try:
        found = [_bounds(plan, canaries, seed) for seed in range(repeats)]
    except (SordinoError, StopIteration, RuntimeError):
        return None
    means = {method.name: float(np.mean([one[method.name] for one in found])) for method in METHODS}
    return AuditBounds(plan.guarantee(delta=_DELTA).epsilon, means, time.monotonic() - begun)


def _bounds(plan: Plan, canaries: int, seed: int) -> dict[str, float]:
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randn(_ROWS, _INPUTS, generator=generator), torch.arange(_ROWS) % _CLASSES
    model = nn.Linear(_INPUTS, _CLASSES)
    nn.init.zeros_(model.weight)
    nn.init.zeros_(model.bias)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    key = Key.from_seed(seed)
    scores = white_box_scores(plan, model, rows, optimizer, divisor=_RATE * _ROWS, canaries=canaries, key=key)
    randomness = np.random.default_rng(seed)
    return {each.name: each.bound(scores, randomness, delta=_DELTA, confidence=_CONFIDENCE) for each in METHODS}


@dataclass(frozen=True)
class BugDetection:
    """The checks that detect one bug, the time they take, and the result of audits."""

    mutant: str
    checks: tuple[str, ...]
    seconds: float
    audit: AuditBounds | None

    def line(self) -> tuple[str, ...]:
        bounds = ("-",) * (1 + len(METHODS))
        if self.audit is not None:
            refuted = (f"{self.audit.bounds[each.name]:.2f}" + "*" * self.audit.refutes(each.name) for each in METHODS)
            bounds = (f"{self.audit.claim:.2f}", *refuted)
        return self.mutant, "; ".join(self.checks) or "-", f"{self.seconds:.1f}", *bounds


@dataclass(frozen=True)
class MutantTable:
    """Side table of the planted bugs and the tools that detect them."""

    def measure(self, scale: RunScale, folder: Path, command: str) -> None:
        """Verifies and audits with each bug planted, unless the file exists. Remove the file to repeat it."""
        settings, numbers = _settings(scale), _numbers(folder, scale)
        if _kept(numbers, settings) is not None:
            return
        canaries, repeats, clean = (int(settings[name]) for name in ("canaries", "repeats", "clean_verifications"))
        found = detect_bugs(lambda: run_audits(canaries=canaries, repeats=repeats))
        alarms = sum(not verify_small_run(seed=seed).passed for seed in range(100, 100 + clean))
        measured = {"noticed": [asdict(each) for each in found], "false_alarms": alarms}
        write_numbers(numbers, measured | settings, command)

    def side(self, scale: RunScale, folder: Path) -> SideTable:
        """One line without a bug, then one line per bug."""
        settings, numbers = _settings(scale), _numbers(folder, scale)
        if (kept := _kept(numbers, settings)) is None:
            return SideTable.not_measured("Planted bugs, and which of them a verification and an audit notice:")
        found, alarms = kept
        canaries, repeats, clean = (int(settings[name]) for name in ("canaries", "repeats", "clean_verifications"))
        seconds = sum(each.seconds for each in found[1:])
        caught = sum(bool(each.checks) for each in found[1:])
        title = (
            f"Planted bugs: the checks of a verification that notice each ({caught} of {len(found) - 1} in "
            f"{seconds:.0f} seconds; {alarms} false alarms in {clean} verifications without a bug), and lower bounds "
            f"on epsilon by audits of a softmax regression with {canaries} canaries beside the claim, means of "
            f"{repeats}; * exceeds the claim:"
        )
        head = ("bug", "noticed by", "seconds", "claim", *(method.name for method in METHODS))
        return SideTable(title, (head, *(each.line() for each in found)), (numbers,))


MUTANT_TABLE = MutantTable()


def _settings(scale: RunScale) -> dict[str, float]:
    canaries, repeats, clean = (200, 1, 3) if scale is RunScale.QUICK else (1000, 20, 40)
    return {"canaries": canaries, "repeats": repeats, "clean_verifications": clean, "delta": _DELTA}


def _numbers(folder: Path, scale: RunScale) -> Path:
    return folder / f"which-tool-{scale}.json"


def _kept(numbers: Path, settings: Mapping[str, float]) -> tuple[Sequence[BugDetection], int] | None:
    """The kept results, if they were measured with these settings."""
    kept = read_numbers(numbers)
    if kept is None or any(kept.get(name) != value for name, value in settings.items()):
        return None
    lines = [fields | {"audit": fields["audit"] and AuditBounds(**fields["audit"])} for fields in kept["noticed"]]
    return [BugDetection(**fields) for fields in lines], kept["false_alarms"]


def detect_bugs(audit: Callable[[], AuditBounds | None]) -> Sequence[BugDetection]:
    """Runs the checks without a bug, then with each bug. Optimized noise is not audited: no score exists for it."""
    bugs = _planted_bugs()
    ordinary = [_noticed(CLEAN, nullcontext(), verify_small_run, audit)]
    ordinary += [_noticed(bug.name, bugs.planted(bug), verify_small_run, audit) for bug in bugs.MUTANTS]
    noise = OptimizedNoise(_MULTIPLIER)
    return *ordinary, *(
        _noticed(bug.name, bugs.planted(bug), lambda: verify_noise(noise), lambda: None)
        for bug in bugs.OF_OPTIMIZED_NOISE
    )


def _planted_bugs() -> ModuleType:
    """The package `mutants` of the tests in this checkout. It is not installed."""
    tests = Path(__file__).parents[3] / "tests" / "helpers"
    if not (tests / "mutants").is_dir():
        raise UsageError(f"the table of planted bugs needs a checkout of the repository: {tests}/mutants is missing.")
    if str(tests) not in sys.path:
        sys.path.append(str(tests))
    return importlib.import_module("mutants")


def _noticed(
    name: str, bug: AbstractContextManager[None], look: Callable[[], Verdict], audit: Callable[[], AuditBounds | None]
) -> BugDetection:
    with bug:
        begun = time.monotonic()
        verdict = look()
        seconds = time.monotonic() - begun
        return BugDetection(name, verdict.failed_checks, seconds, audit())


def _nothing(inputs: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows of zeros: only their shape is used."""
    return torch.zeros(_ROWS, inputs), torch.zeros(_ROWS, dtype=torch.int64)
