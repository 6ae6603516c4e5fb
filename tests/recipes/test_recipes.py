"""Recipes: what they say survives a file, what is wrong with them is said before any data is touched."""

from __future__ import annotations

import importlib
import re
from dataclasses import MISSING, dataclass, fields, replace
from pathlib import Path
from typing import Literal

import pytest
import typer
from hypothesis import example, given
from hypothesis import strategies as st
from torch import nn
from typer.testing import CliRunner

import sordino as so
from sordino.accounting import Adjacency
from sordino.attacks.audit.threat_models import InGradients, InRows
from sordino.cli.options import with_settings
from sordino.data import Facts
from sordino.encodings import Freeze, FreezeByMagnitude, RandomSparsify
from sordino.errors import StateError, UsageError
from sordino.kernel.augmentation import Crop, Flip, Jitter
from sordino.kernel.sampling import BallsInBins, Cyclic, FixedSize, Poisson, Shuffled, TruncatedPoisson
from sordino.recipes import Recipe, carry_out
from sordino.recipes.defaults import defaults_for
from sordino.recipes.methods import batches_of, method_of
from sordino.recipes.planning import Question, solve
from sordino.recipes.predict import parse_facts
from sordino.recipes.prepared import rehearse
from sordino.recipes.settings import SamplerName, declared, setting
from sordino.recipes.stages import parse_augmentation, parse_averaging, stages_of
from sordino.training.averaging import Ema, Tail
from sordino.training.run_folder import RunFolder
from sordino.tuning.search import Search

LEAST = {"data": "digits", "model": "linear", "epsilon": 3.0, "delta": 1e-4}
OTHERS = {
    "data": "some folder/people.csv",
    "model": "mlp",
    "epsilon": 1,
    "delta": 1e-7,
    "method": "noisy-cgd",
    "loss": "nets.py:own_loss",
    "schema": "people.toml",
    "gates": 12,
    "batch_size": 64,
    "epochs": 2.5,
    "steps": 7,
    "learning_rate": 0.125,
    "clip": 0.1,
    "noise": "optimized:laplace:flat",
    "class_weights": "1,2,3,4,5,6,7,8,9,10",
    "optimizer": "adam",
    "momentum": 0.5,
    "weight_decay": 1e-3,
    "schedule": "cosine:0.1:0.05",
    "averaging": "ema:0.99",
    "sparsify": 0.5,
    "freeze": 0.25,
    "trailing_steps": 5,
    "radius": 2.5,
    "views": 4,
    "augment": "flip,crop:2",
    "precision": "bfloat16",
    "sampler": "balls-in-bins",
    "adjacency": "replace-one",
    "expected_examples": 1000,
    "seed": 0,
    "initial_seed": 3,
    "physical_batch_size": 16,
    "allow_weak": True,
    "allow_large_delta": True,
}
OF_TRANSFORMERS = {
    "task": "causal-lm",
    "text_column": "premise,hypothesis",
    "label_column": "score",
    "classes": "no,yes",
    "max_length": 64,
    "buckets": "32,64",
    "test_data": "public.jsonl",
    "lora": 4,
    "train_only": "biases",
    "allow_download": True,
}
OTHERS |= OF_TRANSFORMERS


@pytest.fixture
def untouched(monkeypatch: pytest.MonkeyPatch) -> None:
    """No data may be read."""

    def load(*arguments: object, **named: object) -> None:
        raise AssertionError("data was touched")

    monkeypatch.setattr(importlib.import_module("sordino.recipes.prepared"), "load", load)


def text_of(**entries: object) -> str:
    return Recipe(**(LEAST | entries)).text()


def test_every_setting_is_tried_with_another_value_than_its_own() -> None:
    assert OTHERS.keys() == {field.name for field in fields(Recipe)}
    assert all(field.default != OTHERS[field.name] for field in fields(Recipe))


HIDDEN = {"model": "gated-relu", "method": "noisy-cgd"}
NEEDS = {
    "method": HIDDEN,
    "gates": {"model": "gated-relu"},
    "trailing_steps": HIDDEN,
    "radius": HIDDEN,
    "expected_examples": {"adjacency": "add-or-remove"},
    **{name: {"model": "hf:models/bert"} for name in OF_TRANSFORMERS},
}


@pytest.mark.parametrize("name", OTHERS)
def test_each_setting_survives_a_file(name: str, tmp_path: Path) -> None:
    recipe = Recipe(**(LEAST | NEEDS.get(name, {}) | {name: OTHERS[name]}))
    path = tmp_path / "recipe.toml"
    path.write_text(recipe.text())
    assert Recipe.read(path) == recipe
    assert getattr(Recipe.read(path), name) == OTHERS[name]


@given(data=st.text(min_size=1).filter(lambda text: "\0" not in text))
@example(data="three ''' quotes and three \"\"\" more")
@example(data="a\nb\r\t\x7f\x1b[2J\u2028 = #[x]\\")
@example(data="-rf")
def test_any_path_survives_a_file(data: str) -> None:
    recipe = Recipe(**(LEAST | {"data": data}))
    assert Recipe.parse(recipe.text(), what="the recipe") == recipe


def _with_own_clip(plan, name, prepared):
    return replace(plan, clip=so.Normalise(plan.clip.bound)) if name == "normalise" else plan


@dataclass(frozen=True)
class WithOneMoreSetting(Recipe):
    """A recipe with one entry more, which is all that a new setting needs."""

    clipping: Literal["norm", "normalise"] = setting("norm", "Clip: norm or normalise [norm].", stage=_with_own_clip)


def test_a_new_setting_is_one_entry_from_which_all_else_follows():
    taken = {}

    @with_settings("train", WithOneMoreSetting)
    def command(**settings):
        taken.update(settings)

    app = typer.Typer()
    app.command()(command)
    assert "Clip: norm or normalise" in CliRunner().invoke(app, ["--help"]).output
    assert CliRunner().invoke(app, ["--epsilon", "3", "--clipping", "normalise"]).exit_code == 0
    recipe = WithOneMoreSetting("digits", "linear", **taken)
    assert 'clipping = "normalise"' in recipe.text()
    assert WithOneMoreSetting.parse(recipe.text(), what="the recipe") == recipe
    assert WithOneMoreSetting.json_schema()["properties"]["clipping"]["enum"] == ["norm", "normalise"]
    with pytest.raises(UsageError, match="clipping must be one of norm, normalise, got 'magic'"):
        recipe.changed(clipping="magic")
    plans = [stages_of(rehearse(each)) for each in (recipe, recipe.changed(clipping="norm"))]
    assert [type(plan.clip) for plan in plans] == [so.Normalise, so.ClipByNorm]


WRONG = {
    'epsilon = "3"': "epsilon must be a finite number above 0, got str of length 1",
    "epsilon = true": "epsilon must be a finite number above 0, got True",
    "epsilon = nan": "only finite numbers",
    "epsilon = inf": "only finite numbers",
    "epsilon = 0": "epsilon must be",
    "epsilon = 20.5": "--allow-weak",
    "epsilon = 2\nepsilon = 3": "is not TOML",
    f"epsilon = 1{'0' * 400}": "epsilon must be",
    "delta = 1": "delta must be",
    "delta = -1e-5": "delta must be",
    "epochs = true": "epochs must be",
    "epochs = 0": "epochs must be",
    f"epochs = 1{'0' * 400}": "epochs must be",
    "epochs = 1\nsteps = 1": "epochs and steps exclude each other",
    "steps = 1.0": "steps must be a whole number",
    "steps = 0": "steps must be",
    "batch_size = 10.0": "batch_size must be a whole number",
    "batch_size = 0": "batch_size must be",
    "batch_size = 1979-05-27": "batch_size must be",
    "lr = -1": "lr must be",
    'lr = "high"': "lr must be",
    "clip = 0": "clip must be",
    "momentum = 1": "momentum must be in [0, 1)",
    "weight_decay = -1": "weight_decay must be",
    'optimizer = "lbfgs"': "optimizer must be one of sgd, adam, got 'lbfgs'",
    'method = "sgd"': "method must be one of dp-sgd, noisy-cgd, got 'sgd'",
    'model = "liner"': "model must be one of linear, ",
    'model = ["linear"]': "model must be a string, got list of length 1",
    "data = 3": "data must be a string, got 3",
    'data = ""': "data must be a non-empty UTF-8 string without NUL, got ''",
    'data = "a\\u0000b"': "data must be a non-empty UTF-8 string",
    "schema = [1]": "schema must be a string, got list of length 1",
    'schema = "a\\u0000.toml"': "schema must be a non-empty UTF-8 string",
    "schedule = 3": "schedule must be a string",
    'schedule = "plateau"': "schedule must be",
    'averaging = "ema:2"': "averaging must be none, ema:DECAY with DECAY in [0, 1) or tail:FRACTION with",
    'averaging = "tail:0"': "with FRACTION in (0, 1], got 'tail:0'",
    'schedule = "step:5"': "schedule must be step:PLACES:FACTOR with rising PLACES in (0, 1), as 0.5,0.75, and",
    'averaging = "mean"': "averaging must be none, ema:DECAY with DECAY",
    'averaging = "ema:"': "averaging must be",
    "views = 0": "views must be a whole number from 1 to 64, got 0",
    "views = 65": "views must be a whole number from 1 to 64, got 65",
    'augment = "rotate"': "augment must be",
    'augment = "crop:x"': "augment must be",
    'augment = "crop"': "augment must be",
    'augment = "crop:0"': "augment must be none, or a list of flip, crop:PIXELS and jitter:STD with PIXELS and STD",
    'augment = "jitter:nan"': "with PIXELS and STD above 0, got 'jitter:nan'",
    'augment = "flip:2"': "augment must be",
    "augment = true": "augment must be a string, got True",
    'precision = "float16"': "precision must be one of float32, bfloat16, got 'float16'",
    "precision = 16": "precision must be one of",
    'sampler = "poison"': "sampler must be one of poisson, ",
    'adjacency = "swap"': "adjacency must be one of",
    'adjacency = "add-or-remove"': "expected_examples and adjacency add-or-remove",
    "expected_examples = 100": "expected_examples and adjacency add-or-remove",
    'sampler = "shuffled"\nadjacency = "add-or-remove"\nexpected_examples = 100': "add-or-remove",
    'adjacency = "add-or-remove"\nexpected_examples = 100\nbatch_size = 101': "batch_size must be",
    "seed = -1": "seed must be",
    "seed = 9223372036854775808": "seed must be",
    'seed = "0"': "seed must be",
    "seed = 1.5": "seed must be",
    "initial_seed = -1": "initial_seed must be",
    "physical_batch_size = 0": "physical_batch_size must be",
    'noise = "laplace"': "noise must be gaussian or optimized:FAMILY:WEIGHTS:COST with FAMILY of blocks, laplace, iso",
    'noise = "optimized:blocks:flat:1"': "and COST of absolute, squared, got 'optimized:blocks:flat:1'",
    'noise = "optimized:round"': "noise must be gaussian or optimized",
    'noise = "optimized"\nsampler = "balls-in-bins"': "noise must be gaussian with sampler balls-in-bins, got",
    'noise = "optimized"\nsampler = "truncated-poisson"': "noise must be gaussian with sampler truncated-poisson",
    "gates = 4": "gates needs model gated-relu or scatter-gated, got 'linear'",
    'model = "gated-relu"\ngates = 0': "gates must be a whole number",
    'model = "gated-relu"\ngates = 100000': "gates must be a whole number",
    "trailing_steps = 4": "trailing_steps needs method noisy-cgd, got dp-sgd",
    "radius = 1.0": "radius needs method noisy-cgd, got dp-sgd",
    'allow_weak = "yes"': "allow_weak must be true or false, got str of length 3",
    "allow_large_delta = 1": "allow_large_delta must be true or false, got 1",
    "epsilom = 3": "unknown key 'epsilom': did you mean 'epsilon'?",
    "[data]\nname = 3": "data must be",
    "lr = ": "is not TOML",
}


HIDDEN_LINES = 'model = "gated-relu"\nmethod = "noisy-cgd"\n'
WRONG |= {
    HIDDEN_LINES + line: said
    for line, said in {
        "momentum = 0.9": "momentum must be 0 with noisy-cgd, got 0.9: the proof needs plain steps",
        'optimizer = "adam"': "optimizer must be sgd with noisy-cgd, got 'adam': the proof needs plain steps",
        'averaging = "ema:0.9"': "averaging must be none with noisy-cgd, got 'ema:0.9': the average is computed",
        "views = 2": "views must be 1 with noisy-cgd, got 2",
        'augment = "flip"': "augment must be none with noisy-cgd, got 'flip'",
        'precision = "bfloat16"': "precision must be float32 with noisy-cgd, got 'bfloat16': a rounded",
        'sampler = "poisson"': "sampler must be cyclic with noisy-cgd, got 'poisson': the proof needs fixed disjoint",
        'sampler = "shuffled"': "sampler must be cyclic with noisy-cgd, got 'shuffled'",
        'adjacency = "add-or-remove"\nexpected_examples = 9': "adjacency must be zero-out or replace-one with noisy",
        "lr = 2.0": "lr must be below 2 / (1 + weight_decay) = 2 with noisy-cgd, got 2.0: longer steps do not contract",
        "lr = 1.9\nweight_decay = 0.1": "lr must be below 2 / (1 + weight_decay) = 1.81818 with noisy-cgd, got 1.9",
        'lr = 1.9\nschedule = "step:0.5:2.0"': "longer steps do not contract",
        'noise = "optimized"': "noise must be gaussian with noisy-cgd, got 'optimized': the proof is about Gaussian",
        "radius = 0": "radius must be a finite number above 0",
        "trailing_steps = -1": "trailing_steps must be a whole number",
        "trailing_steps = 1000000000": "trailing_steps must be a whole number",
    }.items()
}
WRONG |= {
    f'model = "{name}"\nmethod = "noisy-cgd"': (
        f"model must be gated-relu or scatter-gated with noisy-cgd, got '{name}': the proof needs a loss that is convex"
    )
    for name in ("linear", "two-layer", "h-cnn")
}


@pytest.mark.parametrize("line", WRONG)
def test_a_wrong_recipe_is_refused_in_one_line_before_data_is_touched(
    line: str, tmp_path: Path, refused, untouched: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "recipe.toml"
    names = {part.split(" ")[0].strip("[]") for part in line.splitlines()}
    rest = [f"{name} = {value!r}" for name, value in LEAST.items() if name not in names]
    path.write_text("\n".join([*rest, line]))
    assert WRONG[line] in refused("train", path)
    assert list(tmp_path.iterdir()) == [path]


def test_old_and_new_names_of_the_learning_rate_are_read_and_the_old_one_is_written(tmp_path: Path) -> None:
    recipe = Recipe(**LEAST, learning_rate=0.5)
    assert "\nlr = 0.5\n" in recipe.text() and "learning_rate" not in recipe.text()
    assert Recipe.parse(recipe.text().replace("lr =", "learning_rate ="), what="the recipe") == recipe


def test_the_json_schema_has_the_keys_ranges_and_help_of_the_declaration() -> None:
    schema = Recipe.json_schema()
    assert schema["required"] == ["data", "model", "epsilon"] and schema["additionalProperties"] is False
    assert schema["properties"].keys() == {each.key for each in declared(Recipe).values()}
    assert all(entry["description"] for entry in schema["properties"].values())
    assert {"type": "number", "exclusiveMinimum": 0} in schema["properties"]["lr"]["anyOf"]
    assert schema["properties"]["method"]["enum"] == ["dp-sgd", "noisy-cgd"]


@pytest.mark.parametrize("command", ["train", "tune", "plan", "verify"])
def test_each_help_text_is_a_short_sentence_that_names_no_other_default(command: str) -> None:
    texts = {name: each.help_for(command) for name, each in declared(Recipe).items()}
    assert all(text is None or (len(text) <= 110 and text.endswith(".")) for text in texts.values()), texts
    for name, each in declared(Recipe).items():
        said = re.search(r"\[([^\[\]]+)\]\.$", texts[name] or "")
        if said and each.default is not None:
            assert said[1] == (f"{each.default:g}" if each.kind in ("number", "integer") else str(each.default)), name


def test_samplers_have_the_names_that_recipes_have_for_them() -> None:
    classes = {Poisson, TruncatedPoisson, BallsInBins, Shuffled, Cyclic, FixedSize}
    assert {kind.name for kind in classes} == set(SamplerName)


def test_without_a_delta_a_recipe_has_that_of_a_plan_for_the_same_examples() -> None:
    recipe = Recipe("digits", "linear", epsilon=3.0)
    prepared = rehearse(recipe)
    planned = solve(Question(prepared.examples, 100, steps=4, epsilon=3.0))
    assert recipe.delta is None and prepared.recipe.delta == prepared.delta == planned.guarantee.delta == 1e-4


def test_a_recipe_says_what_is_missing_from_it(tmp_path: Path, refused, untouched: None) -> None:
    path = tmp_path / "recipe.toml"
    path.write_text('data = "digits"')
    assert "model is missing" in refused("train", path)
    assert "give --epsilon, or a recipe" in refused("train", "--data", "digits", "--model", "linear")
    assert "cannot be read" in refused("train", tmp_path / "none.toml")
    assert "Is a directory" in refused("train", tmp_path)
    path.write_bytes(b"#" * 300_000)
    assert "longer than" in refused("train", path)
    path.write_bytes(b"\xff")
    assert "must be UTF-8" in refused("train", path)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--epsilon", "three"], "must be a number, got 'three'"),
        (["--epsilon", "nan"], "epsilon must be"),
        (["--epsilon", "-1"], "epsilon must be"),
        (["--delta", "0"], "delta must be"),
        (["--batch-size", "0"], "--batch-size must be a whole number from 1 to"),
        (["--batch-size", "1.5"], "must be a whole number"),
        (["--steps", "9" * 5000], "must be a whole number"),
        (["--steps", "1", "--epochs", "1"], "--epochs and --steps exclude each other"),
        (["--seed", "-1"], "seed must be"),
        (["--model", "liner"], "model must be one of"),
        (["--schedule", "plateau"], "--schedule must be constant, warmup, cosine or step"),
        (["--schedule", "step:5"], "--schedule must be step:PLACES:FACTOR with rising PLACES in (0, 1)"),
        (["--averaging", "ema:2"], "--averaging must be none, ema:DECAY with DECAY in [0, 1) or"),
        (["--views", "100"], "--views must be a whole number from 1 to 64, got 100"),
        (["--adjacency", "add-or-remove"], "--expected-examples and --adjacency add-or-remove"),
        (["--draw-again"], "--draw-again needs --resume"),
        (["--learning-rate", "-1"], "--learning-rate must be a finite number above 0, got -1.0"),
        (["--lr", "-1"], "--learning-rate must be"),
        (["--sampler", "poison"], "--sampler must be one of poisson, "),
        (["--learning-rat", "1"], "No such option"),
    ],
)
def test_wrong_options_are_refused_in_one_line_before_data_is_touched(
    options: list[str], said: str, tmp_path: Path, refused, untouched: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    least = [f"--{name}={value}" for name, value in LEAST.items()]
    assert said in refused("train", *least, *options)
    assert list(tmp_path.iterdir()) == []


def test_options_change_what_a_recipe_says_and_steps_take_the_place_of_epochs() -> None:
    recipe = Recipe(**LEAST, epochs=3.0, seed=5, learning_rate=1.0)
    changed = recipe.changed(steps=7, seed=0, learning_rate=0.5)
    assert (changed.steps, changed.epochs, changed.seed, changed.learning_rate) == (7, None, 0, 0.5)
    assert changed.changed(epochs=2.0).steps is None
    assert recipe.changed() == recipe
    with pytest.raises(UsageError, match="exclude each other"):
        recipe.changed(steps=7, epochs=1.0)


def test_what_is_left_open_is_decided_and_what_was_said_stays() -> None:
    defaults = defaults_for("linear", examples=1000, epsilon=3.0)
    recipe = Recipe(**LEAST, learning_rate=0.125, steps=9, seed=0)
    settings = recipe.settings(defaults)
    assert (settings.learning_rate, settings.clip) == (0.125, defaults.clip)
    assert recipe.settings(defaults) == settings
    decided = recipe.decided(settings, examples=1000)
    assert (decided.steps, decided.epochs, decided.learning_rate, decided.batch_size) == (
        9,
        None,
        0.125,
        defaults.batch_size,
    )
    open_still = {field.name for field in fields(Recipe) if getattr(decided, field.name) is None}
    of_others = {"gates", "trailing_steps", "radius", "noise", "class_weights", "loss"}
    assert open_still == {"schema", "epochs", "adjacency", "expected_examples", "physical_batch_size"} | of_others | {
        *OF_TRANSFORMERS
    }
    other = defaults_for("dp-cnn", examples=10, epsilon=1.0)
    assert decided.settings(other) == replace(settings, epochs=other.epochs)


def test_the_first_weights_of_a_secure_run_have_a_seed_of_their_own() -> None:
    defaults = defaults_for("linear", examples=1000, epsilon=3.0)
    seeds = {Recipe(**LEAST).settings(defaults).initial_seed for _ in range(4)}
    assert len(seeds) > 1
    assert Recipe(**LEAST, initial_seed=0).settings(defaults).initial_seed == 0


@pytest.mark.parametrize("model", ["gated-relu", "scatter-gated"])
@pytest.mark.parametrize("weight_decay", [0.0, 0.05, 3.0])
def test_what_training_in_hiding_leaves_open_is_decided_within_its_proof(model: str, weight_decay: float) -> None:
    recipe = Recipe(**(LEAST | HIDDEN | {"model": model, "weight_decay": weight_decay, "steps": 3, "seed": 0}))
    settings = recipe.settings(method_of(recipe).defaults(recipe, 1000))
    decided = recipe.decided(settings, examples=1000)
    assert (decided.sampler, decided.momentum, decided.averaging) == ("cyclic", 0.0, "none")
    assert decided.learning_rate < 2 / (1 + weight_decay) and decided.gates > 1
    assert Recipe.parse(decided.text(), what="the recipe") == decided


@pytest.mark.parametrize(
    ("asked", "batches", "epochs"),
    [({"epochs": 20.0}, 14, 20), ({"epochs": 0.5}, 14, 1), ({"steps": 15}, 14, 2), ({"batch_size": 1437}, 1, 68)],
)
def test_training_in_hiding_takes_whole_epochs(asked: dict[str, float], batches: int, epochs: int) -> None:
    recipe = Recipe(**(LEAST | HIDDEN | {"batch_size": 100, "adjacency": "replace-one"} | asked))
    sampler = batches_of(recipe, recipe.settings(method_of(recipe).defaults(recipe, 1437)), 1437)
    assert sampler == Cyclic(batches, epochs, Adjacency.REPLACE_ONE)
    assert recipe.divisor(1437) == -(-1437 // batches)  # the largest batch


def test_defaults_never_ask_for_more_examples_than_there_are() -> None:
    for examples in (1, 2, 6, 7, 100):
        assert 1 <= defaults_for("scatter-linear", examples=examples, epsilon=1.0).batch_size <= examples


def test_averages_and_augmentations_are_what_they_are_spelled() -> None:
    assert [parse_averaging(text) for text in ("none", "ema", "ema:0.9", "tail:0.25")] == [
        None, Ema(), Ema(0.9), Tail(0.25)
    ]  # fmt: skip
    assert parse_augmentation("none") == ()
    assert parse_augmentation("flip, crop:4,jitter:0.1") == (Flip(), Crop(4), Jitter(0.1))


def test_the_recipe_of_a_run_that_was_changed_since_is_a_damaged_state(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    with pytest.raises(UsageError, match="there is no run"):
        Recipe.of_run(folder)
    folder.write_recipe(text_of())
    assert Recipe.of_run(folder) == Recipe(**LEAST)
    folder.write_recipe(text_of().replace("3.0", "-3.0"))
    with pytest.raises(StateError, match="epsilon must be"):
        Recipe.of_run(folder)


FACTS = {"name": "people", "input_shape": [4], "num_classes": 2, "input_range": [-1.0, 1.0], "class_names": ["a", "b"]}


def test_facts_come_back_as_they_were() -> None:
    assert parse_facts(FACTS, what="facts") == Facts("people", (4,), 2, (-1.0, 1.0), class_names=("a", "b"))
    number = {"name": "people", "input_shape": [4], "num_classes": None, "target_range": [0, 9]}
    assert parse_facts(number, what="facts").target_range == (0, 9)


@pytest.mark.parametrize(
    "change",
    [
        {"name": 3},
        {"input_shape": None},
        {"input_shape": []},
        {"input_shape": [0]},
        {"input_shape": [4.0]},
        {"input_shape": [True]},
        {"input_shape": [10**12]},
        {"num_classes": "2"},
        {"num_classes": 1},
        {"num_classes": None},
        {"num_classes": 3},
        {"input_range": [1]},
        {"input_range": [1, -1]},
        {"class_names": ["a", 3]},
        {"target_range": "wide"},
        {"colour": "green"},
    ],
)
def test_damaged_facts_are_refused(change: dict[str, object]) -> None:
    with pytest.raises(StateError, match="facts"):
        parse_facts(FACTS | change, what="facts")


def test_required_settings_are_those_without_a_default() -> None:
    assert LEAST.keys() - {"delta"} == {field.name for field in fields(Recipe) if field.default is MISSING}


@pytest.mark.parametrize("setting", ["sparsify", "freeze"])
def test_a_masked_training_promises_the_same_and_has_its_masks_from_the_recipe(tmp_path: Path, setting: str) -> None:
    seen = []
    for share in (0.0, 0.9):
        recipe = Recipe(**(LEAST | {"steps": 8, "batch_size": 400, setting: share, "seed": 0, "initial_seed": 1}))
        folder = carry_out(recipe, tmp_path / str(share), progress=False)
        assert getattr(Recipe.of_run(folder), setting) == share
        seen.append((folder.privacy()["epsilon"], (folder.path / "model.safetensors").read_bytes()))
    assert seen[0][0] == seen[1][0] and seen[0][1] != seen[1][1]


def test_the_smallest_weights_of_the_network_that_is_trained_are_frozen_in_quarters() -> None:
    prepared = rehearse(Recipe(**(LEAST | {"steps": 8, "batch_size": 400, "freeze": 0.77})))
    assert method_of(prepared.recipe).plan(prepared).encoding == Freeze.by_magnitude(nn.Linear(1, 1), stages=(2, 4, 6))
    assert method_of(prepared.recipe).plan(prepared).encoding.model is prepared.built.module
    both = rehearse(replace(prepared.recipe, sparsify=0.5))
    combined = method_of(both.recipe).plan(both).encoding
    assert isinstance(combined.first, FreezeByMagnitude) and isinstance(combined.second, RandomSparsify)


def test_a_search_refuses_noise_that_it_would_not_use() -> None:
    with pytest.raises(UsageError, match="noise must be gaussian in a search, got 'optimized'"):
        Search().check(Recipe(**LEAST, noise="optimized"))


def test_a_search_and_an_audit_of_gradients_refuse_to_freeze_copies() -> None:
    recipe = Recipe(**(LEAST | {"freeze": 0.5}))
    for check in (Search().check, InGradients().check):
        with pytest.raises(UsageError, match=r"freeze must be 0 .*, got 0\.5: its masks"):
            check(recipe)
    InRows().check(recipe)


@pytest.mark.parametrize("setting", ["sparsify", "freeze"])
@pytest.mark.parametrize("share", [-0.1, 1.0, float("nan")])
def test_a_share_outside_its_range_is_refused(setting: str, share: float) -> None:
    with pytest.raises(UsageError, match=f"{setting} must be"):
        Recipe(**(LEAST | {setting: share}))


@pytest.mark.parametrize("setting", ["sparsify", "freeze"])
def test_training_in_hiding_is_neither_sparsified_nor_frozen(setting: str) -> None:
    with pytest.raises(UsageError, match=rf"{setting} must be 0 with noisy-cgd, got 0\.5: the proof is about steps"):
        Recipe(**(LEAST | HIDDEN | {setting: 0.5}))
