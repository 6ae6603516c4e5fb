"""Forward passes on synthetic inputs that leave the model unchanged, and can record the tensors of each layer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from sordino.errors import UsageError
from sordino.gradients.row_randomness import RowRandomness, equal_draws
from sordino.gradients.torch_state import call, device_of, original, working_dtype

CopyTensors = Callable[[Any], list[Tensor]]


@dataclass(frozen=True)
class LayerCall:
    """One call of a layer, with all its input and output tensors."""

    layer: str
    inputs: list[Tensor]
    outputs: list[Tensor]


def forward(model: nn.Module, inputs: tuple[Tensor, ...], names: tuple[str, ...] = ()) -> Any:
    """The outputs of the model, detached, computed with copies of its parameters and buffers."""
    with _state_watched(model) as changed:
        _, outputs = _run(model, inputs, names, None)
    if changed:
        _run(model, inputs, names, lambda _: [])  # names the layer
        raise UsageError(f"the model changes its own {changed[0]!r} in the forward pass: remove that.")
    return tree_map(_detached, outputs)


def calls_of(model: nn.Module, inputs: tuple[Tensor, ...], names: tuple[str, ...] = ()) -> list[LayerCall]:
    """All calls of layers in a forward pass, innermost first. They are in memory at once."""
    return _run(model, inputs, names, _copies)[0]


def _run(
    model: nn.Module, inputs: tuple[Tensor, ...], names: tuple[str, ...], copies: CopyTensors | None
) -> tuple[list[LayerCall], Any]:
    """The outputs of a pass, and the calls of all layers, unless `copies` is None."""
    tensors = {name: x.detach().clone() for name, x in model.named_buffers()}
    tensors |= {name: p.detach().clone().requires_grad_(p.requires_grad) for name, p in model.named_parameters()}
    dtype = working_dtype(model)
    inputs = tuple(x.to(dtype) if x.is_floating_point() else x for x in inputs)
    recorded = nullcontext(list[LayerCall]()) if copies is None else _recorded_calls(model, copies)
    with recorded as calls, _own_generator(model):
        try:
            outputs = _with_equal_draws(model, lambda: call(model, tensors, inputs, names))
        except UsageError:
            raise
        except Exception as error:
            shapes = ", ".join(str(tuple(x.shape)) for x in inputs)
            raise UsageError(
                f"{layer_at_fault(model, error)} fails on synthetic inputs of shape {shapes}: {one_line(error)}"
            ) from error
    return calls, outputs


def _with_equal_draws(model: nn.Module, run: Callable[[], Any]) -> Any:
    """The result of `run` with all random numbers equal, so that numbers drawn for some rows do not change others."""
    try:
        with equal_draws(), RowRandomness(torch.arange(1, device=device_of(model)), refuses=False):
            return run()
    except NotImplementedError:  # operations such as torch.cond have no rule for a mode
        return run()


@contextmanager
def _state_watched(model: nn.Module) -> Iterator[list[str]]:
    """The names of parameters and buffers that differ from the model's own at the end of a pass with copies of them."""
    own = dict(_state_of(model, recurse=True))
    changed: list[str] = []

    def leaving(module: nn.Module, args: Any, output: Any) -> None:
        now = _state_of(module, recurse=True)
        changed.extend(name for name, x in now if name not in own or not _identical(own[name], x))

    hook = model.register_forward_hook(leaving)
    try:
        yield changed
    finally:
        hook.remove()


def _state_of(module: nn.Module, recurse: bool) -> list[tuple[str, Tensor]]:
    return [*module.named_parameters(recurse=recurse), *module.named_buffers(recurse=recurse)]


@contextmanager
def _recorded_calls(model: nn.Module, copies: CopyTensors) -> Iterator[list[LayerCall]]:
    """Hooks that record each call of a layer, with copies of its tensors, and refuse a layer that changes its state."""
    calls: list[LayerCall] = []
    pending: list[tuple[list[Tensor], dict[str, Tensor]]] = []
    names = {module: name for name, module in model.named_modules()}

    def state_of(module: nn.Module) -> list[tuple[str, Tensor]]:
        return _state_of(module, recurse=module is model)  # a layer may change the state of another layer

    def entering(module: nn.Module, args: Any, kwargs: Any) -> None:
        pending.append((copies((args, kwargs)), {name: x.detach().clone() for name, x in state_of(module)}))

    def leaving(module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        inputs, state = pending.pop()
        for name, now in state_of(module):
            if name not in state or not _identical(state[name], now):
                raise UsageError(
                    f"{called(names[module], module)} changes its own {name!r} in the forward pass: what it learns "
                    "from examples would stay in the model. Put it into eval mode, or remove it."
                )
        calls.append(LayerCall(called(names[module], module), inputs, copies(output)))

    hooks = []
    for module in names:
        hooks.append(module.register_forward_pre_hook(entering, prepend=True, with_kwargs=True))
        hooks.append(module.register_forward_hook(leaving, with_kwargs=True))
    try:
        yield calls
    finally:
        for hook in hooks:
            hook.remove()


def _identical(one: Tensor, other: Tensor) -> bool:
    one, other = (x if x.layout == torch.strided else x.to_dense() for x in (one, other))
    if one.shape != other.shape or torch.equal(one, other):
        return one.shape == other.shape
    return bool(((one == other) | (one.isnan() & other.isnan())).all())


def _detached(value: Any) -> Any:
    return value.detach() if isinstance(value, Tensor) else value


def _copies(values: Any) -> list[Tensor]:
    return [x.detach().clone() for x in tree_leaves(values) if isinstance(x, Tensor)]


@contextmanager
def _own_generator(model: nn.Module) -> Iterator[None]:
    device = device_of(model)
    on_gpu = device.type == "cuda"
    with torch.random.fork_rng(devices=[device] if on_gpu else []):
        torch.default_generator.manual_seed(0)
        if on_gpu:
            with torch.cuda.device(device):
                torch.cuda.manual_seed(0)
        yield


def layer_at_fault(model: nn.Module, error: BaseException) -> str:
    """The innermost layer of `model` that was running when `error` was raised, described for a message."""
    names = {id(module): name for name, module in original(model).named_modules()}
    layer, frame = "the model or its loss", error.__traceback__
    while frame is not None:
        module = frame.tb_frame.f_locals.get("self")
        if isinstance(module, nn.Module) and id(module) in names:
            layer = called(names[id(module)], module)
        frame = frame.tb_next
    return layer


def one_line(error: BaseException) -> str:
    """The first line of an error's message, at most 300 characters."""
    text = str(error).strip() or type(error).__name__
    return text.splitlines()[0][:300]


def called(name: str, module: nn.Module) -> str:
    """The description of a layer in messages: its name and its class."""
    return f"layer {name!r} ({type(module).__name__})" if name else f"the model ({type(module).__name__})"
