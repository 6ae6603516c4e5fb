"""Settings of Hugging Face transformers during a pass, restored after it.

Transformers is not imported: if no module of it is loaded, no model of it is in use.

* Attention masks are built without a branch on their values, for which `vmap` has no single answer.
* No cache of keys and values is built, which training does not need. Outputs are objects, with `logits`.
* Activations are kept instead of computed twice. Checkpointing saves memory in training with one large batch. Here the
  size of a micro-batch bounds the memory, and `vmap` cannot run a checkpoint.
* LoHa adapters of PEFT compute their weights by differentiable operations, instead of by a function with a backward
  pass of its own, which `vmap` cannot run.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

_CONFIGURED = {"use_cache": False, "return_dict": True}
_INPUT_HOOK = "make_inputs_require_grads"  # for checkpoints; registered on embeddings by transformers and PEFT


def transformers_model(model: nn.Module) -> nn.Module | None:
    """The model of Hugging Face transformers that this is, or that its PEFT adapters are inserted into; else None.

    >>> transformers_model(nn.Linear(3, 2)) is None
    True
    """
    kind = getattr(sys.modules.get("transformers.modeling_utils"), "PreTrainedModel", None)
    if kind is None:
        return None
    model = getattr(model, "_orig_mod", model)  # inside torch.compile's wrapper
    adapted = getattr(sys.modules.get("peft.peft_model"), "PeftModel", None)
    if adapted is not None and isinstance(model, adapted):
        inner: Any = model
        model = inner.get_base_model()
    return model if isinstance(model, kind) else None


@contextmanager
def transformers_settings(model: nn.Module, *, in_rows: bool = True) -> Iterator[None]:
    """Sets what the head of this module says for the modules of `model`, and restores it on exit.

    `in_rows` is False outside of `vmap`, where masks may be built as the library does.
    """
    if "transformers" not in sys.modules:
        yield
        return
    with ExitStack() as stack:
        if in_rows:
            stack.enter_context(masks_without_branches())
        stack.enter_context(_differentiable_hadamard_products())
        for module in model.modules():
            attributes = vars(module)
            config = attributes.get("config")
            for name, value in _CONFIGURED.items():
                if getattr(config, name, value) is (not value):
                    stack.enter_context(_with(vars(config), name, value))
            if attributes.get("gradient_checkpointing") is True:
                stack.enter_context(_with(attributes, "gradient_checkpointing", False))
            for number, hook in list(module._forward_hooks.items()):
                if getattr(hook, "__name__", "") == _INPUT_HOOK:
                    stack.enter_context(_without(module._forward_hooks, number))
        yield


@contextmanager
def masks_without_branches() -> Iterator[None]:
    """Lets transformers build attention masks without reading their values.

    It leaves out a mask of ones, which asks whether all values of the row are one. When a model is traced, it does not
    ask, and builds every mask. So it is told that it is traced.
    """
    module = sys.modules.get("transformers.masking_utils")
    if module is None or not hasattr(module, "is_tracing"):
        yield
        return
    with _with(vars(module), "is_tracing", lambda tensor=None: True):
        yield


@contextmanager
def _differentiable_hadamard_products() -> Iterator[None]:
    """Lets LoHa adapters compute their weights by operations of torch."""
    module = sys.modules.get("peft.tuners.loha.layer")
    if module is None:
        yield
        return
    with (
        _with(vars(module), "make_weight", _product_of_matrices),
        _with(vars(module), "make_weight_cp", _product_of_kernels),
    ):
        yield


def _product_of_matrices(w1a: Tensor, w1b: Tensor, w2a: Tensor, w2b: Tensor, scale: Tensor) -> Tensor:
    """The entrywise product of two matrices of low rank (Hyeon-Woo et al. 2022)."""
    return (w1a @ w1b) * (w2a @ w2b) * scale


def _product_of_kernels(
    t1: Tensor, w1a: Tensor, w1b: Tensor, t2: Tensor, w2a: Tensor, w2b: Tensor, scale: Tensor
) -> Tensor:
    """The entrywise product of two convolution kernels of low rank, each a core [i, j, ...] between two factors."""
    kernels = (torch.einsum("ij...,ip,jr->pr...", core, a, b) for core, a, b in ((t1, w1a, w1b), (t2, w2a, w2b)))
    return next(kernels) * next(kernels) * scale


@contextmanager
def _with(values: dict[str, Any], name: str, value: object) -> Iterator[None]:
    before = {name: values[name]} if name in values else {}
    values[name] = value
    try:
        yield
    finally:
        values.update(before)
        if not before:
            del values[name]


@contextmanager
def _without(values: dict[Any, Any], key: object) -> Iterator[None]:
    """Takes an entry out for a while. On exit, the entries have their order again."""
    before = dict(values)
    del values[key]
    try:
        yield
    finally:
        values.clear()
        values.update(before)
