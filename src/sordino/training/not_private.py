"""Results without a guarantee: models trained without one, and numbers computed from raw gradients or private rows.

Such a result carries its warning wherever it is printed or written, and is refused in the folder of a run, whose files
may be published.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path

from torch import Tensor, nn

from sordino._input.files import write_atomically
from sordino.errors import UsageError
from sordino.training.run_folder import RunFolder

NOT_PRIVATE = "not private: computed from raw gradients, to be looked at and not to be released"


@dataclass(frozen=True)
class NotPrivate:
    """A model that was trained without a guarantee.

    >>> print(NotPrivate(nn.Linear(1, 1), "clipped SGD"))
    clipped SGD: not private, for comparison only
    """

    model: nn.Module = field(repr=False)
    method: str

    def __str__(self) -> str:
        return f"{self.method}: not private, for comparison only"


@dataclass(frozen=True)
class ExposedResult:
    """Base of results that were computed from raw gradients or private rows. `warning` is printed and written with it.

    >>> ExposedResult()
    ExposedResult(warning='not private: computed from raw gradients, to be looked at and not to be released')
    """

    warning: str = field(default=NOT_PRIVATE, init=False)

    def write(self, path: Path | str) -> None:
        """Writes JSON anywhere but in the folder of a run."""
        path = Path(path)
        refuse_in_run(path, self.warning)
        write_atomically(path, (json.dumps(asdict(self), indent=2, default=Tensor.tolist) + "\n").encode())


def refuse_in_run(path: Path, warning: str) -> None:
    """Raises `UsageError` if `path` lies in the folder of a run. Call it before long work whose result goes there."""
    for folder in path.resolve().parents:
        if (RunFolder(folder).is_run and RunFolder(folder).may_leave) or RunFolder(folder).is_begun:
            raise UsageError(f"{str(path)!r:.200} lies in the folder of a run, and this is {warning}.")
