"""Private training of Hugging Face transformers as they are: their rows, losses and measurements.

Needs `pip install "sordino[huggingface]"`. `so.fit(model, data, ...)` uses this package by itself for such a model.
"""

from typing import TYPE_CHECKING, Any

from sordino.errors import UsageError
from sordino.huggingface.evaluation import measured as measured
from sordino.huggingface.evaluation import measured_at_end as measured_at_end
from sordino.huggingface.losses import LabelSetLoss as LabelSetLoss
from sordino.huggingface.losses import MaskedTokenLoss as MaskedTokenLoss
from sordino.huggingface.losses import NextTokenLoss as NextTokenLoss
from sordino.huggingface.losses import RowClassLoss as RowClassLoss
from sordino.huggingface.losses import SquaredErrorLoss as SquaredErrorLoss
from sordino.huggingface.losses import TargetTokenLoss as TargetTokenLoss
from sordino.huggingface.losses import TokenClassLoss as TokenClassLoss
from sordino.huggingface.rows import as_records as as_records
from sordino.huggingface.rows import records_of as records_of
from sordino.huggingface.tasks import loss_for as loss_for

if TYPE_CHECKING:
    from sordino.huggingface.trainer import PrivateTrainer as PrivateTrainer


def __getattr__(name: str) -> Any:
    """Imports `PrivateTrainer`, and with it transformers, when it is first used."""
    if name != "PrivateTrainer":
        raise AttributeError(f"module 'sordino.huggingface' has no attribute {name!r}")
    try:
        from sordino.huggingface.trainer import PrivateTrainer
    except ModuleNotFoundError as error:
        raise UsageError(f"PrivateTrainer needs {error.name}: pip install 'sordino[huggingface]'.") from error
    return PrivateTrainer
