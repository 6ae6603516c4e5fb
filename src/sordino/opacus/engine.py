"""The engine that users of Opacus know, as a second driver of the same kernel."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

import torch
from dp_accounting.dp_event import ComposedDpEvent
from torch import nn
from torch.utils.data import DataLoader

from sordino._input import validate
from sordino.accounting import Guarantee
from sordino.errors import UsageError
from sordino.gradients.row_loss import Loss
from sordino.gradients.torch_state import original, working_dtype
from sordino.kernel.budget import RunIdentity
from sordino.kernel.calibration import calibrate, check_delta_for, check_target
from sordino.kernel.clipping import Clip, ClipByNorm, ClipPerLayer
from sordino.kernel.model_checks import check_model
from sordino.kernel.noise import Gaussian, check_tail
from sordino.kernel.randomness import Key
from sordino.kernel.records import as_records
from sordino.kernel.run import PrivateRun
from sordino.kernel.step import Plan
from sordino.opacus.loader import PrivateLoader, check_loader, sampler_for
from sordino.opacus.session import Session
from sordino.opacus.wrappers import PrivateModule, ScriptedGradient, step_privately

Private = tuple[PrivateModule, torch.optim.Optimizer, PrivateLoader]

_KEPT = "the script keeps raw batches, the model's outputs and losses to itself"
_CHOSEN = "how many steps were taken was not chosen by what was seen of the data or of the training"
_MODES = ("hooks", "functorch", "ew", "ghost")


class PrivacyEngine:
    """Makes a model, an optimizer and a loader private, by the names that Opacus has for it.

    `accountant` may be named as there; the tightest that is proved is used, and "gdp" is refused, because it is none.
    The noise is always cryptographic; a `seed` is for tests, and the guarantee says so. Two calls of one engine draw
    different noise; two engines do not know of each other, and need two seeds.

    >>> from torch.utils.data import TensorDataset
    >>> model, data = nn.Linear(4, 3), TensorDataset(torch.zeros(40, 4), torch.zeros(40, dtype=torch.int64))
    >>> engine, optimizer = PrivacyEngine(), torch.optim.SGD(model.parameters(), lr=0.1)
    >>> model, optimizer, loader = engine.make_private(
    ...     module=model, optimizer=optimizer, data_loader=DataLoader(data, batch_size=8), noise_multiplier=1.0,
    ...     max_grad_norm=1.0)
    >>> for inputs, labels in loader:
    ...     nn.functional.cross_entropy(model(inputs), labels).backward()
    ...     optimizer.step()
    >>> round(engine.get_epsilon(delta=1e-5), 1)
    3.9
    """

    def __init__(
        self,
        *,
        accountant: Literal["prv", "rdp"] | str = "prv",
        secure_mode: bool = False,
        seed: int | None = None,
    ) -> None:
        if accountant not in ("prv", "rdp"):
            raise UsageError(
                f"accountant must be 'prv' or 'rdp', got {validate.option(accountant)}: others prove no bound."
            )
        if secure_mode and seed is not None:
            raise UsageError("secure_mode and seed exclude each other: whoever knows the seed can remove the noise.")
        self._key = Key.fresh() if seed is None else Key.from_seed(seed)
        self._sessions: list[tuple[Session, bool]] = []

    def make_private(
        self,
        *,
        module: nn.Module,
        optimizer: torch.optim.Optimizer,
        data_loader: DataLoader[Any] | PrivateLoader,
        noise_multiplier: float,
        max_grad_norm: float | Sequence[float],
        criterion: Loss | None = None,
        batch_first: bool = True,
        loss_reduction: str = "mean",
        poisson_sampling: bool = True,
        clipping: str = "flat",
        noise_generator: None = None,
        grad_sample_mode: str = "hooks",
        wrap_model: bool = True,
        rand_on_empty: bool = False,
    ) -> Private:
        """The model, the script's own optimizer, and a loader, for as many steps as the script takes.

        Pass a `criterion` only if the loss cannot be followed (an error says so): then the script must call that one.
        """
        _check_modes(
            batch_first, loss_reduction, clipping, noise_generator, grad_sample_mode, wrap_model, rand_on_empty
        )
        noise, clip = Gaussian(noise_multiplier), _clip(module, max_grad_norm, clipping)

        def plan(loader: DataLoader[Any]) -> Plan:
            sampler = sampler_for(loader, poisson_sampling=poisson_sampling, epochs=None)
            return Plan(sampler, ScriptedGradient(), clip, noise)

        return self._made_private(module, optimizer, data_loader, plan, criterion, loss_reduction, planned=False)

    def make_private_with_epsilon(
        self,
        *,
        module: nn.Module,
        optimizer: torch.optim.Optimizer,
        data_loader: DataLoader[Any] | PrivateLoader,
        target_epsilon: float,
        target_delta: float,
        epochs: float,
        max_grad_norm: float | Sequence[float],
        criterion: Loss | None = None,
        batch_first: bool = True,
        loss_reduction: str = "mean",
        poisson_sampling: bool = True,
        clipping: str = "flat",
        noise_generator: None = None,
        grad_sample_mode: str = "hooks",
        wrap_model: bool = True,
        rand_on_empty: bool = False,
    ) -> Private:
        """The same, with noise such that the target holds for `epochs`. Steps beyond them are refused."""
        _check_modes(
            batch_first, loss_reduction, clipping, noise_generator, grad_sample_mode, wrap_model, rand_on_empty
        )
        check_target(target_epsilon, target_delta)
        validate.between(0, 1e6, low_open=True, epochs=epochs)

        clip = _clip(module, max_grad_norm, clipping)

        def plan(loader: DataLoader[Any]) -> Plan:
            check_delta_for(len(loader.dataset), target_delta)  # type: ignore[arg-type]
            sampler = sampler_for(loader, poisson_sampling=poisson_sampling, epochs=epochs)
            bare = Plan(sampler, ScriptedGradient(), clip, Gaussian(1.0))
            return calibrate(bare, epsilon=target_epsilon, delta=target_delta)

        return self._made_private(module, optimizer, data_loader, plan, criterion, loss_reduction, planned=True)

    @property
    def accountant(self) -> PrivacyEngine:
        """Who answers `get_epsilon`: the engine itself."""
        return self

    def get_epsilon(self, delta: float) -> float:
        """The epsilon of the steps begun so far, of all that this engine made private together."""
        return self._promise(delta, whole_plans=False).epsilon

    def guarantee(self, delta: float) -> Guarantee:
        """What training promises, with all that it assumes: of all planned steps, where they were planned."""
        return self._promise(delta, whole_plans=True)

    def _made_private(
        self,
        module: nn.Module,
        optimizer: torch.optim.Optimizer,
        data_loader: DataLoader[Any] | PrivateLoader,
        make_plan: Callable[[DataLoader[Any]], Plan],
        criterion: Loss | None,
        loss_reduction: str,
        *,
        planned: bool,
    ) -> Private:
        validate.instance(nn.Module, module=module)
        if isinstance(module, PrivateModule):
            raise UsageError("module is private already: give the module that it was made from.")
        check_model(module)
        source = data_loader.source if isinstance(data_loader, PrivateLoader) else data_loader
        check_loader(source)
        plan, inner = make_plan(source), original(module)
        records = as_records(source.dataset, dtype=working_dtype(inner))
        call = len(self._sessions)  # its records are a budget of their own: what numbers releases is the engine
        run = PrivateRun(
            plan, inner, records, key=self._key, identity=RunIdentity(f"call {call}", call), physical_batch_size=1
        )
        session = Session(run, inner, records, criterion, loss_reduction)
        step_privately(optimizer, inner, session, run.expected_batch_size if loss_reduction == "mean" else 1.0)
        self._sessions.append((session, planned))
        return PrivateModule(inner, session), optimizer, PrivateLoader(source, session)

    def _promise(self, delta: float, *, whole_plans: bool) -> Guarantee:
        if not self._sessions:
            raise UsageError("nothing was made private yet: there is no epsilon to tell.")
        assumed, events = [_KEPT], []
        for session, planned in self._sessions:
            run, whole = session.run, planned and whole_plans
            events.append(run.event if whole else run.event_so_far)
            assumed += [*run.assumptions, *(() if whole else (_CHOSEN,))]
            steps = run.plan.steps if whole else max(1, run.steps)
            check_tail(run.plan.noise, run.plan.adjacency, steps=steps, delta=delta)
        adjacency = self._sessions[0][0].run.plan.adjacency
        event = events[0] if len(events) == 1 else ComposedDpEvent(events)
        return Guarantee.of(event, adjacency, delta=delta, assumptions=tuple(dict.fromkeys(assumed)))


def _check_modes(
    batch_first: bool,
    loss_reduction: str,
    clipping: str,
    noise_generator: object,
    grad_sample_mode: str,
    wrap_model: bool,
    rand_on_empty: bool,
) -> None:
    """Refuses the modes of Opacus that cannot be had. The others need no choice here."""
    if not batch_first:
        raise UsageError("batch_first must be True: the first axis of every tensor is the rows of the batch.")
    if loss_reduction not in ("mean", "sum"):
        raise UsageError(f"loss_reduction must be 'mean' or 'sum', got {validate.option(loss_reduction)}.")
    if clipping not in ("flat", "per_layer"):
        raise UsageError(f"clipping must be 'flat' or 'per_layer', got {validate.option(clipping)}.")
    if noise_generator is not None:
        raise UsageError(
            "noise_generator must be None: noise is cryptographic; for tests there is PrivacyEngine(seed)."
        )
    if grad_sample_mode not in _MODES:
        raise UsageError(
            f"grad_sample_mode must be one of {', '.join(_MODES)}, all the same here, "
            f"got {validate.option(grad_sample_mode)}."
        )
    if not wrap_model:
        raise UsageError("wrap_model must be True: the model that is returned runs each row alone.")
    if rand_on_empty:
        raise UsageError("rand_on_empty must be False: a made-up row could move the sum by twice the clip norm.")


def _clip(module: nn.Module, max_grad_norm: float | Sequence[float], clipping: str) -> Clip:
    if clipping == "flat":
        if isinstance(max_grad_norm, Sequence):
            raise UsageError("max_grad_norm is one number for flat clipping, and a list of them for 'per_layer'.")
        return ClipByNorm(max_grad_norm)
    if not isinstance(max_grad_norm, Sequence):
        raise UsageError("max_grad_norm must hold a clip norm per parameter tensor for clipping 'per_layer'.")
    tensors = sum(p.requires_grad for p in module.parameters())
    if len(max_grad_norm) != tensors:
        raise UsageError(f"max_grad_norm must hold {tensors} clip norms, got {len(max_grad_norm)}.")
    return ClipPerLayer(max_grad_norm)
