"""Black-box audit: canaries are examples of the dataset, and the attacker sees the final model only.

Training is the recipe's own, from its data to its last step. A canary that is left out has an unusable row, so that it
contributes zeros wherever it is drawn. The score is the loss of the canary before training minus its loss afterwards.
"""

from __future__ import annotations

import tempfile
from copy import deepcopy
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from sordino.attacks.audit.canaries import coins, followed_by
from sordino.convex.losses import Squared
from sordino.effects.rare_examples import as_input, train_plainly
from sordino.errors import DataError, Interrupted, UsageError
from sordino.kernel.randomness import Key, Stream
from sordino.recipes.methods import method_of
from sordino.recipes.prepared import PreparedRecipe
from sordino.training.run_folder import RunFolder

_ROWS_AT_A_TIME = 1024


@dataclass(frozen=True)
class InputCanaries:
    """Canaries as examples: inputs of noise, each with a random label that only training on it would suggest."""

    inputs: Tensor = field(repr=False)
    labels: Tensor = field(repr=False)

    @classmethod
    def drawn(cls, prepared: PreparedRecipe, number: int, randomness: Stream) -> InputCanaries:
        """Draws `number` canaries: within the public range for raw inputs, standard normal for features.

        Mislabeled real examples are detected far less often: what one of them teaches, others with the same label
        teach too. No private row is used.
        """
        facts, like = prepared.data.facts, prepared.records.template(1).inputs[0]
        input_range = facts.input_range if prepared.built.features is None else None
        return cls.drawn_like(like, number, facts.num_classes, input_range, randomness)

    @classmethod
    def drawn_like(
        cls,
        like: Tensor,
        number: int,
        num_classes: int | None,
        input_range: tuple[float, float] | None,
        randomness: Stream,
    ) -> InputCanaries:
        """Canaries in the shape of the rows of `like`."""
        if num_classes is None:
            raise UsageError("the black-box audit needs a classification target, got a regression target.")
        noise = torch.from_numpy(randomness.normals(number * like[0].numel(), step=0)).float()
        drawn = noise.reshape(number, *like.shape[1:])
        if input_range is not None:
            low, high = input_range
            drawn = low + (high - low) * torch.special.ndtr(drawn)
        labels = np.floor(randomness.uniforms(number, step=1) * num_classes).astype(np.int64)
        return cls(drawn.to(like.dtype), torch.from_numpy(labels))

    def places(self, included: NDArray[np.bool_]) -> tuple[Tensor, Tensor]:
        """Inputs and labels of all canaries. Those left out get NaN and label -1, so that they count as absent."""
        out = ~torch.from_numpy(included)
        inputs, labels = self.inputs.clone(), self.labels.clone()
        if inputs.is_floating_point():
            inputs[out] = torch.nan
        labels[out] = -1
        return inputs, labels


def from_worst_start(prepared: PreparedRecipe, seed: int) -> PreparedRecipe:
    """Replaces the first weights by weights that were trained on public rows without privacy.

    Gradients of other examples are small there, and hide a canary's less (Annamalai and De Cristofaro 2024). The
    guarantee holds for any first weights.
    """
    public = prepared.public_rows()
    if public is None:
        raise DataError("a worst-case start needs public test rows, and the dataset has none.")
    rows, module = public.records.gather(torch.arange(public.records.num_units)), deepcopy(prepared.built.module)
    train_plainly(module, rows.inputs[0], rows.target, seed=seed).train(prepared.built.module.training)
    return replace(prepared, built=replace(prepared.built, module=module))


def black_box_values(
    prepared: PreparedRecipe, canaries: InputCanaries, seed: int
) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Trains once by the recipe with these canaries. Returns the score of each canary, and whether it was included.

    `prepared.examples` must count the canaries.
    """
    included, module = coins(len(canaries.labels), Key.from_seed(seed)), deepcopy(prepared.built.module)
    has_probabilities = method_of(prepared.recipe).has_probabilities
    before = losses_of(module, canaries, has_probabilities)
    records = followed_by(prepared.records, canaries.places(included))
    recipe = replace(prepared.recipe, seed=seed, allow_large_delta=True)  # delta was chosen for fewer examples
    built = replace(prepared.built, module=module)
    with tempfile.TemporaryDirectory() as temporary:
        folder = RunFolder(Path(temporary) / "run")
        folder.make()
        audited = replace(prepared, recipe=recipe, built=built, records=records)
        options = {"resume": False, "draw_again": False, "progress": False}
        try:
            method_of(recipe).train(audited, folder, **options, callbacks=())
        except Interrupted:
            raise Interrupted("the audit was interrupted and keeps no partial result: start it again.") from None
        module.load_state_dict(folder.model(like=module.state_dict()))
    return before - losses_of(module, canaries, has_probabilities), included


def losses_of(module: nn.Module, canaries: InputCanaries, has_probabilities: bool) -> NDArray[np.float64]:
    """The loss of each canary under the model in eval mode."""
    loss = F.cross_entropy if has_probabilities else Squared()
    was_training = module.training
    module.eval()
    losses = []
    with torch.no_grad():
        for rows in torch.split(torch.arange(len(canaries.labels)), _ROWS_AT_A_TIME):
            outputs = module(as_input(canaries.inputs[rows])).double()
            pairs = zip(outputs, canaries.labels[rows], strict=True)
            losses += [float(loss(output[None], label[None])) for output, label in pairs]
    module.train(was_training)
    return np.array(losses)
