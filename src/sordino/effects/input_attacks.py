"""Adversarial examples by projected gradient descent, PGD (Madry et al. 2018).

The strongest input so far is kept for each row, so more steps or restarts never make an attack weaker. The attack
maximizes a loss whose gradient has the direction of that of cross-entropy, but does not vanish where a model is
confident.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from sordino._input import validate
from sordino.errors import UsageError
from sordino.kernel.randomness import Key
from sordino.training.evaluation import correctness, evaluating

Prepare = Callable[[Tensor], Tensor]

ROWS = 512  # at a time


@dataclass(frozen=True)
class Victim:
    """A model that outputs logits, with an optional transformation `prepare` of its inputs.

    >>> losses, right, gradient = Victim(nn.Identity()).losses(torch.tensor([[0.0, 0.0]]), torch.tensor([0]))
    >>> losses, right, gradient
    (tensor([0.]), tensor([True]), tensor([[-1.,  1.]]))
    """

    model: nn.Module
    prepare: Prepare | None = None

    def outputs(self, inputs: Tensor) -> Tensor:
        with torch.no_grad():
            return torch.cat([self._logits(rows) for rows in torch.split(inputs, ROWS)])

    def losses(self, inputs: Tensor, target: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The loss of each row, whether its prediction is right, and the gradient with respect to its input."""
        moved = inputs.detach().requires_grad_()
        outputs = self._logits(moved)
        if not outputs.requires_grad:
            raise UsageError(self._no_gradient(moved))
        losses = log_odds_of_a_mistake(outputs, target)
        (gradient,) = torch.autograd.grad(losses.sum(), moved, allow_unused=True)
        if gradient is None:
            raise UsageError(self._no_gradient(moved))
        return losses.detach(), correctness(outputs.detach(), target) == 1, gradient

    def _logits(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.model(inputs if self.prepare is None else self.prepare(inputs))
        if outputs.ndim != 2:
            raise UsageError(f"the model must output logits, shape (rows, classes), got shape {tuple(outputs.shape)}.")
        return outputs

    def _no_gradient(self, inputs: Tensor) -> str:
        if self.prepare is not None and not self.prepare(inputs).requires_grad:
            return f"{_name(self.prepare)} has no gradient, which an attack on inputs needs."
        return f"{type(self.model).__name__} has no gradient with respect to its inputs, which an attack needs."


def log_odds_of_a_mistake(outputs: Tensor, target: Tensor) -> Tensor:
    """L with cross-entropy = log(1 + e^L), whose gradient has the same direction and never rounds to zero.

    The gradient of cross-entropy rounds to zero where a model is confident, and an attack by it would not move.

    >>> log_odds_of_a_mistake(torch.tensor([[200.0, 0.0]]), torch.tensor([0]))
    tensor([-200.])
    """
    label = target[:, None]
    wrong = outputs.scatter(1, label, -torch.inf).logsumexp(dim=1)
    return wrong - outputs.gather(1, label).squeeze(1)


def _name(prepare: Prepare) -> str:
    return getattr(prepare, "__name__", type(prepare).__name__)


_SMALLEST = 1e-30  # lower bound of norms, so that a zero vector can be divided by its norm


@dataclass(frozen=True)
class PgdAttack(ABC):
    """Settings of a PGD attack. Inputs move by at most `radius` and stay in the range from `low` to `high`."""

    radius: float
    step: float
    steps: int
    restarts: int = 1
    low: float = 0.0
    high: float = 1.0

    def __post_init__(self) -> None:
        validate.between(0, 1e30, radius=self.radius, step=self.step)
        validate.count(at_least=0, steps=self.steps)
        validate.count(restarts=self.restarts)
        if not self.low < self.high:
            raise UsageError(f"low must be below high, got {validate.shown(self.low)} and {validate.shown(self.high)}.")

    def nearest(self, inputs: Tensor, moved: Tensor) -> Tensor:
        """Projects onto the ball, then clamps to the range. The center is in the range, so this stays in the ball."""
        return (inputs + self._shortened(moved - inputs)).clamp(self.low, self.high)

    def start(self, inputs: Tensor, generator: torch.Generator) -> Tensor:
        """A random point in the ball around each input."""
        return (inputs + self._offset(inputs, generator)).clamp(self.low, self.high)

    @abstractmethod
    def along(self, gradient: Tensor) -> Tensor:
        """One ascent step in the direction of `gradient`."""

    @abstractmethod
    def _shortened(self, offset: Tensor) -> Tensor: ...

    @abstractmethod
    def _offset(self, inputs: Tensor, generator: torch.Generator) -> Tensor: ...


class LInfinity(PgdAttack):
    """No coordinate of an input moves by more than the radius.

    >>> LInfinity(0.1, step=0.01, steps=40).along(torch.tensor([[3.0, -2.0, 0.0]]))
    tensor([[ 0.0100, -0.0100,  0.0000]])
    """

    def along(self, gradient: Tensor) -> Tensor:
        return self.step * gradient.sign()

    def _shortened(self, offset: Tensor) -> Tensor:
        return offset.clamp(-self.radius, self.radius)

    def _offset(self, inputs: Tensor, generator: torch.Generator) -> Tensor:
        return self.radius * (2 * torch.rand(inputs.shape, generator=generator) - 1)


class L2(PgdAttack):
    """An input moves by at most the radius in Euclidean distance.

    >>> L2(1.0, step=0.5, steps=40).along(torch.tensor([[3.0, -4.0]]))
    tensor([[ 0.3000, -0.4000]])
    """

    def along(self, gradient: Tensor) -> Tensor:
        return self.step * gradient / _norms(gradient)

    def _shortened(self, offset: Tensor) -> Tensor:
        return offset * (self.radius / _norms(offset)).clamp(max=1)

    def _offset(self, inputs: Tensor, generator: torch.Generator) -> Tensor:
        direction = torch.randn(inputs.shape, generator=generator)
        volume = torch.rand(len(inputs), *[1] * (inputs.ndim - 1), generator=generator)
        return self.radius * volume ** (1 / inputs[0].numel()) * direction / _norms(direction)


def pgd(
    model: nn.Module, inputs: Tensor, target: Tensor, attack: PgdAttack, *, seed: int, prepare: Prepare | None = None
) -> Tensor:
    """Attacks each row: returns an input within the radius that the model misclassifies, or the one of highest loss.

    The model outputs logits. `prepare` transforms inputs for the model, and must be differentiable.

    >>> model = nn.Linear(1, 2)
    >>> _ = model.load_state_dict({"weight": torch.tensor([[1.0], [-1.0]]), "bias": torch.tensor([-0.5, 0.5])})
    >>> rows, labels = torch.tensor([[0.55], [0.9]]), torch.tensor([0, 0])  # the border is at 0.5
    >>> (pgd(model, rows, labels, LInfinity(0.1, step=0.05, steps=4), seed=0) < 0.5).flatten()
    tensor([ True, False])
    """
    _check(inputs, target, attack)
    victim, stream = Victim(model, prepare), Key.from_seed(seed).stream("attack")
    strongest = []
    with evaluating(model):
        for block, (rows, labels) in enumerate(zip(torch.split(inputs, ROWS), torch.split(target, ROWS), strict=True)):
            seeds = [int(stream.words(1, step=restart, block=block)[0] >> 1) for restart in range(attack.restarts)]
            strongest.append(_strongest(victim, rows, labels, attack, seeds))
    return torch.cat(strongest)


def robust_accuracy(
    model: nn.Module, inputs: Tensor, target: Tensor, attack: PgdAttack, *, seed: int, prepare: Prepare | None = None
) -> float:
    """Accuracy under attack: the fraction of rows for which `pgd` finds no misclassified input."""
    moved = pgd(model, inputs, target, attack, seed=seed, prepare=prepare)
    with evaluating(model):
        return float(correctness(Victim(model, prepare).outputs(moved), target).mean())


def _strongest(victim: Victim, inputs: Tensor, target: Tensor, attack: PgdAttack, seeds: list[int]) -> Tensor:
    """Attacks each row from one start after the other, until it is misclassified."""
    best, highest = inputs.clone(), torch.full((len(inputs),), -torch.inf)
    remaining = torch.arange(len(inputs))  # rows that are still classified right

    def keep(moved: Tensor) -> tuple[Tensor, Tensor]:
        """Records inputs with a higher loss. Returns which rows are still right, and the gradients of all."""
        losses, right, gradient = victim.losses(moved, target[remaining])
        worse = (losses > highest[remaining]) | ~right
        highest[remaining[worse]], best[remaining[worse]] = losses[worse], moved[worse]
        return right, gradient

    right, _ = keep(inputs)
    remaining = remaining[right]
    for seed in seeds:
        if len(remaining) == 0:
            return best
        moved = attack.start(inputs, torch.Generator().manual_seed(seed))[remaining]
        right, gradient = keep(moved)
        for _ in range(attack.steps):
            remaining, moved, gradient = remaining[right], moved[right], gradient[right]
            if len(remaining) == 0:
                return best
            moved = attack.nearest(inputs[remaining], moved + attack.along(gradient))
            right, gradient = keep(moved)
        remaining = remaining[right]
    return best


def _check(inputs: Tensor, target: Tensor, attack: PgdAttack) -> None:
    validate.instance(PgdAttack, attack=attack)
    if not inputs.is_floating_point():
        raise UsageError(f"inputs must be floating point, got {inputs.dtype}.")
    if len(inputs) == 0 or len(inputs) != len(target):
        raise UsageError(f"there must be a label for each input, got {len(inputs)} inputs and {len(target)} labels.")
    if not bool(((inputs >= attack.low) & (inputs <= attack.high)).all()):
        raise UsageError(f"inputs must lie between low = {attack.low} and high = {attack.high} of the attack.")


def _norms(rows: Tensor) -> Tensor:
    lengths: Tensor = rows.flatten(1).double().norm(dim=1).clamp(min=_SMALLEST).to(rows)
    return lengths.reshape(-1, *[1] * (rows.ndim - 1))
