"""Dense networks: stacks of layers, gates, experts, branches, and networks that are functions of coordinates."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bench.architecture_models.kinds import CLASSES, Case, Net, classes, kind, numbers, vectors, weights

FEATURES = 12


def mlp(*sizes: int, activation: type[nn.Module] = nn.ReLU) -> nn.Sequential:
    """Linear layers with activations between them."""
    layers: list[nn.Module] = []
    for before, after in pairwise(sizes):
        layers += [nn.Linear(before, after), activation()]
    return nn.Sequential(*layers[:-1])


@kind()
def logistic_regression(rows: int) -> Case:
    return vectors(nn.Linear(FEATURES, CLASSES), rows, FEATURES)


@kind()
def wide_mlp(rows: int) -> Case:
    return vectors(mlp(FEATURES, 512, 512, CLASSES), rows, FEATURES)


@kind()
def deep_mlp(rows: int) -> Case:
    return vectors(mlp(FEATURES, *[24] * 30, CLASSES, activation=nn.SELU), rows, FEATURES)


@kind()
def residual_mlp(rows: int) -> Case:
    def run(m: Any, x: Tensor) -> Any:
        x = m.first(x)
        for norm, block in zip(m.norms, m.blocks, strict=True):
            x = x + block(norm(x))
        return m.head(x)

    blocks = nn.ModuleList(mlp(16, 32, 16, activation=nn.GELU) for _ in range(4))
    norms = nn.ModuleList(nn.LayerNorm(16) for _ in range(4))
    model = Net(run, first=nn.Linear(FEATURES, 16), norms=norms, blocks=blocks, head=nn.Linear(16, CLASSES))
    return vectors(model, rows, FEATURES)


@kind()
def swiglu(rows: int) -> Case:
    def run(m: Any, x: Tensor) -> Any:
        return m.down(F.silu(m.gate(x)) * m.up(x))

    sizes = (FEATURES, 32)
    model = Net(run, gate=nn.Linear(*sizes), up=nn.Linear(*sizes), down=nn.Linear(32, CLASSES, bias=False))
    return vectors(model, rows, FEATURES)


@kind()
def highway(rows: int) -> Case:
    def run(m: Any, x: Tensor) -> Any:
        for change, gate in zip(m.changes, m.gates, strict=True):
            open_ = torch.sigmoid(gate(x))
            x = open_ * F.relu(change(x)) + (1 - open_) * x
        return m.head(x)

    layers = [nn.ModuleList(nn.Linear(FEATURES, FEATURES) for _ in range(3)) for _ in range(2)]
    return vectors(Net(run, changes=layers[0], gates=layers[1], head=nn.Linear(FEATURES, CLASSES)), rows, FEATURES)


@kind()
def maxout(rows: int) -> Case:
    def run(m: Any, x: Tensor) -> Any:
        return m.head(m.pieces(x).unflatten(-1, (8, 4)).max(dim=-1).values)

    return vectors(Net(run, pieces=nn.Linear(FEATURES, 32), head=nn.Linear(8, CLASSES)), rows, FEATURES)


class Sine(nn.Module):
    """A layer of SIREN, with its frequency."""

    def __init__(self, inputs: int, outputs: int, frequency: float) -> None:
        super().__init__()
        self.linear, self.frequency = nn.Linear(inputs, outputs), frequency
        with torch.no_grad():
            self.linear.weight.uniform_(-math.sqrt(6 / inputs) / frequency, math.sqrt(6 / inputs) / frequency)

    def forward(self, x: Tensor) -> Tensor:
        return torch.sin(self.frequency * self.linear(x))


@kind()
def siren(rows: int) -> Case:
    """A field of coordinates: many points of each example."""
    model = nn.Sequential(Sine(2, 32, 30.0), Sine(32, 32, 30.0), nn.Linear(32, 1), nn.Flatten(1))
    return numbers(model, (2 * torch.rand(rows, 20, 2) - 1,), 20)


@kind()
def fourier_features(rows: int) -> Case:
    def run(m: Any, x: Tensor) -> Any:
        angles = 2 * math.pi * x @ m.frequencies
        return m.head(torch.cat([angles.sin(), angles.cos()], dim=-1)).squeeze(-1)

    model = Net(run, frequencies=torch.randn(2, 16), head=mlp(32, 32, 1))
    return numbers(model, (torch.rand(rows, 20, 2),), 20)


@kind()
def nerf(rows: int) -> Case:
    """Samples along a ray, composed by their densities."""

    def run(m: Any, x: Tensor) -> Any:
        density, colour = torch.split(m.field(x), [1, 3], dim=-1)
        alpha = 1 - torch.exp(-F.softplus(density.squeeze(-1)) / x.shape[-2])
        passed = torch.cumprod(1 - alpha + 1e-10, dim=-1) / (1 - alpha + 1e-10)
        return ((alpha * passed).unsqueeze(-1) * colour.sigmoid()).sum(dim=-2)

    return numbers(Net(run, field=mlp(3, 32, 32, 4)), (torch.randn(rows, 10, 3),), 3)


@kind()
def kan(rows: int) -> Case:
    """Splines on edges, as in Kolmogorov-Arnold networks: radial functions and one einsum for each layer."""

    def run(m: Any, x: Tensor) -> Any:
        for coefficients, base in ((m.first, m.first_base), (m.second, m.second_base)):
            basis = torch.exp(-(((x.unsqueeze(-1) - m.grid) * 2) ** 2))
            x = torch.einsum("big,oig->bo", basis, coefficients) + base(F.silu(x))
        return x

    model = Net(
        run, grid=torch.linspace(-2, 2, 6), first=weights(8, FEATURES, 6), first_base=nn.Linear(FEATURES, 8),
        second=weights(CLASSES, 8, 6), second_base=nn.Linear(8, CLASSES),
    )  # fmt: skip
    return vectors(model, rows, FEATURES)


@kind()
def chebyshev_kan(rows: int) -> Case:
    """Chebyshev polynomials of tanh, by arccos."""

    def run(m: Any, x: Tensor) -> Any:
        angle = torch.tanh(x).clamp(-0.999, 0.999).acos().unsqueeze(-1) * m.degrees
        return torch.einsum("bid,iod->bo", angle.cos(), m.coefficients)

    model = Net(run, degrees=torch.arange(5.0), coefficients=weights(FEATURES, CLASSES, 5))
    return vectors(model, rows, FEATURES)


def physics(m: Any, x: Tensor) -> Any:
    """A field and the residual of a differential equation, with derivatives by autograd inside forward."""
    x = x.requires_grad_()
    field = m.field(x)
    first = torch.autograd.grad(field.sum(), x, create_graph=True)[0]
    second = torch.autograd.grad(first[..., 0].sum(), x, create_graph=True)[0][..., 0]
    return torch.cat([field, (first[..., 1] - second).unsqueeze(-1)], dim=-1)


@kind()
def physics_informed(rows: int) -> Case:
    return numbers(Net(physics, field=mlp(2, 16, 16, 1, activation=nn.Tanh)), (torch.rand(rows, 8, 2),), 8, 2)


@kind()
def physics_informed_by_func(rows: int) -> Case:
    """Derivatives by `torch.func`, point by point."""

    def run(m: Any, x: Tensor) -> Any:
        def field(point: Tensor) -> Any:
            return m.field(point).squeeze(-1)

        first = torch.func.vmap(torch.func.grad(field))(x.flatten(0, 1)).unflatten(0, x.shape[:2])
        return torch.cat([m.field(x), first], dim=-1)

    return numbers(Net(run, field=mlp(2, 16, 16, 1, activation=nn.Tanh)), (torch.rand(rows, 8, 2),), 8, 3)


@kind()
def energy_network(rows: int) -> Case:
    """Forces are minus the gradient of a learned energy."""

    def run(m: Any, x: Tensor) -> Any:
        with torch.enable_grad():
            x = x.detach().requires_grad_(True)
            energy = m.energy(x.flatten(1)).sum()
            (slope,) = torch.autograd.grad(energy, x, create_graph=True)
        return -slope

    return numbers(Net(run, energy=mlp(12, 16, 1, activation=nn.Softplus)), (torch.randn(rows, 4, 3),), 4, 3)


@kind()
def deeponet(rows: int) -> Case:
    def run(m: Any, function: Tensor, places: Tensor) -> Any:
        return torch.einsum("bk,bpk->bp", m.branch(function), m.trunk(places)) + m.bias

    model = Net(run, branch=mlp(20, 32, 16), trunk=mlp(2, 32, 16, activation=nn.Tanh), bias=weights(1))
    return numbers(model, (torch.randn(rows, 20), torch.rand(rows, 7, 2)), 7)


@kind()
def hypernetwork_of_parameters(rows: int) -> Case:
    """The weights of a layer are made by another network from a learned code."""

    def run(m: Any, x: Tensor) -> Any:
        for code, shape in zip(m.codes, ((16, FEATURES), (CLASSES, 16)), strict=True):
            x = F.linear(F.relu(x), m.maker(code)[: math.prod(shape)].view(shape))
        return x

    model = Net(run, codes=weights(2, 6), maker=mlp(6, 24, 16 * FEATURES))
    return vectors(model, rows, FEATURES)


@kind()
def hypernetwork_of_inputs(rows: int) -> Case:
    """Each example has weights of its own, made from the example."""

    def run(m: Any, x: Tensor) -> Any:
        weight = m.maker(x).view(len(x), CLASSES, FEATURES)
        return torch.bmm(weight, x.unsqueeze(-1)).squeeze(-1)

    return vectors(Net(run, maker=mlp(FEATURES, 16, CLASSES * FEATURES)), rows, FEATURES)


@kind()
def film(rows: int) -> Case:
    def run(m: Any, x: Tensor, condition: Tensor) -> Any:
        scale, shift = m.condition(condition).chunk(2, dim=-1)
        return m.head(F.relu(m.first(x) * (1 + scale) + shift))

    model = Net(run, first=nn.Linear(FEATURES, 16), condition=nn.Embedding(5, 32), head=nn.Linear(16, CLASSES))
    return Case(model, (torch.randn(rows, FEATURES), torch.randint(5, (rows,))), classes(rows))


@kind()
def bilinear(rows: int) -> Case:
    model = Net(lambda m, x, y: m.form(x, y), form=nn.Bilinear(6, 5, CLASSES))
    return Case(model, (torch.randn(rows, 6), torch.randn(rows, 5)), classes(rows))


@kind()
def neural_tensor_network(rows: int) -> Case:
    def run(m: Any, x: Tensor, y: Tensor) -> Any:
        return torch.einsum("bi,kij,bj->bk", x, m.form, y) + m.linear(torch.cat([x, y], dim=-1))

    model = Net(run, form=weights(CLASSES, 6, 6), linear=nn.Linear(12, CLASSES))
    return Case(model, (torch.randn(rows, 6), torch.randn(rows, 6)), classes(rows))


@kind()
def low_rank_bilinear(rows: int) -> Case:
    def run(m: Any, x: Tensor, y: Tensor) -> Any:
        return m.head(torch.tanh(x @ m.left) * torch.tanh(y @ m.right))

    model = Net(run, left=weights(6, 8), right=weights(5, 8), head=nn.Linear(8, CLASSES))
    return Case(model, (torch.randn(rows, 6), torch.randn(rows, 5)), classes(rows))


@kind()
def radial_basis(rows: int) -> Case:
    def run(m: Any, x: Tensor) -> Any:
        return m.head(torch.exp(-(torch.cdist(x, m.centres) ** 2) * m.width.exp()))

    model = Net(run, centres=weights(9, FEATURES, scale=1.0), width=nn.Parameter(torch.tensor(-2.0)),
                head=nn.Linear(9, CLASSES))  # fmt: skip
    return vectors(model, rows, FEATURES)


@kind()
def soft_decision_tree(rows: int) -> Case:
    def run(m: Any, x: Tensor) -> Any:
        right = torch.sigmoid(m.nodes(x))
        reached = torch.ones_like(right[:, :1])
        for depth in range(3):
            of_depth = right[:, 2**depth - 1 : 2 ** (depth + 1) - 1]
            reached = torch.stack([reached * (1 - of_depth), reached * of_depth], dim=-1).flatten(1)
        return reached @ m.leaves

    return vectors(Net(run, nodes=nn.Linear(FEATURES, 7), leaves=weights(8, CLASSES, scale=1.0)), rows, FEATURES)


@kind()
def attentive_table(rows: int) -> Case:
    """Features are chosen in steps by sparsemax, as in TabNet."""

    def run(m: Any, x: Tensor) -> Any:
        prior, state = torch.ones_like(x), m.initial(x)
        total = torch.zeros_like(state)
        for step in range(3):
            mask = sparsemax(m.attend[step](state) * prior)
            prior = prior * (1.3 - mask)
            state = F.glu(m.shared(mask * x)) + F.glu(m.own[step](mask * x))
            total = total + F.relu(state)
        return m.head(total)

    model = Net(
        run, initial=nn.Linear(FEATURES, 8), shared=nn.Linear(FEATURES, 16), head=nn.Linear(8, CLASSES),
        attend=nn.ModuleList(nn.Linear(8, FEATURES) for _ in range(3)),
        own=nn.ModuleList(nn.Linear(FEATURES, 16) for _ in range(3)),
    )  # fmt: skip
    return vectors(model, rows, FEATURES)


def sparsemax(x: Tensor) -> Tensor:
    """The projection of the last axis onto the simplex."""
    ordered, _ = x.sort(dim=-1, descending=True)
    sums, ranks = ordered.cumsum(dim=-1) - 1, torch.arange(1, x.shape[-1] + 1)
    number = (ranks * ordered > sums).sum(dim=-1, keepdim=True)
    return (x - sums.gather(-1, number - 1) / number).clamp(min=0)


@kind()
def deep_sets(rows: int) -> Case:
    model = Net(lambda m, x: m.of_set(m.of_one(x).sum(dim=1)), of_one=mlp(4, 16, 16), of_set=mlp(16, 16, CLASSES))
    return vectors(model, rows, 6, 4)


@kind(draws=True)
def dropout(rows: int) -> Case:
    return vectors(nn.Sequential(mlp(FEATURES, 32), nn.Dropout(0.3), mlp(32, 16, CLASSES)).train(), rows, FEATURES)


@kind(draws=True)
def stochastic_depth(rows: int) -> Case:
    """Blocks are left out for an example at random, as `drop_path` of vision transformers does."""

    def run(m: Any, x: Tensor) -> Any:
        for block in m.blocks:
            kept = 0.7 + torch.rand((x.shape[0], 1), dtype=x.dtype)
            x = x + block(x) / 0.7 * kept.floor()
        return m.head(x)

    blocks = nn.ModuleList(mlp(FEATURES, 16, FEATURES) for _ in range(3))
    return vectors(Net(run, blocks=blocks, head=nn.Linear(FEATURES, CLASSES)).train(), rows, FEATURES)
