"""Settings of a recipe for a transformer of Hugging Face, `--model hf:PATH`: its task, its rows, what is trained.

All of them are public facts that the user declares: names of columns and classes, and lengths. This module imports
neither torch nor transformers.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from sordino.errors import UsageError
from sordino.recipes.settings import SettingError, Text, declared, setting

KIND = "hf"
_LONGEST = 1 << 16
_USED_BY = ("train", "verify")


class TaskName(StrEnum):
    """Names of the tasks of a transformer."""

    SEQUENCES = "sequence-classification"
    TOKENS = "token-classification"
    NEXT_TOKEN = "causal-lm"
    MASKED = "masked-lm"
    IMAGES = "image-classification"


def is_transformer(model: str) -> bool:
    """Whether a model is named as `hf:PATH`.

    >>> is_transformer("hf:models/bert"), is_transformer("nets.py:network")
    (True, False)
    """
    return model.partition(":")[0] == KIND


def refuse_transformer(model: str, what: str) -> None:
    """Refuses a transformer for a command that trains or changes rows of one array."""
    if is_transformer(model):
        raise UsageError(f"{what} takes networks whose rows are one array, and {model:.200} is a transformer.")


def parse_lengths(text: str) -> tuple[int, ...]:
    """Parses the lengths of buckets.

    >>> parse_lengths("32,64,128")
    (32, 64, 128)
    """
    parts = [part.strip() for part in text.split(",")]
    lengths = tuple(int(part) for part in parts if part.isascii() and part.isdigit() and len(part) < 6)
    increase = list(lengths) == sorted(set(lengths))
    if len(lengths) < len(parts) or not increase or not 1 <= lengths[0] <= lengths[-1] <= _LONGEST:
        raise ValueError(f"increasing whole numbers from 1 to {_LONGEST}, as 32,64,128")
    return lengths


def parse_classes(text: str) -> tuple[int, tuple[str, ...]]:
    """Parses the number of classes with their names, or without names if only the number is given.

    >>> parse_classes("no,yes"), parse_classes("5")
    ((2, ('no', 'yes')), (5, ()))
    """
    names = tuple(name.strip() for name in text.split(","))
    if len(names) == 1 and text.strip().isascii() and text.strip().isdigit() and 1 <= int(text[:9]) <= 1 << 20:
        return int(text), ()
    if len(names) < 2 or not all(names) or len(set(names)) < len(names):
        raise ValueError("different names in order, as no,yes, or the number of classes (1 if the label is a number)")
    return len(names), names


def parse_columns(text: str) -> tuple[str, ...]:
    """Parses the names of one column of texts, or of two columns for pairs of texts."""
    names = tuple(name.strip() for name in text.split(","))
    if len(names) > 2 or not all(names) or len(set(names)) < len(names):
        raise ValueError("the name of a column, or two names for pairs of texts, as premise,hypothesis")
    return names


def _known_lengths(text: str) -> str:
    parse_lengths(text)
    return text


def _known_classes(text: str) -> str:
    parse_classes(text)
    return text


def _known_columns(text: str) -> str:
    parse_columns(text)
    return text


@dataclass(frozen=True, kw_only=True)
class TransformerSettings:
    """The settings of a recipe that go with `hf:PATH` only."""

    task: Annotated[TaskName, Field(strict=False)] | None = setting(
        None, "hf: task, such as sequence-classification or causal-lm [by the model's config].", commands=_USED_BY
    )
    text_column: Annotated[Text, AfterValidator(_known_columns)] | None = setting(
        None, "hf: column of texts, two as A,B for pairs, or input_ids for tokens [text].", commands=_USED_BY
    )
    label_column: Text | None = setting(None, "hf: column of labels [label, or labels].", commands=_USED_BY)
    classes: Annotated[Text, AfterValidator(_known_classes)] | None = setting(
        None,
        "hf: names of the classes in order, as no,yes, or their number [by the model's config].",
        commands=_USED_BY,
    )
    max_length: Annotated[int, Field(ge=1, le=_LONGEST)] | None = setting(
        None, "hf: number of tokens to which texts are cut and padded [by the model, at most 512].", commands=_USED_BY
    )
    buckets: Annotated[Text, AfterValidator(_known_lengths)] | None = setting(
        None, "hf: several lengths instead of one, as 32,64,128, so that short texts cost less.", commands=_USED_BY
    )
    test_data: Text | None = setting(
        None, "hf: file of public test rows, in the format of the data.", commands=_USED_BY
    )
    lora: Annotated[int, Field(ge=1, le=4096)] | None = setting(
        None, "hf: rank of low-rank adapters, which are trained in place of all weights.", commands=_USED_BY
    )
    train_only: Literal["head", "biases"] | None = setting(
        None, "hf: train the head only, or the biases and the head [all weights].", commands=_USED_BY
    )
    allow_download: bool | None = setting(
        None, "hf: PATH may be a name on the Hugging Face hub, which is downloaded.", commands=_USED_BY
    )

    def check_transformer(self, model: str) -> None:
        """Refuses settings for a model that is no transformer, and settings that exclude each other."""
        if not is_transformer(model):
            for name, each in declared(TransformerSettings).items():
                if getattr(self, name) != each.default:
                    raise SettingError(f"{{{name}}} needs {{model}} hf:PATH, got {{given}}.", given=repr(model))
            return
        for one, other in (("max_length", "buckets"), ("lora", "train_only")):
            if getattr(self, one) is not None and getattr(self, other) is not None:
                raise SettingError(f"{{{one}}} and {{{other}}} exclude each other: give one of them.")
