"""Private training in the two-patch world, with noise on the mean gradient as in the paper.

w <- w - eta ((1 / B) sum of clip_C(gradients) + z) with z ~ N(0, sigma_n^2 I). The library adds noise to the sum, in
units of the clip norm: noise_multiplier = sigma_n * B / C.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F

from sordino._input import validate
from sordino.kernel.calibration import calibrate
from sordino.kernel.clipping import ClipByNorm
from sordino.kernel.contribution import LossGradient
from sordino.kernel.noise import Gaussian, NormalNoise
from sordino.kernel.run import PrivateRun
from sordino.kernel.sampling import Poisson
from sordino.kernel.step import Plan
from sordino.training.loop import Training, take_steps
from sordino.training.not_private import NotPrivate
from sordino_papers.harness.ablations import AblationSettings, clipped_sgd
from sordino_papers.side_effects.two_patch_world.network import PatchNetwork
from sordino_papers.side_effects.two_patch_world.world import PatchRows


@dataclass(frozen=True)
class PatchDescent:
    """SGD settings: each row joins a batch with probability `rate`.

    Gradients of the network are divided by its number of filters, so that a learning rate of four per filter is a
    moderate one. With the default number of steps, training without noise learns all groups of the default world.

    >>> PatchDescent(noise_std=0.01).noise_multiplier(examples=1000)
    5.0
    """

    noise_std: float
    clip_norm: float = 1.0
    learning_rate: float = 80.0
    steps: int = 200
    rate: float = 0.5

    def __post_init__(self) -> None:
        validate.between(0, float("inf"), noise_std=self.noise_std)
        validate.positive(clip_norm=self.clip_norm, learning_rate=self.learning_rate)
        validate.count(steps=self.steps)
        validate.between(0, 1, low_open=True, rate=self.rate)

    def batch_size(self, examples: int) -> float:
        """Expected batch size."""
        return self.rate * examples

    def noise_multiplier(self, examples: int) -> float:
        """sigma_n * B / C: the noise on the sum, in units of the clip norm."""
        return self.noise_std * self.batch_size(examples) / self.clip_norm

    def calibrated(self, examples: int, *, epsilon: float, delta: float) -> PatchDescent:
        """The settings with the least noise that satisfies (epsilon, delta): it grows with about sqrt(steps)."""
        noise = calibrate(replace(self, noise_std=self.clip_norm).plan(examples), epsilon=epsilon, delta=delta).noise
        if not isinstance(noise, NormalNoise):
            raise TypeError(f"calibration changed Gaussian noise to {type(noise).__name__}.")
        return replace(self, noise_std=noise.std(self.clip_norm) / self.batch_size(examples))

    @property
    def sampler(self) -> Poisson:
        return Poisson(self.rate, self.steps)

    def plan(self, examples: int) -> Plan:
        """The plan for this number of rows. A noise of 0 is refused."""
        noise = Gaussian(self.noise_multiplier(examples))
        return Plan(self.sampler, LossGradient(F.cross_entropy), ClipByNorm(self.clip_norm), noise)


def train(network: PatchNetwork, rows: PatchRows, descent: PatchDescent, *, seed: int) -> PatchNetwork:
    """Trains in place, privately.

    >>> from sordino_papers.side_effects.two_patch_world.world import TwoPatches
    >>> from sordino.kernel.randomness import Key
    >>> rows = TwoPatches(dimension=8).draw(50, Key.from_seed(0).stream("rows"))
    >>> network = train(PatchNetwork(8, 4, seed=0), rows, PatchDescent(0.05, steps=3), seed=0)
    """
    run = PrivateRun(descent.plan(len(rows)), network, rows.data, seed=seed)
    take_steps(Training(network, optimizer_of(network, descent), run, divisor=descent.batch_size(len(rows))))
    return network


def train_without_noise(network: PatchNetwork, rows: PatchRows, descent: PatchDescent, *, seed: int) -> NotPrivate:
    """Takes the same steps without noise, to measure the loss due to privacy."""
    comparison = AblationSettings(descent.sampler, descent.batch_size(len(rows)), seed=seed)
    clip = ClipByNorm(descent.clip_norm)
    return clipped_sgd(network, rows.data, optimizer_of(network, descent), comparison, clip=clip)


def optimizer_of(network: PatchNetwork, descent: PatchDescent) -> torch.optim.Optimizer:
    """SGD with the learning rate of the descent."""
    return torch.optim.SGD(network.parameters(), lr=descent.learning_rate)
