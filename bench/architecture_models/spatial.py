"""Networks with an output for each pixel, with kernels that are computed, or with layers that move pixels."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bench.architecture_models.convolutional import SIDE, conv, pictures, pooled
from bench.architecture_models.dense import mlp
from bench.architecture_models.kinds import CLASSES, Case, Net, classes, kind, numbers, vectors, weights


@kind()
def unet(rows: int) -> Case:
    def run(m: Any, x: Tensor) -> Any:
        first = m.first(x)
        second = m.second(F.max_pool2d(first, 2))
        joined = torch.cat([first, m.up(m.middle(second))], dim=1)
        return m.head(m.last(joined))

    model = Net(run, first=conv(3, 8), second=conv(8, 16), middle=conv(16, 16), up=nn.ConvTranspose2d(16, 8, 2, 2),
                last=conv(16, 8), head=nn.Conv2d(8, CLASSES, 1))  # fmt: skip
    return Case(model, (torch.randn(rows, 3, SIDE, SIDE),), torch.randint(CLASSES, (rows, SIDE, SIDE)))


@kind()
def generator_by_transposed_convolutions(rows: int) -> Case:
    model = nn.Sequential(
        nn.ConvTranspose2d(8, 16, 4), nn.GroupNorm(4, 16), nn.ReLU(), nn.ConvTranspose2d(16, 8, 4, 2, 1), nn.ReLU(),
        nn.ConvTranspose2d(8, 3, 3, 1, 1, bias=False), nn.Tanh(),
    )  # fmt: skip
    return numbers(model, (torch.randn(rows, 8, 1, 1),), 3, 8, 8)


@kind()
def critic(rows: int) -> Case:
    layers = (
        nn.Conv2d(3, 8, 4, 2, 1),
        nn.LeakyReLU(0.2),
        nn.Conv2d(8, 16, 4, 2, 1),
        nn.InstanceNorm2d(16, affine=True),
    )
    model = nn.Sequential(*layers, nn.LeakyReLU(0.2), nn.Conv2d(16, 1, 3), nn.Flatten(0))
    return numbers(model, (torch.randn(rows, 3, SIDE, SIDE),))


@kind()
def critic_with_gradient_penalty(rows: int) -> Case:
    """The output and the length of its gradient by the input, as for WGAN-GP."""

    def run(m: Any, x: Tensor) -> Any:
        with torch.enable_grad():
            x = x.clone().requires_grad_(True)
            score = m.body(x)
            (slope,) = torch.autograd.grad(score.sum(), x, create_graph=True)
        return torch.cat([score, slope.flatten(1).norm(dim=1, keepdim=True)], dim=1)

    body = nn.Sequential(nn.Conv2d(3, 8, 4, 2, 1), nn.Tanh(), nn.Flatten(), nn.Linear(8 * 36, 1))
    return numbers(Net(run, body=body), (torch.randn(rows, 3, SIDE, SIDE),), 2)


@kind()
def modulated_convolution(rows: int) -> Case:
    """Each example has a kernel of its own: the batch is folded into groups, as in StyleGAN 2."""

    def run(m: Any, x: Tensor, style: Tensor) -> Any:
        batch, channels, *sides = x.shape
        kernel = m.kernel * m.affine(style).view(batch, 1, channels, 1, 1)
        kernel = kernel * torch.rsqrt(kernel.square().sum(dim=(2, 3, 4), keepdim=True) + 1e-8)
        folded = F.conv2d(x.reshape(1, -1, *sides), kernel.flatten(0, 1), padding=1, groups=batch)
        return m.head(F.leaky_relu(folded.view(batch, -1, *sides), 0.2))

    model = Net(run, kernel=weights(8, 4, 3, 3), affine=nn.Linear(6, 4), head=pooled(channels=8))
    return Case(model, (torch.randn(rows, 4, SIDE, SIDE), torch.randn(rows, 6)), classes(rows))


@kind()
def mixed_kernels(rows: int) -> Case:
    """The kernel of an example is a mixture of learned ones, as in CondConv."""

    def run(m: Any, x: Tensor) -> Any:
        mix = torch.sigmoid(m.route(x.mean(dim=(2, 3))))
        kernel = torch.einsum("bk,koihw->boihw", mix, m.kernels).flatten(0, 1)
        folded = F.conv2d(x.flatten(0, 1).unsqueeze(0), kernel, groups=len(x))
        return m.head(F.relu(folded.unflatten(1, (len(x), -1)).squeeze(0)))

    return pictures(Net(run, route=nn.Linear(3, 4), kernels=weights(4, 8, 3, 3, 3), head=pooled(channels=8)), rows)


class MaskedConv(nn.Conv2d):
    """A convolution that sees only pixels above and to the left."""

    mask: Tensor

    def __init__(self, inputs: int, outputs: int, kernel: int, centre: bool) -> None:
        super().__init__(inputs, outputs, kernel, padding=kernel // 2)
        mask = torch.ones(kernel, kernel)
        mask[kernel // 2, kernel // 2 + centre :] = 0
        mask[kernel // 2 + 1 :] = 0
        self.register_buffer("mask", mask)

    def forward(self, x: Tensor) -> Tensor:
        return F.conv2d(x, self.weight * self.mask, self.bias, padding=self.padding)


@kind()
def pixelcnn(rows: int) -> Case:
    model = nn.Sequential(
        MaskedConv(1, 8, 5, False), nn.ReLU(), MaskedConv(8, 8, 3, True), nn.ReLU(), nn.Conv2d(8, 4, 1)
    )
    return Case(model, (torch.randn(rows, 1, 8, 8),), torch.randint(4, (rows, 8, 8)))


@kind()
def padded_otherwise(rows: int) -> Case:
    first = nn.Conv2d(3, 8, 3, padding=1, padding_mode="circular")
    second = nn.Conv2d(8, 8, 5, padding=2, padding_mode="reflect")
    return pictures(pooled(first, nn.ReLU(), second, nn.ReLU(), channels=8), rows)


@kind()
def spatial_pyramid(rows: int) -> Case:
    def run(m: Any, x: Tensor) -> Any:
        x = m.stem(x)
        pooled_ = F.interpolate(x.mean(dim=(2, 3), keepdim=True), x.shape[2:], mode="bilinear", align_corners=False)
        joined = torch.cat([*(branch(x) for branch in m.branches), pooled_], dim=1)
        return F.interpolate(m.head(joined), scale_factor=2.0, mode="bilinear", align_corners=False)

    branches = nn.ModuleList(nn.Conv2d(8, 4, 3, padding=d, dilation=d) for d in (1, 2, 3))
    model = Net(run, stem=conv(3, 8, stride=2), branches=branches, head=nn.Conv2d(20, CLASSES, 1))
    return Case(model, (torch.randn(rows, 3, SIDE, SIDE),), torch.randint(CLASSES, (rows, SIDE, SIDE)))


@kind()
def pyramid_of_detections(rows: int) -> Case:
    """Boxes and classes at two scales, as a list of outputs."""

    def run(m: Any, x: Tensor) -> Any:
        fine = m.fine(x)
        coarse = m.coarse(fine)
        fine = m.side(fine) + F.interpolate(coarse, scale_factor=2.0, mode="nearest")
        return [m.head(level).flatten(2) for level in (fine, coarse)]

    def loss(outputs: Any, target: Tensor) -> Tensor:
        of_class, of_box = torch.cat(outputs, dim=2).split([CLASSES, 4], dim=1)
        return F.cross_entropy(of_class.mean(dim=2), target, reduction="sum") + F.smooth_l1_loss(of_box, of_box * 0)

    model = Net(run, fine=conv(3, 8), coarse=conv(8, 8, stride=2), side=nn.Conv2d(8, 8, 1), head=nn.Conv2d(8, 7, 1))
    return vectors(model, rows, 3, SIDE, SIDE, loss=loss)


@kind()
def super_resolution(rows: int) -> Case:
    def run(m: Any, x: Tensor) -> Any:
        return m.body(x) + F.interpolate(x, scale_factor=2, mode="bicubic")

    body = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.PReLU(8), nn.Conv2d(8, 12, 3, padding=1), nn.PixelShuffle(2))
    return numbers(Net(run, body=body), (torch.randn(rows, 3, 6, 6),), 3, 12, 12)


@kind()
def spatial_transformer(rows: int) -> Case:
    def run(m: Any, x: Tensor) -> Any:
        grid = F.affine_grid(m.locate(x).view(-1, 2, 3) + torch.eye(2, 3), list(x.shape), align_corners=False)
        return m.head(F.grid_sample(x, grid, align_corners=False))

    locate = nn.Sequential(nn.Flatten(), mlp(3 * SIDE**2, 8, 6))
    return pictures(Net(run, locate=locate, head=pooled(nn.Conv2d(3, 8, 3), nn.ReLU(), channels=8)), rows)


@kind()
def deformable(rows: int) -> Case:
    """A kernel whose places are moved by offsets of the input, by grid_sample."""

    def run(m: Any, x: Tensor) -> Any:
        batch, _, height, width = x.shape
        offsets = 0.2 * torch.tanh(m.offset(x)).view(batch, 4, 2, height, width)
        lines = torch.linspace(-1, 1, height), torch.linspace(-1, 1, width)
        base = torch.stack(torch.meshgrid(*lines, indexing="ij")[::-1])
        grids = (base + offsets).permute(0, 1, 3, 4, 2).flatten(0, 1)
        seen = F.grid_sample(x.repeat_interleave(4, dim=0), grids, align_corners=True)
        return m.head(F.relu(m.join(seen.reshape(batch, -1, height, width))))

    model = Net(run, offset=nn.Conv2d(3, 8, 3, padding=1), join=nn.Conv2d(12, 8, 1), head=pooled(channels=8))
    return pictures(model, rows)


@kind()
def involution(rows: int) -> Case:
    def run(m: Any, x: Tensor) -> Any:
        batch, channels, height, width = x.shape
        kernel = m.span(F.relu(m.reduce(x))).view(batch, 2, 1, 9, height, width)
        windows = F.unfold(x, 3, padding=1).view(batch, 2, channels // 2, 9, height, width)
        return m.head((kernel * windows).sum(dim=3).flatten(1, 2))

    model = Net(run, reduce=nn.Conv2d(4, 2, 1), span=nn.Conv2d(2, 18, 1), head=pooled(channels=4))
    return pictures(model, rows, 4)


@kind()
def locally_connected(rows: int) -> Case:
    def run(m: Any, x: Tensor) -> Any:
        windows = F.unfold(x, 3, stride=3).transpose(1, 2)
        return m.head(F.relu(torch.einsum("bpi,pio->bpo", windows, m.weight) + m.bias).flatten(1))

    return pictures(Net(run, weight=weights(16, 27, 4), bias=weights(16, 4), head=nn.Linear(64, CLASSES)), rows)


@kind()
def channel_and_place_attention(rows: int) -> Case:
    """CBAM: a gate of channels, then a gate of places."""

    def run(m: Any, x: Tensor) -> Any:
        x = m.stem(x)
        x = x * torch.sigmoid(m.channel(x.mean(dim=(2, 3))) + m.channel(x.amax(dim=(2, 3))))[:, :, None, None]
        both = torch.stack([x.mean(dim=1), x.max(dim=1).values], dim=1)
        return m.head(x * torch.sigmoid(m.place(both)))

    model = Net(
        run, stem=conv(3, 8), channel=mlp(8, 4, 8), place=nn.Conv2d(2, 1, 7, padding=3), head=pooled(channels=8)
    )
    return pictures(model, rows)


@kind()
def blurred_pooling(rows: int) -> Case:
    def run(m: Any, x: Tensor) -> Any:
        x = F.relu(m.first(x))
        blurred = F.conv2d(F.pad(x, (1, 1, 1, 1), mode="reflect"), m.blur.expand(8, 1, 3, 3), stride=2, groups=8)
        return m.head(F.relu(m.second(blurred)))

    line = torch.tensor([1.0, 2.0, 1.0]) / 4
    model = Net(run, first=nn.Conv2d(3, 8, 3), blur=torch.outer(line, line)[None, None], second=nn.Conv2d(8, 8, 3),
                head=pooled(channels=8))  # fmt: skip
    return pictures(model, rows)


@kind()
def capsules(rows: int) -> Case:
    """Votes of capsules, joined by routing."""

    def run(m: Any, x: Tensor) -> Any:
        primary = squashed(m.primary(x).unflatten(1, (2, 4)).movedim(2, -1).flatten(1, 3))
        votes = torch.einsum("bni,ncij->bncj", primary, m.votes)
        logits = torch.zeros(votes.shape[:3])
        for _ in range(3):
            joined = squashed((logits.softmax(dim=2).unsqueeze(-1) * votes).sum(dim=1))
            logits = logits + (votes * joined.unsqueeze(1)).sum(dim=-1)
        return joined.norm(dim=-1)

    return pictures(Net(run, primary=nn.Conv2d(3, 8, 5, 4), votes=weights(8, CLASSES, 4, 6)), rows)


def squashed(x: Tensor) -> Tensor:
    """Vectors with lengths below one."""
    square = x.square().sum(dim=-1, keepdim=True)
    return x * square / (1 + square) / (square + 1e-8).sqrt()


@kind()
def wavelets(rows: int) -> Case:
    """Haar coefficients by fixed convolutions, with learned layers on each band."""

    def run(m: Any, x: Tensor) -> Any:
        bands = F.conv2d(x.flatten(0, 1).unsqueeze(1), m.haar, stride=2).view(len(x), -1, SIDE // 2, SIDE // 2)
        return m.head(F.relu(m.mix(bands)))

    signs = torch.tensor([[1.0, 1.0, 1.0, 1.0], [1, -1, 1, -1], [1, 1, -1, -1], [1, -1, -1, 1]])
    model = Net(run, haar=signs.view(4, 1, 2, 2) / 2, mix=nn.Conv2d(12, 8, 3), head=pooled(channels=8))
    return pictures(model, rows)


@kind()
def fourier_operator(rows: int) -> Case:
    """FNO: products with complex weights of the low frequencies."""

    def run(m: Any, x: Tensor) -> Any:
        x = m.lift(x)
        for weight, skip in zip(m.spectral, m.skips, strict=True):
            spectrum = torch.fft.rfft2(x)
            low = torch.einsum("bixy,ioxy->boxy", spectrum[:, :, :4, :4], torch.view_as_complex(weight))
            out = torch.zeros_like(spectrum)
            out[:, :, :4, :4] = low
            x = F.gelu(torch.fft.irfft2(out, s=x.shape[-2:]) + skip(x))
        return m.head(x).squeeze(1)

    spectral = nn.ParameterList([weights(6, 6, 4, 4, 2) for _ in range(2)])
    skips = nn.ModuleList(nn.Conv2d(6, 6, 1) for _ in range(2))
    model = Net(run, lift=nn.Conv2d(1, 6, 1), spectral=spectral, skips=skips, head=nn.Conv2d(6, 1, 1))
    return numbers(model, (torch.randn(rows, 1, SIDE, SIDE),), SIDE, SIDE)


@kind()
def gabor_filters(rows: int) -> Case:
    """SincNet: filters are functions of two frequencies each."""

    def run(m: Any, x: Tensor) -> Any:
        low, high = m.low.abs().unsqueeze(-1), (m.low.abs() + m.width.abs()).unsqueeze(-1)
        places = torch.arange(-7, 8) / 8
        filters = 2 * high * torch.sinc(2 * high * places) - 2 * low * torch.sinc(2 * low * places)
        return m.head(F.relu(F.conv1d(x, filters.unsqueeze(1), stride=2)).mean(dim=-1))

    model = Net(run, low=weights(6, scale=1.0), width=weights(6, scale=1.0), head=nn.Linear(6, CLASSES))
    return vectors(model, rows, 1, 64)


@kind()
def spectrogram(rows: int) -> Case:
    def run(m: Any, x: Tensor) -> Any:
        spectrum = torch.stft(x, 16, hop_length=8, window=m.window, return_complex=True).abs()
        return m.head(torch.log1p(m.bands.exp() @ spectrum).unsqueeze(1))

    head = pooled(nn.Conv2d(1, 8, 3), nn.ReLU(), channels=8)
    return vectors(Net(run, window=torch.hann_window(16), bands=weights(6, 9), head=head), rows, 80)


@kind()
def netvlad(rows: int) -> Case:
    def run(m: Any, x: Tensor) -> Any:
        x = F.normalize(m.stem(x), dim=1)
        soft = m.assign(x).flatten(2).softmax(dim=1)
        residual = x.flatten(2).unsqueeze(1) - m.centres[None, :, :, None]
        total = (residual * soft.unsqueeze(2)).sum(dim=-1)
        return m.head(F.normalize(F.normalize(total, dim=2).flatten(1), dim=1))

    model = Net(run, stem=conv(3, 8), assign=nn.Conv2d(8, 4, 1), centres=weights(4, 8), head=nn.Linear(32, CLASSES))
    return pictures(model, rows)


@kind()
def sinusoidal_coordinates(rows: int) -> Case:
    """Coordinates of pixels as more channels, and a soft argmax of places."""

    def run(m: Any, x: Tensor) -> Any:
        line = torch.linspace(-1, 1, SIDE)
        places = torch.stack(torch.meshgrid(line, line, indexing="ij"))
        heat = m.body(torch.cat([x, places.expand(len(x), -1, -1, -1)], dim=1)).flatten(2).softmax(dim=-1)
        return m.head((heat.unsqueeze(2) * places.flatten(1)).sum(dim=-1).flatten(1) * math.pi)

    body = nn.Sequential(nn.Conv2d(5, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 4, 3, padding=1))
    return pictures(Net(run, body=body, head=nn.Linear(8, CLASSES)), rows)
