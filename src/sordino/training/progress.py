"""Progress bars on standard error."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress, ProgressColumn


def progress_bar(
    visible: bool, counts: ProgressColumn | None = None, *more: ProgressColumn, transient: bool = False
) -> Progress:
    """A bar with a description, a count ("3/10" unless `counts` is given), the remaining time, and columns `more`.

    Nothing is printed if it is not `visible`. A `transient` bar is removed at its end.

    >>> with progress_bar(False) as bar:
    ...     task = bar.add_task("train", total=2)
    ...     bar.advance(task)
    """
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), counts or MofNCompleteColumn(), TimeRemainingColumn())
    return Progress(*columns, *more, console=Console(stderr=True), disable=not visible, transient=transient)
