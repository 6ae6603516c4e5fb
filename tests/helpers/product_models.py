"""One model for each operation of a bare parameter, a view of one, or a bag that the tape supports."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

ROWS, CLASSES = 5, 3


def random(*shape: int, seed: int = 1) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def tokens(*shape: int, below: int = 7, seed: int = 3) -> Tensor:
    return torch.randint(0, below, shape, generator=torch.Generator().manual_seed(seed))


class Of(nn.Module):
    """A function of trained parameters and data, below a linear layer."""

    def __init__(self, function: Callable[..., Tensor], *shapes: tuple[int, ...]) -> None:
        super().__init__()
        self.function, self.out = function, nn.LazyLinear(CLASSES)
        self.weights = nn.ParameterList(random(*shape, seed=9 + n) / 2 for n, shape in enumerate(shapes))

    def forward(self, *x: Tensor) -> Tensor:
        return self.out(torch.tanh(self.function(*self.weights, *x)).flatten(1))


class Bag(nn.Module):
    """An `EmbeddingBag` on tokens, with or without weights of the tokens."""

    def __init__(self, weighted: bool = False, **settings: Any) -> None:
        super().__init__()
        self.bag, self.out = nn.EmbeddingBag(7, 4, **settings), nn.Linear(4, CLASSES)
        self.weights = nn.Embedding(7, 1) if weighted else None

    def forward(self, x: Tensor) -> Tensor:
        weights = self.weights(x)[..., 0] if self.weights is not None else None
        return self.out(torch.tanh(self.bag(x, per_sample_weights=weights)))


class BagsByOffset(nn.Module):
    """Bags of different lengths in one vector of tokens; the first row's offsets may depend on the data."""

    def __init__(self, ends: bool = False, of_data: bool = False, **settings: Any) -> None:
        super().__init__()
        self.bag, self.out = nn.EmbeddingBag(7, 4, include_last_offset=ends, **settings), nn.Linear(12, CLASSES)
        self.ends, self.of_data = ends, of_data

    def forward(self, x: Tensor) -> Tensor:
        offsets = torch.tensor([0, 2, 2, 6] if self.ends else [0, 2, 2])
        each = []
        for row in x.split(1):
            starts = torch.stack([0 * row[0, 0], row[0, 0] % 3, 2 + row[0, 1] % 3]) if self.of_data else offsets
            each.append(torch.tanh(self.bag(row.flatten(), starts)).flatten())
        return self.out(torch.stack(each))


class FoldedBags(nn.Module):
    """The bags of an example as a batch."""

    def __init__(self, **settings: Any) -> None:
        super().__init__()
        self.bag, self.out = nn.EmbeddingBag(7, 4, **settings), nn.Linear(4, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(torch.tanh(self.bag(x.flatten(0, 1))).reshape(*x.shape[:2], -1).mean(dim=1))


class Packed(nn.Module):
    """Attention whose query, key and value projections are slices of one parameter, as is their bias."""

    def __init__(self, width: int = 6) -> None:
        super().__init__()
        self.qkv, self.shift = nn.Parameter(random(3 * width, width)), nn.Parameter(random(3 * width, seed=2))
        self.out = nn.Linear(width, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        parts = zip(self.qkv.chunk(3), self.shift.split(x.shape[-1]), strict=True)
        query, key, value = (F.linear(x, weight, shift) for weight, shift in parts)
        return self.out(F.scaled_dot_product_attention(query, key, value).mean(dim=1))


class Heads(nn.Module):
    """Attention with a projection per head, all by `einsum`."""

    def __init__(self, width: int = 6, heads: int = 2, each: int = 4) -> None:
        super().__init__()
        shapes = (heads, width, each), (width, heads, each), (heads, width, each), (heads, each, width)
        self.q, self.k, self.v, self.o = (nn.Parameter(random(*shape, seed=n)) for n, shape in enumerate(shapes))
        self.out = nn.Linear(width, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        query, key = torch.einsum("btd,hde->bhte", x, self.q), torch.einsum("btd,dhe->bhte", x, self.k)
        value = torch.einsum("... t d, h d e -> ... h t e", x, self.v)
        mixed = (query @ key.mT / 2).softmax(dim=-1) @ value
        return self.out(torch.einsum("bhte,hed->btd", mixed, self.o).mean(dim=1))


def bilinear_of_two_places(frozen: bool) -> nn.Module:
    layer = nn.Bilinear(4, 6, 5, bias=not frozen)
    model = Of(lambda x: layer(x[..., :4], x[..., 2:]))
    model.layer = layer
    return model


def transposed(kind: type[nn.Module], *sizes: int, **settings: Any) -> nn.Module:
    return nn.Sequential(kind(*sizes, **settings), nn.Tanh(), nn.Flatten(), nn.LazyLinear(CLASSES))


def frozen(model: nn.Module, name: str) -> nn.Module:
    model.get_parameter(name).requires_grad_(False)
    return model


VECTORS, PLACES = random(ROWS, 8), random(ROWS, 5, 8)
CONV1, CONV2, CONV3 = nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d

PRODUCTS: dict[str, tuple[Callable[[], nn.Module], Tensor]] = {
    "bilinear": (lambda: bilinear_of_two_places(False), VECTORS),
    "bilinear without a bias": (lambda: bilinear_of_two_places(True), VECTORS),
    "bilinear of places": (lambda: bilinear_of_two_places(False), PLACES),
    "bilinear of one output": (lambda: Of(lambda w, x: F.bilinear(x, x.flip(1), w), (1, 8, 8)), VECTORS),
    "bilinear with a frozen weight": (lambda: frozen(bilinear_of_two_places(False), "layer.weight"), VECTORS),
    "bilinear with a frozen bias": (lambda: frozen(bilinear_of_two_places(False), "layer.bias"), PLACES),
    "quadratic": (lambda: Of(lambda w, x: torch.einsum("ri,oij,rj->ro", x, w, x), (4, 8, 8)), VECTORS),
    "quadratic of places": (lambda: Of(lambda w, x: torch.einsum("rti,oij,rtj->rto", x, w, x), (4, 8, 8)), PLACES),
    "product of three": (lambda: Of(lambda w, x: torch.einsum("rti,oi,rsi->rto", x, w, x), (4, 8)), PLACES),
    "one head per feature": (lambda: Of(lambda w, x: torch.einsum("rti,i->rti", x, w), (8,)), PLACES),
    "heads of vectors": (lambda: Of(lambda w, x: torch.einsum("rhi,hio->rho", x, w), (5, 8, 3)), PLACES),
    "heads, outputs first": (lambda: Of(lambda w, x: torch.einsum("rhi,ohi->rho", x, w), (3, 5, 8)), PLACES),
    "heads of places": (
        lambda: Of(lambda w, x: torch.einsum("rthi,hio->rtho", x.unflatten(2, (2, 4)), w), (2, 4, 3)),
        PLACES,
    ),
    "heads in the middle": (
        lambda: Of(lambda w, x: torch.einsum("rthi,iho->rtho", x.unflatten(2, (2, 4)), w), (4, 2, 3)),
        PLACES,
    ),
    "weights of many places": (lambda: Of(lambda w, x: torch.einsum("rti,oti->ro", x, w), (3, 5, 8)), PLACES),
    "an axis of the data only": (lambda: Of(lambda w, x: torch.einsum("rti,io->ro", x, w), (8, 3)), PLACES),
    "an axis of the weight only": (lambda: Of(lambda w, x: torch.einsum("rti,ios->rto", x, w), (8, 3, 2)), PLACES),
    "implicit output": (lambda: Of(lambda w, x: torch.einsum("...i,io", x, w), (8, 3)), PLACES),
    "a list of operands": (lambda: Of(lambda w, x: torch.einsum("rti,io->rto", [x, w]), (8, 3)), PLACES),
    "einsum by numbers": (lambda: Of(lambda w, x: torch.einsum(x, [0, 1, 2], w, [2, 3], [0, 1, 3]), (8, 3)), PLACES),
    "a diagonal": (lambda: Of(lambda w, x: torch.einsum("rti,ii->rti", x, w), (8, 8)), PLACES),
    "two trained operands": (lambda: Of(lambda v, w, x: x @ torch.einsum("ij,jk->ik", v, w), (8, 4), (4, 3)), PLACES),
    "matrix on the left": (lambda: Of(lambda w, x: w @ x, (4, 5)), PLACES),
    "matrices on the left": (lambda: Of(lambda w, x: w @ x[:, None], (3, 4, 5)), PLACES),
    "matrices on the right": (lambda: Of(lambda w, x: x[:, None] @ w, (3, 8, 4)), PLACES),
    "a matrix per place": (lambda: Of(lambda w, x: x[:, :, None] @ w, (5, 8, 4)), PLACES),
    "a vector on the right": (lambda: Of(lambda w, x: (x @ w)[:, :, None], (8,)), PLACES),
    "a vector on the left": (lambda: Of(lambda w, x: torch.matmul(w, x), (5,)), PLACES),
    "batched product": (lambda: Of(lambda w, x: torch.bmm(x, w.expand(len(x), -1, -1)), (8, 4)), PLACES),
    "product with a vector": (lambda: Of(lambda w, x: torch.mv(x, w)[:, None], (8,)), VECTORS),
    "tensordot": (lambda: Of(lambda w, x: torch.tensordot(x, w, ([1, 2], [2, 0])), (8, 3, 5)), PLACES),
    "tensordot over one axis": (lambda: Of(lambda w, x: torch.tensordot(x, w, dims=1), (8, 3, 2)), PLACES),
    "attention by head": (Heads, random(ROWS, 5, 6)),
    "packed attention": (Packed, random(ROWS, 5, 6)),
    "transposed weight": (lambda: Of(lambda w, x: F.linear(x, w.t()), (8, 4)), PLACES),
    "transposed weight of vectors": (lambda: Of(lambda w, x: F.linear(x, w.T), (8, 4)), VECTORS),
    "some rows of a weight": (lambda: Of(lambda w, x: F.linear(x, w[1:4]), (6, 8)), PLACES),
    "some columns of a weight": (lambda: Of(lambda w, x: F.linear(x, w[:, 2:10]), (4, 11)), PLACES),
    "every other row of a weight": (lambda: Of(lambda w, x: F.linear(x, w[::2]), (6, 8)), PLACES),
    "some rows of a transposed weight": (lambda: Of(lambda w, x: F.linear(x, w[2:6].mT), (9, 8)), random(ROWS, 3, 4)),
    "overlapping rows": (lambda: Of(lambda w, x: F.linear(x, w[:4]) + F.linear(x, w[2:]), (6, 8)), PLACES),
    "a view and the whole": (lambda: Of(lambda w, x: F.linear(F.linear(x, w), w[:, :5].t()), (5, 8)), PLACES),
    "a matrix in both orders": (lambda: Of(lambda w, x: x @ w.t() + F.linear(x.tanh(), w), (8, 8)), PLACES),
    "a reshaped weight": (lambda: Of(lambda w, x: F.linear(x, w.reshape(4, 8), w.view(-1)[:4]), (2, 2, 8)), PLACES),
    "heads by a copy": (lambda: Of(lambda w, x: F.linear(x, w.permute(0, 2, 1).flatten(0, 1)), (2, 8, 3)), PLACES),
    "a permuted weight": (lambda: Of(lambda w, x: x[:, None] @ w.permute(1, 0, 2), (8, 2, 3)), PLACES),
    "a stack of layers": (lambda: Of(lambda w, x: F.linear(F.linear(x, w[0]).tanh(), w[1]), (2, 8, 8)), PLACES),
    "an expanded weight": (lambda: Of(lambda w, x: F.linear(x, w.expand(4, 8)), (1, 8)), PLACES),
    "a slice of a table": (lambda: Of(lambda w, x: F.embedding(x, w[:7]), (9, 4)), tokens(ROWS, 6)),
    "a slice of a table and a linear layer": (
        lambda: Of(lambda w, x: F.linear(F.embedding(x, w[:7]), w[7:]), (12, 4)),
        tokens(ROWS, 6),
    ),
    "a kernel by view": (lambda: Of(lambda w, x: F.conv1d(x, w[:, :, None]), (4, 5)), PLACES),
    "a detached view": (lambda: Of(lambda w, x: F.linear(x, w[:3]) + F.linear(x, w[3:].detach()), (6, 8)), PLACES),
    "scale and shift": (lambda: Of(lambda v, w, x: x * v + w, (8,), (5, 8)), PLACES),
    "class token": (lambda: Of(lambda w, x: torch.cat([w.expand(len(x), -1, -1), x], dim=1), (1, 1, 8)), PLACES),
    "PReLU": (lambda: nn.Sequential(nn.PReLU(8), nn.Linear(8, CLASSES)), VECTORS),
    "transposed convolution, 1d": (lambda: transposed(CONV1, 5, 4, 3, stride=2, padding=2, dilation=2), PLACES),
    "transposed convolution, more output": (
        lambda: transposed(CONV2, 4, 6, (3, 2), stride=(3, 2), padding=(1, 0), output_padding=(2, 1), groups=2),
        random(ROWS, 4, 3, 4),
    ),
    "transposed convolution, output beyond the stride": (
        lambda: transposed(CONV2, 2, 3, 2, stride=1, dilation=3, output_padding=2, bias=False),
        random(ROWS, 2, 3, 2),
    ),
    "transposed convolution, few places": (
        lambda: transposed(CONV2, 64, 48, 3, padding=1),
        random(ROWS, 64, 2, 3),
    ),
    "transposed convolution, 3d": (
        lambda: transposed(CONV3, 2, 4, (2, 3, 1), stride=(1, 2, 3), padding=(0, 1, 0), groups=2),
        random(ROWS, 2, 2, 3, 2),
    ),
    "transposed convolution with a frozen weight": (
        lambda: frozen(transposed(CONV2, 2, 3, 2), "0.weight"),
        random(ROWS, 2, 3, 2),
    ),
    **{
        f"bag, {mode}{', padding' if padding is not None else ''}": (
            lambda mode=mode, padding=padding: Bag(mode=mode, padding_idx=padding),
            tokens(ROWS, 6),
        )
        for mode in ("sum", "mean", "max")
        for padding in (None, 2, -1)
    },
    "bags of padding only": (lambda: Bag(mode="mean", padding_idx=0), tokens(ROWS, 6, below=2) * tokens(ROWS, 1)),
    "maxima of padding only": (lambda: Bag(mode="max", padding_idx=0), tokens(ROWS, 6, below=2) * tokens(ROWS, 1)),
    "bag with weights": (lambda: Bag(weighted=True, mode="sum", padding_idx=3), tokens(ROWS, 6)),
    "bag with weights, frozen": (lambda: frozen(Bag(weighted=True, mode="sum"), "bag.weight"), tokens(ROWS, 6)),
    "bag scaled by frequency": (lambda: Bag(mode="sum", scale_grad_by_freq=True), tokens(ROWS, 6)),
    "bags by offset, sum": (lambda: BagsByOffset(mode="sum", padding_idx=1), tokens(ROWS, 6)),
    "bags by offset, mean": (lambda: BagsByOffset(ends=True, mode="mean"), tokens(ROWS, 6)),
    "bags by offset, max": (lambda: BagsByOffset(mode="max", padding_idx=1), tokens(ROWS, 6)),
    "bags by offset of the data": (lambda: BagsByOffset(of_data=True, mode="sum"), tokens(ROWS, 6)),
    "folded bags": (lambda: FoldedBags(mode="mean", padding_idx=1), tokens(ROWS, 3, 4)),
    "folded maxima": (lambda: FoldedBags(mode="max"), tokens(ROWS, 3, 4)),
    "bag that is the output layer too": (
        lambda: Of(lambda w, x: F.embedding_bag(x, w, mode="sum") @ w.T, (7, 4)),
        tokens(ROWS, 6),
    ),
    "table scaled by frequency": (
        lambda: nn.Sequential(
            nn.Embedding(7, 4, padding_idx=1, scale_grad_by_freq=True), nn.Flatten(), nn.Linear(24, 3)
        ),
        tokens(ROWS, 6),
    ),
}


def made(name: str, dtype: torch.dtype = torch.float32) -> tuple[nn.Module, Tensor]:
    torch.manual_seed(0)
    build, inputs = PRODUCTS[name]
    model = build()
    with torch.no_grad():
        model(inputs[:1])  # lazy layers learn their size
    return model.to(dtype), inputs.to(dtype) if inputs.is_floating_point() else inputs
