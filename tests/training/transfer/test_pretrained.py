"""Networks that have learnt from made-up pictures: what is learnt, what is kept, and which files are refused."""

from __future__ import annotations

import json

import pytest
import torch
from torch import Generator

from sordino._input.safetensors_file import save_tensors
from sordino.data import Facts
from sordino.errors import StateError, UsageError
from sordino.training.transfer import AllParameters, BiasOnly, DeadLeaves, LinearProbe, PretrainedNetwork, pretrain
from sordino.training.transfer.pretraining import learn, misread

SHAPE = (1, 28, 28)
FACTS = Facts("pictures", SHAPE, 5, (0.0, 255.0))
FRESH = PretrainedNetwork.fresh("dp-cnn-s", SHAPE)


@pytest.fixture(scope="module")
def learnt():
    return pretrain("dp-cnn-s", SHAPE, pictures=64, progress=False)


def pictures(count, seed=9):
    return DeadLeaves(SHAPE).draw(count, Generator().manual_seed(seed))


def test_a_network_learns_to_read_the_laws_of_pictures_that_it_has_not_seen() -> None:
    built = learn("resnet-20", (1, 12, 12), pictures=1920, seed=0, progress=False)
    unseen = DeadLeaves((1, 12, 12)).draw(500, Generator().manual_seed(9))
    blind = torch.cat([torch.zeros(500, 4), unseen.numbers.mean(dim=0).expand(500, -1)], dim=1)
    with torch.no_grad():
        read = misread(built.module(built.prepare(unseen.pictures)), unseen)
    assert float(read) < float(misread(blind, unseen)) - 0.05


def test_pretraining_is_decided_by_its_seed() -> None:
    one, same, other = (pretrain("lenet", SHAPE, pictures=64, seed=seed, progress=False) for seed in (1, 1, 2))
    assert all(torch.equal(one.weights[name], same.weights[name]) for name in one.weights)
    assert not torch.equal(one.weights["0.weight"], other.weights["0.weight"])


def test_a_file_gives_back_the_network(learnt, tmp_path) -> None:
    path = tmp_path / "net.safetensors"
    learnt.save(path)
    found = PretrainedNetwork.read(path)
    assert (found.model, found.input_shape) == ("dp-cnn-s", SHAPE)
    built, again = (one.built(FACTS, seed=3).module for one in (learnt, found))
    for name, parameter in built.state_dict().items():
        assert torch.equal(parameter, again.state_dict()[name])


def test_the_last_layer_is_new_and_fits_the_classes(learnt) -> None:
    first, second = (learnt.built(FACTS, seed=seed).module for seed in (0, 1))
    assert first[-1].out_features == 5
    assert not torch.equal(first[-1].weight, second[-1].weight)
    assert torch.equal(first[0].weight, learnt.weights["0.weight"])


def test_training_a_network_leaves_the_pretrained_weights_alone(learnt) -> None:
    before = learnt.weights["0.weight"].clone()
    with torch.no_grad():
        learnt.built(FACTS, seed=0).module[0].weight.zero_()
    assert torch.equal(learnt.weights["0.weight"], before)


def test_pictures_of_another_shape_are_refused(learnt) -> None:
    with pytest.raises(UsageError, match=r"pretrained on images of shape \(1, 28, 28\)"):
        learnt.built(Facts("cifar10", (3, 32, 32), 10), seed=0)


@pytest.mark.parametrize("model", ["linear", "scatter-linear"])
def test_a_network_that_is_one_layer_cannot_be_pretrained(model) -> None:
    with pytest.raises(UsageError, match="needs a network of several layers"):
        pretrain(model, SHAPE, pictures=64, progress=False)


def changed(weights, **texts):
    return lambda path: save_tensors(path, weights, {"model": "dp-cnn-s", "input_shape": json.dumps(SHAPE), **texts})


@pytest.mark.parametrize(
    ("write", "reason"),
    [
        (lambda path: path.write_bytes(b"not a file"), "safetensors"),
        (lambda path: save_tensors(path, FRESH.weights), "has no valid name of a network"),
        (changed(FRESH.weights, model="unheard-of"), "has no valid name of a network"),
        (changed(FRESH.weights, input_shape="28"), "has no valid name of a network"),
        (changed(FRESH.weights, input_shape="[1, 28, [28]]"), "has no valid name of a network"),
        (changed(FRESH.weights, input_shape="[3, 32, 32]"), "has no valid name of a network"),
        (changed(FRESH.weights, model="lenet"), "another model"),
        (changed({**FRESH.weights, "more": torch.zeros(1)}), "an unexpected tensor 'more'"),
        (changed({**FRESH.weights, "0.bias": torch.zeros(3)}), r"another model: '0.bias' is torch.float32 of shape"),
        (changed({**FRESH.weights, "0.bias": torch.full((16,), torch.nan)}), "not finite"),
    ],
)
def test_a_file_that_is_not_of_the_network_it_names_is_refused(write, reason, tmp_path) -> None:
    path = tmp_path / "net.safetensors"
    write(path)
    with pytest.raises(StateError, match=reason):
        PretrainedNetwork.read(path)


def test_a_probe_is_given_what_the_last_layer_of_the_network_is_given(learnt) -> None:
    probe, whole = LinearProbe().built(learnt, FACTS, seed=0), learnt.built(FACTS, seed=0)
    rows = pictures(6).pictures
    hidden = whole.module[:-1](whole.prepare(rows)).detach()
    torch.testing.assert_close(probe.prepare(rows) * probe.features.std + probe.features.mean, hidden)


def test_made_up_pictures_have_mean_0_and_variance_1_for_a_probe(learnt) -> None:
    features = LinearProbe().built(learnt, FACTS, seed=0).prepare(pictures(600).pictures)
    assert float(features.mean(dim=0).abs().max()) < 0.3
    assert 0.8 < float(features.std(dim=0).median()) < 1.2


def test_the_rows_of_a_probe_do_not_depend_on_one_another(learnt) -> None:
    built, rows = LinearProbe().built(learnt, FACTS, seed=0), pictures(6).pictures
    torch.testing.assert_close(built.prepare(rows)[2:3], built.prepare(rows[2:3]))


@pytest.mark.parametrize(
    ("part", "trained"),
    [(LinearProbe(), 33 * 5), (BiasOnly(), 16 + 32 + 32 + 33 * 5), (AllParameters(), 26_010 - 33 * 5)],
)
def test_a_part_trains_its_own_parameters_only(part, trained, learnt) -> None:
    network = part.built(learnt, FACTS, seed=0).module
    assert sum(x.numel() for x in network.parameters() if x.requires_grad) == trained
