"""Reconstruction attacks on gradients: what an attacker knows, what they observe, and the protocol of an attack.

The attacker knows what all participants of a joint training know: the network, the loss, and the shape and range of its
inputs (`KnownNetwork`). They observe one gradient, plain, with noise, or with noise and only the coordinates that a
mask keeps (`ObservedGradient`).

No epsilon applies. As in the papers on these attacks, the gradient is that of a single example and is not clipped, so
its sensitivity has no bound and noise on it gives no guarantee.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sordino import models
from sordino._input import validate
from sordino.attacks.reconstruction.cnn6 import cnn6, logistic_loss
from sordino.data import Facts, load
from sordino.encodings import RandomSparsify
from sordino.encodings.sparsify import ConstantRate
from sordino.errors import DataError, UsageError
from sordino.kernel.randomness import Key, Stream
from sordino.kernel.states import Layout
from sordino.training.evaluation import evaluating

BATCHNORM = "-batchnorm"

RowLoss = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class KnownNetwork:
    """A network in eval mode. Its inputs are pixels from 0 to 1, normalized by `mean` and `std` of each channel.

    >>> known = KnownNetwork(nn.Sequential(nn.Flatten(), nn.Linear(3, 2)), F.cross_entropy, (3, 1, 1))
    >>> known.gradient(torch.zeros(1, 3, 1, 1), torch.tensor([0])).shape
    torch.Size([8])
    """

    model: nn.Module = field(repr=False)
    loss: RowLoss = field(repr=False)
    input_shape: tuple[int, ...]
    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)

    def __post_init__(self) -> None:
        if not Layout.of(self.model).size:
            raise UsageError("model must have at least one parameter that requires a gradient, got none.")

    @property
    def layout(self) -> Layout:
        return Layout.of(self.model)

    @property
    def parameters(self) -> tuple[nn.Parameter, ...]:
        """The trainable parameters, in the order of the layout."""
        return tuple(parameter for parameter in self.model.parameters() if parameter.requires_grad)

    @property
    def dtype(self) -> torch.dtype:
        return self.parameters[0].dtype

    def normalised(self, pixels: Tensor) -> Tensor:
        """Pixels from 0 to 1 as inputs of the network."""
        return (pixels.to(self.dtype) - self._by_channel(self.mean)) / self._by_channel(self.std)

    def pixels(self, inputs: Tensor) -> Tensor:
        """Inputs of the network as pixels, clamped to [0, 1]."""
        return (inputs * self._by_channel(self.std) + self._by_channel(self.mean)).clamp(0, 1).to(torch.float32)

    @property
    def box(self) -> tuple[Tensor, Tensor]:
        """The lowest and the highest input value of each channel."""
        zero = torch.zeros(1, *self.input_shape)
        return self.normalised(zero), self.normalised(zero + 1)

    def gradients(self, inputs: Tensor, target: Tensor, *, differentiable: bool = False) -> tuple[Tensor, ...]:
        """The gradient of the loss of one example with respect to each parameter."""
        with evaluating(self.model):
            loss = self.loss(self.model(inputs), target)
        return torch.autograd.grad(loss, self.parameters, create_graph=differentiable, materialize_grads=True)

    def gradient(self, inputs: Tensor, target: Tensor) -> Tensor:
        """The gradient as one vector, shape (d,)."""
        return torch.cat([part.flatten() for part in self.gradients(inputs, target)])

    def _by_channel(self, constants: tuple[float, ...]) -> Tensor:
        return torch.tensor(constants, dtype=self.dtype).reshape(1, -1, *(1,) * (len(self.input_shape) - 1))


def known_network(name: str, facts: Facts, *, seed: int) -> KnownNetwork:
    """Builds a network of `sordino.models` by name, or `cnn6`, with first weights from `seed`.

    The suffix `-batchnorm` replaces GroupNorm by BatchNorm, which in eval mode is an affine map of each channel.
    """
    if len(facts.input_shape) != 3:
        raise UsageError(f"data must be images, got inputs of shape {facts.input_shape}.")
    mean, std = facts.mean or (0.0,), facts.std or (1.0,)
    if name == "cnn6":
        if facts.input_shape != (3, 32, 32):
            raise UsageError(f"'cnn6' needs color images of 32 x 32 pixels, got shape {facts.input_shape}.")
        return KnownNetwork(cnn6(seed=seed), logistic_loss, facts.input_shape, mean, std)
    if name.startswith(("scatter", "h-cnn")):
        raise UsageError(f"{name!r} takes scattering features, not pixels: choose another model.")
    module = models.build(name.removesuffix(BATCHNORM), facts, seed=seed).module
    network = with_batchnorm(module) if name.endswith(BATCHNORM) else module
    return KnownNetwork(network, F.cross_entropy, facts.input_shape, mean, std)


def with_batchnorm(module: nn.Module) -> nn.Module:
    """Replaces each GroupNorm of `module` by a new BatchNorm, as in the papers on these attacks. Returns `module`.

    In eval mode the statistics of BatchNorm are constants, so that examples do not mix. In training mode they do, so
    such a network cannot be trained with privacy.

    >>> type(with_batchnorm(nn.Sequential(nn.GroupNorm(2, 4)))[0]).__name__
    'BatchNorm2d'
    """
    for name, child in module.named_children():
        fresh = nn.BatchNorm2d(child.num_channels) if isinstance(child, nn.GroupNorm) else with_batchnorm(child)
        setattr(module, name, fresh)
    return module


def public_pictures(data: str, count: int) -> tuple[Tensor, Tensor, Facts]:
    """The first `count` public images of a dataset, with pixels from 0 to 1, their labels, and the dataset's facts."""
    validate.count(pictures=count)
    loaded = load(data)
    facts = loaded.facts
    if loaded.test is None:
        raise DataError(f"the attack uses public images only, and dataset {facts.name} has no public test rows.")
    if facts.input_range is None or len(facts.input_shape) != 3:
        raise UsageError(f"data must be images with a public pixel range, got inputs of shape {facts.input_shape}.")
    if count > len(loaded.test.target):
        raise UsageError(f"pictures must be at most {len(loaded.test.target)} for {facts.name}, got {count}.")
    low, high = facts.input_range
    return (loaded.test.inputs[:count].float() - low) / (high - low), loaded.test.target[:count], facts


@dataclass(frozen=True)
class ObservedGradient:
    """A gradient as it was sent: `value` and the mask `keep`, both of shape (d,). Values that were not sent are 0."""

    value: Tensor = field(repr=False)
    keep: Tensor = field(repr=False)
    layout: Layout = field(repr=False)
    noise_std: float
    rate: float

    def tensors(self) -> dict[str, Tensor]:
        """The values of each parameter, in its shape."""
        return self.layout.split(self.value)

    def kept(self) -> dict[str, Tensor]:
        """The mask of each parameter: True where an entry was sent."""
        return self.layout.split(self.keep)


def observe(
    gradient: Tensor, layout: Layout, *, noise_std: float = 0.0, rate: float = 0.0, seed: int = 0, row: int = 0
) -> ObservedGradient:
    """Adds normal noise to each coordinate of the flat gradient, and then drops a fraction `rate` by a random mask.

    The mask is that of `RandomSparsify` at a constant rate. For one seed and `row` the noise is the same at every rate,
    and masks are nested: the coordinates kept at a higher rate are a subset of those kept at a lower one.

    >>> observed = observe(torch.ones(10), Layout(("w",), ((10,),)), rate=0.8)
    >>> int(observed.keep.sum()), float(observed.value.sum())
    (2, 2.0)
    """
    validate.between(0, 1e30, noise_std=noise_std)
    sparsify = RandomSparsify(rate, epochs=1, steps_per_epoch=1, schedule=ConstantRate())
    key = Key.from_seed(seed)
    keep = sparsify.mask(row, layout, key.stream("coding"))
    noise = torch.from_numpy(key.stream("noise").normals(layout.size, step=row)).to(gradient.dtype)
    return ObservedGradient((gradient + noise_std * noise).where(keep, 0.0), keep, layout, noise_std, rate)


Tick = Callable[[], None]


def unwatched() -> None:
    """A progress callback that does nothing."""


@runtime_checkable
class ReconstructionAttack(Protocol):
    """An attack that reconstructs an image from an observed gradient. It never sees the image or its label."""

    @property
    def ticks(self) -> int:
        """How often an attack on one image reports progress."""
        ...

    def check(self, known: KnownNetwork) -> None:
        """Raises `UsageError` if the attack cannot handle the network."""
        ...

    def reconstruct(
        self, known: KnownNetwork, observed: ObservedGradient, randomness: Stream, tick: Tick = unwatched
    ) -> Tensor:
        """The reconstructed image, shape (1, channels, height, width), pixels from 0 to 1."""
        ...
