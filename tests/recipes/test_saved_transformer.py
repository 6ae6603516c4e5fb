"""Saved transformers: what is loaded, what is trained, how many classes there are, and that no code is run."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from saved_transformers import SIZES, made, saved, tokenizer
from transformers import AutoConfig, BertModel, GPT2Model

from sordino.errors import UsageError
from sordino.recipes.recipe import Recipe
from sordino.recipes.saved_transformer import SavedTransformer, write_saved
from sordino.recipes.transformer_settings import TaskName


def recipe(path: Path, **settings: Any) -> Recipe:
    return Recipe("rows.jsonl", f"hf:{path}", epsilon=8.0, **settings)


def opened(path: Path, **settings: Any) -> SavedTransformer:
    return SavedTransformer.open(recipe(path, **settings))


def loaded(path: Path, seed: int = 0, **settings: Any) -> torch.nn.Module:
    return opened(path, **settings).load(recipe(path, **settings), seed=seed)


def changed(path: Path, **entries: Any) -> Path:
    """The folder, with other entries in its config."""
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps(config | entries))
    return path


@pytest.mark.parametrize(
    ("name", "task"),
    [("bert", TaskName.MASKED), ("classifier", TaskName.SEQUENCES), ("tagger", TaskName.TOKENS),
     ("gpt", TaskName.NEXT_TOKEN), ("vit", TaskName.IMAGES)],
)  # fmt: skip
def test_the_task_is_that_of_the_class_that_was_saved(name: str, task: TaskName, tmp_path: Path) -> None:
    path = saved(name, tmp_path)
    found = opened(path)
    assert found.task is task
    weights = found.load(recipe(path), seed=0).state_dict()
    assert all(torch.equal(x, weights[key]) for key, x in made(name).state_dict().items())


def test_a_model_without_a_task_needs_one(tmp_path: Path) -> None:
    BertModel(transformers.BertConfig(**SIZES)).save_pretrained(tmp_path / "plain")
    with pytest.raises(UsageError, match="was saved as BertModel, whose task is not known"):
        opened(tmp_path / "plain")
    assert opened(tmp_path / "plain", task="masked-lm").task is TaskName.MASKED
    GPT2Model(transformers.GPT2Config(vocab_size=9, n_embd=8, n_layer=1, n_head=2)).save_pretrained(tmp_path / "gpt")
    assert opened(tmp_path / "gpt", task="causal-lm").task is TaskName.NEXT_TOKEN


def test_classes_are_those_of_a_trained_head_or_declared(tmp_path: Path) -> None:
    classifier, bert = saved("classifier", tmp_path), saved("bert", tmp_path)
    as_saved, renamed = opened(classifier), opened(classifier, classes="no,yes")
    assert (as_saved.num_classes, as_saved.class_names, as_saved.has_head) == (2, ("neg", "pos"), True)
    assert (renamed.num_classes, renamed.class_names, renamed.has_head) == (2, ("no", "yes"), True)
    more, number = opened(classifier, classes="5"), opened(classifier, classes="1")
    assert (more.num_classes, more.class_names, more.has_head) == (5, (), False)
    assert (number.num_outputs, number.num_classes) == (1, None)
    with pytest.raises(UsageError, match="saved as BertForMaskedLM, without classes for sequence-classification"):
        opened(bert, task="sequence-classification")
    with pytest.raises(UsageError, match="must be at least 2 for token-classification, got 1"):
        opened(bert, task="token-classification", classes="1")


def test_a_new_head_comes_from_the_seed_and_the_rest_is_as_saved(tmp_path: Path, caplog) -> None:
    path = saved("classifier", tmp_path)
    with caplog.at_level(logging.WARNING, "sordino"):
        first, again, other = (loaded(path, seed, classes="3").state_dict() for seed in (0, 0, 1))
    as_saved = made("classifier").state_dict()
    assert first["classifier.weight"].shape == (3, 8)
    assert not torch.equal(first["classifier.weight"], other["classifier.weight"])
    for name, x in first.items():
        assert torch.equal(x, again[name])
        assert name.startswith("classifier.") or torch.equal(x, as_saved[name])
    assert not caplog.records


def test_weights_that_are_missing_are_named_and_those_of_another_model_are_refused(tmp_path: Path, caplog) -> None:
    path = saved("classifier", tmp_path)
    weights = {name: x for name, x in made("classifier").state_dict().items() if "classifier" not in name}
    made("classifier").save_pretrained(path, state_dict=weights)
    with caplog.at_level(logging.WARNING, "sordino"):
        loaded(path)
    assert "has no weights for classifier.bias, classifier.weight: they begin at random" in caplog.text
    made("classifier").save_pretrained(path, state_dict={"unknown": torch.zeros(1)})
    with pytest.raises(UsageError, match=r"no weight in .* has a name of BertForSequenceClassification"):
        loaded(path)


@pytest.mark.parametrize(
    ("settings", "trained"),
    [
        ({}, lambda name: True),
        ({"train_only": "head"}, lambda name: name.startswith("classifier.")),
        ({"train_only": "biases"}, lambda name: name.startswith("classifier.") or name.endswith("bias")),
        ({"lora": 2}, lambda name: "lora_" in name or "modules_to_save" in name),
    ],
)
@pytest.mark.parametrize("name", ["classifier", "vit"])
def test_what_is_trained_is_what_the_recipe_says(name: str, settings, trained, tmp_path: Path) -> None:
    model = loaded(saved(name, tmp_path), **settings)
    assert not any(module.training for module in model.modules())  # no dropout
    found = {name: parameter.requires_grad for name, parameter in model.named_parameters()}
    assert found == {name: trained(name) for name in found} and any(found.values())
    assert not any("lora_" in name and "classifier" in name for name in found)


def test_half_precision_is_trained_in_single_precision(tmp_path: Path) -> None:
    made("classifier").to(torch.bfloat16).save_pretrained(tmp_path / "half")
    assert {x.dtype for x in loaded(tmp_path / "half").parameters()} == {torch.float32}


def test_nothing_is_asked_of_the_network_unless_it_is_allowed(tmp_path: Path, monkeypatch) -> None:
    asked = []

    def from_pretrained(path: str, **settings: Any) -> Any:
        asked.append((path, settings))
        raise OSError("no network in tests")

    monkeypatch.setattr(AutoConfig, "from_pretrained", from_pretrained)
    with pytest.raises(UsageError, match="add --allow-download"):
        SavedTransformer.open(Recipe("rows.jsonl", "hf:google/bert", epsilon=8.0))
    assert not asked
    with pytest.raises(UsageError, match="cannot be loaded: OSError"):
        SavedTransformer.open(Recipe("rows.jsonl", "hf:google/bert", epsilon=8.0, allow_download=True))
    with pytest.raises(UsageError, match="cannot be loaded: OSError"):
        opened(saved("gpt", tmp_path))
    assert [(path, s["local_files_only"], s["trust_remote_code"]) for path, s in asked] == [
        ("google/bert", False, False), (str(tmp_path / "gpt"), True, False),
    ]  # fmt: skip


def test_no_code_in_or_beside_a_model_is_run(tmp_path: Path) -> None:
    ran = tmp_path / "ran"
    code = f"open({str(ran)!r}, 'w').close()\n"
    for name, entries in (
        (
            "unknown",
            {"model_type": "mine", "auto_map": {"AutoConfig": "code.Config", "AutoModelForCausalLM": "code.M"}},
        ),
        ("kernel", {"attn_implementation": "somebody/kernel"}),
        ("quantized", {"quantization_config": {"quant_method": "somebody"}}),
    ):
        path = changed(saved("gpt", tmp_path / name), **entries)
        (path / "code.py").write_text(code)
        with pytest.raises(UsageError, match=r"custom code|names code|quantized"):
            loaded(path)
    known = changed(saved("gpt", tmp_path / "known"), auto_map={"AutoModelForCausalLM": "code.M"})
    (known / "code.py").write_text(code)
    assert type(loaded(known)).__name__ == "GPT2LMHeadModel"
    assert not ran.exists()


def test_pickled_weights_are_not_read(tmp_path: Path) -> None:
    path = saved("gpt", tmp_path)
    torch.save(made("gpt").state_dict(), path / "pytorch_model.bin")
    (path / "model.safetensors").unlink()
    with pytest.raises(UsageError, match=r"the weights in .* cannot be loaded: OSError"):
        loaded(path)


def test_a_tokenizer_that_is_missing_or_of_another_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="has no tokenizer: save it there"):
        opened(saved("classifier", tmp_path, with_tokenizer=False)).tokenizer()
    larger = tokenizer("bert")
    larger.add_tokens(["another"])
    larger.save_pretrained(tmp_path / "classifier")
    with pytest.raises(UsageError, match="has 18 tokens, and the model 17"):
        opened(tmp_path / "classifier").tokenizer()


@pytest.mark.parametrize(
    ("name", "entries", "said"),
    [
        ("classifier", {"problem_type": "multi_label_classification"}, "several labels or numbers for a row"),
        ("classifier", {"problem_type": "regression"}, "several labels or numbers for a row"),
        ("bert", {"is_encoder_decoder": True}, "from sequence to sequence"),
    ],
)
def test_tasks_that_the_commands_do_not_have_are_left_to_python(name, entries, said: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=said):
        opened(changed(saved(name, tmp_path), **entries))


def test_what_is_written_may_be_published_and_leaves_the_settings_of_transformers(tmp_path: Path) -> None:
    logging_of = transformers.utils.logging
    before = logging_of.get_verbosity(), logging_of.is_progress_bar_enabled()
    write_saved(tmp_path / "model", made("gpt"), tokenizer("gpt"))
    assert {oct(path.stat().st_mode & 0o044) for path in (tmp_path / "model").iterdir()} == {"0o44"}
    assert [path.name for path in tmp_path.iterdir()] == ["model"]
    assert (logging_of.get_verbosity(), logging_of.is_progress_bar_enabled()) == before
