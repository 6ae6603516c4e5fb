"""Fine-tuning with a frozen backbone and low-rank adapters: only adapters are trained, and exactly."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import sordino as so
from sordino.gradients.taped import TapedGradients
from sordino.kernel.clipping import SCALED_TO
from sordino.kernel.records import as_records

WIDTH, TOKENS, CLASSES, ROWS = 8, 5, 3, 6
ADAPTED = ("mix", "out", "wide", "narrow")


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
    """Embedding, one block of attention and feed-forward layers, and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, WIDTH)
        self.norm = nn.LayerNorm(WIDTH)
        self.mix, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.wide, self.narrow = nn.Linear(WIDTH, 16), nn.Linear(16, WIDTH)
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        query, key, value = self.mix(self.norm(x)).chunk(3, dim=-1)
        x = x + self.out(F.scaled_dot_product_attention(query, key, value))
        x = x + self.narrow(F.gelu(self.wide(self.norm(x))))
        return self.head(x.mean(dim=1))


def by_hand() -> nn.Module:
    model = TinyTransformer().requires_grad_(False)
    for name in ADAPTED:
        setattr(model, name, LowRank(getattr(model, name)))
    return model


def by_peft() -> nn.Module:
    peft = pytest.importorskip("peft", reason="peft is not installed")
    settings = peft.LoraConfig(r=2, target_modules=list(ADAPTED), lora_dropout=0.3, init_lora_weights=False)
    return peft.get_peft_model(TinyTransformer(), settings)


def tokens() -> tuple[Tensor, Tensor]:
    return torch.randint(0, 11, (ROWS, TOKENS)), torch.randint(0, CLASSES, (ROWS,))


@pytest.mark.parametrize("make", [by_hand, by_peft])
@pytest.mark.parametrize("norm", [0.01, 1.0, 100.0])
def test_clipped_sums_of_adapters_equal_the_loop(make, norm):
    model, (x, y) = make().eval(), tokens()  # without dropout, which the loop would draw otherwise
    batch = as_records((x, y)).gather(torch.arange(ROWS))
    each = so.LossGradient(F.cross_entropy).of(model, batch, torch.arange(ROWS))
    assert isinstance(each, TapedGradients)
    trained = [p for p in model.parameters() if p.requires_grad]
    looped = 0
    for row in range(ROWS):
        found = torch.autograd.grad(F.cross_entropy(model(x[row : row + 1]), y[row : row + 1]), trained)
        gradient = torch.cat([part.flatten() for part in found]).double()
        looped = looped + gradient * min(1.0, norm * SCALED_TO / float(gradient.norm()))
    assert float((so.ClipByNorm(norm)(each).value - looped).norm() / looped.norm()) < 1e-5


@pytest.mark.parametrize("make", [by_hand, by_peft])
def test_only_adapters_move_and_names_stay(make):
    model, data = make(), tokens()
    before = {name: x.clone() for name, x in model.state_dict().items()}
    trained = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    settings = {"epsilon": 5.0, "delta": 0.1, "batch_size": 3, "steps": 3, "seed": 0, "progress": False}
    so.fit(model, data, learning_rate=0.5, **settings)
    assert list(model.state_dict()) == list(before)
    assert {name for name, x in model.state_dict().items() if not torch.equal(x, before[name])} == trained
    assert len(trained) == 2 * len(ADAPTED)
