"""Every layer of `torch.nn` that has parameters is taped, or is listed here with the reason why it is not."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable

import pytest
import torch
from contracts import relative_error
from row_gradients import loop, rows_of
from torch import Tensor, nn

import sordino as so
from sordino.gradients.tape import survey
from sordino.gradients.taped import TapedGradients
from sordino.kernel.records import as_records

ROWS, CLASSES = 4, 3


class Wrapped(nn.Module):
    """A layer, called by a function of it and the input, below a linear layer."""

    def __init__(self, layer: nn.Module, call: Callable[[nn.Module, Tensor], Tensor] | None = None) -> None:
        super().__init__()
        self.layer, self.call, self.out = layer, call or (lambda layer, x: layer(x)), nn.LazyLinear(CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(torch.tanh(self.call(self.layer, x)).flatten(1))


def vectors() -> Tensor:
    return torch.randn(ROWS, 6)


def lines() -> Tensor:
    return torch.randn(ROWS, 4, 6)


def pictures() -> Tensor:
    return torch.randn(ROWS, 4, 5, 6)


def volumes() -> Tensor:
    return torch.randn(ROWS, 4, 3, 3, 4)


def words() -> Tensor:
    return torch.randint(0, 9, (ROWS, 5))


TAPED: dict[str, tuple[Callable[[], nn.Module], Callable[[], Tensor]]] = {
    "Linear": (lambda: Wrapped(nn.Linear(6, 5)), vectors),
    "Bilinear": (lambda: Wrapped(nn.Bilinear(6, 6, 5), lambda layer, x: layer(x, x.flip(1))), vectors),
    "Conv1d": (lambda: Wrapped(nn.Conv1d(4, 3, 2)), lines),
    "Conv2d": (lambda: Wrapped(nn.Conv2d(4, 3, 2)), pictures),
    "Conv3d": (lambda: Wrapped(nn.Conv3d(4, 3, 2)), volumes),
    "ConvTranspose1d": (lambda: Wrapped(nn.ConvTranspose1d(4, 3, 2, stride=2)), lines),
    "ConvTranspose2d": (lambda: Wrapped(nn.ConvTranspose2d(4, 3, 2, stride=2)), pictures),
    "ConvTranspose3d": (lambda: Wrapped(nn.ConvTranspose3d(4, 3, 2, stride=2)), volumes),
    "Embedding": (lambda: Wrapped(nn.Embedding(9, 4)), words),
    "EmbeddingBag": (lambda: Wrapped(nn.EmbeddingBag(9, 4)), words),
    "GroupNorm": (lambda: Wrapped(nn.GroupNorm(2, 4)), pictures),
    "InstanceNorm1d": (lambda: Wrapped(nn.InstanceNorm1d(4, affine=True)), lines),
    "InstanceNorm2d": (lambda: Wrapped(nn.InstanceNorm2d(4, affine=True)), pictures),
    "InstanceNorm3d": (lambda: Wrapped(nn.InstanceNorm3d(4, affine=True)), volumes),
    "LayerNorm": (lambda: Wrapped(nn.LayerNorm(6)), lines),
    "RMSNorm": (lambda: Wrapped(nn.RMSNorm(6)), lines),
    "RNN": (lambda: Wrapped(nn.RNN(6, 5, batch_first=True), lambda layer, x: layer(x)[0]), lines),
    "GRU": (lambda: Wrapped(nn.GRU(6, 5, batch_first=True), lambda layer, x: layer(x)[0]), lines),
    "LSTM": (lambda: Wrapped(nn.LSTM(6, 5, batch_first=True), lambda layer, x: layer(x)[0]), lines),
    "RNNCell": (lambda: Wrapped(nn.RNNCell(6, 5)), vectors),
    "GRUCell": (lambda: Wrapped(nn.GRUCell(6, 5)), vectors),
    "LSTMCell": (lambda: Wrapped(nn.LSTMCell(6, 5), lambda layer, x: layer(x)[0]), vectors),
    "MultiheadAttention": (
        lambda: Wrapped(nn.MultiheadAttention(6, 2, batch_first=True), lambda layer, x: layer(x, x, x)[0]),
        lines,
    ),
    "Transformer": (
        lambda: Wrapped(nn.Transformer(6, 2, 1, 1, 8, 0.0, batch_first=True), lambda layer, x: layer(x, x)),
        lines,
    ),
    "TransformerEncoderLayer": (
        lambda: Wrapped(nn.TransformerEncoderLayer(6, 2, 8, 0.0, batch_first=True)),
        lines,
    ),
    "TransformerDecoderLayer": (
        lambda: Wrapped(nn.TransformerDecoderLayer(6, 2, 8, 0.0, batch_first=True), lambda layer, x: layer(x, x)),
        lines,
    ),
    "TransformerEncoder": (
        lambda: Wrapped(nn.TransformerEncoder(nn.TransformerEncoderLayer(6, 2, 8, 0.0, batch_first=True), 2)),
        lines,
    ),
    "TransformerDecoder": (
        lambda: Wrapped(
            nn.TransformerDecoder(nn.TransformerDecoderLayer(6, 2, 8, 0.0, batch_first=True), 2),
            lambda layer, x: layer(x, x),
        ),
        lines,
    ),
    "AdaptiveLogSoftmaxWithLoss": (
        lambda: Wrapped(nn.AdaptiveLogSoftmaxWithLoss(6, 9, [3]), lambda layer, x: layer.log_prob(x)),
        vectors,
    ),
}

DIRECT: dict[str, tuple[Callable[[], nn.Module], Callable[[], Tensor]]] = {
    "PReLU": (lambda: Wrapped(nn.PReLU(4)), pictures),
    "BatchNorm1d": (lambda: Wrapped(nn.BatchNorm1d(6)).eval(), vectors),
    "BatchNorm2d": (lambda: Wrapped(nn.BatchNorm2d(4)).eval(), pictures),
    "BatchNorm3d": (lambda: Wrapped(nn.BatchNorm3d(4)).eval(), volumes),
}
"""One value per channel, which costs no more to differentiate directly. Batch normalization in eval mode only."""

WITHOUT = {
    "SyncBatchNorm": "runs on GPUs only, and mixes examples while training",
    "LinearCrossEntropyLoss": "a loss with parameters: it needs the label of the example in the forward pass",
    "RNNBase": "the base class of RNN, GRU and LSTM",
    "RNNCellBase": "the base class of their cells",
    **dict.fromkeys(("ParameterList", "ParameterDict"), "a container of parameters that other operations use"),
    **{name: "is refused before it knows its shape" for name in vars(nn) if name.startswith("Lazy")},
}


def with_parameters() -> set[str]:
    """The names of the classes of `torch.nn` whose source makes parameters. Docstrings do not count."""
    makes = re.compile(r"\bParameter\(|UninitializedParameter\(|\bLinear\(|EncoderLayer\(")
    found = set()
    for name, kind in vars(nn).items():
        if inspect.isclass(kind) and issubclass(kind, nn.Module):
            own = [base for base in kind.__mro__ if issubclass(base, nn.Module) and base is not nn.Module]
            source = " ".join(map(inspect.getsource, own))
            if makes.search(re.sub(r'"""(.*?)"""', "", source, flags=re.DOTALL)):
                found.add(name)
    return found


def test_every_layer_of_torch_that_has_parameters_is_in_a_list() -> None:
    found = with_parameters()
    assert {"Linear", "LSTM", "PReLU", "Transformer"} <= found
    assert not found - TAPED.keys() - DIRECT.keys() - WITHOUT.keys()


def prepared(make: Callable[[], nn.Module], inputs: Callable[[], Tensor]) -> tuple[nn.Module, Tensor]:
    torch.manual_seed(0)
    model, x = make(), inputs()
    with torch.no_grad():
        model(x)
    return model, x


@pytest.mark.parametrize("name", TAPED | DIRECT)
def test_it_agrees_with_the_loop_and_only_listed_layers_are_differentiated_directly(name: str) -> None:
    model, x = prepared(*(TAPED | DIRECT)[name])
    labels, units = torch.arange(ROWS) % CLASSES, torch.arange(ROWS)
    batch = as_records((x, labels)).gather(units)
    each = so.LossGradient(nn.functional.cross_entropy).of(model, batch, units)
    assert isinstance(each, TapedGradients)
    expected = loop(model, nn.functional.cross_entropy, (x,), labels)
    assert relative_error(rows_of(each).double(), expected.double()) < 1e-5
    direct = {parameter.split(".")[0] for parameter in survey(model, (x[:1],)).direct}
    assert direct == ({"layer"} if name in DIRECT else set())
