"""Steps of the peers on a model: Opacus with its hooks and ghost norms, and the functions of Opake.

Each step is the peer's own code for what `sordino.PrivateRun` does, without sampling: clipped gradients, noise and SGD.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from bench.transformer_models import Rows, Task, logits_of, split, trained

# Carries a step out, and returns a function for the noisy sum of clipped gradients, which is no part of the step.
Step = Callable[[], Callable[[], Tensor]]


class RowLosses(nn.Module):
    """The loss of a task in the form that Opacus takes: it reads and sets `reduction`."""

    def __init__(self, task: Task) -> None:
        super().__init__()
        self.reduction, self._row_losses = "mean", task.row_losses

    def forward(self, logits: Tensor, labels: Tensor) -> Tensor:
        losses = self._row_losses(logits, labels)
        return losses.mean() if self.reduction == "mean" else losses


def opacus_step(task: Task, rows: Rows, mode: str, physical: int, noise: float = 1.0) -> Step:
    """A step of Opacus in micro-batches, by its `signal_skip_step`.

    Models of tokens get position ids, because it needs a batch axis on all inputs of layers.
    """
    from opacus import PrivacyEngine

    model, size = task.make().train(), len(rows["labels"])
    if "input_ids" in rows:
        places = torch.arange(rows["input_ids"].shape[1]).expand(size, -1).contiguous()
        rows = {**rows, "position_ids": places}
    data = torch.utils.data.TensorDataset(*rows.values())
    made: Any = PrivacyEngine().make_private(
        module=model, optimizer=torch.optim.SGD(trained(model), lr=0.01), criterion=RowLosses(task),
        data_loader=torch.utils.data.DataLoader(data, batch_size=size), poisson_sampling=False,
        noise_multiplier=noise, max_grad_norm=1.0, grad_sample_mode=mode,
    )  # fmt: skip
    private, optimizer = made[0], made[1]
    loss = made[2] if mode == "ghost" else RowLosses(task)
    parts = split(rows, physical)

    def step() -> Callable[[], Tensor]:
        for position, (inputs, labels) in enumerate(parts):
            optimizer.zero_grad()
            optimizer.signal_skip_step(do_skip=position < len(parts) - 1)
            with task.precision():
                logits = logits_of(private(**inputs))
            loss(logits, labels).backward()
            optimizer.step()
        return lambda: torch.cat([size * p.grad.flatten() for p in trained(model) if p.grad is not None])

    return step


def opake_step(task: Task, rows: Rows, mode: str, physical: int, noise: float = 1.0) -> Step:
    """A step of Opake's functions.

    In the mode "patched", its patches for models of transformers are applied too. In the mode "no mask", the model gets
    no attention mask, which changes nothing for rows without padding.
    """
    from opake.dpsgd.clipping import clipped_grad
    from opake.dpsgd.noise import gaussian_noise
    from opake.functional import make_functional, with_batch_dim
    from opake.patches import apply_model_patches, apply_runtime_patches
    from opake.random import key

    apply_runtime_patches()
    model = task.make().train()
    if mode == "patched":
        apply_model_patches(model)
    call, weights, frozen = make_functional(model, disable_autograd_tracking=True, partition_trainable=True)
    left_out = ("labels", "attention_mask") if mode == "no mask" else ("labels",)
    names = [name for name in rows if name not in left_out]

    def loss(weights: dict[str, Tensor], *row: Tensor) -> Tensor:
        with task.precision():
            outputs = call({**frozen, **weights}, **dict(zip(names, row[:-1], strict=True)))
        return task.loss(outputs, row[-1])

    arguments = tuple(range(1, len(names) + 2))
    clipped, clip_state = clipped_grad(
        with_batch_dim(loss, batch_argnums=arguments), clipping_norm=1.0, batch_argnums=arguments,
        microbatch_size=physical if physical < len(rows["labels"]) else None,
    )  # fmt: skip
    noisy, noise_state = gaussian_noise(noise_multiplier=noise, key=key(0))

    def step() -> Callable[[], Tensor]:
        nonlocal clip_state, noise_state
        gradient, clip_state = clipped(weights, *(rows[name] for name in names), rows["labels"], state=clip_state)
        released, noise_state = noisy(gradient, noise_state)
        for name, value in released.pytree.items():
            weights[name] = weights[name] - 0.01 / len(rows["labels"]) * value
        return lambda: torch.cat([released.pytree[name].flatten() for name in weights])

    return step


PEERS = {"opacus": (opacus_step, ("hooks", "ghost")), "opake": (opake_step, ("patched", "functional", "no mask"))}
