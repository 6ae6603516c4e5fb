"""DP-FedSGD in one process: clients clip and sum the gradients of their own examples for a trusted server.

In each step the server samples examples, every client sends one message (real bytes), and the server sums the messages,
adds noise and sends the private update back. Every client sends in every step, even if none of its examples was
sampled, and all messages of a step have the same length, so the traffic reveals nothing. Clients know the masks: they
draw them from a seed shared with the server, or compute them from the common weights.

Guarantee: that of the plan on the examples of all clients together. The messages are `BoundedSum`s of disjoint units,
so their sum is a `BoundedSum`. A message is rounded to float32; `BoundedSum.from_wire` raises the bound accordingly.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from sordino._input import validate
from sordino.accounting import Adjacency, Guarantee
from sordino.encodings import Combined, Freeze, FreezeByMagnitude, RandomSparsify
from sordino.encodings.codecs import MaskCodec
from sordino.encodings.combined import CombinedCodec
from sordino.encodings.freeze import rest_of, step_at_rest
from sordino.errors import UsageError
from sordino.kernel.budget import Budget
from sordino.kernel.encoding import Codec, Encoding, Unchanged
from sordino.kernel.records import Data
from sordino.kernel.run import PrivateRun
from sordino.kernel.states import BoundedSum
from sordino.kernel.step import BegunStep, Plan
from sordino.training.communication.wire import DenseFormat, Wire

MakeOptimizer = Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]


@dataclass(frozen=True)
class Traffic:
    """Bytes of all messages of one step: `up` from all clients to the server, `down` from the server to all clients."""

    up: int
    down: int


@dataclass(frozen=True)
class Federated:
    """The trained model, the guarantee against an observer of all updates of the server, and the traffic."""

    model: nn.Module
    guarantee: Guarantee
    traffic: tuple[Traffic, ...] = field(repr=False)

    @property
    def bytes_up(self) -> int:
        return sum(step.up for step in self.traffic)

    @property
    def bytes_down(self) -> int:
        return sum(step.down for step in self.traffic)


def federated_sgd(
    plan: Plan,
    model: nn.Module,
    data: Data | Budget,
    *,
    clients: int,
    delta: float,
    optimizer: MakeOptimizer,
    wire: Wire | None = None,
    seed: int | None = None,
) -> Federated:
    """Trains `model` in place. Example i belongs to client i modulo `clients`.

    >>> import torch.nn.functional as F
    >>> import sordino as so
    >>> data = (torch.randn(60, 4), torch.randint(0, 3, (60,)))
    >>> plan = so.Plan(so.Poisson(0.5, steps=3), so.LossGradient(F.cross_entropy), so.ClipByNorm(1.0), so.Gaussian(4.0))
    >>> sgd = lambda parameters: torch.optim.SGD(parameters, lr=0.1)
    >>> trained = federated_sgd(plan, nn.Linear(4, 3), data, clients=5, delta=1e-3, optimizer=sgd, seed=0)
    >>> trained.traffic[0]  # 15 values of 4 bytes for each of 5 clients
    Traffic(up=300, down=300)
    """
    validate.instance(Plan, plan=plan)
    validate.instance((Wire, type(None)), wire=wire)
    if not callable(optimizer):
        raise UsageError(
            f"optimizer must be a function from parameters to an optimizer, got {validate.described(optimizer)}."
        )
    if plan.adjacency is Adjacency.ADD_OR_REMOVE:
        raise UsageError(
            "the plan's adjacency must be zero-out or replace-one, because the number of examples of each client is "
            "public, got add-or-remove."
        )
    _check_masks(plan.encoding)
    plan.guarantee(delta=delta)  # raises an error for an invalid delta
    budget = data if isinstance(data, Budget) else Budget(data)
    validate.count(at_most=budget.records.num_units, clients=clients)
    run = PrivateRun(plan, model, budget, seed=seed)
    server = _Server(run, model, clients, wire or DenseFormat(), largest_client=-(-budget.records.num_units // clients))
    torch_optimizer, mask, traffic = optimizer(model.parameters()), None, []
    for _ in range(len(run)):
        step_traffic, mask = server.step(mask)
        traffic.append(step_traffic)
        step_at_rest(torch_optimizer, model, rest_of(plan.encoding, run.coding_state))
    return Federated(model, run.guarantee(delta=delta), tuple(traffic))


@dataclass(frozen=True)
class _Server:
    run: PrivateRun
    model: nn.Module
    clients: int
    wire: Wire
    largest_client: int  # the largest number of examples of a client; public, like the number of examples

    def step(self, previous_mask: Tensor | None) -> tuple[Traffic, Tensor]:
        """Runs one round: messages up, their noisy sum, the private update down and into the gradients.

        `previous_mask` is the mask of the previous round, if any. Returns the traffic and the mask of this round.
        """
        begun = self.run.begin()
        keep = _mask_of(begun.codec, self.run.layout.size)
        is_known = previous_mask is not None and torch.equal(previous_mask, keep)
        wire = self.wire.once_told if is_known else self.wire
        total, up = None, 0
        for client in range(self.clients):
            message = wire.pack(self._sum_of(client, begun).value, keep)
            up += len(message)
            part = self._received(wire.unpack(message, keep))
            total = part if total is None else total + part
        assert total is not None  # there is at least one client
        private = self.run.finish(begun, total).divide(self.run.expected_batch_size)
        down = wire.pack(private.value, keep)
        private.write_to(self.model)
        return Traffic(up, len(down) * self.clients), keep

    def _sum_of(self, client: int, begun: BegunStep) -> BoundedSum:
        """The sum of the clipped gradients of the client's sampled examples."""
        mine = begun.indices[begun.indices % self.clients == client]
        batch, seeds = self.run.drawn(begun, mine)
        return self.run.bounded(begun, self.run.plan.contribution.of(self.model, batch, seeds))

    def _received(self, value: Tensor) -> BoundedSum:
        return BoundedSum.from_wire(value, self.run.plan.clip.bound, self.run.layout, units=self.largest_client)


def _check_masks(encoding: Encoding) -> None:
    """Raises an error unless clients know the masks. A ranking depends on noise of masked coordinates, so they do not.

    >>> _check_masks(Combined(Freeze(["bias"]), RandomSparsify(0.5, epochs=3, steps_per_epoch=10)))
    """
    if isinstance(encoding, Combined):
        _check_masks(encoding.first)
        _check_masks(encoding.second)
    elif not isinstance(encoding, Unchanged | RandomSparsify | Freeze | FreezeByMagnitude):
        raise UsageError(
            "the encoding must be Unchanged, RandomSparsify, Freeze or a combination of these, whose masks clients can "
            f"compute themselves, got {type(encoding).__name__}."
        )


def _mask_of(codec: Codec, size: int) -> Tensor:
    """The mask of a step, which the server and the clients know."""
    if isinstance(codec, CombinedCodec):
        return _mask_of(codec.first, size) & _mask_of(codec.second, size)
    return codec.keep if isinstance(codec, MaskCodec) else torch.ones(size, dtype=torch.bool)
