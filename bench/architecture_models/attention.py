"""Transformers written plainly, and the attention of vision models."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bench.architecture_models.convolutional import conv, pictures
from bench.architecture_models.dense import mlp
from bench.architecture_models.kinds import CLASSES, Case, Net, classes, kind, tokens, weights

LENGTH, WIDTH, WORDS = 8, 8, 20


def texts(model: nn.Module, rows: int) -> Case:
    return tokens(model, rows, LENGTH, WORDS)


def of_heads(x: Tensor, heads: int = 2) -> Any:
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)


class Block(nn.Module):
    """Attention and a dense part; `attend(block, query, key, value)` has heads before places."""

    def __init__(self, attend: Any, width: int = WIDTH, **parts: Any) -> None:
        super().__init__()
        self.attend, self.qkv, self.out = attend, nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.dense = mlp(width, 2 * width, width, activation=nn.GELU)
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, x: Tensor) -> Any:
        query, key, value = (of_heads(part) for part in self.qkv(self.first(x)).chunk(3, dim=-1))
        x = x + self.out(self.attend(self, query, key, value).transpose(1, 2).flatten(2))
        return x + self.dense(self.second(x))


def reader(*blocks: nn.Module) -> nn.Module:
    """A classifier of tokens with learned places."""

    def run(m: Any, words: Tensor) -> Any:
        return m.head(m.blocks(m.table(words) + m.places[: words.shape[1]]).mean(dim=1))

    parts = {"table": nn.Embedding(WORDS, WIDTH), "places": weights(LENGTH, WIDTH), "head": nn.Linear(WIDTH, CLASSES)}
    return Net(run, blocks=nn.Sequential(*blocks), **parts)


def scores(query: Tensor, key: Tensor) -> Any:
    return query @ key.transpose(-1, -2) / query.shape[-1] ** 0.5


@kind()
def encoder_of_torch(rows: int) -> Case:
    layer = nn.TransformerEncoderLayer(WIDTH, 2, 16, 0.0, batch_first=True, norm_first=True)
    return texts(reader(nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)), rows)


@kind()
def encoder_in_eval(rows: int) -> Case:
    """In eval mode torch has a fused path for its encoder layers."""
    layer = nn.TransformerEncoderLayer(WIDTH, 2, 16, batch_first=True)
    return texts(reader(nn.TransformerEncoder(layer, 2)).eval(), rows)


@kind(draws=True)
def encoder_with_dropout(rows: int) -> Case:
    return texts(reader(nn.TransformerEncoderLayer(WIDTH, 2, 16, 0.2, batch_first=True)).train(), rows)


@kind()
def encoder_with_padding(rows: int) -> Case:
    def run(m: Any, words: Tensor) -> Any:
        hidden = m.encoder(m.table(words), src_key_padding_mask=words == 0)
        kept = (words != 0).unsqueeze(-1)
        return m.head((hidden * kept).sum(dim=1) / kept.sum(dim=1).clamp(min=1))

    layer = nn.TransformerEncoderLayer(WIDTH, 2, 16, 0.0, batch_first=True)
    model = Net(run, table=nn.Embedding(WORDS, WIDTH, padding_idx=0), head=nn.Linear(WIDTH, CLASSES),
                encoder=nn.TransformerEncoder(layer, 1, enable_nested_tensor=False))  # fmt: skip
    words = torch.randint(1, WORDS, (rows, LENGTH)) * (torch.arange(LENGTH) < torch.randint(2, LENGTH, (rows, 1)))
    return Case(model, (words,), classes(rows))


@kind()
def transformer_of_torch(rows: int) -> Case:
    def run(m: Any, source: Tensor, target: Tensor) -> Any:
        mask = nn.Transformer.generate_square_subsequent_mask(target.shape[1])
        return m.head(m.body(m.words(source), m.others(target), tgt_mask=mask)).transpose(1, 2)

    model = Net(run, words=nn.Embedding(WORDS, WIDTH), others=nn.Embedding(WORDS, WIDTH), head=nn.Linear(WIDTH, WORDS),
                body=nn.Transformer(WIDTH, 2, 1, 1, 16, 0.0, batch_first=True))  # fmt: skip
    inputs = torch.randint(WORDS, (rows, LENGTH)), torch.randint(WORDS, (rows, 5))
    return Case(model, inputs, torch.randint(WORDS, (rows, 5)))


@kind()
def places_before_the_batch(rows: int) -> Case:
    def run(m: Any, words: Tensor) -> Any:
        x = m.table(words).transpose(0, 1)
        x = x + m.attend(x, x, x, need_weights=True)[0]
        return m.head(x.mean(dim=0))

    model = Net(run, table=nn.Embedding(WORDS, WIDTH), attend=nn.MultiheadAttention(WIDTH, 2), head=nn.Linear(8, 3))
    return texts(model, rows)


@kind()
def cross_attention(rows: int) -> Case:
    def run(m: Any, words: Tensor, picture: Tensor) -> Any:
        return m.head(m.attend(m.table(words), picture, picture)[0].mean(dim=1))

    attend = nn.MultiheadAttention(WIDTH, 2, kdim=6, vdim=6, add_bias_kv=True, batch_first=True)
    model = Net(run, table=nn.Embedding(WORDS, WIDTH), attend=attend, head=nn.Linear(WIDTH, CLASSES))
    return Case(model, (torch.randint(WORDS, (rows, LENGTH)), torch.randn(rows, 5, 6)), classes(rows))


@kind()
def fused_attention(rows: int) -> Case:
    def attend(m: Any, query: Tensor, key: Tensor, value: Tensor) -> Any:
        return F.scaled_dot_product_attention(query, key, value, is_causal=True)

    return texts(reader(Block(attend), Block(attend)), rows)


@kind()
def distances_as_bias(rows: int) -> Case:
    """A learned bias for each distance and head, as in T5."""

    def attend(m: Any, query: Tensor, key: Tensor, value: Tensor) -> Any:
        apart = torch.arange(LENGTH).unsqueeze(-1) - torch.arange(LENGTH) + LENGTH - 1
        return (scores(query, key) + m.bias(apart).permute(2, 0, 1)).softmax(dim=-1) @ value

    return texts(reader(Block(attend, bias=nn.Embedding(2 * LENGTH - 1, 2))), rows)


@kind()
def rotary_and_grouped(rows: int) -> Case:
    """Rotary places, and keys and values shared by the heads."""

    def run(m: Any, words: Tensor) -> Any:
        x = m.table(words)
        query, (key, value) = of_heads(m.query(x)), m.both(x).unsqueeze(1).chunk(2, dim=-1)
        angle = torch.outer(torch.arange(LENGTH) + 0.0, torch.tensor([1.0, 0.1]))
        query, key = (turned(part, angle) for part in (query, key))
        mixed = F.scaled_dot_product_attention(query, key.expand_as(query), value.expand_as(query))
        return m.head(mixed.transpose(1, 2).flatten(2)).mean(dim=1)

    model = Net(
        run, table=nn.Embedding(WORDS, WIDTH), query=nn.Linear(8, 8), both=nn.Linear(8, 8), head=nn.Linear(8, 3)
    )
    return texts(model, rows)


def turned(x: Tensor, angle: Tensor) -> Tensor:
    even, odd = x[..., ::2], x[..., 1::2]
    return torch.stack([even * angle.cos() - odd * angle.sin(), even * angle.sin() + odd * angle.cos()], -1).flatten(-2)


@kind()
def linear_attention(rows: int) -> Case:
    def attend(m: Any, query: Tensor, key: Tensor, value: Tensor) -> Any:
        query, key = F.elu(query) + 1, F.elu(key) + 1
        total = torch.einsum("bhtd,bhte->bhde", key, value)
        return torch.einsum("bhtd,bhde->bhte", query, total) / (query @ key.sum(dim=2).unsqueeze(-1))

    return texts(reader(Block(attend)), rows)


@kind()
def random_feature_attention(rows: int) -> Case:
    """Performer, with fixed random directions."""

    def attend(m: Any, query: Tensor, key: Tensor, value: Tensor) -> Any:
        query, key = (torch.exp(x @ directions - x.square().sum(dim=-1, keepdim=True) / 2) for x in (query, key))
        mixed = (query.unsqueeze(-2) @ (key.unsqueeze(-1) * value.unsqueeze(-2)).cumsum(dim=2)).squeeze(-2)
        return mixed / (query * key.cumsum(dim=2)).sum(dim=-1, keepdim=True)

    directions = torch.randn(4, 12)
    return texts(reader(Block(attend)), rows)


@kind()
def low_rank_attention(rows: int) -> Case:
    def attend(m: Any, query: Tensor, key: Tensor, value: Tensor) -> Any:
        key, value = torch.einsum("bhtd,tk->bhkd", key, m.of_keys), torch.einsum("bhtd,tk->bhkd", value, m.of_values)
        return scores(query, key).softmax(dim=-1) @ value

    return texts(reader(Block(attend, of_keys=weights(LENGTH, 3), of_values=weights(LENGTH, 3))), rows)


@kind()
def hashed_attention(rows: int) -> Case:
    """Places are sorted by a hash and attend within chunks, as in Reformer."""

    def attend(m: Any, query: Tensor, key: Tensor, value: Tensor) -> Any:
        bucket = torch.argmax(torch.cat([query @ directions, -query @ directions], dim=-1), dim=-1)
        order = (bucket * LENGTH + torch.arange(LENGTH)).argsort(dim=-1)
        index = order.unsqueeze(-1).expand(-1, -1, -1, query.shape[-1])
        chunks = [x.gather(2, index).unflatten(2, (-1, 4)) for x in (query, value)]
        mixed = (scores(chunks[0], F.normalize(chunks[0], dim=-1)).softmax(dim=-1) @ chunks[1]).flatten(2, 3)
        return mixed.gather(2, order.argsort(dim=-1).unsqueeze(-1).expand_as(mixed))

    directions = torch.randn(4, 2)
    return texts(reader(Block(attend)), rows)


@kind()
def latents_that_read(rows: int) -> Case:
    """Perceiver: learned latents attend to the input."""

    def run(m: Any, x: Tensor) -> Any:
        latents = m.latents.expand(len(x), -1, -1)
        for _ in range(2):
            latents = latents + m.read(latents, m.first(x), m.first(x))[0]
            latents = m.think(latents)
        return m.head(latents.mean(dim=1))

    model = Net(run, latents=weights(4, WIDTH), first=nn.Linear(5, WIDTH), head=nn.Linear(WIDTH, CLASSES),
                read=nn.MultiheadAttention(WIDTH, 2, batch_first=True),
                think=nn.TransformerEncoderLayer(WIDTH, 2, 16, 0.0, batch_first=True))  # fmt: skip
    return Case(model, (torch.randn(rows, 10, 5),), classes(rows))


@kind()
def universal_transformer(rows: int) -> Case:
    def run(m: Any, words: Tensor) -> Any:
        x = m.table(words)
        for depth in range(3):
            x = m.layer(x + m.depths.weight[depth])
        return m.head(x[:, 0])

    layer = nn.TransformerEncoderLayer(WIDTH, 2, 16, 0.0, batch_first=True)
    parts = {"table": nn.Embedding(WORDS, WIDTH), "depths": nn.Embedding(3, WIDTH), "head": nn.Linear(WIDTH, CLASSES)}
    return texts(Net(run, layer=layer, **parts), rows)


@kind()
def feature_tokens(rows: int) -> Case:
    """FT-Transformer: a token for each column of a table."""

    def run(m: Any, numbers: Tensor, codes: Tensor) -> Any:
        of_numbers = numbers.unsqueeze(-1) * m.scale + m.shift
        x = torch.cat([m.first.expand(len(numbers), 1, -1), of_numbers, m.table(codes + m.offsets)], dim=1)
        return m.head(m.layer(x)[:, 0])

    model = Net(
        run, scale=weights(4, WIDTH), shift=weights(4, WIDTH), first=weights(WIDTH), table=nn.Embedding(12, WIDTH),
        offsets=torch.tensor([0, 5]), head=nn.Linear(WIDTH, CLASSES),
        layer=nn.TransformerEncoderLayer(WIDTH, 2, 16, 0.0, batch_first=True),
    )  # fmt: skip
    return Case(model, (torch.randn(rows, 4), torch.randint(5, (rows, 2))), classes(rows))


def patches(size: int = 4, channels: int = WIDTH) -> nn.Module:
    """Patches of a picture as tokens."""
    return nn.Sequential(nn.Conv2d(3, channels, size, size), nn.Flatten(2))


@kind()
def vision_transformer(rows: int) -> Case:
    def run(m: Any, x: Tensor) -> Any:
        x = m.patch(x).transpose(1, 2)
        x = torch.cat([m.first.expand(len(x), -1, -1), x], dim=1) + m.places
        return m.head(m.norm(m.blocks(x))[:, 0])

    def attend(m: Any, query: Tensor, key: Tensor, value: Tensor) -> Any:
        return scores(query, key).softmax(dim=-1) @ value

    parts = {"first": weights(1, 1, WIDTH), "places": weights(1, 10, WIDTH), "head": nn.Linear(WIDTH, CLASSES)}
    blocks = nn.Sequential(Block(attend), Block(attend))
    return pictures(Net(run, patch=patches(), norm=nn.LayerNorm(WIDTH), blocks=blocks, **parts), rows)


@kind()
def mlp_mixer(rows: int) -> Case:
    def run(m: Any, x: Tensor) -> Any:
        x = m.patch(x)
        x = x + m.across(m.first(x.transpose(1, 2)).transpose(1, 2))
        x = x.transpose(1, 2)
        return m.head((x + m.within(m.second(x))).mean(dim=1))

    model = Net(run, patch=patches(), first=nn.LayerNorm(8), second=nn.LayerNorm(8), across=mlp(9, 16, 9),
                within=mlp(8, 16, 8), head=nn.Linear(8, CLASSES))  # fmt: skip
    return pictures(model, rows)


@kind()
def pool_former(rows: int) -> Case:
    def run(m: Any, x: Tensor) -> Any:
        x = m.patch(x)
        hidden = m.first(x)
        x = x + m.scale.view(-1, 1, 1) * (F.avg_pool2d(hidden, 3, 1, 1, count_include_pad=False) - hidden)
        return m.head((x + m.dense(m.second(x))).mean(dim=(2, 3)))

    dense = nn.Sequential(nn.Conv2d(8, 16, 1), nn.GELU(), nn.Conv2d(16, 8, 1))
    model = Net(run, patch=nn.Conv2d(3, 8, 3, 2), first=nn.GroupNorm(1, 8), second=nn.GroupNorm(1, 8), scale=weights(8),
                dense=dense, head=nn.Linear(8, CLASSES))  # fmt: skip
    return pictures(model, rows)


@kind()
def shifted_windows(rows: int) -> Case:
    """Swin: windows folded into the batch, a shift, and a bias by relative place."""

    def attend(m: Any, query: Tensor, key: Tensor, value: Tensor) -> Any:
        bias = m.bias[m.index.flatten()].view(4, 4, 2).permute(2, 0, 1)
        return (scores(query, key) + bias).softmax(dim=-1) @ value

    def run(m: Any, x: Tensor) -> Any:
        x = m.patch(x).permute(0, 2, 3, 1)
        for shift, block in zip((0, 1), m.blocks, strict=True):
            x = torch.roll(x, (-shift, -shift), dims=(1, 2))
            windows = x.unflatten(1, (3, 2)).unflatten(3, (3, 2)).transpose(2, 3).reshape(-1, 4, WIDTH)
            x = block(windows).view(-1, 3, 3, 2, 2, WIDTH).transpose(2, 3).reshape(-1, 6, 6, WIDTH)
            x = torch.roll(x, (shift, shift), dims=(1, 2))
        return m.head(x.mean(dim=(1, 2)))

    places = torch.stack(torch.meshgrid(torch.arange(2), torch.arange(2), indexing="ij")).flatten(1)
    apart = places[:, :, None] - places[:, None] + 1
    blocks = nn.ModuleList(Block(attend, bias=weights(9, 2), index=apart[0] * 3 + apart[1]) for _ in range(2))
    return pictures(Net(run, patch=nn.Conv2d(3, WIDTH, 2, 2), blocks=blocks, head=nn.Linear(WIDTH, CLASSES)), rows)


@kind()
def segmentation_transformer(rows: int) -> Case:
    """SegFormer: keys and values of a smaller picture, and a convolution inside the dense part."""

    def run(m: Any, x: Tensor) -> Any:
        x = m.patch(x)
        fine = x.flatten(2).transpose(1, 2)
        coarse = m.norm(m.reduce(x).flatten(2).transpose(1, 2))
        query, (key, value) = of_heads(m.query(fine)), map(of_heads, m.both(coarse).chunk(2, dim=-1))
        fine = fine + (scores(query, key).softmax(dim=-1) @ value).transpose(1, 2).flatten(2)
        hidden = m.up(fine).transpose(1, 2).unflatten(2, x.shape[2:])
        return F.interpolate(m.head(F.gelu(m.local(hidden))), scale_factor=2.0, mode="bilinear")

    model = Net(
        run, patch=nn.Conv2d(3, 8, 3, 2, 1), reduce=nn.Conv2d(8, 8, 2, 2), norm=nn.LayerNorm(8), query=nn.Linear(8, 8),
        both=nn.Linear(8, 16), up=nn.Linear(8, 16), local=nn.Conv2d(16, 16, 3, padding=1, groups=16),
        head=nn.Conv2d(16, CLASSES, 1),
    )  # fmt: skip
    return Case(model, (torch.randn(rows, 3, 12, 12),), torch.randint(CLASSES, (rows, 12, 12)))


@kind()
def convolution_then_attention(rows: int) -> Case:
    """LeViT and CoAtNet: convolutions, then attention with a bias by distance."""

    def run(m: Any, x: Tensor) -> Any:
        x = m.stem(x).flatten(2).transpose(1, 2)
        return m.head(m.block(x).mean(dim=1))

    def attend(m: Any, query: Tensor, key: Tensor, value: Tensor) -> Any:
        return (scores(query, key) + m.bias[:, m.index]).softmax(dim=-1) @ value

    line = torch.arange(9)
    apart = (line.unsqueeze(-1) // 3 - line // 3).abs() * 3 + (line.unsqueeze(-1) % 3 - line % 3).abs()
    stem = nn.Sequential(conv(3, 8, stride=2), conv(8, WIDTH, stride=2))
    block = Block(attend, bias=weights(2, 9), index=apart)
    return pictures(Net(run, stem=stem, block=block, head=nn.Linear(WIDTH, CLASSES)), rows)


@kind()
def blocks_and_grids(rows: int) -> Case:
    """MaxViT: attention within blocks, then over a grid across them."""

    def run(m: Any, x: Tensor) -> Any:
        x = m.stem(x).unflatten(2, (3, 2)).unflatten(4, (3, 2)).permute(0, 2, 4, 3, 5, 1)
        x = m.within(x.reshape(-1, 4, WIDTH)).view(len(x), 9, 4, WIDTH).transpose(1, 2)
        return m.head(m.across(x.reshape(-1, 9, WIDTH)).view(len(x), -1, WIDTH).mean(dim=1))

    layers = {name: nn.TransformerEncoderLayer(WIDTH, 2, 16, 0.0, batch_first=True) for name in ("within", "across")}
    return pictures(Net(run, stem=conv(3, WIDTH, stride=2), **layers, head=nn.Linear(WIDTH, CLASSES)), rows)


@kind()
def lambda_layer(rows: int) -> Case:
    def run(m: Any, x: Tensor) -> Any:
        x = m.patch(x).transpose(1, 2)
        query, key, value = m.query(x), m.key(x).softmax(dim=1), m.value(x)
        of_content = key.transpose(1, 2) @ value
        of_place = torch.einsum("ijk,bjv->bikv", m.places, value)
        return m.head(torch.einsum("bik,bikv->biv", query, of_content.unsqueeze(1) + of_place).mean(dim=1))

    parts = {name: nn.Linear(WIDTH, size, bias=False) for name, size in (("query", 4), ("key", 4), ("value", 6))}
    return pictures(Net(run, patch=patches(), places=weights(9, 9, 4), **parts, head=nn.Linear(6, CLASSES)), rows)


@kind()
def transformer_of_experts(rows: int) -> Case:
    def run(m: Any, words: Tensor) -> Any:
        x = m.layer(m.table(words))
        weight, chosen = m.gate(x).softmax(dim=-1).max(dim=-1, keepdim=True)
        each = torch.stack([expert(x) for expert in m.experts], dim=2)
        return m.head((x + weight * each.gather(2, chosen[..., None].expand(-1, -1, 1, WIDTH)).squeeze(2)).mean(dim=1))

    model = Net(
        run, table=nn.Embedding(WORDS, WIDTH), gate=nn.Linear(WIDTH, 3), head=nn.Linear(WIDTH, CLASSES),
        experts=nn.ModuleList(mlp(WIDTH, 16, WIDTH) for _ in range(3)),
        layer=nn.TransformerEncoderLayer(WIDTH, 2, 16, 0.0, batch_first=True),
    )  # fmt: skip
    return texts(model, rows)
