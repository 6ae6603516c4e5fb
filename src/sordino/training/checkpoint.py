"""Checkpoints of a run: private state, stored with mode 0700 beside the run folder and deleted at the end.

Noise is a function of (key, number of the release, step). The number is stored with the key, so that a resumed run
draws the same noise, whatever its budget. A step that was begun before the process stopped may be repeated with the
same key only if it is the same step bit for bit: the same noise on another sum would reveal the difference of the two
sums. So a checkpoint is written before the steps that it covers. It has the state at `step`, and says that steps up to
`begun_until` may have been begun from there. With the same state, data, plan and arithmetic these steps are repeated
exactly, which costs nothing. If anything differs, the repeated steps need a new key, and they are charged again. Either
way every step that was begun is counted.

The private folder has the key, and whoever reads it can remove the noise. So it is never inside the run folder.
"""

from __future__ import annotations

import copy
import hashlib
import hmac
import json
import os
import platform
import shutil
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import lru_cache
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn

from sordino._input import validate
from sordino._input.files import lock, read_bytes, sync_folder, write_atomically
from sordino._input.safetensors_file import load_tensors, save_tensors
from sordino.errors import DataError, StateError, UsageError
from sordino.gradients.agreement import at_synthetic_weights
from sordino.gradients.torch_state import rounded_products
from sordino.kernel.budget import RunIdentity
from sordino.kernel.contribution import Contribution
from sordino.kernel.randomness import Key
from sordino.kernel.records import Records

if TYPE_CHECKING:
    pass

_FORMAT = 2


@dataclass(frozen=True)
class Progress:
    """Step count of a run. Steps before `step` are done; steps before `begun_until` may have been begun.

    `renewals` is the number of keys that were replaced, `drawn_again` the number of steps charged twice because of
    that.
    """

    step: int = 0
    begun_until: int = 0
    renewals: int = 0
    drawn_again: int = 0

    def __post_init__(self) -> None:
        most = 10**9
        validate.count(at_least=0, at_most=most, step=self.step, renewals=self.renewals, drawn_again=self.drawn_again)
        validate.count(at_least=self.step, at_most=most, begun_until=self.begun_until)

    def renewed(self, period: int) -> Progress:
        """Progress under a new key. Steps begun with the old key since `step` are counted again, in whole periods.

        Guarantee: with batches drawn anew every `period` steps, the old key was used in the periods that intersect
        [step, begun_until), and the new one in all that intersect [step, end). The plan counts each period once.
        """
        first, last = self.step // period, -(-self.begun_until // period)
        again = (last - first) * period
        return replace(self, renewals=self.renewals + 1, drawn_again=self.drawn_again + again, begun_until=self.step)


@dataclass(frozen=True)
class Checkpoint:
    """State of a run at `progress.step`: tensors by name, and other values (JSON) by name.

    `identity` describes plan, model and data as strings by name. A run with another identity cannot load the
    checkpoint.
    """

    progress: Progress
    tensors: Mapping[str, Tensor] = field(repr=False)
    values: Mapping[str, object] = field(repr=False, default_factory=dict)
    identity: Mapping[str, str] = field(repr=False, default_factory=dict)

    @property
    def physical_batch_size(self) -> int:
        """Part of the state: another size would sum in another order, and a repeated step would not be the same."""
        size = self.values["physical_batch_size"]
        return size if isinstance(size, int) else 1


_CPU, _ANY_ORDER, _REHEARSED = torch.device("cpu"), "in any order", "model, loss and optimizer on synthetic rows"
_LIBRARIES = ("ONEDNN_", "DNNL_", "MKL_")  # prefixes of environment variables that configure numerical libraries


def surroundings(device: torch.device = _CPU) -> dict[str, str]:
    """Environment of a step's arithmetic. A step can be repeated exactly only if all these values are equal.

    >>> sorted(surroundings())
    ['device', 'libraries', 'numpy', 'processor', 'rounded products', 'sordino', 'sums', 'threads', 'torch']
    """
    return {
        "device": _described(device),
        "sums": _order_of_sums(device),
        "rounded products": json.dumps(rounded_products()),
        "sordino": f"{version('sordino')} ({_sources()})",
        "torch": torch.__version__,
        "numpy": np.__version__,
        "threads": str(torch.get_num_threads()),
        "processor": _processor(),
        "libraries": json.dumps([torch.backends.mkldnn.enabled, _settings_of_libraries()]),
    }


def _settings_of_libraries() -> dict[str, str]:
    """Environment variables of numerical libraries, which influence the choice of kernels."""
    return {name: value for name, value in sorted(os.environ.items()) if name.startswith(_LIBRARIES)}


@lru_cache(maxsize=1)
def _sources() -> str:
    """Digest of the package's source files: within one version, a commit may change the last bit of a sum."""
    digest, package = hashlib.blake2b(digest_size=8), Path(__file__).parents[1]
    for path in sorted(package.rglob("*.py")):
        content = path.read_bytes()
        digest.update(f"{path.relative_to(package)} {len(content)} ".encode() + content)
    return digest.hexdigest()


def _processor() -> str:
    """Processor, with the capabilities and cache sizes by which kernels and so the order of sums are chosen."""
    found = getattr(torch.cpu, "get_capabilities", dict[str, object])()  # older torch has none
    digest = hashlib.blake2b(json.dumps(found, sort_keys=True, default=str).encode(), digest_size=4).hexdigest()
    return f"{found.get('cpu_name', platform.machine())} {torch.backends.cpu.get_cpu_capability()} ({digest})"


def _described(device: torch.device) -> str:
    if device.type != "cuda":
        return device.type
    return f"{torch.cuda.get_device_name(device)}, CUDA {torch.version.cuda}"


def _order_of_sums(device: torch.device) -> str:
    """Whether sums have a fixed order: always on a CPU, elsewhere only with torch's deterministic algorithms."""
    return "in order" if device.type == "cpu" or torch.are_deterministic_algorithms_enabled() else _ANY_ORDER


class Checkpoints:
    """The private folder of one run, locked by one process at a time.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp()) / "run.private"
    >>> with Checkpoints.begin(folder, Key.from_seed(0)) as checkpoints:
    ...     checkpoints.save(Checkpoint(Progress(3, 5), {"weight": torch.ones(2)}, identity={"plan": "this one"}))
    >>> with Checkpoints.open(folder) as checkpoints:
    ...     checkpoints.load({"plan": "this one"}).progress
    Progress(step=3, begun_until=5, renewals=0, drawn_again=0)
    """

    def __init__(self, folder: Path, key: Key, run: RunIdentity, lock: int) -> None:
        self.folder, self.run, self._key, self._lock = folder, run, key, lock

    @classmethod
    def begin(cls, folder: Path, key: Key) -> Checkpoints:
        """Makes the folder with mode 0700, and writes the key into it."""
        try:
            folder.mkdir(mode=0o700, parents=True)
        except FileExistsError:
            raise UsageError(f"{str(folder)!r} exists: an unfinished run is there. Resume it, or delete it.") from None
        sync_folder(folder.parent)
        checkpoints = cls(folder, key, RunIdentity.fresh(), _locked(folder))
        try:
            checkpoints._write_key()
        except BaseException:
            checkpoints.close()
            raise
        return checkpoints

    @classmethod
    def open(cls, folder: Path) -> Checkpoints:
        """Opens the folder of a stopped run."""
        if not (folder / "key.json").is_file():
            raise StateError(f"there is no unfinished run at {str(folder)!r}.")
        held = _locked(folder)
        try:
            kept = json.loads(read_bytes(folder / "key.json", at_most=10_000))
            key = Key(bytes.fromhex(kept["secret"]), bool(kept["reproducible"]))
            run = RunIdentity(kept["run"], kept["number"])
        except (ValueError, KeyError, TypeError, DataError, UsageError):
            os.close(held)
            raise StateError(
                f"the key in {str(folder)!r} is damaged or from an earlier version: the run cannot be continued."
            ) from None
        return cls(folder, key, run, held)

    def number(self, number: int) -> None:
        """Stores the number of the run's release in its budget, before the first step: the noise depends on it."""
        if self.run.number != number:
            self.run = replace(self.run, number=number)
            self._write_key()

    @property
    def is_empty(self) -> bool:
        """Whether the run was stopped before its first checkpoint, and so before any step."""
        return not self._path.exists()

    def key(self, progress: Progress) -> Key:
        """The key of the next steps."""
        return self._key.renewed(progress.renewals)

    def fingerprint_key(self) -> bytes:
        """A secret for fingerprints of the data, without which a guess of the data cannot be tested against them."""
        return self._key.stream("fingerprint").secret

    def save(self, checkpoint: Checkpoint, device: torch.device = _CPU, *, gradients: str = "") -> None:
        """Replaces the last checkpoint, flushed to disk. `gradients` is the fingerprint of gradients."""
        about = {
            "format": _FORMAT,
            "progress": vars(checkpoint.progress),
            "values": dict(checkpoint.values),
            "identity": dict(checkpoint.identity),
            "surroundings": surroundings(device) | {_REHEARSED: gradients},
        }
        text = json.dumps(about, allow_nan=False)
        seal = self._seal(text, checkpoint.tensors)
        save_tensors(self._path, checkpoint.tensors, {"about": text, "seal": seal}, private=True)

    def load(
        self,
        identity: Mapping[str, str],
        device: torch.device = _CPU,
        *,
        gradients: str = "",
        draw_again_every: int | None = None,
    ) -> Checkpoint:
        """Loads the last checkpoint, if it belongs to this run and its steps can be repeated bit for bit on `device`.

        If they cannot, because torch, the processor, the number of threads or the model's computation changed, this
        raises. With `draw_again_every` (the sampler's period) it returns a checkpoint with a renewed key instead, whose
        progress counts the repeated steps.
        """
        found = load_tensors(self._path)
        text = found.texts.get("about", "")
        if not hmac.compare_digest(found.texts.get("seal", ""), self._seal(text, found.tensors)):
            raise StateError(f"the checkpoint in {str(self.folder)!r} was changed after it was written.")
        about = json.loads(text)
        if about["format"] != _FORMAT:
            raise StateError(f"the checkpoint has format {about['format']}, this version reads {_FORMAT}.")
        for name, value in identity.items():
            if about["identity"].get(name) != value:
                raise StateError(f"the checkpoint in {str(self.folder)!r} belongs to another run: its {name} differs.")
        checkpoint = Checkpoint(Progress(**about["progress"]), found.tensors, about["values"], dict(identity))
        if checkpoint.progress.begun_until == checkpoint.progress.step:
            return checkpoint
        obstacle = _obstacle(about["surroundings"], surroundings(device) | {_REHEARSED: gradients})
        if obstacle is None:
            return checkpoint
        if draw_again_every is None:
            raise StateError(
                f"{obstacle}: its last steps cannot be repeated exactly. "
                "Resume it there, or draw them again with fresh noise at the price of a larger epsilon."
            )
        checkpoint = replace(checkpoint, progress=checkpoint.progress.renewed(draw_again_every))
        self.save(checkpoint, device, gradients=gradients)  # the old key is replaced before the new one is used
        return checkpoint

    def destroy(self) -> None:
        """Deletes the folder, and the key first: without it nobody can remove the noise."""
        (self.folder / "key.json").unlink(missing_ok=True)
        shutil.rmtree(self.folder)
        self.close()

    def close(self) -> None:
        """Releases the lock."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def __enter__(self) -> Checkpoints:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def _path(self) -> Path:
        return self.folder / "state.safetensors"

    def _write_key(self) -> None:
        kept = {"secret": self._key.secret.hex(), "reproducible": self._key.reproducible}
        kept |= {"run": self.run.name, "number": self.run.number}
        write_atomically(self.folder / "key.json", json.dumps(kept).encode(), private=True)

    def _seal(self, text: str, tensors: Mapping[str, Tensor]) -> str:
        """A keyed hash of the checkpoint: an edited one could claim that fewer steps were begun."""
        seal = hashlib.blake2b(text.encode(), key=self._key.stream("seal").secret)
        _digest_into(seal, tensors)
        return seal.hexdigest()


def digest_of_tensors(tensors: Mapping[str, Tensor]) -> str:
    """Digest of public tensors, to compare them bit for bit.

    >>> digest_of_tensors({"weight": torch.zeros(2)}) == digest_of_tensors({"weight": torch.tensor([0.0, -0.0])})
    False
    """
    digest = hashlib.blake2b(digest_size=16)
    _digest_into(digest, tensors)
    return digest.hexdigest()


def _digest_into(digest: hashlib.blake2b, tensors: Mapping[str, Tensor]) -> None:
    for name in sorted(tensors):
        tensor = tensors[name].detach().cpu().contiguous()
        digest.update(f"{len(name)} {name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)


def _obstacle(before: Mapping[str, str], now: Mapping[str, str]) -> str | None:
    """The reason why a step cannot be repeated bit for bit, or None."""
    for name, value in now.items():
        if before.get(name) != value:
            return f"the run was begun with {name} {before.get(name)}, here it is {value}"
    if now["sums"] == _ANY_ORDER:
        return f"the run was begun on {now['device']} without torch.use_deterministic_algorithms(True)"
    return None


def _locked(folder: Path) -> int:
    """Locks the folder. The lock is held until it is closed, and released by the system when the process ends."""
    descriptor = os.open(folder / "lock", os.O_CREAT | os.O_RDWR, 0o600)
    if not lock(descriptor):
        os.close(descriptor)
        raise StateError(f"another process is working on the run in {str(folder)!r}.")
    return descriptor


_ROWS, _SEED = 3, 20_253


def gradient_fingerprint(
    contribution: Contribution, model: nn.Module, records: Records, optimizer: torch.optim.Optimizer | None = None
) -> str:
    """Digest of gradients and optimizer steps on synthetic rows, to detect a changed model, loss or optimizer.

    It depends on the shapes of the data and on none of its values. Model and optimizer are restored bit for bit.

    >>> import torch.nn.functional as F
    >>> from sordino.kernel.contribution import LossGradient
    >>> from sordino.kernel.records import as_records
    >>> records = as_records((torch.zeros(9, 4), torch.zeros(9, dtype=torch.int64)))
    >>> one, other = (gradient_fingerprint(LossGradient(F.cross_entropy), nn.Linear(4, 3), records) for _ in range(2))
    >>> one == other  # the weights of the two models differ, their computation is the same
    True
    """
    rows, digest = records.template(_ROWS), hashlib.blake2b(digest_size=8)
    with at_synthetic_weights(model):
        each = contribution.of(model, rows, torch.arange(_ROWS))
        norms = each.squared_norms()
        numbers = [norms, each.weighted_sum(torch.ones_like(norms))]
        if optimizer is not None:
            numbers += _moved(optimizer, model)
    for tensor in numbers:
        digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _moved(optimizer: torch.optim.Optimizer, model: nn.Module) -> list[Tensor]:
    """The weights after two optimizer steps with random gradients. The caller restores the weights."""
    generator, trained = torch.Generator().manual_seed(_SEED), [x for x in model.parameters() if x.requires_grad]
    with _put_back(optimizer), torch.random.fork_rng(devices=[]):
        for _ in range(2):
            for x in trained:
                x.grad = torch.randn(x.shape, generator=generator, dtype=x.dtype).to(x.device)
            optimizer.step()
        return [x.detach().clone() for x in trained]


@contextmanager
def _put_back(optimizer: torch.optim.Optimizer) -> Iterator[None]:
    """Restores state, settings of groups, attributes and gradients of the optimizer after the block.

    Inside the block all gradients are None at first, and an optimizer does not change a parameter without a gradient.
    """
    groups, attributes = [dict(group) for group in optimizer.param_groups], dict(vars(optimizer))
    held = [x for group in groups for x in group["params"]]
    gradients = [x.grad for x in held]
    for x in held:
        x.grad = None
    state = {x: {name: _own(value) for name, value in entries.items()} for x, entries in optimizer.state.items()}
    optimizer.state = defaultdict(dict, state)
    try:
        yield
    finally:
        vars(optimizer).clear()
        vars(optimizer).update(attributes)
        for group, before in zip(optimizer.param_groups, groups, strict=True):
            group.clear()
            group.update(before)
        for x, gradient in zip(held, gradients, strict=True):
            x.grad = gradient


def _own(value: object) -> object:
    return value.clone() if isinstance(value, Tensor) else copy.deepcopy(value)
