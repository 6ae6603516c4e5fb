"""Finished runs of transformers, `--model hf:PATH`, and their answers for new rows.

Everything is read from the run folder: the model that it was trained from is not needed.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sordino.data import Split
from sordino.data.loading import named_rows
from sordino.data.text_rows import TextRows
from sordino.errors import DataError, StateError, UsageError
from sordino.gradients.row_loss import logits_of
from sordino.gradients.transformers_settings import transformers_settings
from sordino.huggingface.losses import IGNORED, NextTokenLoss
from sordino.kernel.buckets import real_lengths
from sordino.models import Built
from sordino.models.registry import pixels
from sordino.recipes.own_model import class_predictions
from sordino.recipes.predict import SavedRun, facts_of
from sordino.recipes.recipe import Recipe
from sordino.recipes.token_rows import MASK, TOKENS, TokenReader, TokenRows
from sordino.recipes.transformer_settings import TaskName
from sordino.recipes.transformers import prepared_words, reopen
from sordino.training.evaluation import evaluating
from sordino.training.run_folder import RunFolder

_ROWS_AT_A_TIME = 64
_Answers = Iterator[Mapping[str, object]]


@dataclass(frozen=True)
class TransformerRun(SavedRun):
    """A finished run of a transformer. `reader` reads texts, and is None for images. `data` has public rows."""

    reader: TokenReader | None = None
    data: str | None = field(default=None)

    @classmethod
    def read(
        cls, path: Path, *, model: str | None = None, loss: str | None = None, data: str | None = None
    ) -> TransformerRun:
        """Reads a run folder. Its config and tokenizer are in `model/`, its weights in `model.safetensors`."""
        folder = RunFolder(path)
        recipe = Recipe.of_run(folder).with_code(model=model, loss=loss)
        if not folder.is_finished:
            raise UsageError(f"the run in {str(path)!r} is not finished: resume it first.")
        if not folder.published.is_dir():
            raise UsageError(
                f"the run in {str(path)!r} was stopped before it wrote {str(folder.published)!r}: sordino train "
                f"--resume {str(path)!r} writes it."
            )
        facts = facts_of(folder)
        module, reader = reopen(recipe, facts, (TOKENS,), folder.published)
        try:
            module.load_state_dict(folder.model(like=module.state_dict()))
        except RuntimeError as error:
            raise StateError(f"the weights in {str(path)!r} do not fit its config: {error!s:.200}") from None
        built = Built(module, pixels(facts) if reader is None else None)
        if folder.facts().get("prepared_by") != prepared_words(reader, built):
            raise StateError(f"the files in {str(path)!r} do not belong together: rows were prepared in another way.")
        return cls(folder, recipe, facts, built, reader, data)

    @property
    def task(self) -> TaskName:
        if self.recipe.task is None:
            raise StateError(f"the recipe in {str(self.folder.path)!r} names no task.")
        return self.recipe.task

    def fresh_network(self, seed: int) -> nn.Module:
        raise UsageError("this needs networks that are trained anew, which a transformer that was fine-tuned has not.")

    def predict(self, source: str) -> list[dict[str, object]]:
        """One row of answers for each row of the source; empty for a row that cannot be read.

        A class with the probability of each, a number, or the class of each word. For a language model, the mean loss
        of a token, and the perplexity.
        """
        if self.reader is None:
            return super().predict(source)
        if self.task is TaskName.MASKED:
            raise UsageError(
                f"a masked language model has no answer for a row: load {str(self.folder.published)!r} by "
                "from_pretrained."
            )
        rows = self._rows(source, with_labels=False)
        answers: _Answers = {
            TaskName.SEQUENCES: self._of_sequences,
            TaskName.TOKENS: self._of_words,
            TaskName.NEXT_TOKEN: self._of_next_tokens,
        }[self.task](rows)
        shown = (
            answer if is_known else dict.fromkeys(answer, "")
            for is_known, answer in zip(rows.known.tolist(), answers, strict=True)
        )
        return named_rows(source, shown)

    def judged_rows(self) -> tuple[Split, Tensor]:
        """Public rows with their labels, and the outputs for them: those that were passed, or those of the recipe."""
        source = self.data or self.recipe.test_data
        if self.task not in (TaskName.SEQUENCES, TaskName.IMAGES):
            raise DataError("accuracy is about one label of a row, and this model has labels for tokens.")
        if source is None:
            raise DataError("there are no public test rows: pass --data FILE, if rows are public.")
        found = self._rows(source, with_labels=True).usable()
        return Split(found.inputs[TOKENS], found.labels), torch.cat(list(self._logits(found)))

    def _rows(self, source: str, *, with_labels: bool) -> TokenRows:
        assert self.reader is not None
        rows = TextRows.open(Path(source))
        _, reader = reopen(self.recipe, self.facts, rows.columns, self.folder.published)
        assert reader is not None
        rows.refuse_absent(reader.needed if with_labels else reader.texts)
        return reader.read(rows, with_labels=with_labels)

    def _logits(self, rows: TokenRows) -> Iterator[Tensor]:
        """The logits of a few rows at a time, which are cut to the longest of them."""
        module = self.built.module
        with evaluating(module), transformers_settings(module), torch.inference_mode():
            for part in torch.split(torch.arange(len(rows.labels)), _ROWS_AT_A_TIME):
                longest = int(real_lengths(rows.inputs[MASK][part]).max())
                inputs = {name: x[part, :longest] for name, x in rows.inputs.items()}
                yield logits_of(module(**inputs)).float()

    def _of_sequences(self, rows: TokenRows) -> _Answers:
        for logits in self._logits(rows):
            if self.facts.num_classes is None:
                yield from ({"prediction": number} for number in logits[:, 0].double().tolist())
            else:
                yield from class_predictions(logits, self.facts.class_names, self.has_probabilities)

    def _of_words(self, rows: TokenRows) -> _Answers:
        """The classes of the words of a text, or of the tokens of a row, with spaces between them."""
        names = self.facts.class_names or tuple(str(label) for label in range(self.facts.num_classes or 0))
        starts: Iterator[Sequence[int]] = iter(rows.word_starts)
        for logits in self._logits(rows):
            for classes in logits.argmax(dim=-1).tolist():
                found = (names[classes[place]] if place >= 0 else "" for place in next(starts))
                yield {"prediction": " ".join(found)}

    def _of_next_tokens(self, rows: TokenRows) -> _Answers:
        """The mean loss of a token that has one before it, and its exponential."""
        labels: Any = iter(torch.split(rows.labels, _ROWS_AT_A_TIME))
        for outputs in self._logits(rows):
            logits, target = NextTokenLoss().aligned(outputs, next(labels)[:, : outputs.shape[1]])
            losses = F.cross_entropy(logits.transpose(1, 2), target, ignore_index=IGNORED, reduction="none")
            counts = (target != IGNORED).sum(dim=1)
            means = (losses.double().sum(dim=1) / counts.clamp(min=1)).tolist()
            for mean, count in zip(means, counts.tolist(), strict=True):
                known = {"loss": mean, "perplexity": math.exp(min(mean, 700.0))}
                yield {"tokens": count} | (known if count else dict.fromkeys(known, ""))
