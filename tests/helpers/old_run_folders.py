"""Run folders of an earlier version: the functions that wrote them, and the outputs of every command on them.

They are in `fixtures/run_folders`, with the expected outputs in `expected.json`. An existing folder is never written
again, because a version that reads its own folders tests nothing. To add a folder, add it to `WRITERS`:

    python tests/old_run_folders.py --write
"""

from __future__ import annotations

import contextlib
import csv
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

import sordino as so
from sordino.cli import main
from sordino.convex import GatedReLU, NoisyCGD, fit_hidden_state
from sordino.encodings import Combined, Freeze, RandomSparsify
from sordino.errors import Interrupted
from sordino.training.averaging import Ema
from sordino.training.callbacks import Callback
from sordino.training.evaluation import Evaluation
from sordino.training.run_folder import RunFolder

FOLDERS = Path(__file__).parents[1] / "fixtures" / "run_folders"
EXPECTED = FOLDERS / "expected.json"

TARGET = ["--epsilon", "3", "--delta", "1e-4", "--seed", "0", "--quiet"]
DIGITS = ["--data", "digits", "--model", "linear", *TARGET]
GATED = ["--data", "digits", "--model", "gated-relu", "--gates", "4", "--method", "noisy-cgd", *TARGET]
PEOPLE = ["--data", "people.csv", "--schema", "people.toml", "--model", "linear", *TARGET]
TUNE = ["tune", *DIGITS, "--batch-size", "200", "--steps", "3", "--momenta", "0,0.9", "--factors", "2"]
TRAINED = {
    "dp-sgd": ["train", *DIGITS, "--batch-size", "100", "--steps", "4"],
    "sparsified": ["train", *DIGITS, "--batch-size", "100", "--steps", "30", "--sparsify", "0.5", "--freeze", "0.5"],
    "noisy-cgd": ["train", *GATED, "--batch-size", "500", "--epochs", "2", "--trailing-steps", "2"],
    "table": ["train", *PEOPLE, "--batch-size", "20", "--steps", "10", "--lr", "2"],
    "tuned": TUNE,
    "tuned-repeatedly": [*TUNE, "--payment", "repeat", "--trials", "2", "--shape", "0"],
}
UNFINISHED = {  # one was stopped between steps, the other killed within a step
    "stopped": ["train", *DIGITS, "--batch-size", "100", "--steps", "8"],
    "killed": ["train", *DIGITS, "--batch-size", "100", "--steps", "8"],
}
FITTED = ("fit", "fit-optimized-noise", "fit-hidden")
SCHEMA = """confirmed_public = true
target = {column = "ill", classes = ["no", "yes"]}
columns.age = {kind = "number", bounds = [0, 100]}
columns.sex = {kind = "category", categories = ["f", "m"]}
"""


# Trainings from Python, on a few integers


def rows() -> tuple[torch.Tensor, torch.Tensor]:
    places = torch.arange(40 * 4)
    return (places.remainder(7) - 3).float().reshape(40, 4), torch.arange(40).remainder(3)


def network() -> nn.Module:
    model = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_((torch.arange(parameter.numel()).remainder(5) - 2).reshape(parameter.shape) / 4)
    return model


def fit(out: Path, *, resume: bool = False) -> tuple[nn.Module, so.Guarantee]:
    """A run of `so.fit` with its own network and data."""
    found = so.fit(
        network(), rows(), epsilon=3.0, delta=1e-2, batch_size=10, steps=4, seed=0, out=out,
        evaluation=Evaluation(at_end=so.Public(rows())),
        resume=resume, progress=False,
    )  # fmt: skip
    return found.model, found.guarantee


def fit_with_optimized_noise(
    out: Path, *, resume: bool = False, callbacks: Sequence[Callback] = ()
) -> tuple[nn.Module, so.Guarantee]:
    """A run with noise and encodings that learn from releases; their states are in the checkpoint."""
    encoding = Combined(Freeze(["0.bias"]), RandomSparsify(0.5, epochs=2, steps_per_epoch=3))
    found = so.fit(
        network(), rows(), epsilon=15.0, delta=0.0, batch_size=40, steps=6, seed=0, encoding=encoding, clip=0.5,
        noise=so.OptimizedNoise(1.0), averaging=Ema(0.5), out=out, resume=resume, progress=False,
        callbacks=callbacks,
    )  # fmt: skip
    return found.model, found.guarantee


def fit_hidden(out: Path, *, resume: bool = False) -> tuple[nn.Module, so.Guarantee]:
    """A hidden-state run that shows one intermediate iterate."""
    plan = NoisyCGD(
        so.Cyclic(4, 3), GatedReLU(2), clip=1.0, noise_multiplier=4.0, learning_rate=0.5, shown_after=(1,),
        trailing_steps=1,
    )  # fmt: skip
    found = fit_hidden_state(
        plan, rows(), outputs=3, delta=1e-2, seed=0, out=out, resume=resume, progress=False,
        on_shown=lambda epoch, weights: None,
    )  # fmt: skip
    return found.model, found.guarantee


BY_PYTHON = {"fit": fit, "fit-optimized-noise": fit_with_optimized_noise, "fit-hidden": fit_hidden}


class StopAfterTwoSteps(Callback):
    def on_step(self, step: int, steps: int) -> None:
        if step == 2:
            os.kill(os.getpid(), signal.SIGTERM)


# Readers of a folder: commands that run in its parent folder


def command(*arguments: object) -> tuple[int, str, str]:
    """Returns the exit code, standard output and standard error."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            main([str(argument) for argument in arguments])
        except SystemExit as ended:
            return int(ended.code or 0), out.getvalue(), err.getvalue()
    raise AssertionError("the command did not end")


def listed(run: Path) -> dict[str, Any]:
    code, printed, _ = command("runs", run, "--json")
    return {"code": code} | (json.loads(printed)["rows"][0] if code == 0 else {})


def predicted(run: Path, data: str) -> dict[str, Any]:
    code, printed, _ = command("predict", run, "--data", data)
    if code:
        return {"code": code}
    answers = list(csv.DictReader(io.StringIO(printed)))
    first = {name: float(number) for name, number in answers[0].items() if "(" in name}
    return {"code": code, "predictions": " ".join(each["prediction"] for each in answers), "first": first}


def reported(*runs: Path) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as out:
        code, _, _ = command("report", *runs, "--out", out)
        if code:
            return {"code": code}
        page = json.loads((Path(out) / "report.json").read_text())
    keep = ("epsilon", "delta", "adjacency", "unit", "view", "accountant")
    if len(runs) > 1:
        compared = [{name: run[name] for name in keep} | {"test": run["test"]} for run in page["results"]["runs"]]
        return {"code": code, "runs": compared, "differences": sorted(page["differences"])}
    measured = {name: page["measured"].get(name) for name in ("at_the_end_of_training", "test")}
    kept = {name: page[name] for name in ("spending", "inference", "settings") if name in page}
    return {"code": code, "guarantee": {name: page["guarantee"][name] for name in keep}, "measured": measured} | kept


def affected(run: Path) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as out:
        code, printed, _ = command("effects", run, "--attacked", 0, "--json", "--out", out)
    if code:
        return {"code": code}
    found = json.loads(printed)
    groups = {f"{each['by']} {each['name']}": each["accuracy"]["value"] for each in found["groups"]}
    return {"code": code, "overall": found["overall"]["value"], "groups": groups}


def verified(run: Path) -> dict[str, Any]:
    code, printed, _ = command("verify", run / "recipe.toml", "--json")
    return {"code": code} | ({"verdict": json.loads(printed)["verdict"]} if code == 0 else {})


def audited(run: Path) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as out:
        code, printed, _ = command("audit", run / "recipe.toml", "--canaries", 60, "--json", "--out", out)
    keep = ("verdict", "epsilon", "delta", "adjacency", "canaries", "method")
    return {"code": code} | ({name: json.loads(printed)[name] for name in keep} if code == 0 else {})


def attacked(run: Path) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as out:
        few = ("--rows", 100, "--references", 2, "--epochs", 1)
        code, printed, _ = command("attack", "members", run, *few, "--json", "--out", out)
    return {"code": code} | ({"attacks": [each["name"] for each in json.loads(printed)["attacks"]]} if not code else {})


def opened(run: Path) -> dict[str, Any]:
    """The contents of a folder, read with the library."""
    folder = RunFolder(run)
    kinds = ("is_run", "is_begun", "has_model", "is_finished", "is_free", "may_leave")
    found: dict[str, Any] = {name: getattr(folder, name) for name in kinds}
    found |= {"metrics": folder.metrics(), "shown": folder.shown(), "schema": folder.schema is not None}
    found["facts"] = folder.facts() if folder.is_run and (run / "facts.json").exists() else None
    if folder.is_begun:
        found |= {"privacy": folder.privacy(), "recipe": folder.recipe().decode() if folder.is_run else None}
        promised = folder.promised()
        found["promised"] = None if promised is None else [promised.name, promised.number, promised.noise_multiplier]
    return found


def taken_up(run: Path, *options: str) -> dict[str, Any]:
    """The message of resuming, and the guarantee afterwards. Changes the folder: pass a copy."""
    by = "tune" if run.name.startswith("tuned") else "train"
    code, _, said = command(by, "--quiet", "--resume", run, *options)
    if code:
        return {"code": code, "said": said}
    folder = RunFolder(run)
    privacy, last = folder.privacy(), folder.metrics()[-1]
    accuracy = last.get("test_accuracy")
    return {"code": code, "epsilon": privacy["epsilon"], "delta": privacy["delta"], "test_accuracy": accuracy}


def data_of(run: Path) -> str:
    return "people.csv" if run.name == "table" else "digits"


Reader = Callable[[Path], dict[str, Any]]
EVERY: dict[str, Reader] = {"runs": listed, "RunFolder": opened}
FINISHED: dict[str, Reader] = {
    "predict": lambda run: predicted(run, data_of(run)),
    "report": reported,
    "resume": taken_up,
}
ON_PUBLIC_ROWS: dict[str, dict[str, Reader]] = {  # readers that use rows of the recipe's dataset
    "dp-sgd": {"effects": affected, "verify": verified, "audit": audited, "attack members": attacked},
    "noisy-cgd": {"effects": affected},
}
BEGUN: dict[str, dict[str, Reader]] = {
    "stopped": {"predict": lambda run: predicted(run, "digits"), "report": reported, "resume": taken_up},
    "killed": {
        "predict": lambda run: predicted(run, "digits"),
        "resume": taken_up,
        "draw again": lambda run: taken_up(run, "--draw-again"),
    },
}


def readers(name: str) -> dict[str, Reader]:
    """The readers of a folder, in order: the last may change it."""
    if name in TRAINED:
        return EVERY | ON_PUBLIC_ROWS.get(name, {}) | FINISHED
    return EVERY | BEGUN.get(name, {})


def read(name: str) -> dict[str, Any]:
    """The current outputs of all readers for the folder of this name in the working directory."""
    return {what: reader(Path(name)) for what, reader in readers(name).items()}


def fitted(name: str) -> dict[str, Any]:
    """The result of resuming a run from Python."""
    model, guarantee = BY_PYTHON[name.removesuffix("-stopped")](Path(name), resume=True)
    weights = {name: x.flatten().tolist() for name, x in model.state_dict().items()}
    return {"epsilon": guarantee.epsilon, "delta": guarantee.delta, "weights": weights}


# Writing


def in_a_process(arguments: Sequence[str], *, ending: str = "", source: Path | None = None) -> int:
    """Runs a command in a separate process, which is killed while it runs if `ending` is given."""
    program = f"import sys\n{ending}\nfrom sordino.cli import main\nmain(sys.argv[1:])"
    paths = {} if source is None else {"PYTHONPATH": str(source)}
    return subprocess.run([sys.executable, "-c", program, *arguments], env=os.environ | paths, check=False).returncode


ENDING = """
import os, signal
from sordino.training.loop import Training
step = Training.step
def ending(training):
    if training.run.steps == 3:
        {end}
    return step(training)
Training.step = ending
"""


def write(name: str) -> None:
    if name in TRAINED:
        assert in_a_process([*TRAINED[name], "--out", name]) == 0
    elif name == "stopped":
        end = ENDING.format(end="os.kill(os.getpid(), signal.SIGTERM)")
        assert in_a_process([*UNFINISHED[name], "--out", name], ending=end) == 75
    elif name == "killed":  # with unique sources: otherwise the version that wrote it could repeat its last step
        with tempfile.TemporaryDirectory() as folder:
            source = Path(shutil.copytree(Path(so.__file__).parent, Path(folder) / "sordino"))
            (source / "errors.py").write_text((source / "errors.py").read_text() + "\n# of another version\n")
            end = ENDING.format(end="os._exit(9)")
            assert in_a_process([*UNFINISHED[name], "--out", name], ending=end, source=Path(folder)) == 9
    elif name == "fit-optimized-noise-stopped":
        with contextlib.suppress(Interrupted):
            fit_with_optimized_noise(Path(name), callbacks=[StopAfterTwoSteps()])
    else:
        BY_PYTHON[name](Path(name))


NAMES = (*TRAINED, *UNFINISHED, *FITTED, "fit-optimized-noise-stopped")


def copied(to: Path) -> Path:
    """Copies all folders, so that they can be changed."""
    return Path(shutil.copytree(FOLDERS, to, dirs_exist_ok=True))


def write_missing() -> None:
    FOLDERS.mkdir(parents=True, exist_ok=True)
    os.chdir(FOLDERS)
    if not Path("people.csv").exists():
        ages = [37 * row % 100 for row in range(60)]
        lines = [f"{age},{'fm'[row % 2]},{'yes' if age >= 50 else 'no'}" for row, age in enumerate(ages)]
        Path("people.csv").write_text("\n".join(["age,sex,ill", *lines]) + "\n")
        Path("people.toml").write_text(SCHEMA)
    for name in NAMES:
        if not Path(name).exists():
            write(name)
    expected = json.loads(EXPECTED.read_text()) if EXPECTED.exists() else {}
    new = [name for name in NAMES if name not in expected]
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(copied(Path(folder)))
        for name in new:
            expected[name] = read(name) | ({"fit": fitted(name)} if name.startswith("fit") else {})
        if "dp-sgd" in new:
            expected["dp-sgd, noisy-cgd"] = reported(Path("dp-sgd"), Path("noisy-cgd"))
        os.chdir(FOLDERS)
    EXPECTED.write_text(json.dumps(expected, indent=1) + "\n")


if __name__ == "__main__":
    if sys.argv[1:] != ["--write"]:
        sys.exit("usage: python tests/old_run_folders.py --write")
    torch.set_num_threads(1)
    write_missing()
