"""One model for each kind of layer that the tape supports, and the gradients of a loop over single examples."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

import sordino as so
from sordino.kernel.records import as_records

ROWS = 7


def gradients(model, *inputs, classes=3):
    """Returns the taped gradients of a batch, and those of a loop with plain autograd."""
    labels = torch.randint(0, classes, (len(inputs[0]),), generator=torch.Generator().manual_seed(0))
    batch = as_records((*inputs, labels)).gather(torch.arange(len(labels)))
    each = so.LossGradient(F.cross_entropy).of(model, batch, torch.arange(len(labels)))
    rows = []
    for r in range(len(labels)):
        model.zero_grad()
        F.cross_entropy(model(*(x[r : r + 1] for x in batch.inputs)), labels[r : r + 1]).backward()
        parameters = [p for p in model.parameters() if p.requires_grad]
        rows.append(torch.cat([(torch.zeros_like(p) if p.grad is None else p.grad).flatten() for p in parameters]))
    return each, torch.stack(rows)


def random(*shape, seed=1):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


class Tokens(nn.Module):
    """A model with an embedding that is also the output layer, a layer used twice, a bare parameter and padding."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(9, 6, padding_idx=2)
        self.place = nn.Parameter(random(5, 6))
        self.norm = nn.LayerNorm(6)
        self.twice = nn.Linear(6, 6)

    def forward(self, tokens):
        h = self.table(tokens) + self.place
        h = h + self.twice(torch.tanh(self.norm(h)))
        h = h + self.twice(h)
        return h.mean(dim=1) @ self.table.weight.T


class Repeated(nn.Module):
    """An embedding of sequences in which tokens repeat."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(4, 6)
        self.out = nn.Linear(6, 3)

    def forward(self, tokens):
        return self.out(torch.tanh(self.table(tokens)).mean(dim=1))


class CausalAttention(nn.Module):
    """Causal attention that returns its weights, after an embedding of positions."""

    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, bias=False)
        self.out = nn.Linear(8, 3)

    def forward(self, x):
        x = x.transpose(0, 1)
        mask = nn.Transformer.generate_square_subsequent_mask(len(x))
        mixed, weights = self.attention(x, x, x, attn_mask=mask)
        return self.out(mixed.mean(dim=0)) * weights.sum() / weights.sum().detach()


class OwnInput(nn.Module):
    """A model whose weight is also the input of another layer."""

    def __init__(self):
        super().__init__()
        self.weight, self.layer = nn.Parameter(random(5, 8)), nn.Linear(8, 5)
        self.out = nn.Linear(5, 3)

    def forward(self, x):
        return self.out(F.linear(x, self.weight) + self.layer(self.weight).sum(dim=0, keepdim=True))


class Thrice(nn.Module):
    """A model that applies one layer to vectors three times."""

    def __init__(self):
        super().__init__()
        self.layer, self.out = nn.Linear(8, 8), nn.Linear(8, 3)

    def forward(self, x):
        for _ in range(3):
            x = torch.tanh(self.layer(x))
        return self.out(x)


class Frozen(nn.Module):
    """A model with a frozen weight and trained bias, and a trained weight and frozen bias."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(8, 6), nn.Linear(6, 3)
        self.first.weight.requires_grad_(False)
        self.second.bias.requires_grad_(False)

    def forward(self, x):
        return self.second(torch.tanh(self.first(x)))


class MatrixProducts(nn.Module):
    """Products with matrices in the order (inputs, outputs), by each function of torch, of vectors or of sequences."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Parameter(random(8, 6)), nn.Parameter(random(6, 6, seed=2) / 3)
        self.third, self.bias = nn.Parameter(random(6, 6, seed=3) / 3), nn.Parameter(random(6, seed=4))
        self.out = nn.Parameter(random(6, 3, seed=5))

    def forward(self, x):
        x = torch.tanh(x @ self.first)
        shape, x = x.shape, x.reshape(-1, 6)
        x = x + torch.addmm(self.bias, torch.tanh(x), self.second)
        x = x + torch.mm(torch.tanh(x), mat2=self.third) + F.linear(x, self.third)  # a matrix in both orders
        x = x + x.matmul(self.second)
        return x.reshape(*shape[:-1], 6).flatten(1, -2).mean(dim=1).matmul(self.out) if len(shape) > 2 else x @ self.out


def picture(*layers):
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.LazyLinear(3))


MODELS = {
    "mlp": (
        lambda: nn.Sequential(nn.Linear(8, 16), nn.ReLU(inplace=True), nn.Linear(16, 3, bias=False)),
        (random(ROWS, 8),),
    ),
    "frozen": (Frozen, (random(ROWS, 8),)),
    "matrix products": (MatrixProducts, (random(ROWS, 8),)),
    "matrix products of places": (MatrixProducts, (random(ROWS, 4, 8),)),
    "a weight as an input": (OwnInput, (random(ROWS, 8),)),
    "thrice": (Thrice, (random(ROWS, 8),)),
    "instance norm": (
        lambda: picture(nn.Conv2d(2, 6, 3), nn.InstanceNorm2d(6, affine=True), nn.ReLU()),
        (random(ROWS, 2, 8, 8),),
    ),
    "max pool": (
        lambda: picture(nn.Conv2d(2, 6, 3), nn.MaxPool2d(3, 2, padding=1, ceil_mode=True)),
        (random(ROWS, 2, 9, 8),),
    ),
    "conv of few places": (lambda: picture(nn.Conv2d(64, 64, 3, padding=1)), (random(ROWS, 64, 3, 3),)),
    "sequence": (
        lambda: nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 5), nn.Flatten(), nn.Linear(20, 3)),
        (random(ROWS, 4, 8),),
    ),
    "conv": (lambda: picture(nn.Conv2d(2, 6, 3, padding=1), nn.Tanh(), nn.Conv2d(6, 4, 3)), (random(ROWS, 2, 9, 8),)),
    "sliding conv": (lambda: picture(nn.Conv2d(16, 5, (3, 2), padding=(1, 0))), (random(ROWS, 16, 13, 12),)),
    "many channels": (lambda: picture(nn.Conv2d(40, 5, 3, padding=1)), (random(ROWS, 40, 10, 9),)),
    "sliding dilated conv": (
        lambda: picture(nn.Conv2d(17, 4, 3, dilation=2, padding="same")),
        (random(ROWS, 17, 12, 13),),
    ),
    "strided grouped conv": (
        lambda: picture(nn.Conv2d(4, 6, 3, stride=(2, 1), groups=2, padding=1), nn.GELU()),
        (random(ROWS, 4, 9, 9),),
    ),
    "depthwise conv": (lambda: picture(nn.Conv2d(4, 8, 3, groups=4, bias=False)), (random(ROWS, 4, 7, 7),)),
    "reflecting conv": (
        lambda: picture(nn.Conv2d(2, 4, 3, padding=1, padding_mode="reflect")),
        (random(ROWS, 2, 7, 7),),
    ),
    "conv1d": (
        lambda: nn.Sequential(nn.Conv1d(3, 4, 5, stride=2, dilation=2, padding=3), nn.Flatten(), nn.LazyLinear(3)),
        (random(ROWS, 3, 17),),
    ),
    "sliding conv1d": (
        lambda: nn.Sequential(nn.Conv1d(16, 4, 3), nn.Flatten(), nn.LazyLinear(3)),
        (random(ROWS, 16, 140),),
    ),
    "conv3d": (
        lambda: nn.Sequential(nn.Conv3d(2, 4, (2, 3, 1), padding=1), nn.ReLU(), nn.Flatten(), nn.LazyLinear(3)),
        (random(ROWS, 2, 4, 5, 3),),
    ),
    "sliding conv3d": (
        lambda: nn.Sequential(nn.Conv3d(16, 2, 2, padding=1), nn.Flatten(), nn.LazyLinear(3)),
        (random(ROWS, 16, 5, 6, 5),),
    ),
    "group norm": (lambda: picture(nn.Conv2d(2, 8, 3), nn.GroupNorm(4, 8), nn.ReLU()), (random(ROWS, 2, 6, 6),)),
    "layer norm of two axes": (
        lambda: nn.Sequential(nn.LayerNorm((3, 4)), nn.Flatten(), nn.Linear(24, 3)),
        (random(ROWS, 2, 3, 4),),
    ),
    "self-attention": (
        lambda: nn.Sequential(
            nn.TransformerEncoderLayer(8, 2, 12, batch_first=True, dropout=0.0), nn.Flatten(), nn.Linear(40, 3)
        ),
        (random(ROWS, 5, 8),),
    ),
    "causal attention, places first": (CausalAttention, (random(ROWS, 5, 8),)),
    "rms norm": (lambda: nn.Sequential(nn.RMSNorm(8), nn.Linear(8, 3)), (random(ROWS, 8),)),
    "tokens": (Tokens, (torch.randint(0, 9, (ROWS, 5), generator=torch.Generator().manual_seed(3)),)),
    "repeated tokens": (Repeated, (torch.randint(0, 4, (ROWS, 6), generator=torch.Generator().manual_seed(3)),)),
}


def make(name):
    torch.manual_seed(0)
    build, inputs = MODELS[name]
    model = build()
    with torch.no_grad():
        model(*(x[:1] for x in inputs))  # lazy layers learn their size
    return model, inputs
