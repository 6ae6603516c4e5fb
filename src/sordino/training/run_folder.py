"""The folder of a run. All files in it may be published; private files are in another folder beside it.

RUN/recipe.toml          all settings of the training
RUN/training.json        public facts about model, data and plan of a training without a recipe, `fit(own_model, out=)`
RUN/facts.json           public facts about the data, with RUN/schema.toml if it is a table
RUN/privacy.json         the guarantee, written before the first step
RUN/metrics.jsonl        public values, one JSON object per line
RUN/shown.json           digest of each iterate that a hidden-state run releases during training, written before that
RUN/model.safetensors    the weights, after the last step
RUN/model/               the same as a model of Hugging Face transformers, if `sordino train` trained one
RUN.private/             key and checkpoints during training, deleted at the end

`sordino train` writes the files in this order. So after a kill at any time the state of the run is known: without
recipe.toml there is no run, and without privacy.json no step was taken.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from sordino._input import strict_json, validate
from sordino._input.files import read_bytes, sync_folder, write_atomically
from sordino.errors import DataError, StateError, UsageError

if TYPE_CHECKING:  # torch is imported when weights are read or written, so that runs are listed without it
    from torch import Tensor

    from sordino.kernel.budget import RunIdentity
    from sordino.training.plan_identity import PlanDigest

_LARGEST_TEXT = 1 << 26
_FILES = (
    "recipe.toml",
    "training.json",
    "facts.json",
    "schema.toml",
    "privacy.json",
    "metrics.jsonl",
    "shown.json",
    "model.safetensors",
)


@dataclass(frozen=True)
class PromisedRun:
    """Identity of the run in privacy.json, by which a budget recognizes whether it holds the run already.

    `plan` is a digest of the plan, `number` the number of the release in its budget, `drawn_again` the number of steps
    that were charged twice.
    """

    name: str
    number: int
    plan: str
    noise_multiplier: float
    drawn_again: int

    def __post_init__(self) -> None:
        validate.instance(str, name=self.name)
        validate.count(at_least=0, at_most=2**63 - 1, number=self.number)
        validate.instance(str, plan=self.plan)
        validate.positive(noise_multiplier=self.noise_multiplier)
        validate.count(at_least=0, at_most=10**9, drawn_again=self.drawn_again)

    @property
    def identity(self) -> RunIdentity:
        from sordino.kernel.budget import RunIdentity

        return RunIdentity(self.name, self.number)

    def check(self, plan: PlanDigest, folder: Path) -> None:
        """Raises if `plan` is not the digest of the run's plan: the guarantee in the folder would not be its own."""
        if not plan.identifies(self.plan):
            raise StateError(
                f"the run in {str(folder)!r} had another plan: give the arguments that it was begun with, or "
                "choose another folder."
            )


class RunFolder:
    """Reads and writes the files of one run. Every write is atomic.

    >>> import tempfile
    >>> folder = RunFolder(Path(tempfile.mkdtemp()) / "run")
    >>> folder.add_metrics({"step": 1, "epsilon": 0.5})
    >>> folder.metrics(), folder.is_finished
    ([{'step': 1, 'epsilon': 0.5}], False)
    """

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)

    @property
    def private(self) -> Path:
        """The folder of key and checkpoints until the run ends. Whoever reads it can remove the noise."""
        real = Path(os.path.realpath(self.path))  # beside the real folder, also if the path is "." or a link
        return real.parent / f"{real.name}.private"

    @property
    def published(self) -> Path:
        """The folder of a transformer with the final weights, for `from_pretrained`. It is written last."""
        return self.path / "model"

    @property
    def is_free(self) -> bool:
        """Whether a new run may begin here: the folder does not exist, or is empty except for hidden files."""
        if os.path.lexists(self.private):
            return False
        if not os.path.lexists(self.path):
            return True
        return self.path.is_dir() and all(path.name.startswith(".") for path in self.path.iterdir())

    @property
    def is_run(self) -> bool:
        """Whether there is a run, by a recipe or of an own model."""
        return self.has_recipe or (self.path / "training.json").is_file()

    @property
    def has_recipe(self) -> bool:
        """Whether the run was trained by a recipe, from which data and model can be built again."""
        return (self.path / "recipe.toml").is_file()

    @property
    def is_begun(self) -> bool:
        """Whether the guarantee is written, so that steps may have been taken."""
        return (self.path / "privacy.json").exists()

    @property
    def may_leave(self) -> bool:
        """Whether a run has written files here that may be published. A recipe or schema may be a person's own file."""
        return any((self.path / name).exists() for name in _FILES if name not in ("recipe.toml", "schema.toml"))

    @property
    def has_model(self) -> bool:
        """Whether the final weights are written. They may have been read, so no others may replace them."""
        return (self.path / "model.safetensors").exists()

    @property
    def is_finished(self) -> bool:
        """Whether the weights are written and the key, which is deleted after that, is gone."""
        return self.has_model and not self._has_key

    def make(self) -> bool:
        """Makes the folder. Returns False if it exists already."""
        with _writing(self.path):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            try:
                self.path.mkdir()
            except FileExistsError:
                return False
            sync_folder(self.path.parent)
        return True

    def sweep(self) -> None:
        """Removes a private folder without a key, which a kill can leave at the beginning or the end of a run."""
        if self.private.is_dir() and not self._has_key:
            shutil.rmtree(self.private, ignore_errors=True)

    def clear(self) -> None:
        """Removes the files that are written before the guarantee, and the folder if nothing else is in it."""
        for name in ("recipe.toml", "training.json", "facts.json", "schema.toml"):
            (self.path / name).unlink(missing_ok=True)
        self.tidy()
        with suppress(OSError):
            self.path.rmdir()

    def tidy(self) -> None:
        """Removes temporary files that a kill left behind."""
        for name in (*_FILES, "tuning.json"):
            for path in self.path.glob(f".{name}.*"):
                path.unlink(missing_ok=True)
        for path in self.path.glob(f".{self.published.name}.*"):
            shutil.rmtree(path, ignore_errors=True)

    def write_recipe(self, text: str) -> None:
        self._write("recipe.toml", text)

    def recipe(self) -> bytes:
        return self._read("recipe.toml")

    def write_facts(self, facts: Mapping[str, object], schema: str | None) -> None:
        self._write("facts.json", json.dumps(facts, indent=2, allow_nan=False) + "\n")
        if schema is not None:
            self._write("schema.toml", schema)

    def facts(self) -> dict[str, object]:
        return self._table(self._read("facts.json"), "facts.json")

    @property
    def schema(self) -> Path | None:
        """Path of the schema of the training table, or None."""
        path = self.path / "schema.toml"
        return path if path.exists() else None

    def write_training(self, about: Mapping[str, object]) -> None:
        """Writes public facts about a training without a recipe."""
        self._write("training.json", json.dumps(about, indent=2, allow_nan=False) + "\n")

    def training(self) -> dict[str, object]:
        return self._table(self._read("training.json"), "training.json")

    def write_privacy(self, promised: Mapping[str, object]) -> None:
        self._write("privacy.json", json.dumps(promised, indent=2, allow_nan=False) + "\n")

    def privacy(self) -> dict[str, object]:
        return self._table(self._read("privacy.json"), "privacy.json")

    def promised(self) -> PromisedRun | None:
        """Identity of the run in privacy.json, or None without that file or if an older version wrote it."""
        about = self.privacy().get("identity") if self.is_begun else None
        try:
            return None if about is None else PromisedRun(**about)  # type: ignore[arg-type]
        except (TypeError, UsageError):
            raise StateError(
                f"privacy.json in {str(self.path)!r} is damaged: its entry `identity` is invalid."
            ) from None

    def finished_run(self) -> PromisedRun:
        """Identity of the finished run, by which a budget charges it."""
        promised = self.promised()
        if promised is None:
            raise StateError(
                f"the run in {str(self.path)!r} is finished and has no identity, because an earlier version wrote it: "
                "it cannot be charged. Load its model.safetensors, or choose another folder."
            )
        return promised

    def add_metrics(self, row: Mapping[str, object]) -> None:
        self._write_metrics([*self.metrics(), dict(row)])

    def metrics(self) -> list[dict[str, object]]:
        if not (self.path / "metrics.jsonl").exists():
            return []
        return [self._table(line, "metrics.jsonl") for line in self._read("metrics.jsonl").splitlines()]

    def forget_after(self, step: int) -> None:
        """Removes the metrics of steps after `step`, which will be repeated and give the same metrics."""
        rows = self.metrics()
        kept = [row for row in rows if isinstance(found := row.get("step"), int) and found <= step]
        if len(kept) < len(rows):
            self._write_metrics(kept)

    def shown(self) -> dict[str, object]:
        """Digests of released iterates by epoch, including one that was about to be released when the run stopped."""
        if not (self.path / "shown.json").exists():
            return {}
        return self._table(self._read("shown.json"), "shown.json")

    def add_shown(self, epoch: int, digest: str) -> None:
        self._write("shown.json", json.dumps(self.shown() | {str(epoch): digest}, indent=2) + "\n")

    def write_model(self, weights: Mapping[str, Tensor]) -> None:
        self.make()
        with _writing(self.path):
            from sordino._input.safetensors_file import save_tensors

            save_tensors(self.path / "model.safetensors", weights)

    def model(self, like: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Loads the weights, which must have the names, shapes and dtypes of `like`."""
        from sordino._input.safetensors_file import load_tensors

        return load_tensors(self.path / "model.safetensors", like).tensors

    def weights(self) -> dict[str, Tensor]:
        """The weights by name, whatever model they are of."""
        from sordino._input.safetensors_file import load_tensors

        return load_tensors(self.path / "model.safetensors").tensors

    @property
    def _has_key(self) -> bool:
        return (self.private / "key.json").exists()

    def _write_metrics(self, rows: list[dict[str, object]]) -> None:
        self._write("metrics.jsonl", "".join(json.dumps(row, allow_nan=False) + "\n" for row in rows))

    def _write(self, name: str, text: str) -> None:
        self.make()
        with _writing(self.path):
            write_atomically(self.path / name, text.encode())

    def _read(self, name: str) -> bytes:
        try:
            return read_bytes(self.path / name, at_most=_LARGEST_TEXT)
        except DataError as error:
            raise StateError(str(error)) from None

    def _table(self, text: bytes, name: str) -> dict[str, object]:
        what = repr(str(self.path / name))
        try:
            table = strict_json.parse(text, what=what)
        except UsageError as error:
            raise StateError(str(error)) from None
        if not isinstance(table, dict):
            raise StateError(f"{what} must hold JSON objects.")
        return table


@contextmanager
def _writing(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise DataError(f"{str(folder)!r} cannot be written to: {error.strerror}.") from None
