"""Pre-training: a network learns to name the law of a made-up picture.

It costs no privacy, because no private row is read: pictures follow from the seed, and settings from the shape of a row
and the name of the network, which are public. Whatever is trained on private rows afterwards costs what it would have
cost from random weights.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from sordino._input import validate
from sordino.data import Facts
from sordino.data.dead_leaves import FORMS, DeadLeaves, Drawn
from sordino.models import Built
from sordino.training.progress import progress_bar
from sordino.training.schedules import Cosine
from sordino.training.transfer.pretrained import Pretrained, body, build

VERSION = 1  # raised with any change of the pictures or of the settings below: a file of another version is not used
PICTURES = 60_000
_BATCH = 64
_RATE, _DECAY = 2e-3, 1e-2
_NUMBERS_WEIGH = 3.0


def pretrain(
    model: str, input_shape: tuple[int, ...], *, pictures: int = PICTURES, seed: int = 0, progress: bool = True
) -> Pretrained:
    """The network `model` after so many pictures of dead leaves, each seen once.

    >>> sorted(pretrain("lenet", (1, 28, 28), pictures=64, progress=False).weights)[:2]
    ['0.bias', '0.weight']
    """
    learnt = learn(model, input_shape, pictures=pictures, seed=seed, progress=progress)
    return Pretrained(model, input_shape, body(learnt.module))


def learn(model: str, input_shape: tuple[int, ...], *, pictures: int, seed: int, progress: bool) -> Built:
    """The whole network, with the last layer that names laws."""
    validate.count(pictures=pictures)
    leaves, generator = DeadLeaves(input_shape), torch.Generator().manual_seed(seed)
    built = build(model, Facts("dead leaves", input_shape, len(FORMS) + leaves.causes, (0.0, 255.0)), seed=seed)
    network, prepare = built.module, built.features or (lambda rows: rows)
    optimizer = torch.optim.AdamW(network.parameters(), lr=_RATE, weight_decay=_DECAY)
    steps, schedule = max(1, pictures // _BATCH), Cosine(warmup=0.05)
    with progress_bar(progress) as bar:
        for step in bar.track(range(steps), description="pre-training on made-up pictures"):
            drawn = leaves.draw(min(_BATCH, pictures), generator)
            optimizer.param_groups[0]["lr"] = _RATE * schedule.factor(step, steps)
            loss = misread(network(prepare(drawn.pictures)), drawn)
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
    return built


def misread(outputs: Tensor, drawn: Drawn) -> Tensor:
    """How far the outputs are from the laws of the pictures: the form as a class, the rest as numbers."""
    forms, numbers = outputs[:, : len(FORMS)], outputs[:, len(FORMS) :]
    return F.cross_entropy(forms, drawn.forms) + _NUMBERS_WEIGH * F.mse_loss(numbers, drawn.numbers)
