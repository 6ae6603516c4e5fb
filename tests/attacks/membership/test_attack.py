"""LiRA and RMIA: members of an overfitted model are found, members of an untrained model are not."""

import numpy as np
import pytest
import torch
from torch import nn

from sordino.attacks.membership.attack import attack
from sordino.attacks.membership.lira import logits_of_labels
from sordino.attacks.membership.references import Suspects
from sordino.effects.rare_examples import train_plainly
from sordino.errors import UsageError

ROWS, INPUTS = 120, 300


@pytest.fixture(scope="module")
def suspects():
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(3 * ROWS, INPUTS, generator=generator)
    labels = torch.randint(0, 3, (3 * ROWS,), generator=generator)  # random, so a model can only memorize them
    both = slice(0, 2 * ROWS)
    return Suspects(inputs[both], labels[both], np.arange(2 * ROWS) < ROWS, inputs[2 * ROWS :], labels[2 * ROWS :])


def trained_on(suspects, chosen):
    torch.manual_seed(1)
    who = torch.from_numpy(np.flatnonzero(chosen))
    return train_plainly(nn.Linear(INPUTS, 3), suspects.inputs[who], suspects.target[who], seed=0)


def test_members_of_a_model_without_privacy_are_found_far_above_chance(suspects):
    model = trained_on(suspects, suspects.is_member)
    found = attack(model, suspects, lambda chosen, place: trained_on(suspects, chosen))
    assert list(found) == ["LiRA, online", "LiRA, offline", "RMIA, online", "RMIA, offline"]
    for name, roc in found.items():
        assert roc.auc().low > 0.7, name
        assert roc.at(0.05).low > 0.05, name
    assert found["LiRA, online"].at(0.02).low > 0.3


def test_a_model_that_learnt_nothing_gives_nobody_away(suspects):
    torch.manual_seed(5)
    found = attack(nn.Linear(INPUTS, 3), suspects, lambda chosen, place: trained_on(suspects, chosen))
    assert all(roc.auc().low < 0.5 < roc.auc().high for roc in found.values())


def test_two_references_are_enough_for_all_but_the_online_ratio(suspects):
    model = trained_on(suspects, suspects.is_member)
    found = attack(model, suspects, lambda chosen, place: trained_on(suspects, chosen), references=2)
    assert list(found) == ["LiRA, offline", "RMIA, online", "RMIA, offline"]
    assert all(roc.auc().low > 0.7 for roc in found.values())


def test_a_logit_does_not_cancel_where_the_model_is_sure():
    outputs = torch.tensor([[60.0, 0.0, -5.0], [0.0, 2.0, 1.0]], dtype=torch.float64)
    found = logits_of_labels(outputs, torch.tensor([0, 2]))
    assert found[0] == pytest.approx(60.0, abs=0.01)
    p = outputs[1].softmax(0)[2]
    assert found[1] == pytest.approx(float(torch.log(p / (1 - p))))


def test_suspects_of_one_kind_and_no_population_are_refused(suspects):
    rows, labels = suspects.inputs, suspects.target
    for is_member in (np.ones(len(labels), bool), np.zeros(len(labels), bool)):
        with pytest.raises(UsageError, match="both kinds"):
            Suspects(rows, labels, is_member, rows, labels)
    with pytest.raises(UsageError, match="population, got none"):
        Suspects(rows, labels, suspects.is_member, rows[:0], labels[:0])
