"""The command `sordino reproduce`: tables of papers, with our numbers next to the paper's."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sordino.cli.options import print_columns, whole_number
from sordino.errors import UsageError

if TYPE_CHECKING:  # torch is imported when a table is made, so that --help is shown at once
    from sordino_papers.harness.entry import Experiment, RunScale
    from sordino_papers.harness.reproduce import Reproduction


def reproduce(
    experiment: Annotated[str, typer.Argument(help="Name of the table, from the list above.")],
    scale: Annotated[
        str | None,
        typer.Option(
            help="quick (two minutes), cpu (two cores) or paper (all of it). Default: quick; with --show the largest "
            "scale that was run."
        ),
    ] = None,
    seeds: Annotated[int | None, whole_number("Number of seeds per entry [quick: 1, cpu: 3, paper: 5].")] = None,
    ablate: Annotated[
        bool, typer.Option("--ablate", help="Run the ablation too: settings varied one at a time.")
    ] = False,
    only: Annotated[str, typer.Option(help="Run only entries whose name contains this text; show all.")] = "",
    show: Annotated[bool, typer.Option("--show", help="Show kept results; train and measure nothing.")] = False,
    out: Annotated[Path, typer.Option(help="Folder of results; each experiment has a folder in it.")] = Path("results"),
    as_json: Annotated[bool, typer.Option("--json", help="Print the rows as JSON.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress bar.")] = False,
) -> None:
    """Reproduce a table of a paper: our numbers next to the paper's.

    Kept runs are not repeated: an interrupted table is resumed by the same command.

    \b
    Hidden states: Romijnders and Koskela (2025)
      hidden-state               private models of the poster's table
    \b
    Random sparsification: Zhu and Blaschko (2023)
      sparsification             accuracy with and without masks (Table 2)
      sparsification-sampling    Poisson batches and partitions (Table 3)
      sparsification-tradeoff    noise, clip norm and rate (Figures 2, 3)
      sparsification-ablation    kinds of masks; accuracy and bytes sent
      sparsification-ratios      norms of noise and of gradients (Figure 1c-d)
      sparsification-frameworks  largest rate by framework (Figure 4)
      scaling-rule               clip norms and momenta (Figures 10, 11)
      ranked                     ranked masks against random ones (Figure 12)
      symmetry                   deviations of gradients (Figures 6 to 9)
    \b
    Optimized noise: Xiang (2019)
      optimized-noise            accuracy by the way noise is made
    \b
    Side effects of DP-SGD: Xu and Chen (2026)
      phase-transition           accuracy against the size of a feature (Figure 1)
      feature-to-noise           loss of groups against their ratio (Section 6.1)
      disparity-causes           what widens the gap between classes (Section 4.1)
      rotated-patches            fine-tuning when features are rotated
      padding                    images with a growing background (Section 6.2)
      rotation                   private images rotated from public ones
      class-size                 a class with few examples (Appendix E.1)
      vit-padding                padding, for a transformer (Appendix E.2)
      freezing                   freezing weights in stages (Appendix G)
      augmentation               augmented views of examples (Appendix H)
      adult                      accuracy by sex and race, on a table of people
    \b
    Attacks
      audit                      lower bounds on epsilon, and planted bugs
      reconstruction             images from gradients (Zhu and Blaschko, Fig. 5)
    """
    from sordino_papers.experiments import EXPERIMENTS
    from sordino_papers.harness.entry import RunScale
    from sordino_papers.harness.page import HEAD, QUICK, line
    from sordino_papers.harness.reproduce import reproduce as carry_out

    if experiment not in EXPERIMENTS:
        raise UsageError(f"experiment must be one of {', '.join(EXPERIMENTS)}, got {experiment!r:.80}.")
    if scale is not None and scale not in list(RunScale):
        raise UsageError(f"scale must be one of {', '.join(RunScale)}, got {scale!r:.80}.")
    wanted = EXPERIMENTS[experiment]
    folder = out / wanted.name
    if scale is not None:
        size = RunScale(scale)
    else:
        size = _largest_scale_run(folder) if show else RunScale.QUICK
    asked: dict[str, Any] = {"scale": size, "ablate": ablate, "only": only}
    if show:
        found = _shown(wanted, folder, seeds, **asked)
    else:
        repeats = _usual_seeds(size) if seeds is None else seeds
        found = carry_out(wanted, folder, seeds=repeats, progress=not quiet and not as_json, **asked)
    if as_json:
        print(json.dumps({"scale": size, "rows": [row.json() for row in found.rows]}, indent=2))
        return
    if size is RunScale.QUICK:
        print(QUICK)
        print()
    print(wanted.about)
    print()
    print_columns([HEAD, *(line(row, size) for row in found.rows)])
    for side in found.sides:
        print()
        print(side.title)
        print_columns(side.lines)
    print()
    print(f"Scale {size}. Means of seeds with 1.96 standard errors, final iterates. All of it is in {str(folder)!r}.")


def _shown(experiment: Experiment, folder: Path, seeds: int | None, **asked: Any) -> Reproduction:
    """Kept results, of all seeds unless `seeds` is given. Works on a copy of the folder, so that no file changes."""
    from sordino_papers.harness.reproduce import reproduce as carry_out
    from sordino_papers.harness.results_file import ResultsFile

    kept = [run["seed"] for run in ResultsFile(folder / "runs.jsonl").runs()]
    with TemporaryDirectory() as copied:
        copy = Path(copied) / folder.name
        if folder.is_dir():
            shutil.copytree(folder, copy)
        copy.mkdir(exist_ok=True)
        return carry_out(
            experiment, copy, seeds=seeds or 1 + max(kept, default=0), train=False, progress=False, **asked
        )


def _largest_scale_run(folder: Path) -> RunScale:
    """The largest scale in the commands of kept runs; `quick` if there are none."""
    from sordino_papers.harness.entry import RunScale
    from sordino_papers.harness.results_file import ResultsFile

    commands = [f"{run.get('command', '')} " for run in ResultsFile(folder / "runs.jsonl").runs()]
    run = [scale for scale in RunScale if any(f" --scale {scale} " in command for command in commands)]
    return run[-1] if run else RunScale.QUICK


def _usual_seeds(scale: RunScale) -> int:
    return {"quick": 1, "cpu": 3, "paper": 5}[scale]
