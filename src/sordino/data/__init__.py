"""Datasets: standard ones by name, and your own from folders of images, tables and arrays.

Names are imported when they are used, so that a list of datasets does not import torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sordino.data.dataset import DataSet as DataSet
    from sordino.data.dataset import Facts as Facts
    from sordino.data.dataset import Split as Split
    from sordino.data.fetching import fetch as fetch
    from sordino.data.loading import load as load
    from sordino.data.published import root as root
    from sordino.data.row_files import open_rows as open_rows
    from sordino.data.synthetic import TwoPatch as TwoPatch

_HOMES = dict.fromkeys(("DataSet", "Facts", "Split"), "dataset")
_HOMES |= {
    "fetch": "fetching",
    "load": "loading",
    "open_rows": "row_files",
    "root": "published",
    "TwoPatch": "synthetic",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
