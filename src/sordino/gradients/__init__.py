"""Per-example gradients of any PyTorch model. README.md in this folder has a picture and a reading order."""

from sordino.gradients.row_loss import Loss as Loss
from sordino.gradients.row_loss import RowLoss as RowLoss
from sordino.gradients.row_randomness import RowRandomness as RowRandomness
from sordino.gradients.vmapped import gradients_of_rows as gradients_of_rows
