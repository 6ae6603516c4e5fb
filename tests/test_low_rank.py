"""Fine-tuning with a frozen backbone and low-rank adapters: only adapters are trained, and exactly."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import sordino as so
from sordino.gradients.taped import Taped
from sordino.records import as_records

WIDTH, TOKENS, CLASSES, ROWS = 8, 5, 3, 6


class LowRank(nn.Module):
    """A frozen linear layer with a trained change of rank 2 (Hu et al. 2021)."""

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        self.layer = layer
        self.down = nn.Linear(layer.in_features, 2, bias=False)
        self.up = nn.Linear(2, layer.out_features, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) + self.up(self.down(x))


class TinyTransformer(nn.Module):
    """Embedding, one block of attention and feed-forward layers, and a head; adapters on all four linear layers."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, WIDTH)
        self.norm = nn.LayerNorm(WIDTH)
        self.mix, self.out = LowRank(nn.Linear(WIDTH, 3 * WIDTH)), LowRank(nn.Linear(WIDTH, WIDTH))
        self.wide, self.narrow = LowRank(nn.Linear(WIDTH, 16)), LowRank(nn.Linear(16, WIDTH))
        self.head = nn.Linear(WIDTH, CLASSES)
        for name, parameter in self.named_parameters():
            parameter.requires_grad_(".down." in name or ".up." in name)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        query, key, value = self.mix(self.norm(x)).chunk(3, dim=-1)
        x = x + self.out(F.scaled_dot_product_attention(query, key, value))
        x = x + self.narrow(F.gelu(self.wide(self.norm(x))))
        return self.head(x.mean(dim=1))


def tokens() -> tuple[Tensor, Tensor]:
    return torch.randint(0, 11, (ROWS, TOKENS)), torch.randint(0, CLASSES, (ROWS,))


@pytest.mark.parametrize("norm", [0.01, 1.0, 100.0])
def test_clipped_sums_of_adapters_equal_the_loop(norm):
    model, (x, y) = TinyTransformer(), tokens()
    batch = as_records((x, y)).gather(torch.arange(ROWS))
    each = so.LossGradient(F.cross_entropy).of(model, batch, torch.arange(ROWS))
    assert isinstance(each, Taped)
    trained = [p for p in model.parameters() if p.requires_grad]
    by_hand = 0
    for row in range(ROWS):
        found = torch.autograd.grad(F.cross_entropy(model(x[row : row + 1]), y[row : row + 1]), trained)
        gradient = torch.cat([part.flatten() for part in found]).double()
        by_hand = by_hand + gradient * min(1.0, norm / float(gradient.norm()))
    assert float((so.ClipByNorm(norm)(each).value - by_hand).norm() / by_hand.norm()) < 1e-5


def test_only_adapters_move_and_names_stay():
    model, data = TinyTransformer(), tokens()
    names = list(model.state_dict())
    before = {name: x.clone() for name, x in model.state_dict().items()}
    settings = {"epsilon": 5.0, "delta": 0.1, "batch_size": 3, "steps": 3, "seed": 0, "progress": False}
    so.fit(model, data, learning_rate=0.5, **settings)
    assert list(model.state_dict()) == names
    moved = {name for name, x in model.state_dict().items() if not torch.equal(x, before[name])}
    assert moved == {name for name in names if ".down." in name or ".up." in name}
