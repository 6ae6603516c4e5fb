"""`PrivacyEngine`: the engine of Opacus on the kernel of this library, driven by the loop of a script."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import IO, Any, BinaryIO, Literal

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
from sordino.kernel.calibration import WEAKEST_EPSILON, calibrate, check_target
from sordino.kernel.clipping import Clip, ClipByNorm, ClipPerLayer
from sordino.kernel.noise import Gaussian, arithmetic_of, check_tail
from sordino.kernel.randomness import Key
from sordino.kernel.run import PrivateRun
from sordino.kernel.step import Plan
from sordino.opacus.collated import records_of
from sordino.opacus.loader import PrivateLoader, check_loader, is_waiting, sampler_for
from sordino.opacus.session import Session
from sordino.opacus.spent import EarlierEngines, SpentCall
from sordino.opacus.validators import ModuleValidator
from sordino.opacus.wrappers import PrivateCalls, PrivateModule, ScriptedGradient, step_privately

FileLike = str | os.PathLike[str] | BinaryIO | IO[bytes]
Private = tuple[Any, ...]  # (model or hooks, optimizer, loader), or with the criterion before the loader

_KEPT = "the script keeps raw batches, the model's outputs and losses to itself"
_CHOSEN = "the number of steps was not chosen by looking at the data or at the training"
_LOADED = "nothing was released of steps that were begun after a loaded checkpoint was written"
_WEIGHTS, _OPTIMIZER, _SPENT = "module_state_dict", "optimizer_state_dict", "privacy_accountant_state_dict"
_MODES = ("hooks", "functorch", "ew", "ghost", "ghost_fsdp")


class PrivacyEngine:
    """Makes a model, an optimizer and a loader private, with the interface of Opacus.

    `accountant` "prv" or "rdp" is accepted; in both cases the tightest proved accountant is used. "gdp" is refused,
    because it is an approximation without a proof. The noise is always cryptographic; a `seed` is for tests, and is
    stated in the guarantee. Calls of one engine draw different noise. Engines are independent of each other and need
    different seeds.

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
                f"accountant must be 'prv' or 'rdp', got {validate.option(accountant)}: no other gives a proved bound."
            )
        if secure_mode and seed is not None:
            raise UsageError("secure_mode and seed exclude each other: with the seed, the noise can be removed.")
        self._key = Key.fresh() if seed is None else Key.from_seed(seed)
        self._sessions: list[tuple[Session, bool]] = []
        self._earlier = EarlierEngines()
        self._has_seed = seed is not None

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
        """Returns the private model, the script's optimizer and a private loader, for any number of steps.

        In the modes "ghost" and "ghost_fsdp" the criterion is returned before the loader, as in Opacus. In other modes,
        pass a `criterion` only if an error says that the loss cannot be traced. The script must then use this one.
        Without `wrap_model` the first result is an object whose `cleanup()` removes the hooks of the model.
        """
        _check_modes(batch_first, loss_reduction, clipping, noise_generator, grad_sample_mode, rand_on_empty)
        form = _Returned(grad_sample_mode.startswith("ghost"), wrap_model)
        noise, clip = Gaussian(noise_multiplier), _clip(module, max_grad_norm, clipping)

        def plan(loader: DataLoader[Any]) -> Plan:
            sampler = sampler_for(loader, poisson_sampling=poisson_sampling, epochs=None)
            return Plan(sampler, ScriptedGradient(), clip, noise)

        return self._made_private(module, optimizer, data_loader, plan, criterion, loss_reduction, form, planned=False)

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
        """Calibrates the noise to the target for `epochs`, then as `make_private`. Further steps raise an error."""
        _check_modes(batch_first, loss_reduction, clipping, noise_generator, grad_sample_mode, rand_on_empty)
        form = _Returned(grad_sample_mode.startswith("ghost"), wrap_model)
        check_target(target_epsilon, target_delta, allow_weak=True)
        validate.between(0, 1e6, low_open=True, epochs=epochs)

        clip = _clip(module, max_grad_norm, clipping)

        def plan(loader: DataLoader[Any]) -> Plan:
            _warn_if_weak(target_epsilon, target_delta, len(loader.dataset))  # type: ignore[arg-type]
            sampler = sampler_for(loader, poisson_sampling=poisson_sampling, epochs=epochs)
            bare = Plan(sampler, ScriptedGradient(), clip, Gaussian(1.0))
            return calibrate(bare, epsilon=target_epsilon, delta=target_delta, allow_weak=True)

        return self._made_private(module, optimizer, data_loader, plan, criterion, loss_reduction, form, planned=True)

    @property
    def accountant(self) -> PrivacyEngine:
        """The object with the method `get_epsilon`, as in Opacus: the engine itself."""
        return self

    def get_epsilon(self, delta: float) -> float:
        """The epsilon of the steps begun so far, of all calls of this engine together."""
        return self._guarantee(delta, whole_plans=False).epsilon

    def guarantee(self, delta: float) -> Guarantee:
        """The guarantee with its assumptions.

        It is for all planned steps after `make_private_with_epsilon`, and for the steps begun so far otherwise.
        """
        return self._guarantee(delta, whole_plans=True)

    def save_checkpoint(
        self,
        *,
        path: FileLike,
        module: nn.Module,
        optimizer: torch.optim.Optimizer | None = None,
        noise_scheduler: None = None,
        grad_clip_scheduler: None = None,
        checkpoint_dict: dict[str, Any] | None = None,
        module_state_dict_kwargs: dict[str, Any] | None = None,
        torch_save_kwargs: dict[str, Any] | None = None,
    ) -> None:
        """Saves the states of module and optimizer, and what was spent, with the keys that Opacus uses."""
        _refuse_schedulers(noise_scheduler, grad_clip_scheduler)
        options = _options_of_torch("module_state_dict_kwargs", module_state_dict_kwargs, "prefix", "keep_vars")
        how = _options_of_torch("torch_save_kwargs", torch_save_kwargs, "pickle_module", "pickle_protocol")
        checkpoint = {**(checkpoint_dict or {}), _WEIGHTS: module.state_dict(**options)}
        checkpoint[_SPENT] = self._earlier.state([SpentCall.of(session.run) for session, _ in self._sessions])
        if optimizer is not None:
            checkpoint[_OPTIMIZER] = optimizer.state_dict()
        torch.save(checkpoint, path, **how)

    def load_checkpoint(
        self,
        *,
        path: FileLike,
        module: nn.Module,
        optimizer: torch.optim.Optimizer | None = None,
        noise_scheduler: None = None,
        grad_clip_scheduler: None = None,
        module_load_dict_kwargs: dict[str, Any] | None = None,
        torch_load_kwargs: dict[str, Any] | None = None,
    ) -> dict[str, Any]:
        """Loads a checkpoint, and adds to this engine what was spent before. Returns the content of the file.

        Noise is new: steps are not repeated, they go on. Steps that were begun after the checkpoint was written are not
        in it, and the guarantee assumes that nothing of them was released.
        """
        _refuse_schedulers(noise_scheduler, grad_clip_scheduler)
        if self._has_seed:
            raise UsageError("an engine with a seed would draw the noise of the checkpoint again: leave out the seed.")
        options = _options_of_torch("module_load_dict_kwargs", module_load_dict_kwargs, "strict", "assign")
        allowed = "map_location", "pickle_module", "weights_only", "mmap"
        how = {"weights_only": True} | _options_of_torch("torch_load_kwargs", torch_load_kwargs, *allowed)
        checkpoint = torch.load(path, **how)
        if not isinstance(checkpoint, dict) or not {_WEIGHTS, _SPENT} <= checkpoint.keys():
            raise UsageError(f"a checkpoint must have the keys {_WEIGHTS} and {_SPENT}, but some are missing.")
        if (optimizer is not None) != (_OPTIMIZER in checkpoint):
            has = "no state" if optimizer is not None else "the state"
            raise UsageError(f"the checkpoint has {has} of an optimizer: pass optimizer both when saving and loading.")
        self._earlier.load(checkpoint[_SPENT])
        module.load_state_dict(checkpoint[_WEIGHTS], **options)
        if optimizer is not None:
            optimizer.load_state_dict(checkpoint[_OPTIMIZER])
        return checkpoint

    def _made_private(
        self,
        module: nn.Module,
        optimizer: torch.optim.Optimizer,
        data_loader: DataLoader[Any] | PrivateLoader,
        make_plan: Callable[[DataLoader[Any]], Plan],
        criterion: Loss | None,
        loss_reduction: str,
        returned: _Returned,
        *,
        planned: bool,
    ) -> Private:
        validate.instance(nn.Module, module=module)
        if isinstance(module, PrivateModule):
            raise UsageError("module is private already: pass the module from which it was made.")
        ModuleValidator.validate(module, strict=True)
        source = data_loader.source if isinstance(data_loader, PrivateLoader) else data_loader
        check_loader(source)
        plan, inner = make_plan(source), original(module)
        records = records_of(source, working_dtype(inner))
        call = len(self._sessions)  # each call has a budget of its own, so the engine numbers the releases
        run = PrivateRun(
            plan, inner, records, key=self._key, identity=RunIdentity(f"call {call}", call), physical_batch_size=1
        )
        declared = None if returned.with_criterion else criterion
        session = Session(run, inner, records, declared, loss_reduction)
        step_privately(optimizer, inner, session, run.expected_batch_size if loss_reduction == "mean" else 1.0)
        self._sessions.append((session, planned))
        loader = data_loader if is_waiting(data_loader) else PrivateLoader(source)
        loader.begin(session)
        calls = PrivateCalls(inner, session)
        first = PrivateModule(inner, session, calls) if returned.wrapped else calls
        middle = (criterion or nn.CrossEntropyLoss(),) if returned.with_criterion else ()
        return (first, optimizer, *middle, loader)

    def _guarantee(self, delta: float, *, whole_plans: bool) -> Guarantee:
        earlier = self._earlier.calls
        if not self._sessions and not earlier:
            raise UsageError("there is no epsilon yet: call make_private or make_private_with_epsilon first.")
        assumptions, events = [_KEPT, *([_LOADED, *arithmetic_of(earlier[0].noise)] if earlier else [])], []
        for call in earlier:
            events.append(call.event)
            check_tail(call.noise, call.sampler.adjacency, steps=max(1, call.steps), delta=delta)
        for session, planned in self._sessions:
            run, whole = session.run, planned and whole_plans
            events.append(run.event if whole else run.event_so_far)
            assumptions += [*run.assumptions, *session.assumptions, *(() if whole else (_CHOSEN,))]
            steps = run.plan.steps if whole else max(1, run.steps)
            check_tail(run.plan.noise, run.plan.adjacency, steps=steps, delta=delta)
        adjacency = earlier[0].sampler.adjacency if earlier else self._sessions[0][0].run.plan.adjacency
        event = events[0] if len(events) == 1 else ComposedDpEvent(events)
        found = Guarantee.of(event, adjacency, delta=delta, assumptions=tuple(dict.fromkeys(assumptions)))
        rows = max((session.num_rows for session, _ in self._sessions), default=1)
        accepted = tuple(f"{weakness}, is accepted" for weakness in _weaknesses(found.epsilon, delta, rows))
        return replace(found, assumptions=(*found.assumptions, *accepted))


def _options_of_torch(name: str, given: object, *allowed: str) -> dict[str, Any]:
    if given is None:
        return {}
    if not isinstance(given, dict) or not given.keys() <= set(allowed):
        raise UsageError(f"{name} must be a dictionary with keys among {', '.join(allowed)}.")
    return given


def _refuse_schedulers(noise_scheduler: object, grad_clip_scheduler: object) -> None:
    if noise_scheduler is not None or grad_clip_scheduler is not None:
        raise UsageError("noise_scheduler and grad_clip_scheduler must be None: noise and clip are those of the plan.")


class WeakTarget(UserWarning):
    """A script asks for a guarantee that protects little. It is carried out and stated as asked."""


def _warn_if_weak(epsilon: float, delta: float, rows: int) -> None:
    for weakness in _weaknesses(epsilon, delta, rows):
        warnings.warn(f"this target is {weakness}: choose a smaller one.", WeakTarget, stacklevel=5)


def _weaknesses(epsilon: float, delta: float, rows: int) -> list[str]:
    """What makes a guarantee protect little."""
    found = []
    if epsilon > WEAKEST_EPSILON:
        found.append(f"an epsilon above {WEAKEST_EPSILON:g}, which protects hardly anything")
    if delta >= 1 / rows:
        found.append(f"a delta that even a mechanism meets which publishes one of the {rows} rows")
    return found


@dataclass(frozen=True)
class _Returned:
    """Which objects a script gets, in which form."""

    with_criterion: bool
    wrapped: bool


def _check_modes(
    batch_first: bool,
    loss_reduction: str,
    clipping: str,
    noise_generator: object,
    grad_sample_mode: str,
    rand_on_empty: bool,
) -> None:
    """Raises an error for modes of Opacus that are not supported. The supported ones make no difference here."""
    if not batch_first:
        raise UsageError("batch_first must be True: the first axis of every tensor must be the batch axis.")
    if loss_reduction not in ("mean", "sum"):
        raise UsageError(f"loss_reduction must be 'mean' or 'sum', got {validate.option(loss_reduction)}.")
    if clipping not in ("flat", "per_layer"):
        raise UsageError(f"clipping must be 'flat' or 'per_layer', got {validate.option(clipping)}.")
    if noise_generator is not None:
        raise UsageError(
            "noise_generator must be None, because noise is cryptographic; for tests use PrivacyEngine(seed=...)."
        )
    if grad_sample_mode not in _MODES:
        raise UsageError(
            f"grad_sample_mode must be one of {', '.join(_MODES)}, which are all equivalent here, "
            f"got {validate.option(grad_sample_mode)}."
        )
    if rand_on_empty:
        raise UsageError("rand_on_empty must be False: a random row could move the sum by twice the clip norm.")


def _clip(module: nn.Module, max_grad_norm: float | Sequence[float], clipping: str) -> Clip:
    if clipping == "flat":
        if isinstance(max_grad_norm, Sequence):
            raise UsageError("max_grad_norm must be one number for clipping 'flat', got several, as for 'per_layer'.")
        return ClipByNorm(max_grad_norm)
    if not isinstance(max_grad_norm, Sequence):
        raise UsageError("max_grad_norm must be a list with a clip norm per parameter tensor for clipping 'per_layer'.")
    tensors = sum(p.requires_grad for p in module.parameters())
    if len(max_grad_norm) != tensors:
        raise UsageError(f"max_grad_norm must have {tensors} clip norms, got {len(max_grad_norm)}.")
    return ClipPerLayer(max_grad_norm)
