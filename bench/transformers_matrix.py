"""Clipped sums of transformers, compared with a loop over single examples.

    python -m bench.transformers_matrix > results/transformers_matrix.json

Twelve architectures, all parameters or adapters (LoRA), with attention written out ("eager") or fused ("sdpa"): 48
cells. The loop is plain PyTorch, and takes the loss that the model itself returns for a batch of one. `error` is the
relative distance of the two sums, and `taped_share` the share of trained numbers that have no gradient per example.
"""

from __future__ import annotations

import itertools
import json
import sys

import torch
from torch import Tensor, nn

import sordino as so
from bench.step import origin
from bench.tiny_transformers import ARCHITECTURES, Rows
from sordino.gradients.tape import survey
from sordino.gradients.taped import TapedGradients
from sordino.huggingface import as_records, loss_for
from sordino.kernel.clipping import SCALED_TO
from sordino.kernel.states import Layout

ROWS, SEED = 6, 0
TRAINED, ATTENTION = ("full", "lora"), ("eager", "sdpa")
CELLS = tuple(itertools.product(ARCHITECTURES, TRAINED, ATTENTION))


def cell(architecture: str, trained: str, attention: str, seed: int = SEED) -> dict[str, object]:
    """Measures one cell of the matrix."""
    chosen = ARCHITECTURES[architecture]
    model = chosen.make(attention=attention, lora=trained == "lora", seed=seed)
    rows = chosen.rows(ROWS)
    looped = gradients_of_loop(model, rows)
    norm = float(looped.norm(dim=1).median())  # about half of the rows are clipped
    weights = (norm * SCALED_TO / looped.norm(dim=1)).clamp(max=1.0)
    expected = weights @ looped
    records = as_records(model, rows)
    batch, contribution = records.gather(torch.arange(ROWS)), so.LossGradient(loss_for(model, records))
    each = contribution.of(model, batch, torch.arange(ROWS))
    error = (so.ClipByNorm(norm)(each).value.double() - expected).norm() / expected.norm()
    plan = survey(model, batch.synthetic_row(), names=batch.names)
    sizes = dict(zip(Layout.of(model).names, Layout.of(model).sizes, strict=True))
    taped = isinstance(each, TapedGradients)
    direct = sum(sizes[name] for name in plan.direct) if taped else sum(sizes.values())
    return {
        "architecture": architecture,
        "trained": trained,
        "attention": attention,
        "error": float(error),
        "taped": taped,
        "taped_share": 1 - direct / sum(sizes.values()),
        "differentiated_directly": list(plan.direct) if taped else [],
        "trained_numbers": sum(sizes.values()),
    }


def gradients_of_loop(model: nn.Module, rows: Rows) -> Tensor:
    """The gradients of the model's own loss, of one example at a time, in double precision."""
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    gradients = []
    for row in range(len(rows["labels"])):
        loss = model(**{name: column[row : row + 1] for name, column in rows.items()}).loss
        found = torch.autograd.grad(loss, trained, allow_unused=True)
        parts = (torch.zeros_like(p) if g is None else g for p, g in zip(trained, found, strict=True))
        gradients.append(torch.cat([part.flatten() for part in parts]).double())
    return torch.stack(gradients)


def main() -> None:
    cells = []
    for architecture, trained, attention in CELLS:
        cells.append(cell(architecture, trained, attention))
        print(
            f"{architecture:13} {trained:5} {attention:6} error {cells[-1]['error']:.1e}", file=sys.stderr, flush=True
        )
    import peft
    import transformers

    versions = {"transformers": transformers.__version__, "peft": peft.__version__}
    print(json.dumps(origin("bench.transformers_matrix") | versions | {"seeds": [SEED], "cells": cells}, indent=2))


if __name__ == "__main__":
    main()
