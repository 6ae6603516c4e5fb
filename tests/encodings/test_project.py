"""Projection to a public subspace: the parts that are kept, their bounds, and their noise."""

from __future__ import annotations

import math

import pytest
import torch
from contracts import PerExampleContract
from small_runs import CODING, INPUTS, LABELS, PUBLIC, make_model, make_plan, subspace_of

import sordino as so
from sordino.encodings import (
    Combined,
    MatchedBought,
    Project,
    ProjectBiased,
    PublicGradients,
    RandomSparsify,
    Subspace,
)
from sordino.errors import UsageError
from sordino.kernel.clipping import SCALED_TO
from sordino.kernel.randomness import Key
from sordino.kernel.states import Dense, Layout, Private
from sordino.training.transfer import EmbeddingPerturbation

LAYOUT = Layout(("weight", "bias"), ((5, 8), (10,)))


def gaussian(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def low_rank(rows: int) -> torch.Tensor:
    """Gradients of rank two in each group of coordinates."""
    return torch.cat([gaussian(rows, 2, seed=i) @ gaussian(2, 25, seed=5 + i) for i in range(2)], dim=1)


def subspace(public: torch.Tensor, directions: int = 4) -> Subspace:
    return Subspace(lambda step, randomness: Dense(public, LAYOUT), directions=directions, groups=2)


class TestTransformed(PerExampleContract):
    def make(self):
        return Project(subspace(low_rank(9))).codec({}, 0, CODING).encode(Dense(gaussian(7, 50, seed=9), LAYOUT))


def test_the_directions_are_orthonormal_group_by_group() -> None:
    basis = subspace(gaussian(30, 50), directions=10).basis(0, CODING)
    assert [part.shape for part in basis.parts] == [(25, 5), (25, 5)]
    for part in basis.parts:
        torch.testing.assert_close(part.T @ part, torch.eye(5), atol=1e-5, rtol=0)


def test_directions_are_shared_out_by_the_roots_of_the_sizes() -> None:
    layout = Layout(("w",), ((101,),))
    anchors = Dense(gaussian(30, 101), layout)
    basis = Subspace(lambda step, randomness: anchors, directions=9, groups=3).basis(0, CODING)
    assert [part.shape for part in basis.parts] == [(33, 3), (34, 3), (34, 3)]


def test_gradients_like_the_public_ones_have_no_residual() -> None:
    codec = Project(subspace(low_rank(9))).codec({}, 0, CODING)
    [encoded] = codec.encode(Dense(low_rank(9)[:3], LAYOUT)).rows(3)
    assert float(encoded[:, 4:].norm()) < 1e-4 * float(encoded[:, :4].norm())


@pytest.mark.parametrize("kind", [Project, ProjectBiased])
def test_what_is_encoded_is_decoded_up_to_the_residual_that_a_biased_one_drops(kind) -> None:
    codec, rows = kind(subspace(low_rank(9))).codec({}, 0, CODING), gaussian(1, 50, seed=9)
    [encoded] = codec.encode(Dense(rows, LAYOUT)).rows(1)
    decoded = codec.decode(Private(encoded[0], codec.layout))[0].value
    lost = float((decoded - rows[0]).norm() / rows.norm())
    assert lost < 1e-5 if kind is Project else 0.5 < lost < 1


def test_each_part_is_clipped_to_its_own_norm_and_the_bound_counts_both() -> None:
    codec = Project(subspace(low_rank(9)), embedding_norm=5.0, residual_norm=2.0).codec({}, 0, CODING)
    total = so.ClipPerLayer((1.0, 1.0))(codec.encode(Dense(1e4 * gaussian(1, 50, seed=9), LAYOUT)))
    assert total.bound == math.sqrt(2)
    embedded, residual = total.value[:4], total.value[4:]
    assert float(embedded.norm()) == pytest.approx(SCALED_TO, rel=1e-5)
    assert float(residual.norm()) == pytest.approx(SCALED_TO, rel=1e-5)
    decoded = codec.decode(Private(total.value, total.layout))[0].value
    assert float(decoded.norm()) == pytest.approx(SCALED_TO * math.hypot(5.0, 2.0), rel=1e-4)


def test_noise_is_that_of_two_releases_by_their_clip_norms() -> None:
    """Batches are empty. Noise outside the subspace is sqrt(2) sigma C1; inside it sqrt(2) sigma C0 is added."""
    model = make_model()
    encoding = Project(subspace_of(model), embedding_norm=5.0, residual_norm=0.01)
    run = so.PrivateRun(make_plan(encoding, rate=1e-12, steps=30), model, (INPUTS, LABELS), seed=0)
    inside, outside = [], []
    for step, private in enumerate(run):
        basis = encoding.subspace.basis(step, Key.from_seed(0).of_release(0).stream("coding"))
        lifted = basis.lift(basis.embed(private.value))
        inside.append(float(lifted.square().sum()) / basis.directions)
        outside.append(float((private.value - lifted).square().sum()) / (run.layout.size - basis.directions))
    assert math.sqrt(sum(inside) / 30) == pytest.approx(math.sqrt(2) * 5.0, rel=0.2)  # 270 squares, four deviations
    assert math.sqrt(sum(outside) / 30) == pytest.approx(math.sqrt(2) * 0.01, rel=0.05)


def test_anchors_follow_the_model_and_have_labels_of_the_step() -> None:
    model = make_model()
    anchors = PublicGradients(model, PUBLIC, classes=3)
    first, again, next_step = (torch.cat(list(anchors(step, CODING).rows(5))) for step in (0, 0, 1))
    assert torch.equal(first, again) and not torch.equal(first, next_step)
    with torch.no_grad():
        model[0].weight.add_(1.0)
    assert not torch.equal(first, torch.cat(list(anchors(0, CODING).rows(5))))


BEHIND = [
    lambda model: RandomSparsify(0.5, epochs=2, steps_per_epoch=3),
    lambda model: ProjectBiased(subspace_of(model)),
    lambda model: Project(subspace_of(model)),
    lambda model: MatchedBought(),
]


def refused_before_any_charge(encoding, model) -> None:
    budget = so.Budget((INPUTS, LABELS))
    with pytest.raises(UsageError, match="put an encoding that changes the coordinates last"):
        so.PrivateRun(make_plan(encoding), model, budget)
    assert budget.releases == ()


@pytest.mark.parametrize("changing", [ProjectBiased, Project])
@pytest.mark.parametrize("behind", BEHIND)
def test_whatever_comes_behind_a_projection_is_refused_before_any_charge(changing, behind) -> None:
    model = make_model()
    refused_before_any_charge(Combined(changing(subspace_of(model)), behind(model)), model)


@pytest.mark.parametrize("changing", [ProjectBiased, Project])
def test_a_subspace_of_another_model_is_refused_before_any_charge(changing) -> None:
    smaller = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(INPUTS[0].numel(), 3))
    assert Layout.of(smaller).size < Layout.of(make_model()).size
    refused_before_any_charge(changing(subspace_of(smaller)), make_model())


def test_more_directions_than_coordinates_are_refused() -> None:
    with pytest.raises(UsageError, match="directions must be a whole number from 2 to 50, got 51"):
        subspace(low_rank(9), directions=51).basis(0, CODING)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: subspace(low_rank(9), directions=1), "directions must be a whole number from 2"),
        (lambda: Project(subspace(low_rank(9)), residual_norm=0.0), "residual_norm must be a finite number above 0"),
        (lambda: Project("anchors"), "subspace must be a Subspace"),
        (lambda: PublicGradients(make_model(), PUBLIC, classes=1), "classes must be a whole number from 2"),
        (lambda: PublicGradients(make_model(), PUBLIC * torch.nan, classes=3), "inputs must be finite"),
        (lambda: PublicGradients(make_model(), PUBLIC, classes=3, labels=torch.tensor([-1])), "labels must be class"),
        (lambda: EmbeddingPerturbation(momentum=math.nan), "momentum must be in"),
        (lambda: EmbeddingPerturbation(learning_rate=-1.0), "learning_rate must be a finite number above 0"),
        (lambda: EmbeddingPerturbation(public_rows=0), "public_rows must be a whole number"),
    ],
)
def test_settings_that_mean_nothing_are_refused(make, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        make()
