"""Attention of every kind is taped, agrees with a loop over single examples, and is fused if torch's own is."""

from functools import cache

import pytest
import torch
import torch.nn.functional as F
from contracts import PerExampleContract
from products import product_of
from taped_models import gradients, random
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode

import sordino as so
from sordino.gradients.fused_kernels import scaled_dot_product_attention
from sordino.gradients.tape import survey
from sordino.gradients.taped import TapedGradients
from sordino.kernel.clipping import SCALED_TO
from sordino.kernel.records import as_records

ROWS, PLACES, WIDTH, HEADS = 7, 6, 8, 2
MASK = random(HEADS, PLACES, PLACES)
FUSED = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default


class Using(nn.Module):
    """A layer with a function that calls it."""

    def __init__(self, layer, call):
        super().__init__()
        self.layer, self.call = layer, call

    def forward(self, x):
        return self.call(self.layer, x)


class Own(nn.Module):
    """User-written attention: a projection, and torch's function."""

    def __init__(self, mask=lambda x: None, key_heads=HEADS, value_width=WIDTH // HEADS, **settings):
        super().__init__()
        self.mask, self.settings = mask, settings
        self.heads = HEADS, key_heads, key_heads
        self.sizes = [WIDTH, WIDTH // HEADS * key_heads, value_width * key_heads]
        self.project, self.out = nn.Linear(WIDTH, sum(self.sizes)), nn.Linear(HEADS * value_width, WIDTH)

    def forward(self, x):
        parts = zip(self.project(x).split(self.sizes, dim=-1), self.heads, strict=True)
        query, key, value = (part.unflatten(-1, (heads, -1)).transpose(1, 2) for part, heads in parts)
        mixed = F.scaled_dot_product_attention(query, key, value, attn_mask=self.mask(x), **self.settings)
        return self.out(mixed.transpose(1, 2).flatten(2))


class LearnedMask(nn.Module):
    """A learned value for each pair of places, as an additive mask."""

    def __init__(self):
        super().__init__()
        self.mask = nn.Parameter(random(HEADS, PLACES, PLACES))

    def forward(self, x):
        heads = x.unflatten(-1, (HEADS, -1)).transpose(1, 2)
        return F.scaled_dot_product_attention(heads, heads, heads, attn_mask=self.mask).transpose(1, 2).flatten(2)


class LearnedQuery(nn.Module):
    """A learned query that attends to all places, passed to torch's function directly."""

    def __init__(self):
        super().__init__()
        self.query = nn.Parameter(random(1, 1, 3, WIDTH))

    def forward(self, x):
        return F.scaled_dot_product_attention(self.query, x[:, None], x[:, None])[:, 0]


def multihead(inputs=lambda x: (x, x, x), call=lambda x: {}, **settings):
    def attend(layer, x):
        mixed, weights = layer(*inputs(x), **{"need_weights": False, **call(x)})
        return mixed if weights is None else mixed * (1 + weights.square().sum())

    return Using(nn.MultiheadAttention(WIDTH, HEADS, **{"batch_first": True, **settings}), attend)


def encoder_layer(**settings):
    return nn.TransformerEncoderLayer(WIDTH, HEADS, 12, **{"dropout": 0.0, "batch_first": True, **settings})


def decoder_layer(**settings):
    return nn.TransformerDecoderLayer(WIDTH, HEADS, 12, dropout=0.0, batch_first=True, **settings)


def padded(layer):
    return Using(layer, lambda layer, x: layer(x, src_key_padding_mask=padding(x)))


def places_first(layer):
    return Using(layer, lambda layer, x: layer(x.transpose(0, 1)).transpose(0, 1))


def decoding(layer, **settings):
    return Using(layer, lambda layer, x: layer(x[:, :4], x[:, 1:], tgt_mask=causal(4), **settings))


def from_padded(layer):
    """A model whose first places attend to the last ones, of which some are padding."""
    masks = ("src_key_padding_mask", "memory_key_padding_mask")
    call = lambda layer, x: layer(x[:, 1:], x[:, :4], tgt_mask=causal(4), **dict.fromkeys(masks, padding(x[:, 1:])))  # noqa: E731
    return Using(layer, call)


def padding(x):
    """A padding mask for each row, in which the first place is never padding."""
    return (x[..., 0] > 0.3) & (torch.arange(x.shape[1]) > 0)


def causal(places):
    return nn.Transformer.generate_square_subsequent_mask(places)


def seen(x):
    """An attention mask for each row and head. Each place attends to itself."""
    higher = x[:, :, None, :HEADS] > x[:, None, :, :HEADS] - 0.5
    return higher.permute(0, 3, 1, 2) | torch.eye(x.shape[1], dtype=torch.bool)


def from_memory(x):
    memory = x[..., 1:, :]
    return x[..., :4, :], memory, memory


def three_tensors(x):
    return x[:, :4], x[:, 1:], x[:, 1:] ** 2


def narrower(x):
    return x[:, :4], x[:, 1:, :5], x[:, 1:, :3]


def one_sequence(layer):
    return Using(layer, lambda layer, x: layer(x[0])[None])


FUSED_LAYERS = {
    "plain": Own,
    "causal": lambda: Own(is_causal=True),
    "with a scale": lambda: Own(scale=0.7),
    "shared heads": lambda: Own(key_heads=1, enable_gqa=True),
    "boolean mask by row": lambda: Own(seen),
    "boolean mask for all": lambda: Own(lambda x: torch.ones(PLACES, PLACES, dtype=torch.bool).tril()),
    "additive mask by row": lambda: Own(lambda x: x[:, None, None, :, 1].detach()),
    "additive mask for all": lambda: Own(lambda x: MASK),
    "places that see nothing": lambda: Own(lambda x: seen(x) & (torch.arange(PLACES) > 1)[:, None]),
    "self-attention": multihead,
    "self-attention without bias": lambda: multihead(bias=False),
    "self-attention, places first": lambda: places_first(multihead(batch_first=False)),
    "self-attention of one sequence": lambda: one_sequence(multihead()),
    "cross-attention": lambda: multihead(from_memory),
    "cross-attention without bias": lambda: multihead(from_memory, bias=False),
    "cross-attention of one sequence": lambda: one_sequence(multihead(from_memory)),
    "three tensors": lambda: multihead(three_tensors),
    "query that is the key": lambda: multihead(lambda x: (x, x, x**2)),
    "other widths": lambda: multihead(narrower, kdim=5, vdim=3),
    "other widths without bias": lambda: multihead(narrower, kdim=5, vdim=3, bias=False),
    "boolean padding": lambda: multihead(call=lambda x: {"key_padding_mask": padding(x)}),
    "additive padding": lambda: multihead(call=lambda x: {"key_padding_mask": x[..., 1].detach()}),
    "mask of pairs": lambda: multihead(call=lambda x: {"attn_mask": MASK[0]}),
    "mask of heads and pairs": lambda: multihead(call=lambda x: {"attn_mask": ~seen(x).flatten(0, 1)}),
    "mask and padding": lambda: multihead(
        call=lambda x: {"attn_mask": causal(PLACES) < 0, "key_padding_mask": padding(x)}
    ),
    "announced as causal": lambda: multihead(call=lambda x: {"attn_mask": causal(PLACES), "is_causal": True}),
    "causal and padded": lambda: multihead(
        call=lambda x: {"attn_mask": causal(PLACES) < 0, "is_causal": True, "key_padding_mask": padding(x)}
    ),
    "added zero": lambda: multihead(add_zero_attn=True, call=lambda x: {"key_padding_mask": padding(x)}),
    "encoder layer": encoder_layer,
    "encoder layer in evaluation mode": lambda: encoder_layer(dropout=0.5).eval(),
    "encoder layer, norm first": lambda: encoder_layer(norm_first=True),
    "encoder layer, places first": lambda: places_first(encoder_layer(batch_first=False)),
    "encoder layer with padding": lambda: padded(encoder_layer()),
    "encoder with padding": lambda: padded(nn.TransformerEncoder(encoder_layer(), 2)),
    "decoder layer": lambda: decoding(decoder_layer()),
    "decoder layer, norm first": lambda: decoding(decoder_layer(norm_first=True), tgt_is_causal=True),
    "transformer": lambda: from_padded(nn.Transformer(WIDTH, HEADS, 2, 2, 12, dropout=0.0, batch_first=True)),
}
WRITTEN_OUT_LAYERS = {
    "three axes": lambda: Using(nn.Tanh(), lambda layer, x: layer(F.scaled_dot_product_attention(x, x, x))),
    "two axes": lambda: Using(nn.Tanh(), lambda layer, x: layer(F.scaled_dot_product_attention(*[x[0]] * 3))[None]),
    "values of another width": lambda: Own(value_width=3),
    "mask from a layer": lambda: Using(
        nn.Linear(WIDTH, PLACES),
        lambda layer, x: F.scaled_dot_product_attention(
            x[:, None], x[:, None], x[:, None], attn_mask=layer(x)[:, None]
        )[:, 0],
    ),
    "weights": lambda: multihead(call=lambda x: {"need_weights": True, "key_padding_mask": padding(x)}),
    "weights of heads": lambda: multihead(
        from_memory, call=lambda x: {"need_weights": True, "average_attn_weights": False}
    ),
    "causal weights": lambda: multihead(
        call=lambda x: {"need_weights": True, "attn_mask": causal(PLACES), "is_causal": True}
    ),
    "weights of one sequence": lambda: one_sequence(multihead(call=lambda x: {"need_weights": True})),
}
DIRECT = {
    "added key": (lambda: multihead(add_bias_kv=True), {"bias_k", "bias_v"}),
    "added key and zero": (
        lambda: multihead(
            three_tensors, add_bias_kv=True, add_zero_attn=True,
            call=lambda x: {"attn_mask": MASK[0, :4, 1:], "key_padding_mask": x[:, 1:, 1].detach()},
        ),
        {"bias_k", "bias_v"},
    ),
    "learned mask": (LearnedMask, {"mask"}),
    "learned query": (LearnedQuery, {"query"}),
}  # fmt: skip
LAYERS = FUSED_LAYERS | WRITTEN_OUT_LAYERS | {name: layer for name, (layer, _) in DIRECT.items()}


def model_with(layer):
    """The layer between two linear ones."""
    torch.manual_seed(0)
    head = Using(nn.Linear(WIDTH, 3), lambda layer, x: layer(torch.tanh(x).mean(dim=1)))
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), layer(), head)
    with torch.no_grad():
        for name, p in model.named_parameters():  # torch starts biases at zero, where much would go unnoticed
            p.add_(0.3 * random(*p.shape, seed=len(name)))
    return model


@cache
def both(name):
    """The taped gradients, and those of the loop."""
    return gradients(model_with(LAYERS[name]), random(ROWS, PLACES, WIDTH))


def of(model, inputs, seeds=None):
    """The taped gradients alone."""
    batch = as_records((inputs, torch.arange(len(inputs)) % 3)).gather(torch.arange(len(inputs)))
    return so.LossGradient(F.cross_entropy).of(model, batch, torch.arange(len(inputs)) if seeds is None else seeds)


def rows_of(each):
    return torch.cat(list(each.rows(ROWS)))


@pytest.mark.parametrize("name", LAYERS)
class TestEveryKind:
    def test_it_is_taped_and_agrees_with_the_loop(self, name):
        each, expected = both(name)
        assert isinstance(each, TapedGradients)
        torch.testing.assert_close(rows_of(each), expected, rtol=1e-4, atol=1e-6)

    def test_only_bare_parameters_are_differentiated_directly(self, name):
        direct = survey(model_with(LAYERS[name]), (random(1, PLACES, WIDTH),)).direct
        assert {parameter.split(".")[-1] for parameter in direct} == DIRECT.get(name, (None, set()))[1]

    def test_a_row_that_changes_leaves_the_others_as_they_were(self, name):
        model, inputs = model_with(LAYERS[name]), random(ROWS, PLACES, WIDTH)
        changed = inputs.clone()
        changed[2] *= -100
        before, after = rows_of(of(model, inputs)), rows_of(of(model, changed))
        others = torch.arange(ROWS) != 2
        assert torch.equal(before[others], after[others])
        assert not torch.equal(before[2], after[2])


@pytest.mark.parametrize(("name", "norm"), product_of(LAYERS, [0.01, 1.0, 100.0]))
def test_the_clipped_sum_is_that_of_the_loop(name, norm):
    each, rows = both(name)[0], both(name)[1].double()
    clipped = (rows * (norm * SCALED_TO / rows.norm(dim=1, keepdim=True)).clamp(max=1)).sum(dim=0)
    assert float((so.ClipByNorm(norm)(each).value - clipped).norm() / clipped.norm()) < 1e-5


class Seen(TorchDispatchMode):
    """Records the operations that ran below `vmap`, and the size of the largest result."""

    def __init__(self):
        super().__init__()
        self.operations, self.largest = set(), 0

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        result = operation(*args, **(kwargs or {}))
        results = result if isinstance(result, (tuple, list)) else (result,)
        self.operations.add(operation)
        self.largest = max(self.largest, *(x.numel() for x in results if isinstance(x, torch.Tensor)), 0)
        return result


@pytest.mark.parametrize("name", FUSED_LAYERS)
def test_whatever_torch_fuses_is_fused(name):
    with Seen() as step:
        assert isinstance(of(model_with(LAYERS[name]), random(ROWS, PLACES, WIDTH)), TapedGradients)
    assert FUSED in step.operations


@pytest.mark.parametrize("name", WRITTEN_OUT_LAYERS)
def test_what_the_kernel_cannot_do_never_reaches_it(name):
    model, inputs = model_with(LAYERS[name]), random(ROWS, PLACES, WIDTH)
    of(model, inputs)  # the survey asks for no gradients, so that the kernel may serve it, and comes first
    with Seen() as step:
        assert isinstance(of(model, inputs), TapedGradients)
    assert FUSED not in step.operations or (name == "three axes" and torch_fuses_three_axes())


def torch_fuses_three_axes():
    """Whether torch adds an axis that the kernel needs, as it does since 2.15."""
    x = torch.ones(ROWS, PLACES, WIDTH, requires_grad=True)
    with Seen() as plain, sdpa_kernel([SDPBackend.FLASH_ATTENTION, SDPBackend.MATH]):
        F.scaled_dot_product_attention(x, x, x)
    return FUSED in plain.operations


@pytest.mark.parametrize(("needs_weights", "holds_pairs"), [(False, False), (True, True)])
def test_a_number_per_pair_of_places_is_held_only_for_who_asks_for_weights(needs_weights, holds_pairs):
    places = 100
    model = model_with(lambda: multihead(call=lambda x: {"need_weights": needs_weights}))
    inputs = random(ROWS, places, WIDTH)
    of(model, inputs)
    with Seen() as step:
        assert isinstance(of(model, inputs), TapedGradients)
    assert (step.largest >= ROWS * places**2) == holds_pairs


class TestPackedWeights(PerExampleContract):
    """The pieces of a packed weight and bias are one parameter each."""

    def make(self):
        return both("cross-attention")[0]


def test_a_packed_weight_may_be_frozen_without_its_bias_and_the_other_way_round():
    for frozen in ("in_proj_weight", "in_proj_bias"):
        model = model_with(LAYERS["cross-attention"])
        model.get_parameter(f"1.layer.{frozen}").requires_grad_(False)
        each, expected = gradients(model, random(ROWS, PLACES, WIDTH))
        assert isinstance(each, TapedGradients)
        torch.testing.assert_close(rows_of(each), expected, rtol=1e-4, atol=1e-6)


def test_in_float64_the_gradients_are_those_of_the_loop_to_its_precision():
    model = Using(model_with(LAYERS["transformer"]).double(), lambda layer, x: layer(x.double()))
    each, expected = gradients(model, random(ROWS, PLACES, WIDTH))
    assert isinstance(each, TapedGradients)
    torch.testing.assert_close(rows_of(each), expected, rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("places", [(1, 1), (1, 70), (70, 1), (33, 70), (200, 520)])
def test_sequences_of_any_length_agree_with_the_loop(places, is_causal):
    queries, keys = places

    def attend(layer, x):
        query, key, value = layer(x)[:, None, :queries], x[:, None, :keys], x[:, None, -keys:]
        return F.scaled_dot_product_attention(query, key, value, is_causal=is_causal)[:, 0]

    model = model_with(lambda: Using(nn.Linear(WIDTH, WIDTH), attend))
    each, expected = gradients(model, random(3, max(places), WIDTH))
    assert isinstance(each, TapedGradients)
    torch.testing.assert_close(rows_of(each), expected, rtol=1e-4, atol=1e-6)


def test_vectors_whose_numbers_lie_apart_in_memory_agree_with_the_loop():
    def attend(layer, x):
        apart = layer(x.transpose(1, 2)).transpose(1, 2)[:, None]
        return F.scaled_dot_product_attention(apart, apart, apart)[:, 0]

    model = model_with(lambda: Using(nn.Linear(PLACES, PLACES), attend))
    each, expected = gradients(model, random(ROWS, PLACES, WIDTH))
    assert isinstance(each, TapedGradients)
    torch.testing.assert_close(rows_of(each), expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    "mask",
    [
        lambda halves: halves[:, None, None, :, 1].detach(),
        lambda halves: halves[:1, None, None, :, 1].detach(),
        lambda halves: halves[0, :, :3].detach(),
        lambda halves: MASK[0, :3, :3],
    ],
)
@pytest.mark.parametrize("by_head", [True, False])
def test_several_sequences_in_a_row_agree_with_the_loop(mask, by_head):
    def attend(layer, x):
        halves = x.unflatten(1, (2, 3)).flatten(0, 1)
        tokens, seen = layer(halves), mask(halves)
        if by_head:
            mixed = F.scaled_dot_product_attention(*[tokens[:, None]] * 3, attn_mask=seen)[:, 0]
        else:
            seen = seen[:, 0] if seen.ndim == 4 else seen
            mixed = F.scaled_dot_product_attention(tokens, tokens, tokens, attn_mask=seen)
        return mixed.unflatten(0, (-1, 2)).flatten(1, 2)

    model = model_with(lambda: Using(nn.Linear(WIDTH, WIDTH), attend))
    each, expected = gradients(model, random(ROWS, PLACES, WIDTH))
    assert isinstance(each, TapedGradients)
    torch.testing.assert_close(rows_of(each), expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("axes", [(0, 0, 0, None), (1, 2, None, 3), (4, None, 1, 0), (None, 0, 0, None)])
def test_rows_may_lie_along_any_axis_or_be_the_same_for_all(axes):
    shapes = (2, HEADS, 4, WIDTH), (2, HEADS, PLACES, WIDTH), (2, HEADS, PLACES, WIDTH), (1, 4, PLACES)
    inputs = [
        random(*shape[:axis], ROWS, *shape[axis:]) if axis is not None else random(*shape)
        for shape, axis in zip(shapes, axes, strict=True)
    ]
    with sdpa_kernel(SDPBackend.MATH):
        found, expected = (
            torch.vmap(attention, in_dims=axes)(*inputs)
            for attention in (scaled_dot_product_attention, F.scaled_dot_product_attention)
        )
    torch.testing.assert_close(found, expected)


def test_attention_that_is_differentiated_twice_is_taken_row_by_row():
    def slope(layer, x):
        output = lambda x: layer(F.scaled_dot_product_attention(x[:, None], x[:, None], x[:, None])).square().sum()  # noqa: E731
        return torch.func.grad(output)(x)

    with sdpa_kernel(SDPBackend.MATH):  # the fused one has no second derivative in plain torch either
        each, expected = gradients(
            model_with(lambda: Using(nn.Linear(WIDTH, WIDTH), slope)), random(ROWS, PLACES, WIDTH)
        )
    assert not isinstance(each, TapedGradients)
    torch.testing.assert_close(rows_of(each), expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(("attention", "is_fused"), [(0.0, True), (0.5, False)])
@pytest.mark.parametrize("need_weights", [False, True])
def test_dropout_in_or_after_attention_draws_from_the_seed_of_the_row(attention, is_fused, need_weights):
    layer = lambda: multihead(dropout=attention, call=lambda x: {"need_weights": need_weights})  # noqa: E731
    model = model_with(lambda: nn.Sequential(layer(), nn.Dropout(0.5)))
    inputs, seeds = random(ROWS, PLACES, WIDTH), torch.arange(ROWS)
    with Seen() as step:
        whole = of(model, inputs, seeds)
    batch = as_records((inputs, torch.arange(ROWS) % 3)).gather(torch.tensor([4]))
    alone = so.LossGradient(F.cross_entropy).of(model, batch, seeds[4:5])
    assert isinstance(whole, TapedGradients) and isinstance(alone, TapedGradients)
    assert (FUSED in step.operations) == (is_fused and not need_weights)
    torch.testing.assert_close(rows_of(whole)[4:5], rows_of(alone), rtol=1e-4, atol=1e-6)
    assert float((rows_of(of(model, inputs, seeds + 100)) - rows_of(whole)).norm()) > 0.1


def test_a_row_whose_mask_hides_everything_has_the_gradient_of_torchs_formula():
    model = model_with(lambda: Own(lambda x: x[:, None, None, :, 0] < 9))
    inputs = random(ROWS, PLACES, WIDTH)
    with torch.no_grad():
        model[0].weight.copy_(torch.eye(WIDTH))
        model[0].bias.zero_()
    inputs[3, :, 0] = 10
    with sdpa_kernel(SDPBackend.MATH):
        each, expected = gradients(model, inputs)
    assert isinstance(each, TapedGradients)
    assert bool(expected.isfinite().all())
    torch.testing.assert_close(rows_of(each), expected, rtol=1e-4, atol=1e-6)
