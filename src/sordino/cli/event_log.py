"""Public quantities of a training for TensorBoard."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from sordino.errors import UsageError

Row = dict[str, Any]


@contextmanager
def event_log(folder: Path) -> Iterator[Callable[[Row], None]]:
    """A function that logs rows of metrics by step into `folder`, which is made with the first row."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise UsageError("--tensorboard needs TensorBoard: install sordino[tensorboard].") from None

    with ExitStack() as stack:
        opened: list[SummaryWriter] = []

        def log(row: Row) -> None:
            if not opened:
                opened.append(stack.enter_context(SummaryWriter(str(folder))))
            for name, value in row.items():
                if name != "step":
                    opened[0].add_scalar(name, value, row["step"])
            opened[0].flush()

        yield log
