"""Flows, autoencoders, diffusion, and other models whose loss is part of what they are."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bench.architecture_models.convolutional import conv
from bench.architecture_models.dense import mlp
from bench.architecture_models.kinds import CLASSES, Case, Net, classes, kind, numbers, weights

SIZE = 6


def summed(outputs: Tensor, _: Tensor) -> Tensor:
    """The loss of a model that returns losses."""
    return outputs.sum()


def densities(model: nn.Module, rows: int, *shape: int) -> Case:
    """A model that returns the negative log-likelihood of each example."""
    return Case(model, (torch.randn(rows, *(shape or (SIZE,))),), classes(rows), summed)


def under_normal(x: Tensor, log_volume: Tensor) -> Tensor:
    return x.square().flatten(1).sum(dim=1) / 2 - log_volume


@kind()
def real_nvp(rows: int) -> Case:
    def run(m: Any, x: Tensor) -> Any:
        volume = x.new_zeros(len(x))
        for layer in m.layers:
            kept, changed = x.chunk(2, dim=-1)
            scale, shift = layer(kept).chunk(2, dim=-1)
            changed, volume = changed * torch.tanh(scale).exp() + shift, volume + torch.tanh(scale).sum(dim=-1)
            x = torch.cat([changed, kept], dim=-1)
        return under_normal(x, volume)

    return densities(Net(run, layers=nn.ModuleList(mlp(3, 16, 6) for _ in range(3))), rows)


@kind()
def glow(rows: int) -> Case:
    """Invertible convolutions, whose determinant is taken of a weight."""

    def run(m: Any, x: Tensor) -> Any:
        x = F.pixel_unshuffle(x, 2)
        x, volume = (x + m.shift) * m.log_scale.exp(), 9 * m.log_scale.sum().expand(len(x))
        x, volume = F.conv2d(x, m.mix[..., None, None]), volume + 9 * torch.linalg.slogdet(m.mix)[1]
        kept, changed = x.chunk(2, dim=1)
        scale, shift = m.coupling(kept).chunk(2, dim=1)
        opened = torch.sigmoid(scale + 2)
        return under_normal(torch.cat([kept, changed * opened + shift], 1), volume + opened.log().sum(dim=(1, 2, 3)))

    coupling = nn.Sequential(nn.Conv2d(2, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 4, 3, padding=1))
    model = Net(run, shift=weights(1, 4, 1, 1), log_scale=weights(1, 4, 1, 1), mix=nn.Parameter(
        torch.linalg.qr(torch.randn(4, 4))[0]), coupling=coupling)  # fmt: skip
    return densities(model, rows, 1, 6, 6)


@kind()
def masked_autoregressive_flow(rows: int) -> Case:
    def run(m: Any, x: Tensor) -> Any:
        hidden = F.relu(F.linear(x, m.first.weight * m.mask, m.first.bias))
        mean, log_scale = F.linear(hidden, m.second.weight * m.mask_out, m.second.bias).chunk(2, dim=-1)
        return under_normal((x - mean) * torch.exp(-torch.tanh(log_scale)), -torch.tanh(log_scale).sum(dim=-1))

    order = torch.arange(12) % (SIZE - 1)
    mask = (order.unsqueeze(-1) >= torch.arange(SIZE)).float()
    mask_out = (torch.arange(SIZE).unsqueeze(-1) > order).float().repeat(2, 1)
    return densities(Net(run, first=nn.Linear(SIZE, 12), second=nn.Linear(12, 12), mask=mask, mask_out=mask_out), rows)


@kind()
def spline_flow(rows: int) -> Case:
    """Monotone piecewise linear functions, with bins found by search."""

    def run(m: Any, x: Tensor) -> Any:
        kept, changed = torch.sigmoid(x).chunk(2, dim=-1)
        width = m.widths(kept).unflatten(-1, (3, 5)).softmax(dim=-1)
        edges = F.pad(width.cumsum(dim=-1), (1, 0))
        place = (torch.searchsorted(edges.detach().contiguous(), changed.unsqueeze(-1)) - 1).clamp(0, 4)
        chosen, left = width.gather(-1, place), edges.gather(-1, place)
        value = (place + (changed.unsqueeze(-1) - left) / chosen) / 5
        return under_normal(torch.logit(value.squeeze(-1), eps=1e-4), -(5 * chosen).log().sum(dim=(1, 2)))

    return densities(Net(run, widths=mlp(3, 16, 15)), rows)


@kind()
def planar_flow(rows: int) -> Case:
    def run(m: Any, x: Tensor) -> Any:
        volume = torch.zeros(len(x))
        for u, w, b in zip(m.u, m.w, m.b, strict=True):
            inner = w @ u
            u = u + (F.softplus(inner) - 1 - inner) * w / w.square().sum()
            slope = torch.tanh(x @ w + b)
            volume = volume + torch.log1p((1 - slope.square()) * (w @ u))
            x = x + u * slope.unsqueeze(-1)
        return under_normal(x, volume)

    return densities(Net(run, u=weights(3, SIZE), w=weights(3, SIZE), b=weights(3)), rows)


@kind()
def continuous_flow(rows: int) -> Case:
    """An ODE with the exact trace of its field, by autograd inside forward."""

    def run(m: Any, x: Tensor) -> Any:
        volume = torch.zeros(len(x))
        with torch.enable_grad():
            for step in range(3):
                x = x if x.requires_grad else x.requires_grad_()
                slope = m.field(torch.cat([x, torch.full_like(x[:, :1], step / 3)], dim=-1))
                for place in range(SIZE):
                    (of_place,) = torch.autograd.grad(slope[:, place].sum(), x, create_graph=True)
                    volume = volume + of_place[:, place] / 3
                x = x + slope / 3
        return under_normal(x, volume)

    return densities(Net(run, field=mlp(SIZE + 1, 16, SIZE, activation=nn.Tanh)), rows)


@kind(draws=True)
def variational_autoencoder(rows: int) -> Case:
    def run(m: Any, x: Tensor) -> Any:
        mean, log_variance = m.encoder(x).chunk(2, dim=-1)
        code = mean + torch.exp(log_variance / 2) * torch.randn_like(mean)
        distance = (mean.square() + log_variance.exp() - 1 - log_variance).sum(dim=-1) / 2
        return (m.decoder(code) - x).square().sum(dim=-1) + distance

    return densities(Net(run, encoder=mlp(SIZE, 16, 8), decoder=mlp(4, 16, SIZE)), rows)


@kind()
def vector_quantized(rows: int) -> Case:
    """A code book with the nearest entry, and the gradient of the encoder passed around it."""

    def run(m: Any, x: Tensor) -> Any:
        code = m.encoder(x).unflatten(-1, (3, 4))
        nearest = m.book[torch.cdist(code, m.book).argmin(dim=-1)]
        errors = (nearest - code.detach()).square() + 0.25 * (nearest.detach() - code).square()
        through = code + (nearest - code).detach()
        return (m.decoder(through.flatten(1)) - x).square().sum(dim=-1) + errors.sum(dim=(1, 2))

    model = Net(run, encoder=mlp(SIZE, 16, 12), book=weights(7, 4), decoder=mlp(12, 16, SIZE))
    return densities(model, rows)


@kind(draws=True)
def gumbel_codes(rows: int) -> Case:
    def run(m: Any, x: Tensor) -> Any:
        code = F.gumbel_softmax(m.encoder(x).unflatten(-1, (3, 5)), tau=0.7, hard=True)
        return (m.decoder(code.flatten(1)) - x).square().sum(dim=-1)

    return densities(Net(run, encoder=mlp(SIZE, 16, 15), decoder=mlp(15, 16, SIZE)), rows)


@kind()
def masked_autoencoder(rows: int) -> Case:
    """Patches are left out by a public order, and drawn again from the others."""

    def run(m: Any, x: Tensor) -> Any:
        patches = m.patch(x.unfold(1, 4, 4)) + m.places
        seen = m.encoder(patches[:, m.order[:3]])
        whole = torch.cat([seen, m.missing.expand(len(x), 3, -1)], dim=1)[:, m.order.argsort()] + m.places
        return m.decoder(m.mixer(whole)).flatten(1)

    layers = {name: nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True) for name in ("encoder", "mixer")}
    model = Net(run, patch=nn.Linear(4, 8), places=weights(6, 8), missing=weights(8), decoder=nn.Linear(8, 4), **layers,
                order=torch.randperm(6))  # fmt: skip
    return numbers(model, (torch.randn(rows, 24),), 24)


class TimedBlock(nn.Module):
    """A convolution block that is scaled and shifted by the time."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.first, self.second = conv(inputs, outputs), conv(outputs, outputs)
        self.time = nn.Linear(8, 2 * outputs)

    def forward(self, x: Tensor, time: Tensor) -> Any:
        scale, shift = self.time(F.silu(time))[:, :, None, None].chunk(2, dim=1)
        return self.second(self.first(x) * (1 + scale) + shift)


@kind()
def diffusion(rows: int) -> Case:
    """A U-Net with the time of the noise, and attention at its bottom."""

    def run(m: Any, x: Tensor, time: Tensor) -> Any:
        angle = time.float().unsqueeze(-1) * torch.exp(-math.log(100) * torch.arange(4) / 4)
        time = m.time(torch.cat([angle.sin(), angle.cos()], dim=-1))
        first = m.first(x, time)
        low = m.low(F.avg_pool2d(first, 2), time)
        tokens = low.flatten(2).transpose(1, 2)
        low = low + m.attend(tokens, tokens, tokens)[0].transpose(1, 2).view_as(low)
        return m.out(m.last(torch.cat([first, F.interpolate(low, scale_factor=2)], dim=1), time))

    model = Net(
        run, time=mlp(8, 16, 8, activation=nn.SiLU), first=TimedBlock(1, 8), low=TimedBlock(8, 8),
        attend=nn.MultiheadAttention(8, 2, batch_first=True), last=TimedBlock(16, 8), out=nn.Conv2d(8, 1, 1),
    )  # fmt: skip
    return numbers(model, (torch.randn(rows, 1, 8, 8), torch.randint(100, (rows,))), 1, 8, 8)


@kind()
def diffusion_transformer(rows: int) -> Case:
    def run(m: Any, x: Tensor, label: Tensor) -> Any:
        shift, scale, gate = m.condition(F.silu(m.labels(label))).unsqueeze(1).chunk(3, dim=-1)
        x = m.first(x)
        hidden = m.norm(x) * (1 + scale) + shift
        return m.out(x + gate * m.attend(hidden, hidden, hidden, need_weights=False)[0])

    model = Net(
        run, first=nn.Linear(4, 8), labels=nn.Embedding(CLASSES, 8), condition=nn.Linear(8, 24), out=nn.Linear(8, 4),
        norm=nn.LayerNorm(8, elementwise_affine=False), attend=nn.MultiheadAttention(8, 2, batch_first=True),
    )  # fmt: skip
    return numbers(model, (torch.randn(rows, 6, 4), classes(rows)), 6, 4)


@kind()
def mixture_density(rows: int) -> Case:
    def run(m: Any, x: Tensor) -> Any:
        return m.body(x).unflatten(-1, (3, 3))

    def loss(outputs: Tensor, target: Tensor) -> Any:
        weight, mean, log_scale = outputs.unbind(1)
        each = torch.distributions.Normal(mean, log_scale.exp(), validate_args=False)
        mixture = weight.log_softmax(dim=-1) + each.log_prob(target.unsqueeze(-1))
        return -mixture.logsumexp(dim=-1).sum()

    return Case(Net(run, body=mlp(SIZE, 16, 9)), (torch.randn(rows, SIZE),), torch.randn(rows), loss)


@kind()
def loss_by_distributions(rows: int) -> Case:
    """Distributions of torch, which check their arguments by default."""

    def loss(outputs: Tensor, target: Tensor) -> Any:
        mean, scale = outputs.unbind(1)
        return -torch.distributions.Normal(mean, F.softplus(scale) + 1e-3).log_prob(target).sum()

    return Case(mlp(SIZE, 16, 2), (torch.randn(rows, SIZE),), torch.randn(rows), loss)


@kind()
def two_heads_of_a_policy(rows: int) -> Case:
    """A policy and a value, with the clipped loss of PPO."""

    def run(m: Any, x: Tensor) -> Any:
        hidden = torch.tanh(m.body(x))
        return m.policy(hidden).log_softmax(dim=-1), m.value(hidden).squeeze(-1)

    def loss(outputs: Any, target: Tensor) -> Any:
        (of_actions, value), (action, before, advantage) = outputs, target.unbind(1)
        ratio = torch.exp(of_actions.gather(1, action.long().unsqueeze(1)).squeeze(1) - before)
        gain = torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage)
        entropy = -(of_actions.exp() * of_actions).sum(dim=-1)
        return ((value - advantage).square() - gain - 0.01 * entropy).sum()

    model = Net(run, body=nn.Linear(SIZE, 16), policy=nn.Linear(16, CLASSES), value=nn.Linear(16, 1))
    target = torch.stack([classes(rows).float(), -torch.rand(rows), torch.randn(rows)], dim=1)
    return Case(model, (torch.randn(rows, SIZE),), target, loss)
