"""Precisions, averages and augmentations as a person spells them in a recipe."""

from __future__ import annotations

from collections.abc import Callable

import torch

from sordino._input import validate
from sordino.errors import UsageError
from sordino.kernel.augmentation import Crop, Flip, Jitter, Transform
from sordino.training.averaging import Averaging, Ema, Tail

PRECISIONS: dict[str, torch.dtype | None] = {"float32": None, "bfloat16": torch.bfloat16}  # what autocast is told


def parse_averaging(text: str) -> Averaging | None:
    """An average of the iterates: "none", "ema:0.999" or "tail:0.5". The number may be left out.

    >>> parse_averaging("tail:0.25")
    Tail(fraction=0.25)
    """
    if text == "none":
        return None
    kind, colon, setting = text.partition(":")
    makers: dict[str, Callable[..., Averaging]] = {"ema": Ema, "tail": Tail}
    refusal = UsageError(f"averaging must be none, ema:DECAY or tail:FRACTION, got {validate.option(text)}.")
    if kind not in makers:
        raise refusal
    return makers[kind](_number(setting, refusal)) if colon else makers[kind]()


def parse_augmentation(text: str) -> tuple[Transform, ...]:
    """What changes each view, in order: "flip,crop:4", "jitter:0.1" or "none".

    >>> parse_augmentation("flip,crop:4")
    (Flip(), Crop(padding=4))
    """
    return () if text == "none" else tuple(_transform(part.strip()) for part in text.split(","))


def _transform(text: str) -> Transform:
    refusal = UsageError(
        f"augment must be none, or a list of flip, crop:PIXELS and jitter:STD, got {validate.option(text)}."
    )
    match text.partition(":"):
        case "flip", "", "":
            return Flip()
        case "crop", ":", setting if setting.isdecimal():
            return Crop(int(setting[:10]))
        case "jitter", ":", setting:
            return Jitter(_number(setting, refusal))
    raise refusal


def _number(text: str, refusal: UsageError) -> float:
    try:
        return float(text)
    except ValueError:
        raise refusal from None
