"""The data module of Opacus for PyTorch Lightning, which gives the trainer a private loader."""

from __future__ import annotations

import importlib
import sys
from typing import Any

from sordino.errors import UsageError
from sordino.opacus.loader import PrivateLoader

# A data module of one of the two packages is none of the other.
_PACKAGE = "pytorch_lightning" if "pytorch_lightning" in sys.modules else "lightning.pytorch"
try:
    _LightningDataModule: Any = importlib.import_module(_PACKAGE).LightningDataModule
except ImportError:
    raise UsageError("PyTorch Lightning is not installed: install sordino[lightning].") from None


class DPLightningDataModule(_LightningDataModule):  # type: ignore[misc]
    """Gives the training rows of another data module by one private loader, the same at every call.

    Lightning asks for the loader twice: `configure_optimizers` passes it to `make_private`, and the trainer draws the
    batches. All else is that of the other data module.
    """

    def __init__(self, datamodule: Any, generator: None = None) -> None:
        super().__init__()
        self.datamodule = datamodule
        self._generator = generator
        self._training: PrivateLoader | None = None

    def prepare_data(self) -> None:
        self.datamodule.prepare_data()

    def setup(self, stage: str | None = None) -> None:
        self.datamodule.setup(stage)

    def train_dataloader(self) -> PrivateLoader:
        if self._training is None:
            source = self.datamodule.train_dataloader()
            self._training = PrivateLoader.from_data_loader(source, generator=self._generator)
        return self._training

    def val_dataloader(self) -> Any:
        return self.datamodule.val_dataloader()

    def test_dataloader(self) -> Any:
        return self.datamodule.test_dataloader()

    def predict_dataloader(self) -> Any:
        return self.datamodule.predict_dataloader()
