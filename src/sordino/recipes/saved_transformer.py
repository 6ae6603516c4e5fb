"""Transformers of Hugging Face that were saved in a folder (`save_pretrained`), for `--model hf:PATH`.

Guarantee: no code is run that a folder names or holds. Classes are those of transformers, weights are safetensors, and
nothing is downloaded unless the user allows it. The number of classes is declared by the user or by the saved config.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from logging import INFO, WARNING
from pathlib import Path
from typing import Any

import torch
from torch import nn

from sordino.errors import UsageError
from sordino.gradients.probes import one_line
from sordino.huggingface.tasks import Transformer
from sordino.recipes.recipe import Recipe
from sordino.recipes.settings import SettingError
from sordino.recipes.transformer_settings import TaskName, parse_classes
from sordino.training.callbacks import LOGGER


@dataclass(frozen=True)
class _Task:
    """The class of transformers for a task, the ends of names of models saved for it, and its name in peft."""

    auto: str
    heads: tuple[str, ...]
    peft: str | None = None
    has_classes: bool = True


_TASKS = {
    TaskName.SEQUENCES: _Task("AutoModelForSequenceClassification", ("ForSequenceClassification",), "SEQ_CLS"),
    TaskName.TOKENS: _Task("AutoModelForTokenClassification", ("ForTokenClassification",), "TOKEN_CLS"),
    TaskName.NEXT_TOKEN: _Task("AutoModelForCausalLM", ("ForCausalLM", "LMHeadModel"), "CAUSAL_LM", has_classes=False),
    TaskName.MASKED: _Task("AutoModelForMaskedLM", ("ForMaskedLM",), has_classes=False),
    TaskName.IMAGES: _Task("AutoModelForImageClassification", ("ForImageClassification",)),
}


@dataclass(frozen=True)
class SavedTransformer:
    """A saved transformer and its task, before its weights are loaded. `config` has the declared number of classes.

    `num_outputs` is the number of classes, 1 for a number, or None for a language model. `has_head` says whether the
    saved weights include those of the last layers.
    """

    path: str
    task: TaskName
    config: Any = field(repr=False)
    num_outputs: int | None
    class_names: tuple[str, ...]
    has_head: bool
    allow_download: bool = False

    @classmethod
    def open(cls, recipe: Recipe, *, num_classes: int | None = None, folder: Path | None = None) -> SavedTransformer:
        """Reads the config of the model that a recipe names. `num_classes` are those that the data declares.

        With `folder`, the config is that in the run folder of a finished run.
        """
        path = recipe.model.partition(":")[2] if folder is None else str(folder)
        allow_download = bool(recipe.allow_download) and folder is None
        config = _config(path, allow_download)
        saved_as = tuple(getattr(config, "architectures", None) or ())
        task = _task(recipe, path, saved_as)
        has_head = any(name.endswith(_TASKS[task].heads) for name in saved_as)
        if task is TaskName.NEXT_TOKEN:
            _refuse_encoder(config, path)
        if not _TASKS[task].has_classes:
            if recipe.classes is not None:
                raise SettingError("{classes} goes with a classification, and the task is {task}.", task=task.value)
            return cls(path, task, config, None, (), has_head, allow_download)
        declared = None if recipe.classes is None else parse_classes(recipe.classes)
        if num_classes is not None:
            declared = (num_classes, ())
        if declared is None and not has_head:
            raise SettingError(
                "{model} names a model that was saved as {saved_as}, without classes for {task}: declare their names "
                "or their number, which are public, by {classes}, as no,yes.",
                saved_as=saved_as[0] if saved_as else "none",
                task=task.value,
            )
        return cls._with_classes(path, task, config, declared, has_head, allow_download)

    @staticmethod
    def task_of(recipe: Recipe) -> TaskName:
        """The task of the model that a recipe names, by its config if the recipe leaves it open."""
        path = recipe.model.partition(":")[2]
        config = _config(path, bool(recipe.allow_download))
        return _task(recipe, path, tuple(getattr(config, "architectures", None) or ()))

    @classmethod
    def _with_classes(
        cls, path: str, task: TaskName, config: Any, declared: tuple[int, tuple[str, ...]] | None, *saved: bool
    ) -> SavedTransformer:
        has_head, allow_download = saved
        number, names = declared or (config.num_labels, _class_names(config))
        if config.num_labels != number:
            has_head, config.num_labels = False, number
        elif not names:
            names = _class_names(config)
        if declared is not None:
            config.problem_type = None
        if names:
            config.id2label = dict(enumerate(names))
            config.label2id = {name: label for label, name in enumerate(names)}
        kind = getattr(config, "problem_type", None)
        if kind == "multi_label_classification" or (kind == "regression" and number > 1):
            raise UsageError(
                f"hf:{path} predicts several labels or numbers for a row: train it from Python, by so.fit."
            )
        if number < 2 and task is not TaskName.SEQUENCES:
            raise SettingError("{classes} must be at least 2 for {task}, got {number}.", task=task.value, number=number)
        return cls(path, task, config, number, names if number > 1 else (), has_head, allow_download)

    @property
    def num_classes(self) -> int | None:
        """The number of classes of a row or token, or None."""
        return self.num_outputs if self.num_outputs is not None and self.num_outputs > 1 else None

    def tokenizer(self) -> Any:
        """The tokenizer saved beside the model, which must belong to it."""
        with quiet() as library:
            loaded = _attempt(
                lambda: library.AutoTokenizer.from_pretrained(
                    self.path, local_files_only=not self.allow_download, trust_remote_code=False
                ),
                f"the tokenizer in {self.path!r:.200} cannot be loaded",
            )
        if len(loaded) <= len(loaded.all_special_tokens):  # transformers makes an empty one if there are no files
            raise UsageError(
                f"hf:{self.path} has no tokenizer: save it there (tokenizer.save_pretrained), or give rows of tokens "
                "with a column input_ids."
            )
        vocabulary = getattr(self.config, "vocab_size", None)
        if isinstance(vocabulary, int) and len(loaded) > vocabulary:
            raise UsageError(
                f"the tokenizer in {self.path!r:.200} has {len(loaded)} tokens, and the model {vocabulary}: they do "
                "not belong together."
            )
        return loaded

    def load(self, recipe: Recipe, *, seed: int) -> nn.Module:
        """The model with the saved weights, with adapters if the recipe has some. New weights come from the seed."""
        with torch.random.fork_rng(devices=[]), quiet() as library:
            torch.manual_seed(seed)
            model, info = _attempt(
                lambda: getattr(library, _TASKS[self.task].auto).from_pretrained(
                    self.path,
                    config=self.config,
                    ignore_mismatched_sizes=not self.has_head,
                    local_files_only=not self.allow_download,
                    trust_remote_code=False,
                    use_safetensors=True,
                    dtype=torch.float32,
                    output_loading_info=True,
                ),
                f"the weights in {self.path!r:.200} cannot be loaded",
            )
            self._say_what_is_new(model, info)
            return self._trained_part(model, recipe)

    def make(self, recipe: Recipe) -> nn.Module:
        """The model with random weights, for weights that are loaded into it."""
        with torch.random.fork_rng(devices=[]), quiet() as library:
            model = _attempt(
                lambda: getattr(library, _TASKS[self.task].auto).from_config(
                    self.config, trust_remote_code=False, dtype=torch.float32
                ),
                f"the model in {self.path!r:.200} cannot be made",
            )
            return self._trained_part(model, recipe)

    def _say_what_is_new(self, model: nn.Module, info: Any) -> None:
        new = sorted({*info["missing_keys"], *(name for name, *_ in info["mismatched_keys"])})
        if new and len(new) >= len(model.state_dict()):
            raise UsageError(
                f"no weight in {self.path!r:.200} has a name of {type(model).__name__}: is it another model?"
            )
        if new:
            LOGGER.log(
                WARNING if self.has_head else INFO,  # weights of a head for a new task are expected to be new
                "hf:%s has no weights for %s: they begin at random values.",
                self.path,
                ", ".join(new[:8]) + (f" and {len(new) - 8} others" if len(new) > 8 else ""),
            )

    def _trained_part(self, model: Any, recipe: Recipe) -> nn.Module:
        """The model in eval mode, in which it has no dropout, with `requires_grad` for what the recipe trains."""
        backbone = f"{model.base_model_prefix}."
        head = tuple(name for name, _ in model.named_parameters() if not name.startswith(backbone))
        if recipe.lora is not None:
            model = self._with_adapters(model, recipe.lora, tuple({name.partition(".")[0] for name in head}))
        elif recipe.train_only is not None:
            for name, parameter in model.named_parameters():
                is_bias = recipe.train_only == "biases" and name.endswith("bias")
                parameter.requires_grad_(is_bias or name in head)
        if not any(parameter.requires_grad for parameter in model.parameters()):
            raise SettingError(
                "{train_only} must be left out for {kind}, which has no head of its own.", kind=type(model).__name__
            )
        trained: nn.Module = model.eval()
        return trained

    def _with_adapters(self, model: Any, rank: int, head: tuple[str, ...]) -> Any:
        try:
            peft = import_module("peft")
        except ImportError:
            raise UsageError("adapters (lora) need peft: install sordino[huggingface].") from None
        of_task = _TASKS[self.task].peft
        others: dict[str, Any] = {"task_type": of_task}
        if of_task is None and _TASKS[self.task].has_classes:
            others = {"modules_to_save": list(head), "exclude_modules": list(head)}
        settings = peft.LoraConfig(r=rank, lora_alpha=2 * rank, target_modules="all-linear", **others)
        return _attempt(lambda: peft.get_peft_model(model, settings), "adapters cannot be added to the model")


def write_saved(folder: Path, module: nn.Module, tokenizer: Any | None) -> None:
    """Writes model, config and tokenizer so that `from_pretrained` loads them, in one step at the end.

    Of a model with adapters, the weights are those of the adapters, and `config.json` is that of the model below them.
    """
    beside = folder.with_name(f".{folder.name}.{os.getpid()}")
    beside.mkdir()
    saved: Any = module
    base = Transformer.of(module).base
    with quiet():
        saved.save_pretrained(beside)
        if not (beside / "config.json").exists():
            base.config.architectures = [type(base).__name__]
            base.config.save_pretrained(beside)
        if tokenizer is not None:
            tokenizer.save_pretrained(beside)
    mode = (beside / "config.json").stat().st_mode
    for file in beside.iterdir():
        file.chmod(mode)  # safetensors makes files that only their owner may read, and these may be published
    beside.rename(folder)


@contextmanager
def quiet() -> Iterator[Any]:
    """The library transformers, without its progress bars, messages and warnings, which are restored on exit."""
    try:
        library = import_module("transformers")
    except ImportError:
        raise UsageError("hf:PATH needs transformers: install sordino[huggingface].") from None
    logging = library.utils.logging
    verbosity, has_bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # peft says that it corrects its own defaults
            yield library
    finally:
        logging.set_verbosity(verbosity)
        if has_bars:
            logging.enable_progress_bar()


def _config(path: str, allow_download: bool) -> Any:
    if not allow_download and not os.path.isdir(path):
        raise UsageError(
            f"hf:{path:.200} must name a folder with a saved transformer, and there is none: for a name on the Hugging "
            "Face hub, add --allow-download."
        )
    if os.path.isdir(path) and not os.path.isfile(os.path.join(path, "config.json")):
        raise UsageError(f"hf:{path:.200} has no config.json: save a transformer there, by save_pretrained.")
    with quiet() as library:
        config = _attempt(
            lambda: library.AutoConfig.from_pretrained(
                path, local_files_only=not allow_download, trust_remote_code=False
            ),
            f"the config in {path!r:.200} cannot be loaded",
        )
    if getattr(config, "is_encoder_decoder", False):
        raise UsageError(f"hf:{path:.200} is a model from sequence to sequence: train it from Python, by so.fit.")
    parts = (config, *(getattr(config, name, None) for name in getattr(config, "sub_configs", ())))
    if any("/" in str(getattr(part, "_attn_implementation", None)) for part in parts):
        raise UsageError(f"the config in {path!r:.200} names code for its attention, and no code is downloaded.")
    if getattr(config, "quantization_config", None) is not None:
        raise UsageError(
            f"hf:{path:.200} has quantized weights, which cannot be trained: save it in float32 or bfloat16."
        )
    return config


def _task(recipe: Recipe, path: str, saved_as: tuple[str, ...]) -> TaskName:
    found = [task for task, each in _TASKS.items() if any(name.endswith(each.heads) for name in saved_as)]
    task = recipe.task or (found[0] if found else None)
    if task is None:
        raise SettingError(
            "hf:{path} was saved as {saved_as}, whose task is not known: give {task}, one of {known}.",
            path=path,
            saved_as=saved_as[0] if saved_as else "none",
            known=", ".join(TaskName),
        )
    return task


def _refuse_encoder(config: Any, path: str) -> None:
    """Refuses a model that sees the tokens after a place, such as BERT, which could copy what it should predict."""
    with quiet() as library:
        is_encoder = type(config) in library.MODEL_FOR_MASKED_LM_MAPPING and not getattr(config, "is_decoder", False)
    if is_encoder:
        raise UsageError(f"hf:{path} sees later tokens (is_decoder is false in its config), so it is no causal-lm.")


def _class_names(config: Any) -> tuple[str, ...]:
    """The names of the classes in a config, or none if they are the usual placeholders."""
    names = tuple(str(config.id2label[label]) for label in sorted(config.id2label))
    return () if all(name == f"LABEL_{label}" for label, name in enumerate(names)) else names


def _attempt(load: Callable[[], Any], what: str) -> Any:
    """What `load` returns, or one line that says what is wrong. No row of the data is read yet."""
    try:
        return load()
    except Exception as error:
        raise UsageError(f"{what}: {type(error).__name__}: {one_line(error)}") from error
