"""The world of two patches, its network, and the two ways in which it is trained."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from sordino.errors import UsageError
from sordino.kernel.clipping import ClipByNorm
from sordino.kernel.contribution import LossGradient
from sordino.kernel.randomness import Key
from sordino.kernel.records import as_records
from sordino_papers.side_effects.two_patch_world import (
    PatchDescent,
    PatchGroup,
    PatchNetwork,
    PatchRows,
    TwoPatches,
    one_feature_each,
    train,
    train_without_noise,
)
from sordino_papers.side_effects.two_patch_world.swarm import clipped_sums, train_side_by_side

WORLD = TwoPatches(dimension=24, patch_noise=0.2)


def stream(name: str = "rows"):
    return Key.from_seed(3).stream(name)


def test_a_row_is_its_groups_feature_and_noise_in_either_order() -> None:
    rows = WORLD.draw(2000, stream())
    feature = WORLD.features()[rows.group]
    is_feature = (rows.inputs == feature[:, None]).all(dim=2)
    assert (is_feature.sum(dim=1) == 1).all()
    assert 900 < int(is_feature[:, 0].sum()) < 1100  # four standard deviations are 90
    noise = rows.inputs[~is_feature]
    assert noise.std().item() == pytest.approx(0.2, rel=0.02)


def test_groups_come_up_by_their_shares_and_have_the_labels_of_their_class() -> None:
    rows = WORLD.draw(4000, stream())
    shares = torch.bincount(rows.group) / len(rows)
    assert shares.tolist() == pytest.approx([0.4, 0.1, 0.4, 0.1], abs=0.035)
    assert (rows.target == rows.group // 2).all()
    assert torch.bincount(WORLD.draw_evenly(7, stream()).group).tolist() == [7] * 4


def test_features_are_orthogonal_and_as_long_as_is_said() -> None:
    features = WORLD.features()
    assert torch.equal(features @ features.T, torch.diag(torch.tensor([1.0, 0.5, 0.8, 0.4]).square()))


@pytest.mark.parametrize("degrees", [0.0, 30.0, 90.0])
def test_rotation_turns_features_by_the_angle_and_keeps_them_orthogonal(degrees: float) -> None:
    before = one_feature_each(1.5, dimension=6)
    turned, cosine = before.rotated(degrees).features(), torch.tensor(degrees).deg2rad().cos()
    assert torch.allclose(turned @ turned.T, 2.25 * torch.eye(2), atol=1e-6)
    assert torch.allclose((turned * before.features()).sum(dim=1), 2.25 * cosine, atol=1e-6)
    assert turned[0, 1] >= 0 >= turned[1, 0]


def test_the_same_stream_draws_the_same_rows() -> None:
    assert torch.equal(WORLD.draw(20, stream()).inputs, WORLD.draw(20, stream()).inputs)
    assert not torch.equal(WORLD.draw(20, stream()).inputs, WORLD.draw(20, stream("others")).inputs)


def test_the_network_is_the_formula() -> None:
    network, rows = PatchNetwork(24, 5, seed=0), WORLD.draw(30, stream())
    seen = torch.einsum("jrd,bpd->bjrp", network.weights(), rows.inputs).relu()
    assert torch.allclose(network(rows.inputs), seen.sum(dim=3).mean(dim=2), atol=1e-6)
    assert torch.equal(PatchNetwork.of(network.weights()).weights(), network.weights())


def test_noise_on_the_mean_gradient_is_the_multiplier_times_the_clip_over_the_batch() -> None:
    """With a clip that leaves nothing, one step of the kernel moves weights by its noise alone."""
    rows, descent = WORLD.draw(400, stream()), PatchDescent(0.03, clip_norm=1e-4, learning_rate=2.0, steps=1)
    network = PatchNetwork(24, 20, seed=0)
    before = network.weights().clone()
    train(network, rows, descent, seed=1)
    moved = (network.weights() - before) / 2.0
    assert moved.std().item() == pytest.approx(0.03, rel=0.1)  # 960 numbers: four standard deviations are 9 %
    assert descent.plan(400).noise.std(1e-4) == pytest.approx(0.03 * 200)


@pytest.mark.parametrize("clip", [0.02, 1.0])
def test_side_by_side_sums_are_those_of_the_kernel(clip: float) -> None:
    rows = [WORLD.draw(40, stream(name)) for name in ("one", "two")]
    networks = [PatchNetwork(24, 5, seed=seed) for seed in (0, 1)]
    joins = torch.tensor([[True, False] * 20, [True] * 40])
    inputs = torch.stack([one.inputs for one in rows])
    found = clipped_sums(
        torch.stack([network.filters.weight.detach() for network in networks]),
        inputs,
        F.one_hot(torch.stack([one.target for one in rows])).float(),
        inputs @ inputs.mT,
        torch.full((2, 1), clip),
        joins,
    )
    for network, drawn, who, sums in zip(networks, rows, joins, found, strict=True):
        batch = as_records(drawn.data).gather(who.nonzero()[:, 0])
        each = LossGradient(F.cross_entropy).of(network, batch, torch.arange(len(batch.units)))
        assert torch.allclose(ClipByNorm(clip)(each).value.float(), sums.flatten(), rtol=1e-4, atol=1e-6)


def test_side_by_side_training_without_noise_goes_where_the_kernel_goes() -> None:
    rows, descent = WORLD.draw(60, stream()), PatchDescent(0.0, learning_rate=10.0, steps=5, rate=1.0)
    (found,) = train_side_by_side([PatchNetwork(24, 5, seed=0)], [rows], [descent], stream("swarm"))
    twin = PatchNetwork(24, 5, seed=0)
    train_without_noise(twin, rows, descent, seed=0)
    assert torch.allclose(found.weights(), twin.weights(), atol=1e-5)


def test_what_makes_no_world_is_refused() -> None:
    with pytest.raises(UsageError, match="shares of groups must sum to 1"):
        TwoPatches((PatchGroup("a", 0, 1.0, 0.5), PatchGroup("b", 1, 1.0, 0.4)))
    with pytest.raises(UsageError, match="dimension must be a whole number from 4"):
        TwoPatches(dimension=3)
    with pytest.raises(UsageError, match="one group of each class"):
        TwoPatches().rotated(30.0)
    with pytest.raises(UsageError, match="as many networks as rows and descents"):
        train_side_by_side([], [WORLD.draw(3, stream())], [PatchDescent(0.1)], stream())
    with pytest.raises(UsageError, match="noise_multiplier"):
        PatchDescent(0.0).plan(100)


def test_rows_of_a_group_are_those_and_no_others() -> None:
    rows = WORLD.draw(50, stream())
    found: PatchRows = rows.of_group(1)
    assert len(found) == int((rows.group == 1).sum()) and set(found.group.tolist()) == {1}
