"""Unusual uses of parameters: tied, reused, computed, masked, bare, or in layers that torch changes."""

from __future__ import annotations

import warnings
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrizations, prune

from bench.architecture_models.dense import FEATURES, mlp
from bench.architecture_models.kinds import CLASSES, Case, Net, kind, numbers, tokens, vectors, weights


@kind()
def tied_autoencoder(rows: int) -> Case:
    def run(m: Any, x: Tensor) -> Any:
        return F.linear(torch.tanh(m.encoder(x)), m.encoder.weight.t(), m.bias)

    return numbers(Net(run, encoder=nn.Linear(FEATURES, 6), bias=weights(FEATURES)), (torch.randn(rows, FEATURES),), 12)


@kind()
def tied_embedding(rows: int) -> Case:
    def run(m: Any, x: Tensor) -> Any:
        return m.output(torch.tanh(m.middle(m.table(x)))).mean(dim=1)

    table, output = nn.Embedding(20, 8), nn.Linear(8, 20, bias=False)
    output.weight = table.weight
    model = Net(run, table=table, middle=nn.Linear(8, 8), output=output)
    return tokens(model, rows, 6, 20)


@kind()
def one_module_many_times(rows: int) -> Case:
    def run(m: Any, x: Tensor) -> Any:
        for _ in range(6):
            x = m.norm(x + torch.tanh(m.layer(x)))
        return m.head(x)

    model = Net(run, layer=nn.Linear(FEATURES, FEATURES), norm=nn.LayerNorm(FEATURES), head=nn.Linear(FEATURES, 3))
    return vectors(model, rows, FEATURES)


@kind()
def module_list_twice(rows: int) -> Case:
    """Layers of a list, there and back, and one of them under a second name."""

    def run(m: Any, x: Tensor) -> Any:
        for layer in (*m.layers, *reversed(m.layers)):
            x = F.gelu(layer(x))
        return m.head(m.alias(x))

    layers = nn.ModuleList(nn.Linear(FEATURES, FEATURES) for _ in range(3))
    return vectors(Net(run, layers=layers, alias=layers[1], head=nn.Linear(FEATURES, CLASSES)), rows, FEATURES)


@kind()
def bare_parameters(rows: int) -> Case:
    def run(m: Any, x: Tensor) -> Any:
        x = x * m.scale + m.shift
        return (torch.tanh(x).unsqueeze(1) * m.matrix).sum(dim=-1) * m.temperature.exp()

    model = Net(run, scale=weights(FEATURES, scale=1.0), shift=weights(FEATURES), matrix=weights(CLASSES, FEATURES),
                temperature=nn.Parameter(torch.tensor(0.1)))  # fmt: skip
    return vectors(model, rows, FEATURES)


@kind()
def einsum_weights(rows: int) -> Case:
    def run(m: Any, x: Tensor) -> Any:
        heads = torch.einsum("bti,hid->bhtd", x, m.project)
        return torch.einsum("bhtd,hdo->bo", F.gelu(heads), m.join)

    return vectors(Net(run, project=weights(2, FEATURES, 5), join=weights(2, 5, CLASSES)), rows, 4, FEATURES)


@kind()
def parameter_lists(rows: int) -> Case:
    def run(m: Any, x: Tensor) -> Any:
        for weight, name in zip(m.weights, ("a", "b"), strict=True):
            x = torch.tanh(torch.addmm(m.biases[name], x, weight))
        return m.head(x)

    model = Net(
        run, weights=nn.ParameterList([weights(FEATURES, 8), weights(8, 8)]), head=nn.Linear(8, CLASSES),
        biases=nn.ParameterDict({"a": weights(8), "b": weights(8)}),
    )  # fmt: skip
    return vectors(model, rows, FEATURES)


@kind()
def weight_norm_by_hook(rows: int) -> Case:
    """The older form of weight normalization, which cannot be copied."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        layers = [torch.nn.utils.weight_norm(nn.Linear(a, b)) for a, b in ((FEATURES, 16), (16, CLASSES))]
    return vectors(nn.Sequential(layers[0], nn.Tanh(), layers[1]), rows, FEATURES)


@kind()
def weight_norm_of_convolution_by_hook(rows: int) -> Case:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        layer = torch.nn.utils.weight_norm(nn.Conv1d(3, 8, 3))
    return vectors(nn.Sequential(layer, nn.ELU(), nn.Flatten(), nn.Linear(80, CLASSES)), rows, 3, 12)


@kind()
def weight_norm(rows: int) -> Case:
    first, second = (parametrizations.weight_norm(nn.Linear(a, b)) for a, b in ((FEATURES, 16), (16, CLASSES)))
    return vectors(nn.Sequential(first, nn.Tanh(), second), rows, FEATURES)


@kind()
def spectral_norm(rows: int) -> Case:
    model = nn.Sequential(parametrizations.spectral_norm(nn.Linear(FEATURES, 16)), nn.Tanh(), nn.Linear(16, CLASSES))
    return vectors(model.eval(), rows, FEATURES)


@kind(refused="changes its buffer")
def spectral_norm_in_training(rows: int) -> Case:
    return vectors(nn.Sequential(parametrizations.spectral_norm(nn.Linear(FEATURES, CLASSES))).train(), rows, FEATURES)


@kind(refused="changes its own")
def spectral_norm_by_hook_in_training(rows: int) -> Case:
    return vectors(nn.Sequential(torch.nn.utils.spectral_norm(nn.Linear(FEATURES, CLASSES))).train(), rows, FEATURES)


@kind()
def orthogonal(rows: int) -> Case:
    layers = [parametrizations.orthogonal(nn.Linear(8, 8), name) for name in ("weight",)]
    cayley = parametrizations.orthogonal(nn.Linear(8, 8), orthogonal_map="cayley")
    return vectors(nn.Sequential(nn.Linear(FEATURES, 8), *layers, nn.Tanh(), cayley, nn.Linear(8, 3)), rows, FEATURES)


class Symmetric(nn.Module):
    def forward(self, weight: Tensor) -> Tensor:
        return weight.triu() + weight.triu(1).transpose(-1, -2)


@kind()
def own_parametrization(rows: int) -> Case:
    model = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, CLASSES))
    nn.utils.parametrize.register_parametrization(model[0], "weight", Symmetric())
    return vectors(model, rows, 8)


@kind()
def pruned(rows: int) -> Case:
    model = mlp(FEATURES, 16, CLASSES)
    prune.l1_unstructured(model[0], "weight", amount=0.5)
    prune.random_structured(model[2], "weight", amount=2, dim=1)
    return vectors(model, rows, FEATURES)


class FakeQuantised(nn.Linear):
    """Weights of a few levels, with the gradient of the weights themselves."""

    def forward(self, x: Tensor) -> Tensor:
        scale = self.weight.detach().abs().amax(dim=1, keepdim=True) / 7
        levels = (self.weight / scale).round() * scale
        return F.linear(x, self.weight + (levels - self.weight).detach(), self.bias)


@kind()
def quantization_aware(rows: int) -> Case:
    return vectors(nn.Sequential(FakeQuantised(FEATURES, 16), nn.ReLU(), FakeQuantised(16, CLASSES)), rows, FEATURES)


@kind()
def fake_quantize_of_torch(rows: int) -> Case:
    def run(m: Any, x: Tensor) -> Any:
        weight = torch.fake_quantize_per_tensor_affine(m.first.weight, 0.05, 0, -8, 7)
        return m.head(F.relu(F.linear(x, weight, m.first.bias)))

    return vectors(Net(run, first=nn.Linear(FEATURES, 16), head=nn.Linear(16, CLASSES)), rows, FEATURES)


@kind()
def cosine_classifier(rows: int) -> Case:
    def run(m: Any, x: Tensor) -> Any:
        return m.scale * F.linear(F.normalize(m.first(x), dim=-1), F.normalize(m.prototypes, dim=-1))

    model = Net(
        run, first=nn.Linear(FEATURES, 8), prototypes=weights(CLASSES, 8), scale=nn.Parameter(torch.tensor(5.0))
    )
    return vectors(model, rows, FEATURES)


@kind()
def batch_ensemble(rows: int) -> Case:
    """Members that share a matrix, with a vector of inputs and one of outputs each."""

    def run(m: Any, x: Tensor) -> Any:
        x = x.unsqueeze(1) * m.inputs
        return m.head(F.relu(m.shared(x) * m.outputs)).mean(dim=1)

    model = Net(run, inputs=weights(4, FEATURES, scale=1.0), outputs=weights(4, 16, scale=1.0),
                shared=nn.Linear(FEATURES, 16, bias=False), head=nn.Linear(16, CLASSES))  # fmt: skip
    return vectors(model, rows, FEATURES)


@kind()
def circulant(rows: int) -> Case:
    def run(m: Any, x: Tensor) -> Any:
        x = torch.fft.irfft(torch.fft.rfft(x) * torch.fft.rfft(m.filter), n=x.shape[-1])
        return m.head(torch.tanh(x))

    return vectors(Net(run, filter=weights(FEATURES), head=nn.Linear(FEATURES, CLASSES)), rows, FEATURES)


@kind()
def butterfly(rows: int) -> Case:
    def run(m: Any, x: Tensor) -> Any:
        for level, factor in enumerate(m.factors):
            pairs = x.reshape(-1, 8 >> (level + 1), 2, 2**level)
            x = torch.einsum("bkis,ksio->bkos", pairs, factor).reshape(-1, 8)
        return m.head(x)

    factors = nn.ParameterList([weights(8 >> (level + 1), 2**level, 2, 2) for level in range(3)])
    return vectors(Net(run, factors=factors, head=nn.Linear(8, CLASSES)), rows, 8)


@kind()
def complex_weights(rows: int) -> Case:
    def run(m: Any, x: Tensor) -> Any:
        product = torch.view_as_complex(x) @ torch.view_as_complex(m.matrix)
        return m.head(torch.view_as_real(product).flatten(1))

    model = Net(run, matrix=weights(6, 4, 2), head=nn.Linear(8, CLASSES))
    return vectors(model, rows, 6, 2)


@kind()
def written_lora(rows: int) -> Case:
    def run(m: Any, x: Tensor) -> Any:
        return m.head(torch.tanh(m.frozen(x) + 2.0 * m.up(m.down(x))))

    frozen = nn.Linear(FEATURES, 16).requires_grad_(False)
    model = Net(run, frozen=frozen, down=nn.Linear(FEATURES, 2, bias=False), up=nn.Linear(2, 16, bias=False),
                head=nn.Linear(16, CLASSES))  # fmt: skip
    return vectors(model, rows, FEATURES)


@kind()
def merged_lora(rows: int) -> Case:
    """The low-rank product is added to the weight before it is used."""

    def run(m: Any, x: Tensor) -> Any:
        return m.head(torch.tanh(F.linear(x, m.frozen.weight + m.up @ m.down, m.frozen.bias)))

    frozen = nn.Linear(FEATURES, 16).requires_grad_(False)
    model = Net(run, frozen=frozen, down=weights(2, FEATURES), up=weights(16, 2), head=nn.Linear(16, CLASSES))
    return vectors(model, rows, FEATURES)


@kind()
def gradient_reversal(rows: int) -> Case:
    """Half of the features learn against the loss, by a hook on the output."""

    def run(m: Any, x: Tensor) -> Any:
        features = m.features(x)
        reversed_ = 2 * features.detach() - features
        return m.head(features) + m.domain(reversed_)

    model = Net(run, features=mlp(FEATURES, 16, 8), head=nn.Linear(8, CLASSES), domain=nn.Linear(8, CLASSES))
    return vectors(model, rows, FEATURES)


@kind()
def bias_in_place(rows: int) -> Case:
    """Operations in place on the outputs of layers."""

    def run(m: Any, x: Tensor) -> Any:
        hidden = m.first(x)
        hidden += m.shift
        hidden = F.relu(hidden, inplace=True) * m.scale
        hidden[:, 0] = 1.0
        return m.head(hidden)

    model = Net(run, first=nn.Linear(FEATURES, 16), shift=weights(16), scale=weights(16), head=nn.Linear(16, CLASSES))
    return vectors(model, rows, FEATURES)


@kind()
def written_into_zeros(rows: int) -> Case:
    """Results are written into a new tensor, part by part."""

    def run(m: Any, x: Tensor) -> Any:
        out = torch.zeros(x.shape[0], 4, CLASSES)
        for place in range(4):
            out[:, place] = m.head(torch.tanh(m.first(x[:, place])))
        return out.mean(dim=1)

    return vectors(Net(run, first=nn.Linear(5, 8), head=nn.Linear(8, CLASSES)), rows, 4, 5)


@kind()
def slices_of_a_weight(rows: int) -> Case:
    """A slimmable layer: its weight is used in parts."""

    def run(m: Any, x: Tensor) -> Any:
        narrow = F.linear(x[:, :6], m.layer.weight[:8, :6], m.layer.bias[:8])
        return m.head(F.relu(m.layer(x))) + m.head_of_narrow(F.relu(narrow))

    model = Net(run, layer=nn.Linear(FEATURES, 16), head=nn.Linear(16, CLASSES), head_of_narrow=nn.Linear(8, CLASSES))
    return vectors(model, rows, FEATURES)


@kind()
def frozen_first_layers(rows: int) -> Case:
    model = mlp(FEATURES, 16, 16, CLASSES)
    model[0].requires_grad_(False)
    model[2].bias.requires_grad_(False)
    return vectors(model, rows, FEATURES)


@kind()
def unused_parameters(rows: int) -> Case:
    model = Net(lambda m, x: m.used(x), used=nn.Linear(FEATURES, CLASSES), spare=nn.Linear(4, 4), extra=weights(3))
    return vectors(model, rows, FEATURES)
