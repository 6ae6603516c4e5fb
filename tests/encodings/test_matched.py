"""Matched scales: their values, what they gain, and that they do not change the event."""

from __future__ import annotations

from math import sqrt

import pytest
import torch
from contracts import LAYOUT, PerExampleContract
from hypothesis import given
from hypothesis import strategies as st
from small_runs import CODING, INPUTS, LABELS, PUBLIC, make_model, make_plan
from torch import Tensor

import sordino as so
from sordino.accounting import GaussianCurve
from sordino.encodings import Combined, Matched, MatchedBought, ProjectBiased, PublicGradients, Subspace
from sordino.encodings.matched import matched_scale
from sordino.errors import UsageError
from sordino.kernel.noise import NoiseAt
from sordino.kernel.states import Dense, Layout, Private
from sordino.optimized_noise.costs import AbsoluteCost, SquaredCost
from sordino.optimized_noise.sources import Fixed, Flat, FromPublicRows, FromReleases, Look, Magnitudes, Unweighted

COSTS = [AbsoluteCost(), SquaredCost()]
LOOK = Look(0, CODING, lambda each: each)
vectors = st.lists(st.floats(1e-3, 1e3), min_size=2, max_size=6)


def codec_of(matched: Matched, step: int = 0):
    return matched.codec(matched.init(LAYOUT), step, CODING)


def some(seed: int, size: int = 8) -> Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).exp()


class TestScaled(PerExampleContract):
    def make(self):
        rows = torch.randn(7, LAYOUT.size, generator=torch.Generator().manual_seed(0))
        return codec_of(Matched(Fixed(torch.arange(1.0, 9.0)))).encode(Dense(rows, LAYOUT))


@pytest.mark.parametrize("cost", COSTS)
@given(vectors, vectors)
def test_no_other_scale_of_the_same_mean_square_costs_less(cost, weights, squares) -> None:
    size = min(len(weights), len(squares))
    w, v = (torch.tensor(x[:size], dtype=torch.float64) for x in (weights, squares))
    best = matched_scale(Magnitudes(w, v), cost)
    assert float((v / best.square()).sum()) == pytest.approx(float(v.sum()))
    for seed in range(20):
        other = best * some(seed, size) ** 0.3
        other = other * ((v / other.square()).sum() / v.sum()).sqrt()
        assert float((w * other**cost.power).sum()) >= float((w * best**cost.power).sum()) * (1 - 1e-12)


def test_alike_coordinates_have_scale_one() -> None:
    assert torch.equal(codec_of(Matched(Flat())).scale, torch.ones(8, dtype=torch.float64))


def test_without_weights_the_squared_cost_gives_the_rule_of_adaclip() -> None:
    """Theorem 2 of Pichapati et al. (2019): scales are proportional to the root of the standard deviation."""
    squares = some(1)
    scale = codec_of(Matched(Unweighted(Fixed(torch.ones(8), squares)), SquaredCost())).scale
    torch.testing.assert_close(scale / scale[0], (squares / squares[0]) ** 0.25)


def test_weights_of_zero_are_raised_to_a_millionth_of_the_largest() -> None:
    source = Fixed(torch.tensor([1.0, 0.0, 0.0, 1.0]), torch.ones(4))
    assert source.weights.tolist() == [1.0, 1e-6, 1e-6, 1.0]
    scale = matched_scale(Magnitudes(source.weights, source.squares), AbsoluteCost())
    assert float(scale.max() / scale.min()) == pytest.approx(100.0)


def test_what_is_encoded_is_decoded() -> None:
    codec, row = codec_of(Matched(Fixed(some(2)))), torch.randn(1, 8)
    [encoded] = codec.encode(Dense(row, LAYOUT)).rows(1)
    torch.testing.assert_close(codec.decode(Private(encoded[0].double(), LAYOUT))[0].value.float(), row[0])


def test_noise_is_the_scale_times_the_plan_s_and_the_release_says_so() -> None:
    """Batches are empty. Chi-square of 67 x 60 draws per side, five standard deviations: a false alarm in a million."""
    model = make_model()
    size = so.PrivateRun(make_plan(Matched(Flat())), model, (INPUTS, LABELS), seed=0).layout.size
    source = Fixed(some(3, size))
    run = so.PrivateRun(make_plan(Matched(source), rate=1e-12, steps=30, noise=2.0), model, (INPUTS, LABELS), seed=0)
    scale = matched_scale(Magnitudes(source.weights, source.squares), AbsoluteCost())
    for private in run:
        torch.testing.assert_close(private.noise_square, (2.0 * scale).square())
        mean = float((private.value / scale / 2.0).square().mean())
        assert mean == pytest.approx(1.0, abs=5 * sqrt(2 / size))


@given(st.floats(0.3, 5.0), st.lists(st.floats(0.2, 5.0), min_size=1, max_size=6), st.floats(0.1, 4.0))
def test_anisotropic_normal_noise_under_a_spherical_clip_cannot_help(mu, ratios, epsilon) -> None:
    """A unit moves a sum by at most 1 in L2, and noise of standard deviations s must give mu by the exact curve.

    A unit that moves the sum by u gives two normal distributions at distance ||u / s||. So noise that is too small in
    one coordinate misses the target for a unit along it, however large the noise is elsewhere. Noise that meets the
    target has s_i >= 1 / mu everywhere; isotropic noise of 1 / mu also meets it and is no larger in any coordinate.
    """
    s, target = torch.tensor(ratios, dtype=torch.float64) / mu, GaussianCurve(mu).delta(epsilon)
    along = [torch.eye(len(s), dtype=torch.float64)[i] for i in range(len(s))] + [some(i, len(s)) for i in range(5)]
    spent = [GaussianCurve(float((u / u.norm() / s).norm())).delta(epsilon) for u in along]
    if max(spent) <= target * (1 + 1e-9):
        assert bool((s >= 1 / mu * (1 - 1e-9)).all())
    else:
        assert float(s.min()) < 1 / mu
        assert max(spent) == pytest.approx(GaussianCurve(1 / float(s.min())).delta(epsilon), rel=1e-6)


def test_releases_tell_which_coordinates_are_large_and_noise_tells_nothing() -> None:
    """Sums of size 10, 5, 2 and 0 with noise of 2, 500 times: squares are known to 6 % or 2 noise squares / 22."""
    size, noise_std, sums = 4000, 2.0, torch.tensor([10.0, 5.0, 2.0, 0.0], dtype=torch.float64)
    layout, source = Layout(("w",), ((size,),)), FromReleases(memory=0.99)
    state, generator = source.init(layout), torch.Generator().manual_seed(0)
    for _ in range(500):
        noise = noise_std * torch.randn(size, generator=generator, dtype=torch.float64)
        released = Private(sums.repeat_interleave(1000) + noise, layout, noise_square=noise_std**2)
        state = source.update(state, source.magnitudes(state, LOOK), released)
    squares = source.magnitudes(state, LOOK).squares.reshape(4, 1000)
    torch.testing.assert_close(squares[:3].mean(dim=1), sums[:3].square(), rtol=0.05, atol=0)
    assert float(squares[3].median()) == pytest.approx(noise_std**2 * 0.1, rel=0.01)  # sqrt(2 / 199)
    assert float(squares[3].max()) < 2.0


def test_in_the_first_step_all_coordinates_are_alike() -> None:
    assert torch.equal(codec_of(Matched(FromReleases())).scale, torch.ones(8, dtype=torch.float64))


def test_public_rows_are_looked_at_every_few_steps() -> None:
    model, layout = make_model(), Layout.of(make_model())
    source = FromPublicRows(PublicGradients(model, PUBLIC, classes=3), every=2)
    state, seen = source.init(layout), []
    for step in range(4):
        found = source.magnitudes(state, Look(step, CODING, lambda each: each))
        state = source.update(state, found, Private(torch.zeros(layout.size), layout))
        seen.append(found.squares)
        with torch.no_grad():
            model[0].weight.add_(0.1)
    assert torch.equal(seen[0], seen[1]) and torch.equal(seen[2], seen[3]) and not torch.equal(seen[1], seen[2])
    rows = torch.cat(
        list(PublicGradients(make_model(), PUBLIC, classes=3)(0, CODING.named("anchors")).rows(5))
    ).double()
    torch.testing.assert_close(seen[0], rows.square().mean(dim=0))


def test_public_gradients_may_have_the_labels_that_are_public_too() -> None:
    anchors = PublicGradients(make_model(), PUBLIC, classes=3, labels=torch.zeros(12, dtype=torch.int64))
    first, later = (torch.cat(list(anchors(step, CODING).rows(5))) for step in (0, 1))
    assert torch.equal(first, later)


def test_plans_with_other_weights_have_other_texts() -> None:
    texts = [repr(Matched(Fixed(weights))) for weights in (torch.ones(3), torch.ones(3), torch.tensor([1.0, 1.0, 2.0]))]
    assert texts[0] == texts[1] != texts[2]
    assert repr(Matched(FromReleases(0.9))) == "Matched(source=FromReleases(memory=0.9), cost=AbsoluteCost())"


def test_a_scale_behind_a_projection_is_refused_before_any_charge() -> None:
    model, budget = make_model(), so.Budget((INPUTS, LABELS))
    subspace = Subspace(PublicGradients(model, PUBLIC, classes=3), directions=9)
    with pytest.raises(UsageError, match="put an encoding that changes the coordinates last"):
        so.PrivateRun(make_plan(Combined(ProjectBiased(subspace), Matched(Flat()))), model, budget)
    assert budget.releases == ()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Matched(0.5), "source must be a Source"),
        (lambda: Matched(Flat(), "absolute"), "cost must be an AbsoluteCost or SquaredCost"),
        (lambda: Fixed(torch.zeros(3)), "weights must not all be 0"),
        (lambda: Fixed(torch.ones(3), torch.ones(2)), "squares must be 3"),
        (lambda: Fixed(torch.tensor([1.0, float("nan")])), "weights must be finite, got 1"),
        (lambda: Matched(Fixed(torch.ones(3))).init(LAYOUT), "weights must be 8, one per coordinate, got 3"),
        (lambda: FromReleases(1.0), r"memory must be in \[0, 1\)"),
        (lambda: FromPublicRows(PUBLIC, every=0), "every must be a whole number"),
    ],
)
def test_settings_that_mean_nothing_are_refused(make, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        make()


class TestBeside(PerExampleContract):
    def make(self):
        rows = torch.randn(7, LAYOUT.size, generator=torch.Generator().manual_seed(0))
        bought = MatchedBought(share=0.5)
        return bought.codec(bought.init(LAYOUT), 0, CODING).encode(Dense(rows, LAYOUT))


def test_sizes_beside_a_gradient_leave_its_norm_as_it_is() -> None:
    bought, rows = MatchedBought(share=0.7), torch.randn(5, LAYOUT.size)
    each = bought.codec(bought.init(LAYOUT), 0, CODING).encode(Dense(rows, LAYOUT))
    torch.testing.assert_close(each.squared_norms().sum(dim=1), rows.double().square().sum(dim=1))


def test_bought_sizes_are_those_of_the_gradients_and_their_noise_is_known() -> None:
    """Rows of sizes 4, 2, 1 and 0 in random directions, 200 noisy steps; scales are proportional to the cube root."""
    size, rows, layout = 400, 50, Layout(("w",), ((400,),))
    sizes, generator = torch.tensor([4.0, 2.0, 1.0, 0.0]).repeat_interleave(100), torch.Generator().manual_seed(0)
    bought = MatchedBought(share=0.5, memory=0.99)
    state, noise = bought.init(layout), so.Gaussian(1.0)
    for step in range(200):
        signs = torch.randint(0, 2, (rows, size), generator=generator) * 2.0 - 1
        codec = bought.codec(state, step, CODING)
        total = so.ClipByNorm(100.0)(codec.encode(Dense(sizes * signs, layout)))
        _, state = codec.decode(noise.add(total, NoiseAt(CODING, step)))
    means = (state["sum"] / state["counted"]).reshape(4, 100).mean(dim=1)
    known_to = float((state["noise"] / state["counted"]).mean().sqrt()) / sqrt(170 * 100)
    assert means.tolist() == pytest.approx((rows * torch.tensor([4.0, 2.0, 1.0, 0.0])).tolist(), abs=6 * known_to)
    scale = bought.codec(state, 200, CODING).scale.reshape(4, 100).mean(dim=1)
    assert float(scale[0] / scale[2]) == pytest.approx(4 ** (1 / 3), rel=0.05)


def test_noise_on_the_gradient_grows_by_the_price_of_the_sizes() -> None:
    bought = MatchedBought(share=0.75)
    codec = bought.codec(bought.init(LAYOUT), 0, CODING)
    encoded = codec.encode(Dense(torch.ones(1, 8), LAYOUT)).layout
    decoded, state = codec.decode(Private(torch.zeros(16, dtype=torch.float64), encoded, noise_square=4.0))
    torch.testing.assert_close(decoded.noise_square, torch.full((8,), 4.0 * 1.5625, dtype=torch.float64))
    torch.testing.assert_close(state["noise"] / state["counted"], decoded.noise_square / 0.75**2)
