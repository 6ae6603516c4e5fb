"""Networks that choose for each example what they compute: experts, branches and loops that end early."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bench.architecture_models.dense import FEATURES, mlp
from bench.architecture_models.kinds import CLASSES, Case, Net, kind, vectors, weights


def experts(number: int = 4) -> nn.ModuleList:
    return nn.ModuleList(mlp(FEATURES, 16, CLASSES) for _ in range(number))


@kind()
def experts_by_dense_gate(rows: int) -> Case:
    def run(m: Any, x: Tensor) -> Any:
        outputs = torch.stack([expert(x) for expert in m.experts], dim=1)
        return (m.gate(x).softmax(dim=-1).unsqueeze(-1) * outputs).sum(dim=1)

    return vectors(Net(run, experts=experts(), gate=nn.Linear(FEATURES, 4)), rows, FEATURES)


@kind()
def experts_by_nonzero(rows: int) -> Case:
    """Tokens are sent to experts by index, as in the plain code of Mixtral."""

    def run(m: Any, x: Tensor) -> Any:
        flat = x.reshape(-1, x.shape[-1])
        weight, chosen = m.gate(flat).softmax(dim=-1).topk(2, dim=-1)
        output = flat.new_zeros(len(flat), CLASSES)
        for number, expert in enumerate(m.experts):
            token, place = torch.where(chosen == number)
            output.index_add_(0, token, expert(flat[token]) * weight[token, place].unsqueeze(-1))
        return output.view(*x.shape[:-1], CLASSES).mean(dim=1)

    return vectors(Net(run, experts=experts(), gate=nn.Linear(FEATURES, 4)), rows, 5, FEATURES)


@kind()
def experts_by_gather(rows: int) -> Case:
    """The weights of the chosen experts are gathered for each example."""

    def run(m: Any, x: Tensor) -> Any:
        weight, chosen = m.gate(x).topk(2, dim=-1)
        outputs = torch.einsum("bkoi,bi->bko", m.experts[chosen], x)
        return (weight.softmax(dim=-1).unsqueeze(-1) * outputs).sum(dim=1)

    return vectors(Net(run, experts=weights(4, CLASSES, FEATURES), gate=nn.Linear(FEATURES, 4)), rows, FEATURES)


@kind()
def experts_by_capacity(rows: int) -> Case:
    """Each expert takes the same number of an example's tokens, by one-hot products as in Switch Transformers."""

    def run(m: Any, x: Tensor) -> Any:
        probability = m.gate(x).softmax(dim=-1)
        chosen = F.one_hot(probability.argmax(dim=-1), 4).to(x.dtype)
        place = (chosen.cumsum(dim=1) - 1) * chosen
        kept = chosen * (place < 2)
        slots = kept.unsqueeze(-1) * F.one_hot(place.long().clamp(max=1), 2).to(x.dtype)
        inputs = torch.einsum("btec,btf->becf", slots, x)
        outputs = torch.stack([expert(inputs[:, e]) for e, expert in enumerate(m.experts)], dim=1)
        return torch.einsum("btec,beco->bto", slots * probability.unsqueeze(-1), outputs).sum(dim=1)

    return vectors(Net(run, experts=experts(), gate=nn.Linear(FEATURES, 4)), rows, 6, FEATURES)


@kind()
def branch_on_values(rows: int) -> Case:
    """A Python branch on the values of an example, which runs for a batch of one only."""

    def run(m: Any, x: Tensor) -> Any:
        hidden = torch.stack([m.positive(row) if row.sum() > 0 else m.negative(row) for row in x])
        return m.head(F.relu(hidden))

    parts = {name: nn.Linear(FEATURES, 16) for name in ("positive", "negative")}
    return vectors(Net(run, **parts, head=nn.Linear(16, CLASSES)), rows, FEATURES)


@kind()
def branch_by_where(rows: int) -> Case:
    def run(m: Any, x: Tensor) -> Any:
        return torch.where(x.sum(dim=-1, keepdim=True) > 0, m.positive(x), m.negative(x))

    parts = {name: nn.Linear(FEATURES, CLASSES) for name in ("positive", "negative")}
    return vectors(Net(run, **parts), rows, FEATURES)


@kind()
def early_exit(rows: int) -> Case:
    """Layers end for an example as soon as one is confident."""

    def run(m: Any, x: Tensor) -> Any:
        outputs = []
        for row in x:
            for block, exit_ in zip(m.blocks, m.exits, strict=True):
                row = torch.tanh(block(row))
                output = exit_(row)
                if output.softmax(dim=-1).max().item() > 0.4:
                    break
            outputs.append(output)
        return torch.stack(outputs)

    blocks = nn.ModuleList(nn.Linear(FEATURES, FEATURES) for _ in range(4))
    exits = nn.ModuleList(nn.Linear(FEATURES, CLASSES) for _ in range(4))
    return vectors(Net(run, blocks=blocks, exits=exits), rows, FEATURES)


@kind()
def adaptive_computation(rows: int) -> Case:
    """A cell is called until its halting probabilities add up to one."""

    def run(m: Any, x: Tensor) -> Any:
        outputs = []
        for row in x:
            state, halted, output = torch.tanh(m.first(row)), torch.zeros(1), torch.zeros(8)
            while float(halted) < 0.99:
                state = torch.tanh(m.cell(state))
                step = torch.minimum(torch.sigmoid(m.halt(state)), 1 - halted)
                output, halted = output + step * state, halted + step
            outputs.append(m.head(output))
        return torch.stack(outputs)

    model = Net(run, first=nn.Linear(FEATURES, 8), cell=nn.Linear(8, 8), halt=nn.Linear(8, 1), head=nn.Linear(8, 3))
    return vectors(model, rows, FEATURES)
