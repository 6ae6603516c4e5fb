"""Batches are drawn by a private sampler; loaders that cannot be replaced are refused."""

import pytest
import torch
from dp_accounting.dp_event import GaussianDpEvent
from opacus_script import ROWS, data_set, made_private, network, train
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    TensorDataset,
    WeightedRandomSampler,
)

import sordino as so
from sordino.errors import DataError, UsageError
from sordino.kernel.sampling import Cyclic, Poisson, Shuffled
from sordino.opacus import PrivacyEngine


class Stream(IterableDataset):
    def __iter__(self):
        yield from data_set()


class Rows(Dataset):
    def __len__(self):
        return ROWS

    def __getitem__(self, index):
        return torch.full((4,), float(index)), index % 3


REFUSED = {
    "weighted sampler": (lambda d: DataLoader(d, 8, sampler=WeightedRandomSampler([1.0] * ROWS, 16)), "WeightedRandom"),
    "sampler with replacement": (
        lambda d: DataLoader(d, 8, sampler=RandomSampler(d, replacement=True)),
        "RandomSampler",
    ),
    "part of the data": (lambda d: DataLoader(d, 8, sampler=RandomSampler(d, num_samples=9)), "RandomSampler"),
    "a list of rows": (lambda d: DataLoader(d, 8, sampler=[0, 0, 0]), "list"),
    "batches of one's own": (
        lambda d: DataLoader(d, batch_sampler=[[0, 1], [0, 2]]),
        "must have a batch_size and no batch_sampler",
    ),
    "no batches": (lambda d: DataLoader(d, batch_size=None), "must have a batch_size and no batch_sampler"),
    "collate": (lambda d: DataLoader(d, 8, collate_fn=lambda rows: rows), "collate_fn"),
    "stream": (lambda d: DataLoader(Stream(), 8), "IterableDataset"),
    "larger than the data": (lambda d: DataLoader(d, 41), "batch_size"),
    "not a loader": (lambda d: d, "data_loader must be a DataLoader"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_loader_whose_privacy_is_not_known_is_refused(name):
    make, message = REFUSED[name]
    with pytest.raises(UsageError, match=message):
        made_private(loader=make(data_set()))


def test_a_private_loader_stands_for_the_one_that_it_was_made_from():
    *_, loader = made_private()
    *again, second = made_private(loader=loader)
    assert second.source is loader.source
    train(*again[1:], second)
    assert (loader.session.run.steps, second.session.run.steps) == (0, 5)


def test_a_private_module_is_not_made_private_again():
    _, module, _, _ = made_private()
    with pytest.raises(UsageError, match="private already"):
        made_private(model=module)


def test_batches_are_poisson_at_the_rate_of_the_batch_size():
    *_, loader = made_private()
    sampler = loader.session.run.plan.sampler
    assert isinstance(sampler, Poisson)
    assert sampler.rate == 8 / ROWS
    assert len(loader) == 5
    assert loader.batch_size == 8
    assert len(loader.dataset) == ROWS


def test_the_batches_are_those_of_the_sampler():
    _, module, optimizer, loader = made_private(data=Rows())
    run = loader.session.run
    expected = run.plan.sampler.batches(ROWS, run._streams.sampling)
    for inputs, labels in loader:
        rows = next(expected)
        assert inputs[:, 0].tolist() == rows.tolist()
        assert labels.tolist() == (rows % 3).tolist()
        torch.nn.functional.cross_entropy(module(inputs), labels).backward()
        optimizer.step()


@pytest.mark.parametrize("shuffle, kind", [(True, Shuffled), (False, Cyclic)])
def test_other_than_poisson_is_accounted_without_amplification(shuffle, kind):
    loader = DataLoader(data_set(), batch_size=8, shuffle=shuffle)
    engine, module, optimizer, private = made_private(loader=loader, poisson_sampling=False)
    assert isinstance(private.session.run.plan.sampler, kind)
    train(module, optimizer, private)
    one_release = so.Guarantee.of(GaussianDpEvent(1.0), so.Adjacency.ZERO_OUT, delta=1e-3)
    assert engine.get_epsilon(1e-3) == one_release.epsilon  # each row is in one of five batches


def test_a_shuffled_epoch_has_every_row_once():
    _, module, optimizer, loader = made_private(data=Rows(), poisson_sampling=False)
    seen = []
    for inputs, labels in loader:
        seen += inputs[:, 0].tolist()
        torch.nn.functional.cross_entropy(module(inputs), labels).backward()
        optimizer.step()
    assert sorted(seen) == list(range(ROWS))


def test_a_plain_batch_sampler_is_understood():
    assert type(DataLoader(data_set(), 8).batch_sampler) is BatchSampler
    made_private(loader=DataLoader(data_set(), 8, sampler=SequentialSampler(data_set())))


@pytest.mark.parametrize("rows, batch_size", [(93, 1), (100, 50), (99, 50), (64, 64), (65, 64), (1000, 7)])
def test_steps_of_an_epoch_and_the_divisor_are_those_of_the_script(rows, batch_size):
    plain = DataLoader(data_set(rows), batch_size=batch_size)
    _, _, _, loader = made_private(loader=plain)
    run = loader.session.run
    assert len(loader) == len(plain)
    assert run.expected_batch_size == pytest.approx(batch_size)


def test_an_empty_data_set_is_refused():
    with pytest.raises((DataError, UsageError)):
        made_private(loader=DataLoader(TensorDataset(torch.zeros(0, 4), torch.zeros(0, dtype=torch.int64)), 8))


WRONG = {
    "noise_multiplier": [0.0, -1.0, float("nan"), float("inf"), 1e-12],
    "max_grad_norm": [0.0, -1.0, float("nan"), float("inf"), 1e-30, [1.0]],
    "clipping": ["adaptive", "flatt"],
    "loss_reduction": ["none"],
    "grad_sample_mode": ["no_op", "hook"],
    "rand_on_empty": [True],
    "batch_first": [False],
    "noise_generator": [torch.Generator()],
}


@pytest.mark.parametrize("name, value", [(name, value) for name, values in WRONG.items() for value in values])
def test_wrong_arguments_are_refused_by_name(name, value):
    with pytest.raises(UsageError, match="norm" if name == "max_grad_norm" else name):
        made_private(**{name: value})


def test_an_unknown_argument_is_refused():
    with pytest.raises(TypeError, match="nois_multiplier"):
        made_private(nois_multiplier=2.0)


TARGETS = [(0.0, 1e-3), (-1.0, 1e-3), (float("nan"), 1e-3), (float("inf"), 1e-3), (1.0, 0.0), (1.0, 1.0)]


@pytest.mark.parametrize("epsilon, delta", TARGETS)
def test_targets_that_mean_nothing_are_refused(epsilon, delta):
    model = network()
    with pytest.raises(UsageError, match=r"epsilon|delta"):
        PrivacyEngine().make_private_with_epsilon(
            module=model,
            optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
            data_loader=DataLoader(data_set(), batch_size=8),
            target_epsilon=epsilon,
            target_delta=delta,
            epochs=1,
            max_grad_norm=1.0,
        )


def test_what_proves_nothing_is_refused_as_an_accountant():
    with pytest.raises(UsageError, match="accountant"):
        PrivacyEngine(accountant="gdp")
    with pytest.raises(UsageError, match="exclude each other"):
        PrivacyEngine(secure_mode=True, seed=0)
    with pytest.raises(UsageError, match="there is no epsilon yet"):
        PrivacyEngine().get_epsilon(1e-5)
