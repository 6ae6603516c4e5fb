"""The black box: canaries are rows of the data set, and only the model that is released in the end is asked about them.

Training is that of the recipe, from its data to its last step. A canary that is out has no usable value in its row, so
that it adds zeros wherever it is drawn. The score is how much less the trained model is surprised by the canary than
the model was before training.
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
from sordino.effects.rare_examples import train_plainly
from sordino.errors import DataError, Interrupted, UsageError
from sordino.kernel.randomness import Key, Stream
from sordino.recipes.methods import method_of
from sordino.recipes.prepared import PreparedRecipe
from sordino.training.run_folder import RunFolder

_ROWS_AT_A_TIME = 1024


@dataclass(frozen=True)
class InputCanaries:
    """Rows that look like no other, each with a label that nothing but training on it would suggest."""

    inputs: Tensor = field(repr=False)
    labels: Tensor = field(repr=False)

    @classmethod
    def drawn(cls, prepared: PreparedRecipe, number: int, randomness: Stream) -> InputCanaries:
        """Noise with random labels: in the public range where rows are raw, and normal where they are features.

        Rows of the same kind as the others with a wrong label are found far less often: what one of them teaches, the
        next one with the same label teaches too. No private row is used.
        """
        facts, like = prepared.data.facts, prepared.records.template(1).inputs[0]
        if facts.num_classes is None:
            raise UsageError("the black box needs a target of classes, got one that is a number.")
        noise = torch.from_numpy(randomness.normals(number * like[0].numel(), step=0)).float()
        drawn = noise.reshape(number, *like.shape[1:])
        if facts.input_range is not None and prepared.built.features is None:
            low, high = facts.input_range
            drawn = low + (high - low) * torch.special.ndtr(drawn)
        labels = np.floor(randomness.uniforms(number, step=1) * facts.num_classes).astype(np.int64)
        return cls(drawn.to(like.dtype), torch.from_numpy(labels))

    def places(self, included: NDArray[np.bool_]) -> tuple[Tensor, Tensor]:
        """Their rows; one that is out cannot be used, and counts as absent."""
        out = ~torch.from_numpy(included)
        inputs, labels = self.inputs.clone(), self.labels.clone()
        if inputs.is_floating_point():
            inputs[out] = torch.nan
        labels[out] = -1
        return inputs, labels


def from_worst_start(prepared: PreparedRecipe, seed: int) -> PreparedRecipe:
    """The same with first weights that were trained on public rows without privacy.

    The gradients of other rows are small there, and drown a canary's less (Annamalai and De Cristofaro 2024). The
    guarantee holds for any first weights.
    """
    public = prepared.public_rows()
    if public is None:
        raise DataError("a worst-case start needs public rows, and the data set has none.")
    rows, module = public.records.gather(torch.arange(public.records.num_units)), deepcopy(prepared.built.module)
    train_plainly(module, rows.inputs[0], rows.target, seed=seed).train(prepared.built.module.training)
    return replace(prepared, built=replace(prepared.built, module=module))


def black_box_values(
    prepared: PreparedRecipe, canaries: InputCanaries, seed: int
) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Trains once by the recipe with these canaries. Gives the score of each, and whether it was in.

    `prepared` counts the canaries among its examples.
    """
    included, module = coins(len(canaries.labels), Key.from_seed(seed)), deepcopy(prepared.built.module)
    before = _surprise(module, canaries, prepared)
    records = followed_by(prepared.records, canaries.places(included))
    recipe = replace(prepared.recipe, seed=seed, allow_large_delta=True)  # it was chosen for fewer examples
    built = replace(prepared.built, module=module)
    with tempfile.TemporaryDirectory() as place:
        folder = RunFolder(Path(place) / "run")
        folder.make()
        audited = replace(prepared, recipe=recipe, built=built, records=records)
        options = {"resume": False, "draw_again": False, "progress": False}
        try:
            method_of(recipe).train(audited, folder, **options, callbacks=())
        except Interrupted:
            raise Interrupted("the audit was stopped, and keeps nothing: begin it anew.") from None
        module.load_state_dict(folder.model(like=module.state_dict()))
    return before - _surprise(module, canaries, prepared), included


def _surprise(module: nn.Module, canaries: InputCanaries, prepared: PreparedRecipe) -> NDArray[np.float64]:
    """The loss of each canary."""
    loss = F.cross_entropy if method_of(prepared.recipe).has_probabilities else Squared()
    was_training = module.training
    module.eval()
    found = []
    with torch.no_grad():
        for rows in torch.split(torch.arange(len(canaries.labels)), _ROWS_AT_A_TIME):
            outputs = module(canaries.inputs[rows].float()).double()
            pairs = zip(outputs, canaries.labels[rows], strict=True)
            found += [float(loss(one[None], label[None])) for one, label in pairs]
    module.train(was_training)
    return np.array(found)
