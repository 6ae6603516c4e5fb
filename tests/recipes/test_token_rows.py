"""Rows of tokens: each is a function of its own row, and one that cannot be used contributes zero."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from saved_transformers import WORDS, reviews, saved, write_lines

import sordino as so
from sordino.data.text_rows import TextRows
from sordino.errors import UsageError
from sordino.huggingface import loss_for
from sordino.recipes.prepared import prepare
from sordino.recipes.recipe import Recipe
from sordino.recipes.saved_transformer import SavedTransformer
from sordino.recipes.token_rows import TokenReader, TokenRows
from sordino.recipes.transformer_settings import TaskName
from sordino.recipes.transformers import PreparedTransformer

UNREADABLE: dict[str, Any] = {"no JSON": "{", "no object": "[1]", "a number as text": {"text": 5, "label": "pos"}}
UNKNOWN: dict[str, Any] = {
    "a class that nobody declared": {"text": "good", "label": "other"},
    "a number above the classes": {"text": "good", "label": 2},
    "half a number": {"text": "good", "label": 0.5},
    "no text": {"label": "pos"},
    "no label": {"text": "good"},
    "an empty text": {"text": "", "label": 1},
}
WORDS_AND_TAGS = {"tokens": ["good", "film-plot", "was"], "label": ["view", "thing", 0]}
GOOD: dict[str, list[dict[str, Any]]] = {
    "classifier": [
        {"text": "good film", "label": "pos"},
        {"text": "bad " * 40, "label": 0},
        {"text": "a", "label": "1"},
    ],
    "number": [{"text": "good film", "label": 0.5}, {"text": "bad", "label": "-2"}],
    "tagger": [WORDS_AND_TAGS, {"tokens": ["bad"] * 40, "label": ["view"] * 40}],
    "gpt": [{"text": "good film was the actor"}, {"text": "bad " * 40}],
    "bert": [{"text": "good film was the actor"}, {"text": "bad " * 40}],
}
BAD: dict[str, list[Any]] = {
    "classifier": [*UNREADABLE.values(), *UNKNOWN.values()],
    "number": [*UNREADABLE.values(), {"text": "good", "label": "much"}, {"text": "good", "label": 1e300}],
    "tagger": ["{", {"tokens": "good", "label": ["view"]}, {"tokens": ["good", "film"], "label": ["view"]},
               {"tokens": ["good"], "label": ["verb"]}, {"tokens": [], "label": []}],
    "gpt": ["{", {"text": 5}, {"text": ""}],
    "bert": ["{", {"text": 5}, {"text": ""}],
}  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models")
    for name in GOOD:
        saved(name, path)
    return path


def recipe(folder: Path, name: str, data: Path, **settings: Any) -> Recipe:
    return Recipe(str(data), f"hf:{folder / name}", epsilon=8.0, **settings)


def reader_of(wanted: Recipe) -> TokenReader:
    columns = TextRows.open(Path(wanted.data)).columns
    return TokenReader.of(wanted, SavedTransformer.open(wanted), columns, lambda name: True)


def read(folder: Path, name: str, rows: list[Any], at: Path, **settings: Any) -> TokenRows:
    wanted = recipe(folder, name, write_lines(at / "rows.jsonl", rows), **settings)
    return reader_of(wanted).read(TextRows.open(Path(wanted.data)))


@pytest.mark.parametrize("name", GOOD)
def test_a_row_is_the_same_whatever_the_others_are(name: str, folder: Path, tmp_path: Path) -> None:
    rows = [*GOOD[name], *BAD[name], *GOOD[name][::-1]]
    majority = GOOD[name][:1] * 10  # a few lines decide on the columns
    together = read(folder, name, [*rows, *majority], tmp_path)
    for place, row in enumerate(rows):
        alone = read(folder, name, [*majority, row], tmp_path)
        assert bool(alone.known[-1]) == bool(together.known[place]) == (row in GOOD[name])
        for column, values in together.columns.items():
            assert torch.equal(values[place].nan_to_num(), alone.columns[column][-1].nan_to_num()), column


@pytest.mark.parametrize("name", GOOD)
@pytest.mark.parametrize("more", [{}, {"buckets": "8,16"}], ids=["one length", "buckets"])
def test_a_row_that_cannot_be_used_has_a_gradient_of_zero(
    name: str, more: dict[str, str], folder: Path, tmp_path: Path
) -> None:
    rows = [*GOOD[name] * 5, *BAD[name]]
    prepared = prepare(recipe(folder, name, write_lines(tmp_path / "rows.jsonl", rows), **more))
    assert isinstance(prepared, PreparedTransformer)
    module, records = prepared.built.module, prepared.records
    batch = records.gather(torch.arange(records.num_units))
    each = so.LossGradient(loss_for(module, records)).of(module, batch, batch.units)
    norms = torch.cat(list(each.rows(8))).norm(dim=1)
    assert ((norms > 0) & norms.isfinite()).tolist() == [row in GOOD[name] for row in rows]


def test_words_are_tagged_at_their_first_token(folder: Path, tmp_path: Path) -> None:
    rows = read(folder, "tagger", [WORDS_AND_TAGS] * 3, tmp_path, max_length=8)
    shown = [WORDS[token] for token in rows.inputs["input_ids"][0]]
    assert shown == ["[CLS]", "good", "film", "[UNK]", "plot", "was", "[SEP]", "[PAD]"]
    assert rows.labels[0].tolist() == [-100, 2, 1, -100, -100, 0, -100, -100]
    cut = read(folder, "tagger", [WORDS_AND_TAGS] * 3, tmp_path, max_length=4)
    assert cut.labels[0].tolist() == [-100, 2, 1, -100] and bool(cut.known.all())


def test_a_seventh_of_the_tokens_is_masked_and_always_the_same(folder: Path, tmp_path: Path) -> None:
    texts = [{"text": " ".join(WORDS[6:])} for _ in range(3)] + [{"text": each["text"]} for each in reviews(300)]
    rows, again = (read(folder, "bert", texts, tmp_path) for _ in range(2))
    assert torch.equal(rows.inputs["input_ids"], again.inputs["input_ids"])
    is_masked, real = rows.labels != -100, rows.inputs["input_ids"] > 3
    assert torch.equal(is_masked, rows.inputs["input_ids"] == WORDS.index("[MASK]"))
    assert 0.13 < float(is_masked.sum() / real.sum()) < 0.25 and bool(is_masked.any(dim=1).all())
    assert bool((rows.labels[is_masked] > 5).all())


def test_a_text_of_gpt_is_padded_by_its_end_under_the_mask(folder: Path, tmp_path: Path) -> None:
    rows = read(folder, "gpt", [{"text": "good film"}] * 2, tmp_path, max_length=4)
    assert rows.inputs["input_ids"][0].tolist() == [6, 8, 5, 5]
    assert rows.inputs["attention_mask"][0].tolist() == [1, 1, 0, 0]
    assert rows.labels[0].tolist() == [6, 8, -100, -100]


def test_pairs_of_texts_are_one_row(folder: Path, tmp_path: Path) -> None:
    rows = read(folder, "number", [{"a": "good", "b": "bad film", "y": 1}] * 2, tmp_path,
                text_column="a,b", label_column="y", max_length=8)  # fmt: skip
    assert rows.inputs["input_ids"][0].tolist() == [2, 6, 3, 7, 8, 3, 0, 0] and rows.labels.tolist() == [1.0, 1.0]


@pytest.mark.parametrize(
    ("row", "known"),
    [
        ({"input_ids": [2, 6, 3], "labels": 1}, True),
        ({"input_ids": [2, 6, 3], "attention_mask": [1, 1, 0], "labels": 1}, True),
        ({"input_ids": [2, len(WORDS), 3], "labels": 1}, False),
        ({"input_ids": [2, -1, 3], "labels": 1}, False),
        ({"input_ids": [2, 6.5, 3], "labels": 1}, False),
        ({"input_ids": [2, 1 << 70], "labels": 1}, False),
        ({"input_ids": [], "labels": 1}, False),
        ({"input_ids": "2 6", "labels": 1}, False),
        ({"input_ids": [2, 6], "attention_mask": [1], "labels": 1}, False),
        ({"input_ids": [2, 6], "attention_mask": [0, 0], "labels": 1}, False),
        ({"input_ids": [2, 6], "attention_mask": [1, 7], "labels": 1}, False),
        ({"input_ids": [2, 6], "token_type_ids": [0, 9], "labels": 1}, False),
    ],
)
def test_rows_of_tokens_are_used_if_the_model_has_such_tokens(row, known: bool, folder: Path, tmp_path: Path) -> None:
    usual = {"input_ids": [2, 6, 3], "attention_mask": [1, 1, 1], "token_type_ids": [0, 0, 0], "labels": 0}
    full = {"attention_mask": [1] * len(row["input_ids"]), "token_type_ids": [0] * len(row["input_ids"])} | row
    rows = read(folder, "classifier", [usual] * 4 + [full], tmp_path, max_length=8)
    assert rows.known.tolist() == [True] * 4 + [known]
    assert rows.inputs["input_ids"].shape == (5, 8)


def test_a_recipe_holds_what_was_found_and_repeats_it(folder: Path, tmp_path: Path) -> None:
    wanted = recipe(folder, "classifier", write_lines(tmp_path / "rows.jsonl", [*reviews(50)]))
    first = prepare(wanted)
    assert (first.recipe.task, first.recipe.text_column, first.recipe.label_column, first.recipe.max_length) == (
        TaskName.SEQUENCES, "text", "label", 32,
    )  # fmt: skip
    again = prepare(Recipe.parse(first.recipe.text(), what="the recipe"))
    assert again.recipe == first.recipe
    weights, others = first.built.module.state_dict(), again.built.module.state_dict()
    assert all(torch.equal(x, others[name]) for name, x in weights.items())


def test_a_tokenizer_that_fails_on_every_text_is_refused_and_not_every_row(folder: Path, tmp_path: Path, monkeypatch):
    def fails(self, *texts, **settings):
        raise ValueError("no fast tokenizer")

    monkeypatch.setattr("transformers.tokenization_utils_tokenizers.TokenizersBackend.__call__", fails)
    with pytest.raises(UsageError, match="fails on every text: ValueError: no fast tokenizer"):
        read(folder, "classifier", reviews(10), tmp_path)
