"""`sordino reproduce`: a table of a paper, ours beside theirs."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import typer

from sordino.cli.options import print_columns, whole_number
from sordino.errors import UsageError
from sordino_papers.attacks.audit import AUDIT
from sordino_papers.attacks.reconstruction import RECONSTRUCTION
from sordino_papers.harness.entry import Experiment
from sordino_papers.harness.ledger import Ledger
from sordino_papers.harness.page import HEAD, line
from sordino_papers.harness.reproduce import Reproduced
from sordino_papers.harness.reproduce import reproduce as carry_out
from sordino_papers.harness.scale import Scale
from sordino_papers.hidden_state import HIDDEN_STATE
from sordino_papers.optimized_noise.table import OPTIMIZED_NOISE
from sordino_papers.side_effects.adult import ADULT
from sordino_papers.side_effects.augmentation import AUGMENTATION
from sordino_papers.side_effects.class_size import CLASS_SIZE
from sordino_papers.side_effects.disparity_causes import DISPARITY_CAUSES
from sordino_papers.side_effects.feature_to_noise import FEATURE_TO_NOISE
from sordino_papers.side_effects.freezing import FREEZING
from sordino_papers.side_effects.padding import PADDING
from sordino_papers.side_effects.phase_transition import PHASE_TRANSITION
from sordino_papers.side_effects.rotated_patches import ROTATED_PATCHES
from sordino_papers.side_effects.rotation import ROTATION
from sordino_papers.side_effects.vit_padding import VIT_PADDING
from sordino_papers.sparsification.frameworks import SPARSIFICATION_FRAMEWORKS
from sordino_papers.sparsification.masks import SPARSIFICATION_ABLATION
from sordino_papers.sparsification.ranked import RANKED_TABLE
from sordino_papers.sparsification.ratios import SPARSIFICATION_RATIOS
from sordino_papers.sparsification.sampling import SPARSIFICATION_SAMPLING
from sordino_papers.sparsification.scaling_rule import SCALING_RULE
from sordino_papers.sparsification.symmetry import SYMMETRY
from sordino_papers.sparsification.table import SPARSIFICATION
from sordino_papers.sparsification.tradeoff import SPARSIFICATION_TRADEOFF

_ALL: tuple[Experiment, ...] = (
    HIDDEN_STATE,
    SPARSIFICATION,
    SPARSIFICATION_SAMPLING,
    SPARSIFICATION_TRADEOFF,
    SPARSIFICATION_ABLATION,
    SPARSIFICATION_RATIOS,
    SPARSIFICATION_FRAMEWORKS,
    SCALING_RULE,
    RANKED_TABLE,
    SYMMETRY,
    OPTIMIZED_NOISE,
    PHASE_TRANSITION,
    FEATURE_TO_NOISE,
    DISPARITY_CAUSES,
    ROTATED_PATCHES,
    PADDING,
    ROTATION,
    CLASS_SIZE,
    VIT_PADDING,
    FREEZING,
    AUGMENTATION,
    ADULT,
    AUDIT,
    RECONSTRUCTION,
)
EXPERIMENTS = {experiment.name: experiment for experiment in _ALL}


def reproduce(
    experiment: Annotated[str, typer.Argument(help="Which table: " + ", ".join(EXPERIMENTS) + ".")],
    scale: Annotated[str, typer.Option(help="quick (two minutes), cpu (two cores), paper (all of it).")] = "quick",
    seeds: Annotated[int | None, whole_number("How often each entry is run: 1 if quick, else 3, or 5.")] = None,
    ablate: Annotated[bool, typer.Option("--ablate", help="Vary the settings too, one at a time.")] = False,
    only: Annotated[str, typer.Option(help="Run only entries with this text in their name; show all.")] = "",
    show: Annotated[bool, typer.Option("--show", help="Run no entry: show what is there.")] = False,
    out: Annotated[Path, typer.Option(help="Where results are kept, in a folder of the experiment's name.")] = Path(
        "results"
    ),
    as_json: Annotated[bool, typer.Option("--json", help="Print the rows as JSON.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress bar.")] = False,
) -> None:
    """Train everything that a table of a paper needs, and show our numbers beside the paper's.

    Whatever was run before is read from the results, so a table can be stopped at any time and goes on later.
    """
    if experiment not in EXPERIMENTS:
        raise UsageError(f"experiment must be one of {', '.join(EXPERIMENTS)}, got {experiment!r:.80}.")
    if scale not in list(Scale):
        raise UsageError(f"scale must be one of {', '.join(Scale)}, got {scale!r:.80}.")
    wanted, size = EXPERIMENTS[experiment], Scale(scale)
    asked: dict[str, Any] = {"scale": size, "ablate": ablate, "only": only}
    if show:
        found = _shown(wanted, out / wanted.name, seeds, **asked)
    else:
        repeats = _usual_seeds(size) if seeds is None else seeds
        found = carry_out(wanted, out / wanted.name, seeds=repeats, progress=not quiet and not as_json, **asked)
    if as_json:
        print(json.dumps({"rows": [row.json() for row in found.rows]}, indent=2))
        return
    print(wanted.about)
    print()
    print_columns([HEAD, *(line(row) for row in found.rows)])
    for side in found.sides:
        print()
        print(side.title)
        print_columns(side.lines)
    print()
    print(f"Means of seeds with 1.96 standard errors, final iterates. All of it is in {str(out / wanted.name)!r}.")


def _shown(experiment: Experiment, folder: Path, seeds: int | None, **asked: Any) -> Reproduced:
    """What is there, of all seeds unless some number of them is asked for. Nothing that is kept is written again."""
    kept = [run["seed"] for run in Ledger(folder / "runs.jsonl").runs()]
    with TemporaryDirectory() as copied:
        copy = Path(copied) / folder.name
        if folder.is_dir():
            shutil.copytree(folder, copy)
        copy.mkdir(exist_ok=True)
        return carry_out(
            experiment, copy, seeds=seeds or 1 + max(kept, default=0), train=False, progress=False, **asked
        )


def _usual_seeds(scale: Scale) -> int:
    return {Scale.QUICK: 1, Scale.CPU: 3, Scale.PAPER: 5}[scale]
