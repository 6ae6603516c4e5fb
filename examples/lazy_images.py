"""A private classifier of a folder of images that need not fit in memory.

python examples/lazy_images.py                              draws 6,000 images, then trains on them
python examples/lazy_images.py --folder stripes             keeps the images, and uses them again

The images are drawn by this script: stripes in four directions, with noise. Each is read from its file when it joins a
batch, by worker processes that work ahead of the training.
"""

from __future__ import annotations

import argparse
import math
import tempfile
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

import sordino as so
from sordino.data import open_rows

SIDE, CLASSES, TEST_IMAGES = 128, 4, 200
EPSILON, DELTA, BATCH = 3.0, 1e-5, 256


def draw_images(folder: Path, number: int, seed: int) -> None:
    """Writes images of stripes, in one subfolder for each direction."""
    generator = np.random.default_rng(seed)
    y, x = np.mgrid[:SIDE, :SIDE] / SIDE
    for place in range(number):
        label = place % CLASSES
        angle = math.pi * (label + generator.uniform(-0.2, 0.2)) / CLASSES
        phase, frequency = generator.uniform(0, 2 * math.pi), generator.uniform(6, 10)
        stripes = np.sin(2 * math.pi * frequency * (x * math.cos(angle) + y * math.sin(angle)) + phase)
        colors = generator.uniform(0.2, 0.8, size=3)
        pixels = 128 + 100 * stripes[..., None] * colors + generator.normal(0, 20, size=(SIDE, SIDE, 1))
        path = folder / f"direction-{label}" / f"{place:06}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(path, compress_level=1)


class Stripes(nn.Module):
    """A small convolutional network. It gets pixels from 0 to 255."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(3, 16, 7, stride=4), nn.Tanh(), nn.Conv2d(16, 32, 5, stride=3), nn.Tanh(), nn.AdaptiveAvgPool2d(1)
        )
        self.head = nn.Linear(32, CLASSES)

    def forward(self, pixels: Tensor) -> Tensor:
        return self.head(self.layers(pixels / 127.5 - 1).square().flatten(1) * 4)


def train(folder: Path, *, epochs: float, workers: int, progress: bool = True) -> tuple[float, so.Guarantee]:
    """Trains on folder/train, and returns the accuracy on folder/test with the guarantee."""
    rows = so.as_records(open_rows(folder), input_range=(0.0, 255.0), loading=so.Loading(num_workers=workers))
    torch.manual_seed(0)
    fitted = so.fit(
        Stripes(),
        rows,
        epsilon=EPSILON,
        delta=DELTA,
        batch_size=BATCH,
        epochs=epochs,
        optimizer=lambda parameters: torch.optim.Adam(parameters, lr=0.01),
        physical_batch_size=16,
        progress=progress,
    )
    test = so.Public(open_rows(folder / "test"))
    with torch.no_grad():
        right = [
            fitted.model(batch.inputs[0]).argmax(dim=1) == batch.target
            for batch in test.records.gather_each(torch.arange(TEST_IMAGES).split(50))
        ]
    return float(torch.cat(right).double().mean()), fitted.guarantee


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--images", type=int, default=6000, help="number of training images to draw")
    arguments.add_argument("--epochs", type=float, default=3)
    arguments.add_argument("--workers", type=int, default=2, help="number of processes that read images")
    arguments.add_argument("--folder", type=Path, help="where to keep the images [a folder that is deleted]")
    chosen = arguments.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = chosen.folder or Path(temporary)
        if not (folder / "train").exists():
            draw_images(folder / "test", TEST_IMAGES, seed=1)
            draw_images(folder / "train", chosen.images, seed=0)
        accuracy, guarantee = train(folder, epochs=chosen.epochs, workers=chosen.workers)
    print(f"\nTest accuracy {100 * accuracy:.1f} % on {TEST_IMAGES} images, {100 / CLASSES:.0f} % by chance.\n")
    print(guarantee)


if __name__ == "__main__":
    main()
