"""Ratios, terms and bounds: formulas against what a network does, and their behaviour at the ends."""

from __future__ import annotations

from dataclasses import replace
from math import log, sqrt

import pytest
import torch
import torch.nn.functional as F

from sordino.data import load, root
from sordino.errors import UsageError
from sordino.kernel.randomness import Key
from sordino.training.not_private import NOT_PRIVATE, ExposedResult
from sordino_papers.side_effects.image_sets import Padding
from sordino_papers.side_effects.measured_ratio import exposed_descent, measure_ratios
from sordino_papers.side_effects.two_patch_world import (
    ObjectBox,
    PatchDescent,
    PatchNetwork,
    TwoPatches,
    clipping_factor,
    feature_to_noise,
    feature_to_noise_of_pictures,
    harmful_angle,
    lower_terms,
    object_boxes,
    one_feature_each,
    starting_loss,
    starting_margins,
    train,
    upper_terms,
)

WORLD = TwoPatches(dimension=64, patch_noise=0.1)
DESCENT = PatchDescent(noise_std=0.02)
FILTERS = 50


def drawn(world: TwoPatches = WORLD, examples: int = 400):
    return world.draw(examples, Key.from_seed(1).stream("rows"))


@pytest.mark.parametrize("clip", [0.02, 0.1, 1.0])
def test_the_clipping_factor_is_no_more_than_what_a_clip_leaves_of_a_group(clip: float) -> None:
    rows, network = drawn(), PatchNetwork(64, FILTERS, seed=0)
    run = exposed_descent(network, rows, replace(DESCENT, clip_norm=clip, steps=1), at=(0,), seed=0)
    measured = measure_ratios(run, rows.group, divisor=200.0)
    for group, found in zip(WORLD.groups, measured, strict=True):
        assert clipping_factor(WORLD, group.feature_norm, clip, FILTERS) <= found.clipping_factor <= 1.0


def test_no_gradient_is_longer_than_the_clipping_factor_supposes() -> None:
    """sqrt(2 / m) (1 - p) |x_1 + x_2| for rows whose patches are orthogonal, reached where all filters see both."""
    rows = drawn(replace(WORLD, patch_noise=0.0))
    network = PatchNetwork.of(torch.ones(2, FILTERS, 64))
    loss = F.cross_entropy(network(rows.inputs[:1]), rows.target[:1])
    (gradient,) = torch.autograd.grad(loss, list(network.parameters()))
    feature = WORLD.features()[rows.group[0]].norm()
    assert gradient.norm().item() == pytest.approx(sqrt(2 / FILTERS) * 0.5 * float(feature), rel=1e-5)


def test_measured_ratios_are_those_of_the_formula_at_the_first_step() -> None:
    """sqrt(2) (1 - p) of it, where p is a half: within what a batch of 400 rows and 50 filters leave to chance."""
    world = replace(WORLD, patch_noise=0.01)
    rows, descent = drawn(world, 2000), replace(DESCENT, rate=1.0, steps=1)
    run = exposed_descent(PatchNetwork(64, FILTERS, seed=0), rows, descent, at=(0,), seed=0)
    measured = measure_ratios(run, rows.group, divisor=2000.0)
    for formula, found in zip(feature_to_noise(world, descent, FILTERS), measured, strict=True):
        assert found.effective == pytest.approx(sqrt(2) * 0.5 * formula.effective, rel=0.25)
        assert found.share == pytest.approx(formula.share, abs=0.05)


def test_looking_at_a_run_changes_none_of_its_steps() -> None:
    rows, descent = drawn(), replace(DESCENT, steps=4)
    watched, alone = (PatchNetwork(64, 5, seed=0) for _ in range(2))
    measure_ratios(exposed_descent(watched, rows, descent, at=(1, 3), seed=7), rows.group, divisor=200.0)
    train(alone, rows, descent, seed=7)
    assert torch.equal(watched.weights(), alone.weights())


def test_what_saw_raw_gradients_says_so() -> None:
    rows = drawn(examples=50)
    run = exposed_descent(PatchNetwork(64, 5, seed=0), rows, replace(DESCENT, steps=1), at=(0,), seed=0)
    found = measure_ratios(run, rows.group, divisor=25.0)
    assert all(isinstance(one, ExposedResult) and one.warning == NOT_PRIVATE for one in found)


def test_ratios_fall_with_noise_and_rise_with_feature_share_and_clip() -> None:
    common, rare, *_ = feature_to_noise(WORLD, DESCENT, FILTERS)
    assert common.plain == 2 * rare.plain and common.effective == pytest.approx(8 * rare.effective)
    louder, *_ = feature_to_noise(WORLD, replace(DESCENT, noise_std=0.04), FILTERS)
    assert louder.effective == pytest.approx(common.effective / 2)
    tighter, *_ = feature_to_noise(WORLD, replace(DESCENT, clip_norm=0.01), FILTERS)
    assert tighter.effective < common.effective


def test_terms_start_at_a_guess_and_end_at_the_inverse_ratio() -> None:
    ratios = feature_to_noise(WORLD, DESCENT, FILTERS)
    never, always = replace(DESCENT, learning_rate=1e-9), replace(DESCENT, learning_rate=1e9)
    for one in upper_terms(WORLD, never, filters=FILTERS, examples=400):
        assert one.total == pytest.approx(log(2), rel=1e-5)
    for one, ratio in zip(upper_terms(WORLD, always, filters=FILTERS, examples=400), ratios, strict=True):
        assert one.vanishing == 0.0 and one.privacy == pytest.approx(1 / ratio.effective)


def test_what_is_left_at_least_is_no_more_than_what_is_left_at_most() -> None:
    for clip in (1.0, 0.01):
        descent = replace(DESCENT, clip_norm=clip, steps=5000)
        most = upper_terms(WORLD, descent, filters=FILTERS, examples=400)
        least = lower_terms(WORLD, descent, filters=FILTERS)
        assert all(low <= high.total for low, high in zip(least, most, strict=True))


def test_starting_margins_are_those_of_a_network_with_filters_along_features() -> None:
    world = one_feature_each(1.0, dimension=8)
    network = PatchNetwork.of(3.0 * world.features()[:, None])
    for degrees in (0.0, 30.0, 60.0, 90.0):
        features = world.rotated(degrees).features()
        outputs = network(torch.stack([features, torch.zeros_like(features)], dim=1)).detach()
        margins = [float(outputs[0, 0] - outputs[0, 1]), float(outputs[1, 1] - outputs[1, 0])]
        assert margins == pytest.approx(starting_margins(degrees, strength=3.0), abs=1e-5)
        loss = float(F.cross_entropy(outputs, torch.tensor([0, 1])))
        assert loss == pytest.approx(starting_loss(degrees, strength=3.0), abs=1e-5)


def test_the_starting_loss_rises_with_the_angle_and_crosses_a_guess_at_the_harmful_one() -> None:
    for strength in (0.5, 4.0):
        losses = [starting_loss(degrees, strength=strength) for degrees in range(0, 91, 5)]
        assert losses == sorted(losses)
        angle = harmful_angle(strength)
        assert 45 < angle < 90 and starting_loss(angle, strength=strength) == pytest.approx(log(2))


def test_padding_shrinks_the_feature_of_a_picture_with_its_side() -> None:
    """A square of ones keeps its value when it is shrunk: its length falls as its side."""
    ratios = []
    for padding in (0.0, 0.25, 0.5, 0.75):
        box, pictures = ObjectBox.after_padding(32, padding), torch.zeros(3, 1, 32, 32)
        pictures[:, :, box.top : box.top + box.height, box.left : box.left + box.width] = 1.0
        found = feature_to_noise_of_pictures(pictures, box, noise_std=0.5)
        assert found.share_of_energy == 1.0 and object_boxes(pictures) == [box] * 3
        ratios.append(found.feature_to_noise)
    assert ratios == pytest.approx([64.0, 48.0, 32.0, 16.0])


@pytest.mark.skipif(not (root() / "mnist").is_dir(), reason="needs MNIST in the data folder")
def test_padded_digits_lose_with_their_side_and_more_as_thin_strokes_blur() -> None:
    """Test rows, which are declared public: 0.90 of the share of the side at first, 0.68 at a quarter of it."""
    loaded = load("mnist").test
    assert loaded is not None
    pictures = loaded.inputs[:200].float() / 255
    whole = feature_to_noise_of_pictures(pictures, ObjectBox(0, 0, 28, 28), noise_std=0.01)
    kept = []
    for pixels in (5, 14, 23, 42):
        side = 28 / (28 + 2 * pixels)
        box = ObjectBox.after_padding(28, 1 - side)
        found = feature_to_noise_of_pictures(Padding(pixels)(pictures), box, noise_std=0.01)
        assert found.share_of_energy > 0.99
        kept.append(found.feature_to_noise / whole.feature_to_noise / side)
    assert kept == pytest.approx([0.90, 0.83, 0.78, 0.68], abs=0.02)


def test_what_lies_outside_the_box_is_not_the_feature() -> None:
    pictures = torch.ones(2, 3, 8, 8)
    found = feature_to_noise_of_pictures(pictures, ObjectBox.after_padding(8, 0.5), noise_std=1.0)
    assert found.share_of_energy == 0.25 and found.feature_norm == pytest.approx(sqrt(48))
    assert (
        feature_to_noise_of_pictures(pictures, ObjectBox(0, 0, 8, 8), noise_std=1.0, background=1.0).feature_norm == 0.0
    )


def test_what_has_no_ratio_is_refused() -> None:
    with pytest.raises(UsageError, match="noise_std must be a finite number above 0"):
        feature_to_noise(WORLD, PatchDescent(0.0), FILTERS)
    with pytest.raises(UsageError, match="pictures must be of shape"):
        feature_to_noise_of_pictures(torch.zeros(8, 8), ObjectBox(0, 0, 8, 8), noise_std=1.0)
    with pytest.raises(UsageError, match="degrees must be in"):
        starting_loss(120.0, strength=1.0)
