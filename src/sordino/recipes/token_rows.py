"""Texts and their labels as rows of tokens, padded to a public length.

Theorem that a guarantee needs: each row of the result is a function of the same row of the data and of public facts. A
row that cannot be read, or has an unknown label, has labels without a loss: it contributes zero, without a message.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sordino.data.text_rows import Cell, Columns, TextRows
from sordino.errors import DataError, UsageError
from sordino.gradients.probes import one_line
from sordino.huggingface.losses import IGNORED
from sordino.recipes.recipe import Recipe
from sordino.recipes.saved_transformer import SavedTransformer
from sordino.recipes.settings import SettingError
from sordino.recipes.transformer_settings import TaskName, parse_columns, parse_lengths

TOKENS, MASK, LABELS = "input_ids", "attention_mask", "labels"
_USUAL_LENGTH = 512
_TEXTS_AT_A_TIME = 1000
_MASKED = 0.15  # of the tokens of a text, as in BERT (Devlin et al. 2019)

Row = dict[str, list[int]]


@dataclass(frozen=True)
class TokenRows:
    """Rows as tensors: the inputs of the model by name, and labels. `known` says which rows can be used."""

    inputs: dict[str, Tensor] = field(repr=False)
    labels: Tensor = field(repr=False)
    known: Tensor = field(repr=False)
    word_starts: tuple[list[int], ...] = field(repr=False, default=())

    @property
    def columns(self) -> dict[str, Tensor]:
        return {**self.inputs, LABELS: self.labels}

    def usable(self) -> TokenRows:
        """The rows that can be used, for rows that are public."""
        if not bool(self.known.any()):
            raise DataError(
                "no public row can be used: each has a text that cannot be read or a label that is unknown."
            )
        return TokenRows({name: x[self.known] for name, x in self.inputs.items()}, self.labels[self.known], self.known)


@dataclass(frozen=True)
class TokenReader:
    """Reads rows of tokens. `texts` are the columns of texts, or `input_ids`; `label` is the column of labels, if any.

    `names` are the inputs of the model, `length` is the number of tokens of a row, and `padding` fills it up.
    """

    transformer: SavedTransformer
    texts: tuple[str, ...]
    label: str | None
    names: tuple[str, ...]
    length: int
    padding: int
    tokenizer: Any | None = field(repr=False)

    @classmethod
    def of(
        cls, recipe: Recipe, transformer: SavedTransformer, columns: Sequence[str], takes: Callable[[str], bool]
    ) -> TokenReader:
        """The reader for a recipe, and a file with these columns. `takes` says which inputs the model has."""
        texts, label = (
            _text_columns(recipe, transformer.task, columns),
            _label_column(recipe, transformer.task, columns),
        )
        tokenizer = None if texts == (TOKENS,) and transformer.task is not TaskName.MASKED else transformer.tokenizer()
        if transformer.task is TaskName.MASKED and label is None and getattr(tokenizer, "mask_token_id", None) is None:
            raise UsageError(f"the tokenizer in {transformer.path!r} has no mask token, which masked-lm needs.")
        offered = tuple(columns) if texts == (TOKENS,) else tuple(getattr(tokenizer, "model_input_names", ()))
        names = tuple(name for name in (TOKENS, "token_type_ids") if name in offered and takes(name))
        length, padding = _length(recipe, transformer, tokenizer), _padding(transformer, tokenizer)
        reader = cls(transformer, texts, label, (*names, MASK), length, padding, tokenizer)
        if tokenizer is not None and texts != (TOKENS,):
            reader._check_tokenizer()
        return reader

    def _check_tokenizer(self) -> None:
        """Refuses a tokenizer that fails on a synthetic text, as it would on each row."""
        text: Any = ["a"] if self.transformer.task is TaskName.TOKENS else "a"
        try:
            self._tokenized_together([(text,) * len(self.texts)])
        except Exception as error:
            raise UsageError(
                f"the tokenizer in {self.transformer.path!r:.200} fails on every text: {type(error).__name__}: "
                f"{one_line(error)}"
            ) from error

    @property
    def needed(self) -> tuple[str, ...]:
        """The columns that rows for training have."""
        return (*self.texts, *(() if self.label is None else (self.label,)))

    def read(self, rows: TextRows, *, with_labels: bool = True) -> TokenRows:
        """All rows of a file. Rows for predictions need no labels."""
        optional = [name for name in (*self.names, MASK) if self.texts == (TOKENS,) and name in rows.columns]
        wanted = dict.fromkeys((*(self.needed if with_labels else self.texts), *optional))
        return self.encode(rows.read(tuple(wanted)), with_labels=with_labels)

    def encode(self, cells: Columns, *, with_labels: bool = True) -> TokenRows:
        """The rows of these cells."""
        tokens, starts = self._tokens_of_rows(cells) if self.texts == (TOKENS,) else self._tokens_of_texts(cells)
        of_rows: Sequence[Cell] = cells[self.label] if self.label is not None and with_labels else [None] * len(tokens)
        found = [self._labels(row, start, label) for row, start, label in zip(tokens, starts, of_rows, strict=True)]
        if not with_labels:
            found = [None if row is None else label for row, label in zip(tokens, found, strict=True)]
            known = torch.tensor([row is not None for row in tokens])
        else:
            known = torch.tensor([label is not None for label in found])
        arrays = {name: np.zeros((len(tokens), self.length), np.int64) for name in self.names}
        arrays[TOKENS].fill(self.padding)
        arrays[MASK][:, 0] = 1  # a row without real places has no attention
        for place, row in enumerate(tokens):
            if row is not None and known[place]:
                for name, values in row.items():
                    arrays[name][place, : len(values)] = values
        return TokenRows(
            {name: torch.from_numpy(array) for name, array in arrays.items()},
            self._label_tensor(found),
            known,
            tuple(starts),
        )

    def _label_tensor(self, found: Sequence[Any]) -> Tensor:
        if self.transformer.task is TaskName.SEQUENCES:
            if self.transformer.num_outputs == 1:
                return torch.tensor([math.nan if each is None else each for each in found], dtype=torch.float32)
            return torch.tensor([IGNORED if each is None else each for each in found], dtype=torch.int64)
        labels = np.full((len(found), self.length), IGNORED, np.int64)
        for place, each in enumerate(found):
            if each is not None:
                labels[place, : len(each)] = each
        return torch.from_numpy(labels)

    # Tokens

    def _tokens_of_rows(self, cells: Columns) -> tuple[list[Row | None], list[list[int]]]:
        """Rows that are tokens already, cut to the length."""
        vocabulary = int(self.transformer.config.vocab_size)
        given = [name for name in self.names if name in cells]
        rows = list[Row | None]()
        for values in zip(*(cells[name] for name in given), strict=True):
            row = {name: _whole_numbers(each, self.length) for name, each in zip(given, values, strict=True)}
            lengths = {len(each) for each in row.values() if each is not None}
            mask = row.setdefault(MASK, [1] * len(row[TOKENS] or ()))
            is_valid = (
                all(each is not None for each in row.values())
                and len(lengths) == 1
                and lengths != {0}
                and all(0 <= token < vocabulary for token in row[TOKENS] or ())
                and all(each in (0, 1) for each in mask or ())
                and any(mask or ())
                and all(0 <= kind < self._kinds for kind in row.get("token_type_ids") or ())
            )
            rows.append({name: each or [] for name, each in row.items()} if is_valid else None)
        return rows, [[] if row is None else list(range(len(row[TOKENS]))) for row in rows]

    @property
    def _kinds(self) -> int:
        """How many types of tokens the model tells apart."""
        return int(getattr(self.transformer.config, "type_vocab_size", 1) or 1)

    def _tokens_of_texts(self, cells: Columns) -> tuple[list[Row | None], list[list[int]]]:
        """Tokens of texts, and of texts that are lists of words the place at which each word begins."""
        of_words = self.transformer.task is TaskName.TOKENS
        is_text = _is_list_of_words if of_words else _is_text
        texts = list(zip(*(cells[name] for name in self.texts), strict=True))
        rows: list[Row | None] = [None] * len(texts)
        starts = [list[int]() for _ in texts]
        places = [place for place, text in enumerate(texts) if all(map(is_text, text))]
        for begin in range(0, len(places), _TEXTS_AT_A_TIME):
            some = places[begin : begin + _TEXTS_AT_A_TIME]
            for place, tokenized in zip(some, self._tokenized([texts[place] for place in some]), strict=True):
                if tokenized is not None and tokenized[0][TOKENS]:
                    rows[place], starts[place] = tokenized
        return rows, starts

    def _tokenized(self, texts: Sequence[tuple[Any, ...]]) -> list[tuple[Row, list[int]] | None]:
        """All texts at once, or one by one if that fails: the error would reveal something about a text."""
        try:
            return self._tokenized_together(texts)
        except MemoryError:  # a matter of the machine, not of a text
            raise
        except Exception:
            if len(texts) == 1:
                return [None]
            return [found for text in texts for found in self._tokenized([text])]

    def _tokenized_together(self, texts: Sequence[tuple[Any, ...]]) -> list[tuple[Row, list[int]] | None]:
        assert self.tokenizer is not None
        of_words = self.transformer.task is TaskName.TOKENS
        columns = [list(column) for column in zip(*texts, strict=True)]
        found = self.tokenizer(*columns, truncation=True, max_length=self.length, is_split_into_words=of_words)
        rows = list[tuple[Row, list[int]] | None]()
        for place in range(len(texts)):
            row = {name: list(found[name][place]) for name in self.names if name in found}
            row.setdefault(MASK, [1] * len(row[TOKENS]))
            rows.append((row, _starts(found.word_ids(place)) if of_words else []))
        return rows

    # Labels

    def _labels(self, row: Row | None, starts: list[int], label: Cell) -> Any | None:
        """The labels of a row, or None if the row cannot be used."""
        if row is None:
            return None
        match self.transformer.task:
            case TaskName.SEQUENCES:
                return _number(label) if self.transformer.num_outputs == 1 else self._class(label)
            case TaskName.TOKENS:
                return self._classes_of_places(row, starts, label)
            case TaskName.MASKED if self.label is None:
                return self._masked(row)
        if self.label is not None:
            return self._given_tokens(row, label)
        return [token if real else IGNORED for token, real in zip(row[TOKENS], row[MASK], strict=True)]

    def _class(self, label: Cell) -> int | None:
        """The index of a class, given by its name or as a number."""
        names = self.transformer.class_names
        if isinstance(label, str):
            if label in names:
                return names.index(label)
            label = int(label) if label.isascii() and label.isdigit() and len(label) < 10 else None
        elif isinstance(label, float):
            label = int(label) if label.is_integer() else None
        is_class = isinstance(label, int) and 0 <= label < (self.transformer.num_classes or 0)
        return int(label) if is_class else None

    def _classes_of_places(self, row: Row, starts: list[int], labels: Cell) -> list[int] | None:
        """A class for each token that begins a word, and -100 for the others. Words that were cut off count no more."""
        if not isinstance(labels, list) or len(labels) < len(starts):
            return None
        classes = [IGNORED if label == IGNORED else self._class(label) for label in labels[: len(starts)]]
        if None in classes or all(label == IGNORED for label in classes):
            return None
        found = [IGNORED] * len(row[TOKENS])
        for place, label in zip(starts, classes, strict=True):
            if place >= 0:
                found[place] = label if label is not None else IGNORED
        return found

    def _given_tokens(self, row: Row, labels: Cell) -> list[int] | None:
        found, vocabulary = _whole_numbers(labels, self.length), int(self.transformer.config.vocab_size)
        if found is None or len(found) != len(row[TOKENS]):
            return None
        known = all(label == IGNORED or 0 <= label < vocabulary for label in found)
        return found if known and any(label != IGNORED for label in found) else None

    def _masked(self, row: Row) -> list[int] | None:
        """Masks some tokens of the row, in place, and returns them. Which ones depends on its tokens alone."""
        assert self.tokenizer is not None
        special = set(self.tokenizer.all_special_ids)
        real = [place for place, token in enumerate(row[TOKENS]) if token not in special and row[MASK][place]]
        if not real:
            return None
        digest = hashlib.blake2b(np.asarray(row[TOKENS], np.int64).tobytes(), digest_size=8).digest()
        drawn = np.random.default_rng(int.from_bytes(digest, "big"))
        chosen = drawn.choice(real, size=max(1, round(_MASKED * len(real))), replace=False).tolist()
        labels = [IGNORED] * len(row[TOKENS])
        for place in chosen:
            labels[place], row[TOKENS][place] = row[TOKENS][place], self.tokenizer.mask_token_id
        return labels


def _text_columns(recipe: Recipe, task: TaskName, columns: Sequence[str]) -> tuple[str, ...]:
    """The declared columns of texts, or the usual ones that the file has."""
    if recipe.text_column is not None:
        found = parse_columns(recipe.text_column)
        if TOKENS in found and len(found) > 1:
            raise SettingError(
                "{text_column} must be input_ids alone for tokens, got {given}.", given=recipe.text_column
            )
        return found
    words = "tokens" if task is TaskName.TOKENS else "text"
    usual = [name for name in (words, TOKENS) if name in columns]
    if not usual:
        raise SettingError(
            f"{{data}} has no column {words!r} or {TOKENS!r}: name the column of texts by {{text_column}}."
        )
    return (usual[0],)


def _label_column(recipe: Recipe, task: TaskName, columns: Sequence[str]) -> str | None:
    """The declared column of labels, or the usual one. Language models predict their own tokens."""
    if recipe.label_column is not None:
        return recipe.label_column
    if task in (TaskName.NEXT_TOKEN, TaskName.MASKED):
        return None
    for name in ("label", LABELS):
        if name in columns:
            return name
    raise SettingError("{data} has no column 'label' or 'labels': name the column of labels by {label_column}.")


def _length(recipe: Recipe, transformer: SavedTransformer, tokenizer: Any | None) -> int:
    """The largest number of tokens of a row. It may not exceed the positions that the model has."""
    positions = getattr(transformer.config, "max_position_embeddings", None)
    positions = positions if isinstance(positions, int) and positions > 0 else None
    wanted = parse_lengths(recipe.buckets)[-1] if recipe.buckets is not None else recipe.max_length
    if wanted is None:
        known = (positions, getattr(tokenizer, "model_max_length", None))
        return int(min(_USUAL_LENGTH, *(each for each in known if each is not None)))
    if positions is not None and wanted > positions:
        name = "{max_length}" if recipe.buckets is None else "{buckets}"
        raise SettingError(
            f"{name} must be at most {{most}}, the positions of the model, got {wanted}.", most=positions
        )
    return wanted


def _padding(transformer: SavedTransformer, tokenizer: Any | None) -> int:
    """The token that fills up rows. A model without one gets the token of the end, which the mask hides."""
    named = [
        getattr(each, name, None)
        for name in ("pad_token_id", "eos_token_id")
        for each in (tokenizer, transformer.config)
    ]
    return next((each for each in named if isinstance(each, int)), 0)


def _starts(words: Sequence[int | None]) -> list[int]:
    """The place of the first token of each word; -1 for a word without tokens."""
    places: dict[int, int] = {}
    for place, word in enumerate(words):
        if word is not None:
            places.setdefault(word, place)
    return [places.get(word, -1) for word in range(max(places, default=-1) + 1)]


def _is_text(cell: Cell) -> bool:
    return isinstance(cell, str) and bool(cell)


def _is_list_of_words(cell: Cell) -> bool:
    return isinstance(cell, list) and bool(cell) and all(isinstance(word, str) for word in cell)


def _whole_numbers(cell: Cell, length: int) -> list[int] | None:
    """A list of whole numbers, cut to a length, or None."""
    if not isinstance(cell, list) or not all(isinstance(each, int) and abs(each) < 1 << 60 for each in cell):
        return None
    return [int(each) for each in cell[:length]]


def _number(label: Cell) -> float | None:
    try:
        number = float(label)
    except (TypeError, ValueError, OverflowError):
        return None
    return number if math.isfinite(number) and abs(number) < 3e38 else None
