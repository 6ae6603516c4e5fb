"""Gallery of original and reconstructed images, one line per noise and rate."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from math import inf
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sordino.attacks.reconstruction import Likeness, public_pictures
from sordino.attacks.reconstruction.gallery import Reconstruction, draw_gallery
from sordino_papers.harness.entry import SideTable
from sordino_papers.harness.page import drawing

SHOWN = 6  # pictures in a line


def as_json(found: Sequence[Reconstruction]) -> list[dict[str, Any]]:
    """Results of all images as JSON, with the pixels of the first few reconstructions."""
    return [
        one.as_dict() | ({"found": _written(one.found)} if place < SHOWN else {}) for place, one in enumerate(found)
    ]


def draw_pictures(found: Mapping[str, Sequence[dict[str, Any]]], data: str, path: Path) -> None:
    """Draws reconstructions below the originals, which are read from the dataset."""
    first = next(iter(found.values()))[:SHOWN]
    pixels, _, _ = public_pictures(data, 1 + max(one["row"] for one in first))
    lines = [[_shown(one, pixels[one["row"]]) for one in line[:SHOWN]] for line in found.values()]
    with drawing(path, width=0.75 * (2 + len(first)), height=0.7 + 0.95 * len(lines)) as figure:
        draw_gallery(figure.subplots(), lines, list(found))


def gallery_side(found: Mapping[str, Sequence[dict[str, Any]]], path: Path) -> SideTable:
    """One line per noise and rate, for the same public images."""
    head = ("gradient", "MSE of each", "SSIM of each")
    cells = [
        (name, " ".join(f"{one['mse']:.3f}" for one in line), " ".join(f"{one['ssim']:.2f}" for one in line))
        for name, line in found.items()
    ]
    return SideTable("Pictures of seed 0, originals above:", (head, *cells), (path,) if path.exists() else ())


def _shown(one: dict[str, Any], picture: Tensor) -> Reconstruction:
    likeness = Likeness(one["mse"], inf if one["psnr"] is None else one["psnr"], one["ssim"], one["flat_mse"])
    return Reconstruction(one["row"], likeness, one["seconds"], picture, _read(one["found"], picture))


def _written(pixels: Tensor) -> str:
    """Encodes pixels as base64 bytes."""
    return base64.b64encode((255 * pixels).round().to(torch.uint8).numpy().tobytes()).decode()


def _read(text: str, like: Tensor) -> Tensor:
    values = np.frombuffer(base64.b64decode(text), np.uint8).reshape(like.shape)
    return torch.from_numpy(values / 255)
