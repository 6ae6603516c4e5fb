"""The synthetic distribution: each row is one feature of known norm and one patch of noise, in random order."""

import pytest
import torch

from sordino.data import TwoPatch, load
from sordino.errors import UsageError


def test_features_are_orthogonal_and_have_the_chosen_norms():
    features = TwoPatch(majority_norms=(3.0, 2.0), minority_norms=(1.5, 0.5)).features().reshape(4, -1)
    assert torch.equal(features @ features.T, torch.diag(torch.tensor([3.0, 1.5, 2.0, 0.5]) ** 2))


def test_each_row_has_the_feature_of_its_class_and_group_in_one_patch_and_noise_in_the_other():
    chosen = TwoPatch(num_train=500, num_test=10, dimension=50)
    train = chosen.draw(seed=1).train
    expected = chosen.features()[train.target, train.groups["minority"]]
    is_feature = (train.inputs == expected[:, None]).all(dim=2)
    assert is_feature.sum(dim=1).tolist() == [1] * 500
    noise = train.inputs[~is_feature]
    assert noise.std().item() == pytest.approx(chosen.noise_std, rel=0.03)  # 25,000 draws: six standard errors
    assert 150 < is_feature[:, 0].sum() < 350


def test_classes_are_even_and_a_fifth_of_each_is_its_minority():
    train = load("two-patch").train
    assert train.inputs.shape == (1000, 2, 400)
    for label in (0, 1):
        minority = train.groups["minority"][train.target == label]
        assert 400 < len(minority) < 600
        assert 0.12 < minority.double().mean() < 0.28


def test_a_seed_gives_the_same_rows_again_and_testing_rows_are_others():
    chosen = TwoPatch(num_train=20, num_test=20, dimension=10)
    first, again, other = (chosen.draw(seed=seed) for seed in (0, 0, 1))
    assert torch.equal(first.train.inputs, again.train.inputs)
    assert not torch.equal(first.train.inputs, other.train.inputs)
    assert not torch.equal(first.train.inputs, first.test.inputs)


def test_the_facts_are_those_of_the_distribution():
    facts = TwoPatch(dimension=7).draw(seed=0).facts
    assert (facts.name, facts.input_shape, facts.num_classes) == ("two-patch", (2, 7), 2)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"dimension": 3}, "dimension"),
        ({"num_train": 0}, "num_train"),
        ({"noise_std": -1.0}, "noise_std"),
        ({"noise_std": float("nan")}, "noise_std"),
        ({"minority_share": 1.5}, "minority_share"),
        ({"minority_norms": (2.0, 0.1)}, "at most the majority_norms of their class, got a larger one"),
        ({"majority_norms": (0.0, 1.0)}, "majority_norm"),
        ({"majority_norms": (1.0, 1.0, 1.0)}, "two norms"),
    ],
)
def test_a_distribution_that_cannot_be_is_refused(wrong, message):
    with pytest.raises(UsageError, match=message):
        TwoPatch(**wrong)
