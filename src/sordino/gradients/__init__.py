"""Gradients of single examples: `vmap` for any model, with randomness and loss owned by the row."""

from sordino.gradients.row_loss import Loss as Loss
from sordino.gradients.row_loss import RowLoss as RowLoss
from sordino.gradients.row_randomness import RowRandomness as RowRandomness
from sordino.gradients.vmapped import gradients_of_rows as gradients_of_rows
