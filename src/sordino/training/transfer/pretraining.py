"""Pretraining on synthetic dead-leaves images, and files of pretrained networks.

A network learns to predict the law of an image (see `sordino.data.synthetic`). This costs no privacy, because no
private row is read: images are drawn from the seed, and settings follow from the name of the network and the shape of a
row, which are public. Private training afterwards costs the same as from random weights.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Generator, Tensor, nn

from sordino import models
from sordino._input import strict_json, validate
from sordino._input.safetensors_file import load_tensors, save_tensors
from sordino.data import Facts
from sordino.data.synthetic import FORMS, DeadLeaves, DeadLeavesBatch
from sordino.errors import StateError, UsageError
from sordino.models import Built
from sordino.training.progress import progress_bar
from sordino.training.schedules import Cosine

# Pixels are scaled from 0..1 to about -2..2 by these constants for every dataset, as in pretraining.
_MEAN, _STD = 0.5, 0.25


@dataclass(frozen=True)
class PretrainedNetwork:
    """Pretrained weights of the network `model` for images of `input_shape`, without its last layer.

    >>> import tempfile
    >>> from sordino.training.transfer import pretrain
    >>> path = Path(tempfile.mkdtemp()) / "lenet.safetensors"
    >>> pretrain("lenet", (1, 28, 28), pictures=64, progress=False).save(path)
    >>> PretrainedNetwork.read(path)
    PretrainedNetwork(model='lenet', input_shape=(1, 28, 28))
    """

    model: str
    input_shape: tuple[int, ...]
    weights: Mapping[str, Tensor] = field(repr=False)

    def save(self, path: Path) -> None:
        """Writes a file atomically."""
        texts = {"model": self.model, "input_shape": json.dumps(self.input_shape)}
        save_tensors(path, self.weights, texts)

    @classmethod
    def read(cls, path: Path) -> PretrainedNetwork:
        """Reads a file written by `save`. Names, shapes and dtypes must be those of its network."""
        texts = load_tensors(path).texts
        try:
            shape = strict_json.parse(texts["input_shape"])
            model, rows = texts["model"], tuple(int(size) for size in shape)  # type: ignore[attr-defined]
            fresh = PretrainedNetwork.fresh(model, rows)
        except (KeyError, TypeError, ValueError, UsageError):
            raise StateError(f"{str(path)!r} has no valid name of a network and shape of its images.") from None
        return replace(fresh, weights=load_tensors(path, like=fresh.weights).tensors)

    @classmethod
    def fresh(cls, model: str, input_shape: tuple[int, ...], *, seed: int = 0) -> PretrainedNetwork:
        """The network with random weights, for comparison."""
        built = build(model, Facts("pictures", input_shape, 2), seed=seed)
        return cls(model, input_shape, body(built.module))

    def built(self, facts: Facts, *, seed: int) -> Built:
        """Builds the network for data with these facts, with a last layer of random weights."""
        if facts.input_shape != self.input_shape:
            found = f"the inputs of {facts.name!r} have shape {facts.input_shape}"
            raise UsageError(f"the network was pretrained on images of shape {self.input_shape}, but {found}.")
        built = build(self.model, facts, seed=seed)
        built.module.load_state_dict({**built.module.state_dict(), **self.weights})
        return built


def build(model: str, facts: Facts, *, seed: int) -> Built:
    """Builds the network `model` for images, with the scaling of pixels that pretraining uses."""
    if len(facts.input_shape) != 3 or facts.num_classes is None:
        raise UsageError(f"pretrained networks need images with classes, got {facts.name!r:.80}.")
    built = models.build(model, replace(facts, mean=(_MEAN,), std=(_STD,)), seed=seed)
    head(built.module)
    return built


def head(network: nn.Module) -> nn.Linear:
    """The last layer, which is specific to a task."""
    last = network[-1] if isinstance(network, nn.Sequential) else None
    if not isinstance(last, nn.Linear) or len(list(network.parameters())) == len(list(last.parameters())):
        raise UsageError("pretraining needs a network of several layers of which the last is linear: choose another.")
    return last


def body(network: nn.Module) -> dict[str, Tensor]:
    """All weights except those of the last layer, by name."""
    of_head = {id(parameter) for parameter in head(network).parameters()}
    return {name: x.detach() for name, x in network.state_dict(keep_vars=True).items() if id(x) not in of_head}


def made_up_rows(built: Built, facts: Facts, count: int, *, seed: int) -> Tensor:
    """Draws `count` dead-leaves images in the public range of a dataset with these facts, prepared for the network.

    >>> from sordino import models
    >>> facts = Facts("pictures", (1, 28, 28), 10, (0.0, 1.0))
    >>> rows = made_up_rows(models.build("dp-cnn-s", facts, seed=0), facts, 3, seed=0)
    >>> rows.shape, bool((rows.amax() <= 1) & (rows.amax() > 0.5))
    (torch.Size([3, 1, 28, 28]), True)
    """
    pictures = DeadLeaves(facts.input_shape).draw(count, Generator().manual_seed(seed)).pictures
    if facts.input_range is not None:
        low, high = facts.input_range
        pictures = low + (high - low) * pictures.float() / 255
    return pictures if built.features is None else built.features(pictures)


VERSION = 1  # increased with every change of the images or the settings below: files of other versions are not used
PICTURES = 60_000
_BATCH = 64
_RATE, _DECAY = 2e-3, 1e-2
_NUMBERS_WEIGH = 3.0


def pretrain(
    model: str, input_shape: tuple[int, ...], *, pictures: int = PICTURES, seed: int = 0, progress: bool = True
) -> PretrainedNetwork:
    """Pretrains the network `model` on `pictures` dead-leaves images, each used once.

    >>> sorted(pretrain("lenet", (1, 28, 28), pictures=64, progress=False).weights)[:2]
    ['0.bias', '0.weight']
    """
    learnt = learn(model, input_shape, pictures=pictures, seed=seed, progress=progress)
    return PretrainedNetwork(model, input_shape, body(learnt.module))


def learn(model: str, input_shape: tuple[int, ...], *, pictures: int, seed: int, progress: bool) -> Built:
    """Pretrains and returns the whole network, with the last layer that predicts laws."""
    validate.count(pictures=pictures)
    leaves, generator = DeadLeaves(input_shape), torch.Generator().manual_seed(seed)
    built = build(model, Facts("dead leaves", input_shape, len(FORMS) + leaves.causes, (0.0, 255.0)), seed=seed)
    network, prepare = built.module, built.features or (lambda rows: rows)
    optimizer = torch.optim.AdamW(network.parameters(), lr=_RATE, weight_decay=_DECAY)
    steps, schedule = max(1, pictures // _BATCH), Cosine(warmup=0.05)
    with progress_bar(progress) as bar:
        for step in bar.track(range(steps), description="pretraining on synthetic images"):
            drawn = leaves.draw(min(_BATCH, pictures), generator)
            optimizer.param_groups[0]["lr"] = _RATE * schedule.factor(step, steps)
            loss = misread(network(prepare(drawn.pictures)), drawn)
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
    return built


def misread(outputs: Tensor, drawn: DeadLeavesBatch) -> Tensor:
    """Pretraining loss: cross-entropy for the form of a law, squared error for its other parameters."""
    forms, numbers = outputs[:, : len(FORMS)], outputs[:, len(FORMS) :]
    return F.cross_entropy(forms, drawn.forms) + _NUMBERS_WEIGH * F.mse_loss(numbers, drawn.numbers)
