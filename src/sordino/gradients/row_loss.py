"""The loss of one example, as a sum over that example, and a check that its labels are in the public range."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sordino.errors import DataError, UsageError
from sordino.gradients.rowwise import on_rows

Loss = Callable[[Any, Tensor], Tensor]

_CLASS_LABEL_LOSSES = (F.cross_entropy, F.nll_loss, F.multi_margin_loss)
_CLASS_LABEL_MODULES = (nn.CrossEntropyLoss, nn.NLLLoss, nn.MultiMarginLoss)


@dataclass(frozen=True)
class RowLoss:
    """A loss function that sums over the example, with the `ignore_index` of a loss of class labels."""

    summed: Loss
    has_class_labels: bool
    ignored_label: int

    @classmethod
    def of(cls, loss: Loss) -> RowLoss:
        """Makes the summed form of `loss`: if it has an argument `reduction`, that becomes "sum".

        So class weights keep their meaning: a weighted mean over one example would divide by the weight again.
        """
        if not callable(loss):
            raise UsageError(f"loss must be a function of (outputs, targets), got {type(loss).__name__}.")
        if isinstance(loss, nn.Module) and any(p.requires_grad for p in loss.parameters()):
            raise UsageError("the loss has trainable parameters: make them part of the model.")
        base, options = _unwrapped(loss)
        class_labels = base in _CLASS_LABEL_LOSSES or isinstance(base, _CLASS_LABEL_MODULES)
        ignored = options.get("ignore_index", getattr(base, "ignore_index", -100))
        return cls(_summing(loss), class_labels, ignored)

    def __call__(self, outputs: Any, target: Tensor) -> tuple[Tensor, Tensor]:
        """The loss of a batch of one, and whether its labels are usable. Labels out of range are replaced by 0."""
        usable = torch.ones((), dtype=torch.bool, device=target.device)
        if self.has_class_labels and not target.is_floating_point():
            known = partial(_known_labels, classes=num_classes(outputs), ignored=self.ignored_label)
            target, usable = on_rows(partial(known, axis=0), partial(known, axis=1), target)
        return self.single(self.summed(outputs, target)), usable

    def single(self, value: Tensor) -> Tensor:
        """The loss as a scalar. Refuses any other shape."""
        if not isinstance(value, Tensor) or value.numel() != 1:
            got = f"shape {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
            raise UsageError(f"the loss of one example must be a single number, got {got}: sum it over the example.")
        return value.reshape(())

    def check_targets(self, outputs: Any, target: Tensor) -> None:
        """Refuses class labels that are neither integers nor probabilities in the shape of the outputs."""
        if not self.has_class_labels or not target.is_floating_point():
            return
        if not isinstance(outputs, Tensor) or target.shape != outputs.shape:
            raise DataError(
                f"class labels must be integers, got {target.dtype} of shape {tuple(target.shape)} per batch: "
                "cast them to int64, or pass class probabilities in the shape of the model's output."
            )


def logits_of(outputs: Any) -> Any:
    """The `logits` of an output object, as those of Hugging Face transformers; other outputs unchanged."""
    return getattr(outputs, "logits", outputs)


def _known_labels(target: Tensor, *, classes: int, ignored: int, axis: int) -> tuple[Tensor, Tensor]:
    """The labels with 0 in place of those out of range, and whether all labels from `axis` on are in range."""
    known = ((target >= 0) & (target < classes)).logical_or_(target == ignored)
    return torch.where(known, target, 0), known.flatten(axis).all(dim=axis)


def num_classes(outputs: Any) -> int:
    """The public number of classes: axis 1 of the model's output, never a property of the data."""
    if not isinstance(outputs, Tensor) or outputs.ndim < 2:
        shape = tuple(outputs.shape) if isinstance(outputs, Tensor) else type(outputs).__name__
        raise UsageError(f"a loss of class labels needs outputs of shape (batch, classes, ...), got {shape}.")
    return outputs.shape[1]


def _unwrapped(loss: Loss) -> tuple[Any, dict[str, Any]]:
    options: dict[str, Any] = {}
    while isinstance(loss, partial):
        options = {**loss.keywords, **options}
        loss = loss.func
    return loss, options


def _summing(loss: Loss) -> Loss:
    base, _ = _unwrapped(loss)
    if isinstance(base, nn.Module):
        if not hasattr(base, "reduction"):
            return loss
        module = copy.copy(base)
        vars(module)["reduction"] = "sum"
        return partial(module, *loss.args, **loss.keywords) if isinstance(loss, partial) else module
    return partial(loss, **{"reduction": "sum"}) if "reduction" in _parameters(loss) else loss


@lru_cache(maxsize=16)  # called in every step
def _parameters(function: Loss) -> frozenset[str]:
    try:
        return frozenset(inspect.signature(function).parameters)
    except ValueError:  # a function written in C need not have a signature
        return frozenset()
