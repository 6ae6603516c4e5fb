"""The picture of epsilon against epochs shows what the library promises, and published values where there are some."""

from itertools import pairwise

import pytest

from sordino.accounting import Adjacency
from sordino_papers.hidden_state.epsilon_curves import curves, draw

EPOCHS = (1, 5, 400)


@pytest.fixture(scope="module")
def drawn():
    return curves(epochs=EPOCHS)


def epsilons(drawn, noise_multiplier):
    return {curve.method: curve.epsilons for curve in drawn if curve.setting.noise_multiplier == noise_multiplier}


# After 400 epochs of 60 batches at delta 1e-5 under replace-one: hidden state by the closed form of Bok, Su and
# Altschuler (2024), composition as one Gaussian of 20 times the sensitivity, Poisson by the replace-one PLD.
@pytest.mark.parametrize(
    ("noise_multiplier", "composition", "poisson", "ridge"), [(5.0, 65.32, 4.543, 4.1076), (15.0, 14.33, 1.317, 1.1963)]
)
def test_the_ends_are_the_known_ones(drawn, noise_multiplier, composition, poisson, ridge):
    found = {method: values[-1] for method, values in epsilons(drawn, noise_multiplier).items()}
    assert found["composition"] == pytest.approx(composition, rel=1e-3)
    assert found["Poisson sampling"] == pytest.approx(poisson, rel=1e-3)
    assert found["hidden state, ridge"] == pytest.approx(ridge, rel=1e-4)


@pytest.mark.parametrize("noise_multiplier", [5.0, 15.0])
def test_hiding_costs_less_than_composition_and_trailing_steps_reach_poisson_sampling(drawn, noise_multiplier):
    found = epsilons(drawn, noise_multiplier)
    assert found["hidden state"][0] == pytest.approx(found["composition"][0])  # one epoch hides nothing from the last
    assert found["hidden state"][-1] < found["composition"][-1] / 10
    assert found["hidden state, ridge"][-1] < found["hidden state"][-1]
    for trailing, poisson in zip(found["hidden state, trailing steps"], found["Poisson sampling"], strict=True):
        assert trailing == pytest.approx(poisson, rel=0.02)


def test_every_curve_rises(drawn):
    for curve in drawn:
        assert curve.epochs == EPOCHS
        assert all(one < other for one, other in pairwise(curve.epsilons))


def test_random_allocation_lies_between_poisson_sampling_and_composition(drawn):
    found = epsilons(drawn, 5.0)
    columns = (found["Poisson sampling"], found["random allocation"], found["composition"])
    assert all(poisson < allocation < composition for poisson, allocation, composition in zip(*columns, strict=True))


def test_zero_out_costs_about_half():
    one, other = (
        curves(noise_multipliers=(15.0,), adjacency=adjacency, epochs=(50,))
        for adjacency in (Adjacency.ZERO_OUT, Adjacency.REPLACE_ONE)
    )
    assert all(0.35 < a.epsilons[0] / b.epsilons[0] < 0.55 for a, b in zip(one, other, strict=True))


def test_the_picture_names_every_method_and_is_the_same_each_time(drawn, tmp_path):
    draw(drawn, tmp_path / "one.svg")
    draw(drawn, tmp_path / "same.svg")
    picture = (tmp_path / "one.svg").read_text()
    assert picture == (tmp_path / "same.svg").read_text()
    assert all(f">{curve.method}</text>" in picture for curve in drawn)
    assert picture.count("replace-one") == 2
