"""Models that fold frames, tokens, points or pairs into the batch axis, and one- and three-dimensional convolutions."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import sordino as so
from bench.architecture_models.convolutional import conv, pooled
from bench.architecture_models.dense import mlp
from bench.architecture_models.kinds import CLASSES, Case, Net, classes, kind, vectors, weights

FRAMES, SIDE = 4, 8


def videos(model: nn.Module, rows: int) -> Case:
    return vectors(model, rows, FRAMES, 3, SIDE, SIDE)


def of_frames() -> nn.Sequential:
    """A network of one frame, with group and instance normalization."""
    layers = nn.Conv2d(3, 8, 3), nn.GroupNorm(4, 8), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.InstanceNorm2d(8, affine=True)
    return pooled(*layers, nn.ReLU(), channels=8)


@kind()
def video_in_three_dimensions(rows: int) -> Case:
    def run(m: Any, x: Tensor) -> Any:
        return m.head(m.body(x.transpose(1, 2)).mean(dim=(2, 3, 4)))

    layers = nn.Conv3d(3, 8, 3, padding=1), nn.GroupNorm(2, 8), nn.ReLU(), nn.MaxPool3d(2), nn.Conv3d(8, 8, (1, 3, 3))
    return videos(Net(run, body=nn.Sequential(*layers), head=nn.Linear(8, CLASSES)), rows)


@kind()
def frames_in_the_batch(rows: int) -> Case:
    model = Net(lambda m, x: m.frame(x.flatten(0, 1)).unflatten(0, x.shape[:2]).mean(dim=1), frame=of_frames())
    return videos(model, rows)


@kind()
def frames_before_the_batch(rows: int) -> Case:
    def run(m: Any, x: Tensor) -> Any:
        folded = x.transpose(0, 1).reshape(-1, *x.shape[2:])
        return m.frame(folded).view(FRAMES, -1, CLASSES).mean(dim=0)

    return videos(Net(run, frame=of_frames()), rows)


@kind()
def frames_then_lstm(rows: int) -> Case:
    def run(m: Any, x: Tensor) -> Any:
        seen = m.frame(x.reshape(-1, 3, SIDE, SIDE)).reshape(len(x), FRAMES, CLASSES)
        return m.head(m.lstm(seen)[0][:, -1])

    return videos(Net(run, frame=of_frames(), lstm=nn.LSTM(CLASSES, 8, batch_first=True), head=nn.Linear(8, 3)), rows)


@kind()
def shifted_frames(rows: int) -> Case:
    """Channels are shifted in time, as in TSM, on folded frames."""

    def run(m: Any, x: Tensor) -> Any:
        hidden = F.relu(m.first(x.flatten(0, 1))).unflatten(0, x.shape[:2])
        back, forth, kept = hidden.split([2, 2, 4], dim=2)
        back = torch.cat([back[:, 1:], torch.zeros_like(back[:, :1])], dim=1)
        forth = torch.cat([torch.zeros_like(forth[:, :1]), forth[:, :-1]], dim=1)
        hidden = torch.cat([back, forth, kept], dim=2).flatten(0, 1)
        return m.second(hidden).view(len(x), FRAMES, CLASSES).mean(dim=1)

    return videos(Net(run, first=nn.Conv2d(3, 8, 3), second=pooled(conv(8, 8), channels=8)), rows)


@kind()
def factorized_video(rows: int) -> Case:
    """Attention over places of a frame, then over the frames of a place."""

    def run(m: Any, x: Tensor) -> Any:
        patches = m.patch(x.flatten(0, 1)).flatten(2).transpose(1, 2)
        patches = m.in_space(patches).unflatten(0, (len(x), FRAMES))
        tubes = patches.transpose(1, 2).flatten(0, 1)
        return m.head(m.in_time(tubes).reshape(len(x), -1, 8).mean(dim=1))

    layers = {name: nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True) for name in ("in_space", "in_time")}
    return videos(Net(run, patch=nn.Conv2d(3, 8, 4, 4), **layers, head=nn.Linear(8, CLASSES)), rows)


@kind()
def normalized_tokens(rows: int) -> Case:
    """Tokens folded into the batch below BatchNorm1d, which `replace_batchnorm` replaces by GroupNorm."""

    def run(m: Any, x: Tensor) -> Any:
        hidden = F.relu(m.norm(m.first(x).flatten(0, 1)))
        return m.head(hidden.unflatten(0, x.shape[:2]).mean(dim=1))

    model = Net(run, first=nn.Linear(6, 8), norm=nn.BatchNorm1d(8), head=nn.Linear(8, CLASSES))
    return vectors(so.replace_batchnorm(model), rows, 5, 6)


@kind()
def channels_in_the_batch(rows: int) -> Case:
    """A filter for each channel, with the channels folded into the batch."""

    def run(m: Any, x: Tensor) -> Any:
        filtered = F.conv2d(x.flatten(0, 1).unsqueeze(1), m.kernel, padding=1)
        return m.head(F.relu(filtered.view(len(x), -1, SIDE, SIDE)))

    model = Net(run, kernel=weights(2, 1, 3, 3), head=pooled(nn.Conv2d(6, 8, 1), channels=8))
    return vectors(model, rows, 3, SIDE, SIDE)


@kind()
def siamese(rows: int) -> Case:
    """Both pictures of a pair go through one network as one batch."""

    def run(m: Any, left: Tensor, right: Tensor) -> Any:
        first, second = m.twin(torch.cat([left, right])).chunk(2)
        return m.head((first - second).abs())

    twin = nn.Sequential(nn.Conv2d(3, 8, 3), nn.GroupNorm(2, 8), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 8))
    shape = (rows, 3, SIDE, SIDE)
    return Case(
        Net(run, twin=twin, head=nn.Linear(8, CLASSES)), (torch.randn(shape), torch.randn(shape)), classes(rows)
    )


@kind()
def triplets(rows: int) -> Case:
    def run(m: Any, x: Tensor) -> Any:
        return m.body(torch.cat(list(x.unbind(1)))).view(3, len(x), -1).transpose(0, 1)

    def loss(outputs: Tensor, target: Tensor) -> Tensor:
        anchor, positive, negative = outputs.unbind(1)
        return F.triplet_margin_loss(anchor, positive, negative, margin=2.0, reduction="sum")

    return vectors(Net(run, body=mlp(6, 16, 4)), rows, 3, 6, loss=loss)


@kind()
def pointnet(rows: int) -> Case:
    def run(m: Any, x: Tensor) -> Any:
        turn = m.turn(m.small(x.transpose(1, 2)).amax(dim=-1)).view(-1, 3, 3) + torch.eye(3)
        return m.head(m.large(torch.bmm(x, turn).transpose(1, 2)).max(dim=-1).values)

    small = nn.Sequential(nn.Conv1d(3, 8, 1), nn.ReLU(), nn.Conv1d(8, 16, 1))
    large = nn.Sequential(nn.Conv1d(3, 8, 1), nn.GroupNorm(2, 8), nn.ReLU(), nn.Conv1d(8, 16, 1))
    return vectors(Net(run, small=small, turn=mlp(16, 8, 9), large=large, head=mlp(16, 8, CLASSES)), rows, 20, 3)


@kind()
def temporal_convolutions(rows: int) -> Case:
    def run(m: Any, x: Tensor) -> Any:
        for number, layer in enumerate(m.layers):
            padded = F.pad(x, (2 * 2**number, 0))
            x = F.relu(layer(padded)) + (x if x.shape[1] == 8 else 0)
        return m.head(x[:, :, -1])

    layers = nn.ModuleList(nn.Conv1d(3 if d == 0 else 8, 8, 3, dilation=2**d) for d in range(3))
    return vectors(Net(run, layers=layers, head=nn.Linear(8, CLASSES)), rows, 3, 20)


@kind()
def wavenet(rows: int) -> Case:
    def run(m: Any, codes: Tensor) -> Any:
        x = m.table(codes).transpose(1, 2)
        total = torch.zeros_like(x)
        for number, (gated, out) in enumerate(zip(m.gated, m.out, strict=True)):
            filtered, gate = gated(F.pad(x, (2**number, 0))).chunk(2, dim=1)
            residual, skip = out(torch.tanh(filtered) * torch.sigmoid(gate)).chunk(2, dim=1)
            x, total = x + residual, total + skip
        return m.head(F.relu(total))

    gated = nn.ModuleList(nn.Conv1d(8, 16, 2, dilation=2**d) for d in range(3))
    out = nn.ModuleList(nn.Conv1d(8, 16, 1) for _ in range(3))
    model = Net(run, table=nn.Embedding(16, 8), gated=gated, out=out, head=nn.Conv1d(8, 16, 1))
    return Case(model, (torch.randint(16, (rows, 20)),), torch.randint(16, (rows, 20)))


@kind()
def text_by_convolutions(rows: int) -> Case:
    def run(m: Any, words: Tensor) -> Any:
        x = m.table(words).transpose(1, 2)
        return m.head(torch.cat([F.relu(layer(x)).amax(dim=-1) for layer in m.layers], dim=1))

    layers = nn.ModuleList(nn.Conv1d(8, 6, width) for width in (2, 3, 4))
    model = Net(run, table=nn.Embedding(30, 8, padding_idx=0), layers=layers, head=nn.Linear(18, CLASSES))
    return Case(model, (torch.randint(30, (rows, 10)),), classes(rows))


@kind()
def read_line_with_ctc(rows: int) -> Case:
    """A line of text: convolutions, an LSTM, and the CTC loss."""

    def run(m: Any, x: Tensor) -> Any:
        columns = m.body(x).mean(dim=2).permute(0, 2, 1)
        return m.head(m.lstm(columns)[0]).log_softmax(dim=-1)

    def loss(outputs: Tensor, target: Tensor) -> Tensor:
        of_columns, of_text = (torch.full((len(x),), x.shape[1], dtype=torch.long) for x in (outputs, target))
        return F.ctc_loss(outputs.transpose(0, 1), target, of_columns, of_text, reduction="sum")

    body = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d((2, 1)))
    model = Net(run, body=body, lstm=nn.LSTM(8, 8, batch_first=True, bidirectional=True), head=nn.Linear(16, 6))
    return Case(model, (torch.randn(rows, 1, 8, 14),), torch.randint(1, 6, (rows, 4)), loss)
