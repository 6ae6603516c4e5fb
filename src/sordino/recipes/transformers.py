"""Preparation of a recipe whose model is `hf:PATH`: the model, its rows and its loss.

The model and its tokenizer are checked before a row is read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from torch import nn

from sordino._input import strict_json
from sordino._input.files import read_bytes
from sordino.data import DataSet, Facts, Split, load
from sordino.data.text_rows import TextRows
from sordino.errors import UsageError
from sordino.huggingface import as_records
from sordino.huggingface.tasks import Transformer
from sordino.kernel.buckets import Buckets
from sordino.kernel.records import Records
from sordino.models import Built
from sordino.models.registry import pixels
from sordino.recipes.defaults import TrainingSettings
from sordino.recipes.methods import method_of
from sordino.recipes.networks import network_inputs, prepared_by
from sordino.recipes.prepared import PreparedRecipe
from sordino.recipes.recipe import Recipe
from sordino.recipes.saved_transformer import SavedTransformer, write_saved
from sordino.recipes.settings import SettingError, declared
from sordino.recipes.token_rows import LABELS, MASK, TOKENS, TokenReader, TokenRows
from sordino.recipes.transformer_settings import TaskName, parse_lengths
from sordino.training.evaluation import Public
from sordino.training.run_folder import RunFolder

PIXELS = "pixel_values"
_SYNTHETIC_ROWS = 16
_OF_TEXTS = ("text_column", "label_column", "max_length", "buckets", "classes", "test_data")


@dataclass(frozen=True)
class PreparedTransformer(PreparedRecipe):
    """A prepared recipe for a transformer. `reader` reads texts, and is None for images."""

    transformer: SavedTransformer
    reader: TokenReader | None
    test: Public | None = field(repr=False)

    def public_rows(self) -> Public | None:
        return self.test

    def public_facts(self) -> dict[str, object]:
        return {**asdict(self.data.facts), "prepared_by": prepared_words(self.reader, self.built)}


def prepare_transformer(recipe: Recipe, *, rehearsed: bool = False) -> PreparedTransformer:
    """Loads the model, then reads the rows. With `rehearsed`, a few synthetic rows are in place of the private ones."""
    if recipe.class_weights is not None:
        raise SettingError("{class_weights} goes with other networks than {model} hf:PATH: leave it out.")
    task = SavedTransformer.task_of(recipe)
    prepared = _open_images(recipe) if task is TaskName.IMAGES else _open_texts(recipe)
    if not rehearsed:
        return prepared
    batch = prepared.records.template(_SYNTHETIC_ROWS)
    synthetic = prepared.records.with_rows(batch.inputs, batch.target)
    return replace(prepared, records=synthetic, data=replace(prepared.data, train=Split(batch.inputs[0], batch.target)))


def _open_texts(recipe: Recipe) -> PreparedTransformer:
    for name, usual in (("schema", None), ("views", 1), ("augment", "none")):
        if getattr(recipe, name) != usual:
            raise SettingError(f"{{{name}}} does not go with texts: leave it out.")
    transformer, rows = SavedTransformer.open(recipe), TextRows.open(Path(recipe.data))
    test = None if recipe.test_data is None else TextRows.open(Path(recipe.test_data))
    settings = _settings(recipe, recipe.expected_examples or 10**6)
    module = transformer.load(recipe, seed=settings.initial_seed)
    reader = TokenReader.of(recipe, transformer, rows.columns, Transformer.of(module).arguments.__contains__)
    _give_padding(transformer, module, reader.padding)
    for each in (rows, *(() if test is None else (test,))):
        each.refuse_absent(reader.needed)
    buckets = _buckets(recipe, reader)

    def records_of(found: TokenRows, allow_single: bool = False) -> Records:
        return as_records(module, found.columns, target=LABELS, buckets=buckets, allow_single=allow_single)

    public = None if test is None else Public(records_of(reader.read(test).usable(), allow_single=True))
    found = reader.read(rows)
    facts = Facts(rows.path.stem, (reader.length,), transformer.num_classes, class_names=transformer.class_names)
    data = DataSet(facts, Split(found.inputs[TOKENS], found.labels))
    examples = recipe.expected_examples or len(found.known)
    settings = replace(_settings(recipe, examples), initial_seed=settings.initial_seed)
    chosen = recipe.decided(settings, examples=examples).changed(
        task=transformer.task,
        text_column=",".join(reader.texts),
        label_column=reader.label,
        max_length=None if buckets is not None else reader.length,
    )
    return PreparedTransformer(
        chosen, settings, data, Built(module, None), records_of(found), examples, transformer, reader, public
    )


def _open_images(recipe: Recipe) -> PreparedTransformer:
    for name in _OF_TEXTS:
        if getattr(recipe, name) != declared(Recipe)[name].default:
            raise SettingError(f"{{{name}}} goes with texts, and {{task}} is image-classification: leave it out.")
    data = load(recipe.data, schema=recipe.schema)
    if data.facts.num_classes is None or len(data.facts.input_shape) != 3 or data.train.owners is not None:
        raise UsageError(f"hf: image-classification needs images with classes, and {data.facts.name!r} has others.")
    transformer = SavedTransformer.open(recipe, num_classes=data.facts.num_classes)
    facts = replace(data.facts, **_normalization(Path(transformer.path), data.facts.input_shape[0]))
    examples = recipe.expected_examples or len(data.train.target)
    settings = _settings(recipe, examples)
    built = Built(transformer.load(recipe, seed=settings.initial_seed), pixels(facts))

    def records_of(split: Split, allow_single: bool = False) -> Records:
        images = {PIXELS: network_inputs(built, facts, split.inputs), LABELS: split.target}
        return as_records(built.module, images, target=LABELS, allow_single=allow_single)

    public = None
    if data.test is not None:
        usable = data.test.inputs.flatten(1).isfinite().all(dim=1) & (data.test.target >= 0)
        public = Public(records_of(Split(data.test.inputs[usable], data.test.target[usable]), allow_single=True))
    chosen = recipe.decided(settings, examples=examples).changed(task=TaskName.IMAGES)
    data = replace(data, facts=facts)
    return PreparedTransformer(
        chosen, settings, data, built, records_of(data.train), examples, transformer, None, public
    )


def _settings(recipe: Recipe, examples: int) -> TrainingSettings:
    return recipe.settings(method_of(recipe).defaults(recipe, examples))


def _give_padding(transformer: SavedTransformer, module: nn.Module, padding: int) -> None:
    """Names the padding where the model has none: a classifier of GPT-2 looks for the last token before it."""
    if transformer.task is TaskName.SEQUENCES and getattr(transformer.config, "pad_token_id", None) is None:
        for config in (transformer.config, Transformer.of(module).base.config):
            config.pad_token_id = padding


def _buckets(recipe: Recipe, reader: TokenReader) -> Buckets | None:
    if recipe.buckets is None:
        return None
    if MASK not in reader.names:
        raise SettingError("{buckets} needs a model that takes an attention mask: give {max_length} instead.")
    padding = {name: float(reader.padding) if name == TOKENS else 0.0 for name in reader.names if name != MASK}
    if reader.transformer.task is not TaskName.SEQUENCES:
        padding[LABELS] = -100.0
    return Buckets(parse_lengths(recipe.buckets), padding=padding)


def _normalization(path: Path, channels: int) -> dict[str, Any]:
    """The mean and deviation of a channel that the saved model expects, if it says so."""
    file = path / "preprocessor_config.json"
    if not file.is_file():
        return {}
    found: Any = strict_json.parse(read_bytes(file, at_most=1 << 20), what=repr(str(file)))
    mean, std = (found.get(name) for name in ("image_mean", "image_std"))
    if not found.get("do_normalize", True) or not all(
        isinstance(each, list) and len(each) == channels and all(isinstance(x, (int, float)) for x in each)
        for each in (mean, std)
    ):
        return {}
    return {"mean": tuple(map(float, mean)), "std": tuple(map(float, std))}


def prepared_words(reader: TokenReader | None, built: Built) -> str:
    """How rows become inputs, which must be the same for predictions."""
    return prepared_by(built) if reader is None else f"tokens of {', '.join(reader.texts)}, at most {reader.length}"


def reopen(
    recipe: Recipe, facts: Facts, columns: Sequence[str] = (), folder: Path | None = None
) -> tuple[nn.Module, TokenReader | None]:
    """The model of a run with random weights, and its reader for rows with these columns. No row is read.

    `recipe` has every setting chosen. With `folder`, the config and the tokenizer are those in the run folder.
    """
    is_of_images = recipe.task is TaskName.IMAGES
    transformer = SavedTransformer.open(recipe, num_classes=facts.num_classes if is_of_images else None, folder=folder)
    module = transformer.make(recipe)
    if is_of_images:
        return module, None
    reader = TokenReader.of(recipe, transformer, columns, Transformer.of(module).arguments.__contains__)
    _give_padding(transformer, module, reader.padding)
    return module, reader


def publish(folder: RunFolder, module: nn.Module, reader: TokenReader | None) -> None:
    """Writes `model/` into the folder of a finished run, for `from_pretrained`."""
    module.load_state_dict(folder.model(like=module.state_dict()))
    write_saved(folder.published, module, None if reader is None else reader.tokenizer)
