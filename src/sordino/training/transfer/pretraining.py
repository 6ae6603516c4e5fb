"""Pretraining on images that a program draws, and files of pretrained networks.

A network that has learnt from public pictures, and its file: weights, its name, and the shape of a row.

Made-up pictures as a network is given the rows of a data set: public rows for whatever needs some.

Pre-training: a network learns to name the law of a made-up picture.

It costs no privacy, because no private row is read: pictures follow from the seed, and settings from the shape of a row
and the name of the network, which are public. Whatever is trained on private rows afterwards costs what it would have
cost from random weights.
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

# Pixels are brought from 0..1 to about -2..2 by these, for every data set alike: the first layers have learnt so.
_MEAN, _STD = 0.5, 0.25


@dataclass(frozen=True)
class PretrainedNetwork:
    """The weights of the network `model` for pictures of `input_shape`, without those of its last layer.

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
        """Writes the file whole or not at all."""
        texts = {"model": self.model, "input_shape": json.dumps(self.input_shape)}
        save_tensors(path, self.weights, texts)

    @classmethod
    def read(cls, path: Path) -> PretrainedNetwork:
        """The network in a file that `save` wrote. Names, shapes and dtypes must be those of the network it names."""
        texts = load_tensors(path).texts
        try:
            shape = strict_json.parse(texts["input_shape"])
            model, rows = texts["model"], tuple(int(size) for size in shape)  # type: ignore[attr-defined]
            fresh = PretrainedNetwork.fresh(model, rows)
        except (KeyError, TypeError, ValueError, UsageError):
            raise StateError(f"{str(path)!r} does not name a network and the shape of its pictures.") from None
        return replace(fresh, weights=load_tensors(path, like=fresh.weights).tensors)

    @classmethod
    def fresh(cls, model: str, input_shape: tuple[int, ...], *, seed: int = 0) -> PretrainedNetwork:
        """The same network before it has learnt anything, to be compared with."""
        built = build(model, Facts("pictures", input_shape, 2), seed=seed)
        return cls(model, input_shape, body(built.module))

    def built(self, facts: Facts, *, seed: int) -> Built:
        """The network for data with these facts, with a last layer that has learnt nothing yet."""
        if facts.input_shape != self.input_shape:
            found = f"the inputs of {facts.name!r} have shape {facts.input_shape}"
            raise UsageError(f"the network was pre-trained on pictures of shape {self.input_shape}, and {found}.")
        built = build(self.model, facts, seed=seed)
        built.module.load_state_dict({**built.module.state_dict(), **self.weights})
        return built


def build(model: str, facts: Facts, *, seed: int) -> Built:
    """The network `model` for pictures, prepared as the pre-trained ones were, whatever is known of their colours."""
    if len(facts.input_shape) != 3 or facts.num_classes is None:
        raise UsageError(f"pre-trained networks are for pictures with classes, got {facts.name!r:.80}.")
    built = models.build(model, replace(facts, mean=(_MEAN,), std=(_STD,)), seed=seed)
    head(built.module)
    return built


def head(network: nn.Module) -> nn.Linear:
    """The last layer, which belongs to a task. All that comes before it can be shared by tasks."""
    last = network[-1] if isinstance(network, nn.Sequential) else None
    if not isinstance(last, nn.Linear) or len(list(network.parameters())) == len(list(last.parameters())):
        raise UsageError("a network to pre-train has layers before its last one, and that is linear: take another.")
    return last


def body(network: nn.Module) -> dict[str, Tensor]:
    """All weights but those of the last layer, by their names in the network."""
    of_head = {id(parameter) for parameter in head(network).parameters()}
    return {name: x.detach() for name, x in network.state_dict(keep_vars=True).items() if id(x) not in of_head}


def made_up_rows(built: Built, facts: Facts, count: int, *, seed: int) -> Tensor:
    """So many pictures of dead leaves, in the public range of a data set with these facts, prepared for the network.

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


VERSION = 1  # raised with any change of the pictures or of the settings below: a file of another version is not used
PICTURES = 60_000
_BATCH = 64
_RATE, _DECAY = 2e-3, 1e-2
_NUMBERS_WEIGH = 3.0


def pretrain(
    model: str, input_shape: tuple[int, ...], *, pictures: int = PICTURES, seed: int = 0, progress: bool = True
) -> PretrainedNetwork:
    """The network `model` after so many pictures of dead leaves, each seen once.

    >>> sorted(pretrain("lenet", (1, 28, 28), pictures=64, progress=False).weights)[:2]
    ['0.bias', '0.weight']
    """
    learnt = learn(model, input_shape, pictures=pictures, seed=seed, progress=progress)
    return PretrainedNetwork(model, input_shape, body(learnt.module))


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


def misread(outputs: Tensor, drawn: DeadLeavesBatch) -> Tensor:
    """How far the outputs are from the laws of the pictures: the form as a class, the rest as numbers."""
    forms, numbers = outputs[:, : len(FORMS)], outputs[:, len(FORMS) :]
    return F.cross_entropy(forms, drawn.forms) + _NUMBERS_WEIGH * F.mse_loss(numbers, drawn.numbers)
