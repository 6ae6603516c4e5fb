"""The models whose steps are timed: each with its input shape, and how a batch of it is made."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sordino.convex.losses import Squared
from sordino.convex.model import GatedReLU
from sordino.kernel.sampling import Cyclic, FixedSize, Sampler
from sordino.models import dp_cnn, dp_cnn_small, two_layer, vit
from sordino.models.transformer import Places, SwapLastAxes, TransformerBlock

_CROSS_ENTROPY = partial(F.cross_entropy, reduction="sum")


class Recurrent(nn.Module):
    """An LSTM over 28 rows of a picture."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.out = nn.LSTM(28, 128, batch_first=True), nn.Linear(128, 10)

    def forward(self, x: Tensor) -> Tensor:
        outputs: Tensor = self.out(self.lstm(x)[0][:, -1])
        return outputs


class Gated(nn.Module):
    """A two-layer ReLU network made convex: frozen gates choose for which inputs a linear map counts."""

    gates: Tensor

    def __init__(self, inputs: int, gates: int, outputs: int) -> None:
        super().__init__()
        self.register_buffer("gates", torch.randn(gates, inputs))
        self.maps = nn.Linear(inputs, gates * outputs, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        is_open = F.linear(x, self.gates) >= 0
        return torch.einsum("rg,rgo->ro", is_open.to(x.dtype), self.maps(x).reshape(len(x), len(self.gates), -1))


def mlp(width: int = 512) -> nn.Module:
    """One hidden layer on 784 inputs."""
    return two_layer(784, 10, width=width)


def gpt() -> nn.Module:
    """Six blocks of width 256 on 128 tokens of a vocabulary of 1000, each predicting the next."""
    blocks = [TransformerBlock(256, 8, causal=True) for _ in range(6)]
    out = [nn.LayerNorm(256), nn.Linear(256, 1000), SwapLastAxes()]
    return nn.Sequential(nn.Embedding(1000, 256), Places(128, 256), *blocks, *out)


def drawn(batch_size: int) -> Sampler:
    """Half of the rows, drawn anew in every step."""
    return FixedSize(batch_size, 2 * batch_size, 10**6)


def in_turn(batch_size: int) -> Sampler:
    """Two batches that take turns."""
    return Cyclic(2, 10**6 // 2)


@dataclass(frozen=True)
class Benchmark:
    """A model, a batch of synthetic inputs for it, and the summed loss and the sampler that it is trained with.

    With `autocast` both sides multiply in that precision.
    """

    make: Callable[[], nn.Module]
    shape: tuple[int, ...]
    tokens: int | None = None
    loss: Callable[[Tensor, Tensor], Tensor] = _CROSS_ENTROPY
    sampler: Callable[[int], Sampler] = drawn
    autocast: torch.dtype | None = None

    def batch(self, size: int) -> tuple[Tensor, Tensor]:
        generator = torch.Generator().manual_seed(0)
        if self.tokens is None:
            return torch.randn(size, *self.shape, generator=generator), torch.randint(
                0, 10, (size,), generator=generator
            )
        sentences = torch.randint(0, self.tokens, (size, self.shape[0] + 1), generator=generator)
        return sentences[:, :-1].contiguous(), sentences[:, 1:].contiguous()


BENCHMARKS = {
    "mlp": Benchmark(mlp, (784,)),
    "gated": Benchmark(lambda: Gated(784, gates=128, outputs=10), (784,)),
    "gated-relu": Benchmark(lambda: GatedReLU(64).build(784, 10), (784,), loss=Squared(), sampler=in_turn),
    "dp-cnn-s": Benchmark(dp_cnn_small, (1, 28, 28)),
    "dp-cnn": Benchmark(dp_cnn, (3, 32, 32)),
    "vit": Benchmark(vit, (3, 32, 32)),
    "lstm": Benchmark(Recurrent, (28, 28)),
    "gpt": Benchmark(gpt, (128,), tokens=1000),
}
HALVED = {f"{name}-bfloat16": replace(BENCHMARKS[name], autocast=torch.bfloat16) for name in ("dp-cnn", "vit", "gpt")}
