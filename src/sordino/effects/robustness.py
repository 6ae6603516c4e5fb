"""Accuracy under attack as a function of the radius, and signs of gradient masking, on images with pixels from 0 to 1.

Gradient masking makes a model look robust only because its gradients mislead the attack. A badly chosen clip and much
noise can cause it in a private network (Boenisch et al. 2021). Each sign is a comparison of attacks that a model
without masking passes (Athalye et al. 2018, Carlini et al. 2019). The absence of signs proves nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn

from sordino.data import Facts
from sordino.effects.input_attacks import L2, LInfinity, PgdAttack, Prepare, Victim, pgd, robust_accuracy
from sordino.errors import DataError
from sordino.models import Built
from sordino.training.evaluation import correctness, evaluating

_TOLERANCE = 0.01  # a fraction of the rows: attacks with random starts differ by about as much
_MANY_STEPS = 100


@dataclass(frozen=True)
class MaskingSigns:
    """Accuracies under the attack (`robust`) and under other attacks, as fractions of the rows.

    `one_step` is under a single step of the whole radius, `by_chance` under as many random perturbations as the attack
    takes steps, `unbounded` under an attack whose radius covers the whole range, and `transferred` under perturbations
    computed for another model. `zero_gradients` is the fraction of rows, among those classified right, with a gradient
    of zero.
    """

    robust: float
    one_step: float
    by_chance: float
    unbounded: float
    transferred: float | None
    zero_gradients: float
    gives_probabilities: bool
    is_random: bool

    @property
    def found(self) -> tuple[str, ...]:
        """A sentence for each sign.

        >>> MaskingSigns(0.5, 0.6, 0.9, 0.0, None, 0.0, False, False).found
        ()
        >>> MaskingSigns(0.5, 0.4, 0.9, 0.0, None, 0.0, False, False).found
        ('one large step of the attack is stronger than many small ones',)
        """
        return tuple(self._signs())

    def _signs(self) -> Iterator[str]:
        if self.zero_gradients > _TOLERANCE:
            yield f"{100 * self.zero_gradients:.0f} % of the gradients are zero"
        if self.one_step < self.robust - _TOLERANCE:
            yield "one large step of the attack is stronger than many small ones"
        if self.by_chance < self.robust - _TOLERANCE:
            yield "random perturbations are stronger than the attack by gradients"
        if self.transferred is not None and self.transferred < self.robust - _TOLERANCE:
            yield "perturbations computed for another model are stronger than its own"
        if self.unbounded > _TOLERANCE:
            yield f"an attack without a bound leaves an accuracy of {100 * self.unbounded:.0f} %"
        if self.gives_probabilities:
            yield "the model outputs probabilities, whose gradients vanish: attack its logits"
        if self.is_random:
            yield "the outputs of the model are random"


def masking_signs(
    model: nn.Module,
    inputs: Tensor,
    target: Tensor,
    attack: PgdAttack,
    *,
    seed: int,
    prepare: Prepare | None = None,
    other: nn.Module | None = None,
) -> MaskingSigns:
    """Compares the attack with a one-step, a random and an unbounded one, and with perturbations for an `other` model.

    >>> rows = torch.rand(20, 2, generator=torch.Generator().manual_seed(0))
    >>> masking_signs(nn.Identity(), rows, rows.argmax(dim=1), LInfinity(0.1, 0.02, 10), seed=0).found
    ()
    """
    spread = attack.high - attack.low
    reach = spread if isinstance(attack, LInfinity) else spread * inputs[0].numel() ** 0.5
    variants = {
        "robust": attack,
        "one_step": replace(attack, step=attack.radius, steps=1),
        "by_chance": replace(attack, steps=0, restarts=max(1, attack.steps)),
        "unbounded": replace(attack, radius=reach, step=reach / 20, steps=max(_MANY_STEPS, attack.steps)),
    }
    accuracies = {
        name: robust_accuracy(model, inputs, target, each, seed=seed, prepare=prepare)
        for name, each in variants.items()
    }
    victim = Victim(model, prepare)
    transferred = None
    if other is not None:
        moved = pgd(other, inputs, target, attack, seed=seed, prepare=prepare)
        with evaluating(model):
            transferred = float(correctness(victim.outputs(moved), target).mean())
    with evaluating(model):
        outputs, again = victim.outputs(inputs), victim.outputs(inputs)
        zero_gradients = _fraction_of_zero_gradients(victim, inputs, target)
    return MaskingSigns(
        **accuracies,
        transferred=transferred,
        zero_gradients=zero_gradients,
        gives_probabilities=bool((outputs >= 0).all() and torch.allclose(outputs.sum(1), torch.ones(len(outputs)))),
        is_random=not torch.equal(outputs, again),
    )


def _fraction_of_zero_gradients(victim: Victim, inputs: Tensor, target: Tensor) -> float:
    _, right, gradient = victim.losses(inputs, target)
    if not bool(right.any()):
        return 0.0
    return float((gradient[right].flatten(1) == 0).all(dim=1).double().mean())


STEPS = 20
_GRAY = {LInfinity: (0.02, 0.05, 0.1, 0.2, 0.3), L2: (0.25, 0.5, 1.0, 1.5, 2.0)}
_COLOR = {LInfinity: (1 / 255, 2 / 255, 4 / 255, 8 / 255), L2: (0.1, 0.25, 0.5, 1.0)}


@dataclass(frozen=True)
class RobustnessCurve:
    """Accuracy under attack at each radius. The first radius is 0."""

    norm: str
    radii: tuple[float, ...]
    accuracies: tuple[float, ...]
    rows: int


@dataclass(frozen=True)
class FromUnit:
    """Maps pixels from 0 to 1 to their public range, and then to the inputs of the network."""

    built: Built
    input_range: tuple[float, float]

    def __call__(self, pixels: Tensor) -> Tensor:
        low, high = self.input_range
        raw = low + (high - low) * pixels
        return raw if self.built.features is None else self.built.features(raw)

    @property
    def __name__(self) -> str:
        return type(self.built.features).__name__


@dataclass(frozen=True)
class ImagesToAttack:
    """Images to attack, with pixels from 0 to 1."""

    pixels: Tensor = field(repr=False)
    target: Tensor = field(repr=False)
    facts: Facts
    prepare: FromUnit

    def curves(self, model: nn.Module, *, seed: int) -> tuple[RobustnessCurve, ...]:
        """The robustness curves for both norms."""
        return tuple(
            curve(model, self.pixels, self.target, norm, attacks, seed=seed, prepare=self.prepare)
            for norm, attacks in usual_attacks(self.facts).items()
        )

    def signs(self, model: nn.Module, *, seed: int, other: nn.Module | None = None) -> MaskingSigns:
        """The signs of gradient masking at the middle radius of the L-infinity norm."""
        attacks = usual_attacks(self.facts)["L-infinity"]
        middle = attacks[len(attacks) // 2]
        return masking_signs(model, self.pixels, self.target, middle, seed=seed, prepare=self.prepare, other=other)


def unit_pixels(raw: Tensor, facts: Facts) -> Tensor:
    """Images rescaled to pixels from 0 to 1. Raises `DataError` if the rows are not images.

    >>> unit_pixels(torch.full((1, 1, 2, 2), 51.0), Facts("dots", (1, 2, 2), 2, (0.0, 255.0))).unique()
    tensor([0.2000])
    """
    if len(facts.input_shape) != 3:
        raise DataError(f"attacks need images, got inputs of shape {facts.input_shape}.")
    low, high = range_of(facts)
    return ((raw.float() - low) / (high - low)).clamp(0, 1)


def range_of(facts: Facts) -> tuple[float, float]:
    """The public range of pixel values."""
    if facts.input_range is None:
        raise DataError(f"attacks need a public range of pixel values, and {facts.name!r} declares none.")
    return facts.input_range


def usual_attacks(facts: Facts) -> dict[str, tuple[PgdAttack, ...]]:
    """Attacks of increasing radius for each norm, with 20 steps of total length 2.5 times the radius.

    >>> [attack.radius for attack in usual_attacks(Facts("digits", (1, 8, 8), 10))["L-infinity"]]
    [0.02, 0.05, 0.1, 0.2, 0.3]
    """
    radii = _GRAY if facts.input_shape[0] == 1 else _COLOR
    names = {LInfinity: "L-infinity", L2: "L2"}
    return {names[kind]: tuple(kind(r, 2.5 * r / STEPS, STEPS) for r in radii[kind]) for kind in radii}


def curve(
    model: nn.Module,
    inputs: Tensor,
    target: Tensor,
    norm: str,
    attacks: Sequence[PgdAttack],
    *,
    seed: int,
    prepare: Prepare | None = None,
) -> RobustnessCurve:
    """Accuracy for increasing radii. A row misclassified at one radius counts as misclassified at larger ones."""
    victim = Victim(model, prepare)

    def right(moved: Tensor, labels: Tensor) -> Tensor:
        with evaluating(model):
            return correctness(victim.outputs(moved), labels) == 1

    remaining = torch.arange(len(target))[right(inputs, target)]
    counts = [len(remaining)]
    for attack in attacks:
        if len(remaining):
            moved = pgd(model, inputs[remaining], target[remaining], attack, seed=seed, prepare=prepare)
            remaining = remaining[right(moved, target[remaining])]
        counts.append(len(remaining))
    accuracies = tuple(count / len(target) for count in counts)
    return RobustnessCurve(norm, (0.0, *(attack.radius for attack in attacks)), accuracies, len(target))
