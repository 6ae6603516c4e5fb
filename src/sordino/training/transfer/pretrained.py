"""A network that has learnt from public pictures, and its file: weights, its name, and the shape of a row."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from torch import Tensor, nn

from sordino import models
from sordino._input import strict_json
from sordino._input.safetensors_file import load_tensors, save_tensors
from sordino.data import Facts
from sordino.errors import StateError, UsageError
from sordino.models import Built

# Pixels are brought from 0..1 to about -2..2 by these, for every data set alike: the first layers have learnt so.
_MEAN, _STD = 0.5, 0.25


@dataclass(frozen=True)
class Pretrained:
    """The weights of the network `model` for pictures of `input_shape`, without those of its last layer.

    >>> import tempfile
    >>> from sordino.training.transfer import pretrain
    >>> path = Path(tempfile.mkdtemp()) / "lenet.safetensors"
    >>> pretrain("lenet", (1, 28, 28), pictures=64, progress=False).save(path)
    >>> Pretrained.read(path)
    Pretrained(model='lenet', input_shape=(1, 28, 28))
    """

    model: str
    input_shape: tuple[int, ...]
    weights: Mapping[str, Tensor] = field(repr=False)

    def save(self, path: Path) -> None:
        """Writes the file whole or not at all."""
        texts = {"model": self.model, "input_shape": json.dumps(self.input_shape)}
        save_tensors(path, self.weights, texts)

    @classmethod
    def read(cls, path: Path) -> Pretrained:
        """The network in a file that `save` wrote. Names, shapes and dtypes must be those of the network it names."""
        texts = load_tensors(path).texts
        try:
            shape = strict_json.parse(texts["input_shape"])
            model, rows = texts["model"], tuple(int(size) for size in shape)  # type: ignore[attr-defined]
            fresh = Pretrained.fresh(model, rows)
        except (KeyError, TypeError, ValueError, UsageError):
            raise StateError(f"{str(path)!r} does not name a network and the shape of its pictures.") from None
        return replace(fresh, weights=load_tensors(path, like=fresh.weights).tensors)

    @classmethod
    def fresh(cls, model: str, input_shape: tuple[int, ...], *, seed: int = 0) -> Pretrained:
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
