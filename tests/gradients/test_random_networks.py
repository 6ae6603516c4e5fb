"""The clipped sum of a random small network equals that of a loop over examples, for any split into micro-batches."""

import copy
from math import prod

import pytest
import torch
import torch.nn.functional as F
from contracts import relative_error
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn.utils.parametrizations import weight_norm

import sordino as so
from sordino.gradients.taped import TapedGradients
from sordino.kernel.clipping import SCALED_TO
from sordino.kernel.records import as_records, by_user

CLASSES, ROWS = 3, 5
CLIP_NORMS = 0.01, 1.0, 100.0
CONVOLUTIONS = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}
INSTANCE_NORMS = {1: nn.InstanceNorm1d, 2: nn.InstanceNorm2d, 3: nn.InstanceNorm3d}


class Twice(nn.Module):
    """A module called twice."""

    def __init__(self, module):
        super().__init__()
        self.module = module

    def forward(self, x):
        return self.module(torch.tanh(self.module(x)))


class Tied(nn.Module):
    """Two layers with one weight and a bias each, and a use of the transposed weight."""

    def __init__(self, features, hidden):
        super().__init__()
        self.first, self.second = nn.Linear(features, hidden), nn.Linear(features, hidden)
        self.second.weight = self.first.weight

    def forward(self, x):
        return F.linear(torch.tanh(self.first(x)) * self.second(x), self.first.weight.T)


class TiedOnly(nn.Module):
    """Two layers with one weight and a bias each, and no other use of the weight."""

    def __init__(self, features, hidden):
        super().__init__()
        self.first, self.second = nn.Linear(features, hidden), nn.Linear(features, hidden)
        self.second.weight = self.first.weight

    def forward(self, x):
        return torch.tanh(self.first(x)) * self.second(x)


class Bare(nn.Module):
    """Parameters that no layer holds."""

    def __init__(self, shape):
        super().__init__()
        self.scale, self.shift = nn.Parameter(torch.randn(shape)), nn.Parameter(torch.randn(shape[-1:]))

    def forward(self, x):
        return self.scale * x + self.shift


class StandardisedConv2d(nn.Conv2d):
    """A convolution whose weight has mean zero and variance one per output."""

    def forward(self, x):
        mean, deviation = (f(self.weight, dim=(1, 2, 3), keepdim=True) for f in (torch.mean, torch.std))
        weight = (self.weight - mean) / (deviation + 1e-3)
        return F.conv2d(x, weight, self.bias, self.stride, self.padding, self.dilation, self.groups)


class Folded(nn.Module):
    """Layers on the frames of all examples as one batch, in a permuted order."""

    def __init__(self, layers, interleaved):
        super().__init__()
        self.layers, self.interleaved = nn.Sequential(*layers), interleaved

    def forward(self, x):
        if self.interleaved:
            each = self.layers(x.transpose(0, 1).flatten(0, 1))
            return each.reshape(x.shape[1], x.shape[0], -1).transpose(0, 1).flatten(1)
        return self.layers(x.flatten(0, 1)).reshape(len(x), -1)


class TiedTable(nn.Module):
    """A table of tokens that is the output layer too, by `multiply`, around other layers."""

    def __init__(self, table, layers, multiply):
        super().__init__()
        self.table, self.layers, self.multiply = table, nn.Sequential(*layers), multiply

    def forward(self, tokens):
        return self.multiply(self.layers(self.table(tokens)).mean(dim=1), self.table.weight)


def by_matrix_product(x, weight):
    """A linear layer written as a matrix product, which the tape does not know."""
    return x @ weight.T


MULTIPLICATIONS = None, F.linear, by_matrix_product


def convolution(draw, shape, most_outputs=3):
    """Random settings for which the kernel fits into the padded image."""
    channels, *sizes = shape
    groups = draw(st.sampled_from([g for g in (1, 2, 3) if channels % g == 0]))
    dilation, padding, stride = (tuple(draw(st.integers(low, 2)) for _ in sizes) for low in (1, 0, 1))
    room = [(size + 2 * p - 1) // d + 1 for size, p, d in zip(sizes, padding, dilation, strict=True)]
    kernel = tuple(draw(st.integers(1, min(3, most))) for most in room)
    settings = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}
    return CONVOLUTIONS[len(sizes)](
        channels, groups * draw(st.integers(1, most_outputs)), kernel, bias=draw(st.booleans()), **settings
    )


def linear(draw, shape):
    return nn.Linear(shape[-1], draw(st.integers(1, 7)), bias=draw(st.booleans()))


def last_axes(draw, shape):
    return shape[-draw(st.integers(1, min(2, len(shape)))) :]


FOR_ANY_SHAPE = {
    "linear": linear,
    "layer norm": lambda draw, shape: nn.LayerNorm(last_axes(draw, shape), bias=draw(st.booleans())),
    "root-mean-square norm": lambda draw, shape: nn.RMSNorm(last_axes(draw, shape), eps=1e-3),
    "called twice": lambda draw, shape: Twice(nn.Linear(shape[-1], shape[-1])),
    "tied": lambda draw, shape: Tied(shape[-1], draw(st.integers(1, 5))),
    "tied only": lambda draw, shape: TiedOnly(shape[-1], draw(st.integers(1, 5))),
    "bare": lambda draw, shape: Bare(shape),
    "weight norm": lambda draw, shape: weight_norm(linear(draw, shape)),
}
FOR_PICTURES = {
    "convolution": convolution,
    "group norm": lambda draw, shape: nn.GroupNorm(
        draw(st.sampled_from([g for g in (1, 2, 3) if shape[0] % g == 0])), shape[0]
    ),
    "instance norm": lambda draw, shape: INSTANCE_NORMS[len(shape) - 1](shape[0], eps=1e-2, affine=True),
    "convolution with weight norm": lambda draw, shape: weight_norm(convolution(draw, shape)),
    "convolution called twice": lambda draw, shape: Twice(
        CONVOLUTIONS[len(shape) - 1](shape[0], shape[0], 3, padding=1)
    ),
}
FOR_FLAT_PICTURES = {
    "max pooling": lambda draw, shape: nn.MaxPool2d(2, stride=draw(st.integers(1, 2)), padding=draw(st.integers(0, 1))),
    "standardised convolution": lambda draw, shape: StandardisedConv2d(shape[0], draw(st.integers(1, 4)), 2, padding=1),
}
LAYERS = FOR_ANY_SHAPE | FOR_PICTURES | FOR_FLAT_PICTURES


def fitting(shape):
    """The layers that accept an example of this shape. Normalization needs several values, a window enough room."""
    fits = dict(FOR_ANY_SHAPE)
    if shape[-1] == 1:
        del fits["layer norm"]
    if len(shape) > 1:
        fits |= FOR_PICTURES
        if prod(shape[1:]) == 1:
            del fits["group norm"], fits["instance norm"]
    if len(shape) == 3 and min(shape[1:]) > 1:
        fits |= FOR_FLAT_PICTURES
    return fits


def shapes(name):
    """Shapes of vectors, sequences, images and volumes that the layer accepts."""
    ranks = (3,) if name in FOR_FLAT_PICTURES else (2, 3, 4) if name in FOR_PICTURES else (1, 2, 3, 4)
    sizes = {1: st.tuples(st.integers(2, 8)), 2: st.tuples(st.integers(2, 6), st.integers(2, 9))}
    sizes[3] = st.tuples(st.integers(2, 4), st.integers(2, 7), st.integers(2, 6))
    sizes[4] = st.tuples(st.integers(2, 3), st.integers(2, 4), st.integers(2, 4), st.integers(2, 3))
    return st.sampled_from(ranks).flatmap(sizes.__getitem__)


def layers_from(draw, shape, names):
    """Layers that fit together, with smooth functions between them, and the shape of the output.

    None stands for any layer that fits.
    """
    layers = []
    for name in names:
        fits = fitting(shape)
        layers += [fits[name or draw(st.sampled_from(sorted(fits)))](draw, shape), nn.Tanh()]
        with torch.no_grad():
            shape = tuple(layers[-2](torch.randn(2, *shape)).shape[1:])
    return layers, shape


def network(draw, name):
    """A layer with this name below up to two others, and a function that draws its inputs."""
    torch.manual_seed(draw(st.integers(0, 10**6)))
    start = draw(shapes(name))
    layers, shape = layers_from(draw, start, [name] + [None] * draw(st.integers(0, 2)))
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(prod(shape), CLASSES)), lambda rows: torch.randn(rows, *start)


def network_of_tokens(draw, multiply):
    """A network with an embedding table, with or without padding. With `multiply`, it is the output layer too."""
    torch.manual_seed(draw(st.integers(0, 10**6)))
    tokens, places, features = draw(st.integers(CLASSES, 9)), draw(st.integers(1, 6)), draw(st.integers(2, 6))
    padding = draw(st.sampled_from([None, 0, tokens - 1, -1]))
    table, inputs = (
        nn.Embedding(tokens, features, padding_idx=padding),
        lambda rows: torch.randint(tokens, (rows, places)),
    )
    if multiply:
        fits = st.sampled_from(["layer norm", "called twice", "tied", "bare"])  # as many features come out as go in
        layers, _ = layers_from(draw, (places, features), draw(st.lists(fits, max_size=2)))
        return TiedTable(table, layers, multiply), inputs
    layers, shape = layers_from(draw, (places, features), [None] * draw(st.integers(0, 2)))
    return nn.Sequential(table, *layers, nn.Flatten(), nn.Linear(prod(shape), CLASSES)), inputs


def of_a_loop(model, batch, dtype):
    """The gradients of units by plain autograd in `dtype`, one example at a time, with sums over rows in float64.

    Also the sums of absolute values, which show how much the rows of a user cancel.
    """
    model = copy.deepcopy(model).to(dtype)
    parameters = [p for p in model.parameters() if p.requires_grad]
    units = torch.zeros(batch.num_units, sum(p.numel() for p in parameters), dtype=torch.float64)
    sizes = torch.zeros_like(units)
    inputs = [x.to(dtype) if x.is_floating_point() else x for x in batch.inputs]
    for row, unit in enumerate(batch.units):
        loss = F.cross_entropy(model(*(x[row : row + 1] for x in inputs)), batch.target[row : row + 1])
        found = torch.autograd.grad(loss, parameters)
        gradient = torch.cat([gradient.flatten() for gradient in found])
        units[unit] += gradient
        sizes[unit] += gradient.abs()
    return units, sizes


def clipped_sum(rows, norm):
    lengths = rows.norm(dim=1, keepdim=True).clamp(min=1e-30)
    return (rows * (norm * SCALED_TO / lengths).clamp(max=1)).sum(dim=0)


def check(draw, model, records):
    """Compares for each size of micro-batch, with and without a mask, and for each clip norm. All use the tape."""
    model = model.to(records.dtype)
    units = torch.arange(records.num_units)
    whole = records.gather(units)
    (exact, sizes), (rounded, _) = (of_a_loop(model, whole, dtype) for dtype in (torch.float64, records.dtype))
    loops = exact, rounded, 4 * torch.finfo(records.dtype).eps * sizes
    keep = torch.rand(loops[0].shape[1]) < draw(st.sampled_from([0.1, 0.5, 0.9]))
    for size in (1, 3, len(units)):
        batches = [records.gather(some) for some in torch.split(units, size)]
        parts = [so.LossGradient(F.cross_entropy).of(model, batch, batch.units) for batch in batches]
        assert all(isinstance(part, TapedGradients) for part in parts)
        for clip in (so.ClipByNorm(norm) for norm in CLIP_NORMS):
            agree(clip, parts, *loops)
            agree(clip, [part.masked(keep) for part in parts], *(loop * keep for loop in loops))


def agree(clip, parts, exact, rounded, residue):
    """Compares to 1e-5, or to the rounding error of the loop if this is larger in a badly conditioned network.

    If the rows of a user cancel, up to `residue` of each coordinate may be left of them.

    If gradients of places or of a user's rows cancel, their norm is raised by the rounding error of the sum, so that
    they are clipped slightly more than in the loop. The sum may be shorter by ten times as much, but never longer.
    """
    first, *others = (clip(part) for part in parts)
    total = sum(others, start=first)
    wanted = clipped_sum(exact, clip.norm)
    assert total.bound == clip.bound
    error, left = float((total.value - wanted).norm()), float(residue.sum(dim=0).norm())
    if wanted.any():
        rounding = relative_error(clipped_sum(rounded, clip.norm), wanted)
        is_shorter = float(total.value.norm()) <= float(wanted.norm())
        assert error <= max(1e-4 if is_shorter else 1e-5, 4 * rounding) * float(wanted.norm()) + left
    else:
        assert error <= left


def labels(rows):
    return torch.randint(0, CLASSES, (rows,))


def check_examples(draw, model, inputs):
    dtype = draw(st.sampled_from([torch.float32, torch.float64]))
    check(draw, model, as_records((inputs(ROWS), labels(ROWS)), dtype=dtype))


def check_users(draw, model, inputs):
    """Users of one to three rows, in any order."""
    counts = torch.tensor(draw(st.lists(st.integers(1, 3), min_size=3, max_size=5)))
    owners = torch.arange(len(counts)).repeat_interleave(counts)
    owners = owners[torch.randperm(len(owners))]
    data, dtype = (inputs(len(owners)), labels(len(owners))), draw(st.sampled_from([torch.float32, torch.float64]))
    check(draw, model, by_user(data, owners, rows_per_user=3, dtype=dtype))


@pytest.mark.parametrize("name", LAYERS)
@settings(max_examples=4)
@given(st.data())
def test_a_network_on_a_layer_of_each_kind_agrees_with_the_loop(name, data):
    check_examples(data.draw, *network(data.draw, name))


@pytest.mark.parametrize("name", LAYERS)
@settings(max_examples=3)
@given(st.data())
def test_a_network_on_folded_frames_agrees_with_the_loop(name, data):
    torch.manual_seed(data.draw(st.integers(0, 10**6)))
    start, frames = data.draw(shapes(name)), data.draw(st.integers(2, 3))
    layers, shape = layers_from(data.draw, start, [name] + [None] * data.draw(st.integers(0, 1)))
    folded = Folded(layers, interleaved=data.draw(st.booleans()))
    model = nn.Sequential(folded, nn.Linear(frames * prod(shape), CLASSES))
    check_examples(data.draw, model, lambda rows: torch.randn(rows, frames, *start))


@settings(max_examples=20)
@given(st.data())
def test_random_convolutions_agree_with_the_loop(data):
    """Images are so large that the kernel has several positions."""
    shape = data.draw(st.integers(1, 18)), *data.draw(st.sampled_from([(47,), (13, 10), (6, 5, 6)]))
    check_convolution(data.draw, shape, most_outputs=3)


@settings(max_examples=20)
@given(st.data())
def test_random_convolutions_of_few_pixels_and_many_channels_agree_with_the_loop(data):
    """Their norms come from Gram matrices."""
    shape = data.draw(st.integers(20, 40)), *data.draw(st.sampled_from([(4,), (3, 2), (2, 2, 2)]))
    check_convolution(data.draw, shape, most_outputs=60)


def check_convolution(draw, shape, most_outputs):
    torch.manual_seed(draw(st.integers(0, 10**6)))
    convolve = convolution(draw, shape, most_outputs)
    outputs = prod(convolve(torch.zeros(1, *shape)).shape)
    model = nn.Sequential(convolve, nn.Tanh(), nn.Flatten(), nn.Linear(outputs, CLASSES))
    check_examples(draw, model, lambda rows: torch.randn(rows, *shape))


@pytest.mark.parametrize("multiply", MULTIPLICATIONS)
@settings(max_examples=8)
@given(st.data())
def test_a_network_of_tokens_agrees_with_the_loop(multiply, data):
    check_examples(data.draw, *network_of_tokens(data.draw, multiply))


@settings(max_examples=15)
@given(st.data())
def test_users_with_several_rows_agree_with_the_loop_that_sums_before_the_clip(data):
    check_users(data.draw, *network(data.draw, data.draw(st.sampled_from(sorted(LAYERS)))))


@settings(max_examples=5)
@given(st.data())
def test_users_with_several_rows_of_tokens_agree_with_the_loop(data):
    check_users(data.draw, *network_of_tokens(data.draw, data.draw(st.sampled_from(MULTIPLICATIONS))))


@pytest.mark.slow
@pytest.mark.parametrize("name", LAYERS)
@settings(max_examples=60)
@given(st.data())
def test_many_networks_on_a_layer_of_each_kind_agree_with_the_loop(name, data):
    checked = data.draw(st.sampled_from([check_examples, check_users]))
    checked(data.draw, *network(data.draw, name))


@pytest.mark.slow
@pytest.mark.parametrize("multiply", MULTIPLICATIONS)
@settings(max_examples=60)
@given(st.data())
def test_many_networks_of_tokens_agree_with_the_loop(multiply, data):
    checked = data.draw(st.sampled_from([check_examples, check_users]))
    checked(data.draw, *network_of_tokens(data.draw, multiply))
