"""Padded pictures and a vision transformer (Xu and Chen 2026, appendix E.2)."""

from __future__ import annotations

from dataclasses import replace

from sordino_papers.harness.entry import Entry, RunScale
from sordino_papers.harness.training_entries import training_entry
from sordino_papers.side_effects.curves import CurvePoint, CurveTable
from sordino_papers.side_effects.image_sets import ImageSet, Padding
from sordino_papers.side_effects.trials import EPSILON, LENET, with_attack

PADS = (0, 5, 14, 42)
PAPER, PAPER_ADVERSARIAL = (93.0, 93.0, 93.0, 91.0), (78.0, 77.0, 66.0, 20.0)
# Adam: a transformer hardly learns by plain steps.
VIT = replace(LENET, network="vit", learning_rate=1e-3, optimizer="adam")
SMALL_VIT = replace(VIT, network="vit-s", epochs=10.0, learning_rate=5e-3)
TRIALS = {
    RunScale.QUICK: replace(with_attack(SMALL_VIT, examples=20), batch_size=50, epochs=1.0),
    RunScale.CPU: SMALL_VIT,
    RunScale.PAPER: VIT,
}
EXAMPLES = {RunScale.QUICK: 200, RunScale.CPU: None, RunScale.PAPER: None}
_OURS = "batch size, clip and epsilon are the paper's; the transformer and the rest are ours"
_CHOSEN = {
    RunScale.QUICK: f"{_OURS}.",
    RunScale.CPU: f"{_OURS}, the learning rate after five looks at training rows that were left out.",
    RunScale.PAPER: f"{_OURS}, without a search.",
}


def _points(scale: RunScale) -> tuple[CurvePoint, ...]:
    is_paper = scale is RunScale.PAPER
    numbers = zip(PADS, PAPER, PAPER_ADVERSARIAL, strict=True)
    return tuple(
        CurvePoint(
            Padding(pixels).percent(28),
            _entry(pixels, scale, clean if is_paper else None),
            attacked if is_paper else None,
        )
        for pixels, clean, attacked in numbers
    )


def _entry(pixels: int, scale: RunScale, paper: float | None) -> Entry:
    pictures = ImageSet("mnist", Padding(pixels), EXAMPLES[scale])
    method = f"ViT, padding {Padding(pixels).percent(28)} %"
    return training_entry(method, pictures, TRIALS[scale], EPSILON, paper=paper, chosen=_CHOSEN[scale])


VIT_PADDING = CurveTable(
    "vit-padding",
    (
        "Test accuracy in percent of a small vision transformer on padded MNIST, epsilon 3, delta 1e-5, zero-out.\n"
        "Scale `cpu` has a smaller one, and is not put beside the paper. Under attack: the attack of the table\n"
        "`padding`. Paper: Xu and Chen (2026), appendix E.2."
    ),
    "ViT, mnist",
    "padding in percent",
    _points,
)
