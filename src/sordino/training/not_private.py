"""Results without a guarantee: models trained without privacy, and values computed from raw gradients or private rows.

Such a result is printed and written with a warning. It is refused in a run folder, whose files may be published.
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
    """A model that was trained without a privacy guarantee.

    >>> print(NotPrivate(nn.Linear(1, 1), "clipped SGD"))
    clipped SGD: not private, for comparison only
    """

    model: nn.Module = field(repr=False)
    method: str

    def __str__(self) -> str:
        return f"{self.method}: not private, for comparison only"


@dataclass(frozen=True)
class ExposedResult:
    """Base class of results computed from raw gradients or private rows. `warning` is printed and written with them.

    >>> ExposedResult()
    ExposedResult(warning='not private: computed from raw gradients, to be looked at and not to be released')
    """

    warning: str = field(default=NOT_PRIVATE, init=False)

    def write(self, path: Path | str) -> None:
        """Writes the result as JSON. A path inside a run folder is refused."""
        path = Path(path)
        refuse_in_run(path, self.warning)
        write_atomically(path, (json.dumps(asdict(self), indent=2, default=Tensor.tolist) + "\n").encode())


def refuse_in_run(path: Path, warning: str) -> None:
    """Raises `UsageError` if `path` lies in a run folder. Call it before long computations of a result."""
    for folder in path.resolve().parents:
        if (RunFolder(folder).is_run and RunFolder(folder).may_leave) or RunFolder(folder).is_begun:
            raise UsageError(f"{str(path)!r:.200} lies in a run folder, but the result is {warning}.")
