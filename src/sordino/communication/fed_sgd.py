"""DP-FedSGD in one process: clients clip and add up their own examples, and send real bytes to a server they trust.

In each step the server says who joins, every client sends one message, the server adds all of them up, adds the noise,
and sends the private update back. Every client sends in every step, whether anybody of it joined or not, and messages
of a step have one length: nothing can be learnt from the traffic. Masks are such that clients can draw them themselves,
from the seed that they share with the server, or make them from the weights that all have.

Guarantee: that of the plan on all clients' examples together. The messages are `BoundedSum`s of disjoint units, so
their sum is one. A message is rounded to float32, and the bound that the noise reads is larger by what that may move
(`BoundedSum.from_wire`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from sordino._input import validate
from sordino.accounting import Adjacency, Guarantee
from sordino.communication.wire import DenseFormat, Wire
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

MakeOptimizer = Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]


@dataclass(frozen=True)
class Traffic:
    """Bytes of all messages of one step: from all clients to the server, and from the server to all clients."""

    up: int
    down: int


@dataclass(frozen=True)
class Federated:
    """A model trained by many, what is promised to whoever sees all updates of the server, and what was sent."""

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
    """Trains `model` in place on examples that `clients` hold in turn: example i belongs to client i modulo `clients`.

    >>> import torch.nn.functional as F
    >>> import sordino as so
    >>> data = (torch.randn(60, 4), torch.randint(0, 3, (60,)))
    >>> plan = so.Plan(so.Poisson(0.5, steps=3), so.LossGradient(F.cross_entropy), so.ClipByNorm(1.0), so.Gaussian(4.0))
    >>> sgd = lambda parameters: torch.optim.SGD(parameters, lr=0.1)
    >>> trained = federated_sgd(plan, nn.Linear(4, 3), data, clients=5, delta=1e-3, optimizer=sgd, seed=0)
    >>> trained.traffic[0]  # 15 numbers of 4 bytes, 5 times
    Traffic(up=300, down=300)
    """
    validate.instance(Plan, plan=plan)
    validate.instance((Wire, type(None)), wire=wire)
    if not callable(optimizer):
        raise UsageError(f"optimizer must make one from parameters, got {validate.described(optimizer)}.")
    if plan.adjacency is Adjacency.ADD_OR_REMOVE:
        raise UsageError("clients hold a public number of examples: say zero-out or replace-one, got add-or-remove.")
    _check_masks(plan.encoding)
    plan.guarantee(delta=delta)  # which refuses a delta that means nothing
    budget = data if isinstance(data, Budget) else Budget(data)
    validate.count(at_most=budget.records.num_units, clients=clients)
    run = PrivateRun(plan, model, budget, seed=seed)
    server = _Server(run, model, clients, wire or DenseFormat(), largest_client=-(-budget.records.num_units // clients))
    steps, told, traffic = optimizer(model.parameters()), None, []
    for _ in range(len(run)):
        sent, told = server.step(told)
        traffic.append(sent)
        step_at_rest(steps, model, rest_of(plan.encoding, run.coding_state))
    return Federated(model, run.guarantee(delta=delta), tuple(traffic))


@dataclass(frozen=True)
class _Server:
    run: PrivateRun
    model: nn.Module
    clients: int
    wire: Wire
    largest_client: int  # public, as the number of examples is

    def step(self, told: Tensor | None) -> tuple[Traffic, Tensor]:
        """One round: messages up, their sum with noise, the private update down and into the gradients.

        `told` is the mask of the round before, if there was one. The mask of this one is handed on.
        """
        begun = self.run.begin()
        keep = _kept(begun.codec, self.run.layout.size)
        wire = self.wire if told is None or not torch.equal(told, keep) else self.wire.once_told
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
        """What the client's examples that joined add together, clipped one by one."""
        mine = begun.indices[begun.indices % self.clients == client]
        batch, seeds = self.run.drawn(begun, mine)
        return self.run.bounded(begun, self.run.plan.contribution.of(self.model, batch, seeds))

    def _received(self, value: Tensor) -> BoundedSum:
        return BoundedSum.from_wire(value, self.run.plan.clip.bound, self.run.layout, units=self.largest_client)


def _check_masks(encoding: Encoding) -> None:
    """Whether clients know the masks. Those of a ranking depend on noise that falls on masked coordinates: they do not.

    >>> _check_masks(Combined(Freeze(["bias"]), RandomSparsify(0.5, epochs=3, steps_per_epoch=10)))
    """
    if isinstance(encoding, Combined):
        _check_masks(encoding.first)
        _check_masks(encoding.second)
    elif not isinstance(encoding, Unchanged | RandomSparsify | Freeze | FreezeByMagnitude):
        raise UsageError(
            "updates can be sent whole, or with masks of RandomSparsify or Freeze, which clients can draw themselves, "
            f"got an encoding of type {type(encoding).__name__}."
        )


def _kept(codec: Codec, size: int) -> Tensor:
    """The mask of a step, which server and clients both know."""
    if isinstance(codec, CombinedCodec):
        return _kept(codec.first, size) & _kept(codec.second, size)
    return codec.keep if isinstance(codec, MaskCodec) else torch.ones(size, dtype=torch.bool)
