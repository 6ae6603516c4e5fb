"""Where Opacus keeps its data loader."""

from sordino.opacus.loader import PrivateLoader as DPDataLoader

__all__ = ["DPDataLoader"]
