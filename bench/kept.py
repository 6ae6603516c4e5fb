"""Writing of result lines as they are measured."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from bench.step import origin


def keep(measured: Mapping[str, object], module: str, path: Path | None) -> None:
    """Prints a measurement with its origin as JSON, and appends it to the file `path` if given."""
    line = json.dumps({**measured, **origin(module)})
    print(line, flush=True)
    if path is not None:
        with path.open("a") as file:
            file.write(line + "\n")
