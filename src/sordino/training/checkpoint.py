"""What a run needs to go on after it was stopped, in a folder that is its owner's alone and is deleted at the end.

Noise is a function of (key, number of the release, step). The number is kept with the key: in whatever budget the run
goes on, it draws what it drew. A step that was begun before the machine stopped may be taken again under the same key
only if it is the same step bit for bit; the same noise on another sum would show the difference of the two. So a
checkpoint is written before any step that it speaks for: it holds the state at `step`, and says that steps up to
`begun_until` may have been begun from there. Going on from the same state, data, plan and arithmetic repeats these
steps, and costs nothing. Whatever differs makes it another run of these steps: it needs a new key, and they count
again. Either way no step is forgotten.

The folder holds the key, so whoever reads it can remove the noise: it lies beside the run's folder, never in it.
"""

from __future__ import annotations

import copy
import fcntl
import hashlib
import hmac
import json
import math
import os
import shutil
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property, lru_cache, partial
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn

from sordino._input import validate
from sordino._input.files import read_bytes, sync_folder, write_atomically
from sordino._input.safetensors_file import load_tensors, save_tensors
from sordino.accounting import Guarantee, privacy_of
from sordino.errors import DataError, StateError, UsageError
from sordino.gradients.agreement import at_synthetic_weights
from sordino.gradients.torch_state import device_of, rounded_products
from sordino.kernel.budget import RunIdentity
from sordino.kernel.contribution import Contribution
from sordino.kernel.randomness import Key
from sordino.kernel.records import Records
from sordino.kernel.run import PrivateRun
from sordino.kernel.sampling import Sampler
from sordino.kernel.step import Plan
from sordino.training.run_folder import PromisedRun, RunFolder

if TYPE_CHECKING:
    from sordino.training.loop import Training

_FORMAT = 2


@dataclass(frozen=True)
class Progress:
    """Where a run stands. Steps before `step` are done; steps before `begun_until` may have been begun.

    `renewals` counts the keys that were given up, `drawn_again` the steps that were paid for twice because of it.
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
        """Under a new key. All that the old one may have drawn since `step` counts again, in whole periods.

        Guarantee: with batches drawn anew every `period` steps, the old key was used in the periods that meet
        [step, begun_until), and the new one in all that meet [step, end). The plan counts each period once.
        """
        first, last = self.step // period, -(-self.begun_until // period)
        again = (last - first) * period
        return replace(self, renewals=self.renewals + 1, drawn_again=self.drawn_again + again, begun_until=self.step)


@dataclass(frozen=True)
class Checkpoint:
    """A run's state at `progress.step`: tensors by name, and whatever else is needed as JSON values by name.

    `identity` says what the run is (plan, model and data, as texts by name): no other run takes the checkpoint up.
    """

    progress: Progress
    tensors: Mapping[str, Tensor] = field(repr=False)
    values: Mapping[str, object] = field(repr=False, default_factory=dict)
    identity: Mapping[str, str] = field(repr=False, default_factory=dict)

    @property
    def physical_batch_size(self) -> int:
        """Frozen with the state: another one would add up in another order, and a step would not be the same."""
        size = self.values["physical_batch_size"]
        return size if isinstance(size, int) else 1


_CPU, _ANY_ORDER, _REHEARSED = torch.device("cpu"), "in any order", "model, loss and optimizer on synthetic rows"
_LIBRARIES = ("ONEDNN_", "DNNL_", "MKL_")  # how the names of their settings begin, in the environment


def surroundings(device: torch.device = _CPU) -> dict[str, str]:
    """What the arithmetic of a step depends on besides its state: a step is repeated exactly only where these agree.

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
    """By which kernels are chosen, too."""
    return {name: value for name, value in sorted(os.environ.items()) if name.startswith(_LIBRARIES)}


@lru_cache(maxsize=1)
def _sources() -> str:
    """Digest of the package's source files: between two commits of one version a sum may change in its last bit."""
    digest, package = hashlib.blake2b(digest_size=8), Path(__file__).parents[1]
    for path in sorted(package.rglob("*.py")):
        content = path.read_bytes()
        digest.update(f"{path.relative_to(package)} {len(content)} ".encode() + content)
    return digest.hexdigest()


def _processor() -> str:
    """With all that kernels choose by, sizes of caches among it: two processors of one kind may add up differently."""
    found = getattr(torch.cpu, "get_capabilities", dict[str, object])()  # older torch has none
    digest = hashlib.blake2b(json.dumps(found, sort_keys=True, default=str).encode(), digest_size=4).hexdigest()
    return f"{found.get('cpu_name', os.uname().machine)} {torch.backends.cpu.get_cpu_capability()} ({digest})"


def _described(device: torch.device) -> str:
    if device.type != "cuda":
        return device.type
    return f"{torch.cuda.get_device_name(device)}, CUDA {torch.version.cuda}"


def _order_of_sums(device: torch.device) -> str:
    """Elsewhere than on a CPU, the same step gives the same bits only if torch was told to see to it."""
    return "in order" if device.type == "cpu" or torch.are_deterministic_algorithms_enabled() else _ANY_ORDER


class Checkpoints:
    """The private folder of one run, held by one process at a time.

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
        """Makes the folder, readable by its owner only, with the key in it."""
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
        """Takes up the folder of a run that was stopped."""
        if not (folder / "key.json").is_file():
            raise StateError(f"there is no unfinished run at {str(folder)!r}.")
        lock = _locked(folder)
        try:
            kept = json.loads(read_bytes(folder / "key.json", at_most=10_000))
            key = Key(bytes.fromhex(kept["secret"]), bool(kept["reproducible"]))
            run = RunIdentity(kept["run"], kept["number"])
        except (ValueError, KeyError, TypeError, DataError, UsageError):
            os.close(lock)
            raise StateError(
                f"the key in {str(folder)!r} is damaged, or of an earlier version: the run cannot be continued."
            ) from None
        return cls(folder, key, run, lock)

    def number(self, number: int) -> None:
        """Keeps which release of its budget the run is, before its first step: its noise comes from there."""
        if self.run.number != number:
            self.run = replace(self.run, number=number)
            self._write_key()

    @property
    def is_empty(self) -> bool:
        """Whether the run was stopped before its first checkpoint, and so before any step."""
        return not self._path.exists()

    def key(self, progress: Progress) -> Key:
        """The key of the steps that follow."""
        return self._key.renewed(progress.renewals)

    def fingerprint_key(self) -> bytes:
        """A secret for fingerprints of the data: without it nobody can test a guess of the data against them."""
        return self._key.stream("fingerprint").secret

    def save(self, checkpoint: Checkpoint, device: torch.device = _CPU, *, gradients: str = "") -> None:
        """Replaces the last checkpoint. It is on the disk before this returns. `gradients` is their fingerprint."""
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
        """The last checkpoint, if it is of this run and its steps can be repeated bit for bit on `device`.

        Where they cannot, because torch, the processor, the number of threads or what the model does is another, it is
        refused; with `draw_again_every` (the sampler's period) it comes with a renewed key instead, and with what that
        costs.
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
                raise StateError(f"the checkpoint in {str(self.folder)!r} is of another run: its {name} differs.")
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
        self.save(checkpoint, device, gradients=gradients)  # the old key is given up before the new one is used
        return checkpoint

    def destroy(self) -> None:
        """Deletes the key first: without it nobody can take the noise away again."""
        (self.folder / "key.json").unlink(missing_ok=True)
        shutil.rmtree(self.folder)
        self.close()

    def close(self) -> None:
        """Lets another process take over."""
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
        """A keyed hash of everything: an edited checkpoint could otherwise claim fewer steps than were begun."""
        seal = hashlib.blake2b(text.encode(), key=self._key.stream("seal").secret)
        _digest_into(seal, tensors)
        return seal.hexdigest()


def digest_of_tensors(tensors: Mapping[str, Tensor]) -> str:
    """Digest of tensors that may be seen, to recognise them bit for bit.

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
    """Why a step that was begun would not be the same once more, if there is a reason."""
    for name, value in now.items():
        if before.get(name) != value:
            return f"the run was begun with {name} {before.get(name)}, here it is {value}"
    if now["sums"] == _ANY_ORDER:
        return f"the run was begun on {now['device']} without torch.use_deterministic_algorithms(True)"
    return None


def _locked(folder: Path) -> int:
    """Held until closed, and let go by the system when the process ends, however it ends."""
    lock = os.open(folder / "lock", os.O_CREAT | os.O_RDWR, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(lock)
        raise StateError(f"another process works on the run in {str(folder)!r}.") from None
    return lock


_ROWS, _SEED = 3, 20_253


def gradient_fingerprint(
    contribution: Contribution, model: nn.Module, records: Records, optimizer: torch.optim.Optimizer | None = None
) -> str:
    """The digest. It depends on the shapes of the data and on no value of it; all is left as it was, bit for bit.

    >>> import torch.nn.functional as F
    >>> from sordino.kernel.contribution import LossGradient
    >>> from sordino.kernel.records import as_records
    >>> records = as_records((torch.zeros(9, 4), torch.zeros(9, dtype=torch.int64)))
    >>> one, other = (gradient_fingerprint(LossGradient(F.cross_entropy), nn.Linear(4, 3), records) for _ in range(2))
    >>> one == other  # weights are drawn, and differ; what is done with them is the same
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
    """The weights after two steps on made-up gradients. The weights themselves are for the caller to put back."""
    generator, trained = torch.Generator().manual_seed(_SEED), [x for x in model.parameters() if x.requires_grad]
    with _put_back(optimizer), torch.random.fork_rng(devices=[]):
        for _ in range(2):
            for x in trained:
                x.grad = torch.randn(x.shape, generator=generator, dtype=x.dtype).to(x.device)
            optimizer.step()
        return [x.detach().clone() for x in trained]


@contextmanager
def _put_back(optimizer: torch.optim.Optimizer) -> Iterator[None]:
    """Steps within are forgotten: state, settings of groups, attributes and gradients are those of before.

    Within, nothing has a gradient yet: what has none is not moved.
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


_SECONDS_BETWEEN_CHECKPOINTS = 20.0
_SHARE_BETWEEN_CHECKPOINTS = 1 / 50  # of all steps: what must be paid again at most if it has to be drawn again
_MARKS = 20


class RunWriter:
    """Keeps the run folder and its private twin. A training without a folder has none."""

    def __init__(self, folder: RunFolder, checkpoints: Checkpoints) -> None:
        self._folder, self._checkpoints = folder, checkpoints
        self._progress, self._identity = Progress(), dict[str, str]()
        self._device = torch.device("cpu")
        self._rehearse: Callable[[], str] = str
        self._saved_at = time.monotonic()

    @classmethod
    def begin(cls, folder: RunFolder, key: Key) -> RunWriter:
        """A new run, in a folder that holds none."""
        if folder.is_begun or folder.private.exists():
            raise UsageError(f"{str(folder.path)!r} holds a run already: resume it, or choose another folder.")
        return cls(folder, Checkpoints.begin(folder.private, key))

    @classmethod
    def resume(cls, folder: RunFolder, key: Key) -> RunWriter:
        """An unfinished run, or a new one with `key` where nothing has begun yet."""
        folder.sweep()
        if folder.private.exists():
            return cls(folder, Checkpoints.open(folder.private))
        if folder.is_begun:
            raise StateError(f"{str(folder.private)!r} is gone, and with it the key: the run cannot be continued.")
        return cls.begin(folder, key)

    def last_checkpoint(
        self,
        plan: Plan,
        model: nn.Module,
        records: Records,
        settings: Mapping[str, str],
        *,
        optimizer: torch.optim.Optimizer | None = None,
        draw_again: bool,
    ) -> Checkpoint | None:
        """Where the run stands, if it is this run. `settings` tell it from others, as the plan and the data do."""
        data = records.fingerprint(self._checkpoints.fingerprint_key())
        self._device, self._identity = device_of(model), {"plan": repr(plan.stages), "data": data, **settings}
        self._rehearse = partial(gradient_fingerprint, plan.contribution, model, records, optimizer)
        if self._checkpoints.is_empty:
            return None
        period = plan.sampler.period if draw_again else None
        checkpoint = self._checkpoints.load(
            self._identity, self._device, gradients=self._gradients, draw_again_every=period
        )
        self._progress = checkpoint.progress
        return checkpoint

    @cached_property
    def _gradients(self) -> str:
        """By what model and optimizer do a run is told from others too. Looked at before the first checkpoint."""
        return self._rehearse()

    @property
    def key(self) -> Key:
        """The key of the steps that follow."""
        return self._checkpoints.key(self._progress)

    @property
    def run(self) -> RunIdentity:
        """Identity of the run, by which a budget knows it."""
        return self._checkpoints.run

    @property
    def drawn_again(self) -> int:
        """How many steps are taken twice, under two keys."""
        return self._progress.drawn_again

    def describe(self, about: Mapping[str, object]) -> None:
        """Writes public facts about the training, unless a recipe says more."""
        if not self._folder.has_recipe:
            self._folder.write_training(about)

    def promise(
        self, promised: Mapping[str, object], *, number: int, plan: str, noise_multiplier: float, drawn_again: int = 0
    ) -> list[dict[str, object]]:
        """Says what the run will have cost before its first step. Gives the rows of the steps done so far.

        What follows `promised` is by which a budget knows the run: see `PromisedRun`.
        """
        self._checkpoints.number(number)
        run = PromisedRun(self.run.name, number, plan, noise_multiplier, drawn_again)
        self._folder.write_privacy({**promised, "identity": asdict(run)})
        self._folder.forget_after(self._progress.step)
        return self._folder.metrics()

    def before_step(self, training: Training) -> None:
        """No step begins that no checkpoint speaks for."""
        step, steps = training.run.steps, len(training.run)
        is_due = time.monotonic() > self._saved_at + _SECONDS_BETWEEN_CHECKPOINTS
        if step >= self._progress.begun_until or is_due:
            ahead = max(1, math.floor(steps * _SHARE_BETWEEN_CHECKPOINTS))
            self._save(training, begun_until=min(step + ahead, steps))

    def at_rest(self, training: Training) -> None:
        """Between steps, with none begun: from here the run can go on anywhere."""
        self._save(training, begun_until=training.run.steps)

    def add(self, row: Mapping[str, object]) -> None:
        """A row of public quantities."""
        self._folder.add_metrics(row)

    def before_showing(self, training: Training, epoch: int) -> dict[str, Tensor]:
        """The weights that may be shown after this epoch: the same ones whenever, wherever and however often.

        Guarantee: they are in the last checkpoint, from which a stopped run goes on, and their digest lies outside the
        private folder, before anybody sees them. Other weights are not shown in their place: with fresh noise, they
        would be another release, which nobody has paid for.
        """
        self.at_rest(training)
        weights = training.weights()
        digest, before = digest_of_tensors(weights), self._folder.shown().get(str(epoch))
        if before is None:
            self._folder.add_shown(epoch, digest)
        elif before != digest:
            raise StateError(
                f"other weights were shown after epoch {epoch} of this run: its private folder was replaced by an "
                "older one, and its steps have been drawn again. Begin a new run, and charge it."
            )
        return {name: x.detach().clone() for name, x in weights.items()}

    def decide(self, training: Training) -> None:
        """Writes the weights that are released in the end. They are not computed again, so none take their place."""
        self._folder.write_model(training.weights())

    def end(self) -> None:
        """Deletes the key, and all that lies beside it."""
        self._checkpoints.destroy()

    def finish(self, training: Training) -> None:
        """The weights are written before the key is deleted, so that a kill between the two loses neither."""
        self.decide(training)
        self.end()

    def close(self) -> None:
        """Lets another process take over."""
        self._checkpoints.close()

    def _save(self, training: Training, *, begun_until: int) -> None:
        self._progress = replace(self._progress, step=training.run.steps, begun_until=begun_until)
        checkpoint = replace(training.checkpoint(self._progress), identity=self._identity)
        self._checkpoints.save(checkpoint, self._device, gradients=self._gradients)
        self._saved_at = time.monotonic()


def digest_of(*stages: object) -> str:
    """Digest of a plan: the run that a folder holds is worth what its plan is."""
    return hashlib.blake2b(repr(stages).encode(), digest_size=16).hexdigest()


def promised_fields(
    sampler: Sampler, numbers: Mapping[str, float], noise_multiplier: float, guarantee: Guarantee
) -> dict[str, object]:
    """The fields that planning prints, for a plan that is carried out. `numbers` are examples, batch_size and steps."""
    rate = numbers["batch_size"] / numbers["examples"]
    return {
        **numbers,
        "sample_rate": rate,
        "epochs": numbers["steps"] * rate,
        "noise_multiplier": noise_multiplier,
        "sampler": sampler.name,
        "solved_for": "noise_multiplier",
        "notes": [],
        **guarantee.as_dict(),
    }


def evaluations_until(step: int, steps: int) -> int:
    """How many rows are due in the first `step` of all steps.

    >>> evaluations_until(100, 100), evaluations_until(10, 100), evaluations_until(7, 7)
    (20, 2, 7)
    """
    return sum(is_evaluated(each, steps) for each in range(1, step + 1))


def is_evaluated(step: int, steps: int) -> bool:
    """Whether a row is due after so many of all steps: about twenty times in a run, and at its end.

    >>> [step for step in range(1, 101) if is_evaluated(step, 100)][:3]
    [5, 10, 15]
    """
    return step * _MARKS // steps > (step - 1) * _MARKS // steps


def epsilon_so_far(run: PrivateRun, promised: Guarantee) -> float:
    """What the steps taken so far are worth, and never more than what is promised for all of them."""
    if run.steps >= len(run):
        return promised.epsilon
    return min(privacy_of(run.event_so_far, run.plan.adjacency).epsilon(promised.delta), promised.epsilon)
