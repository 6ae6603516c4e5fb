"""Losses of a script are recomputed on each row alone, and losses that mix rows are refused."""

import pytest
import torch
import torch.nn.functional as F
from opacus_script import (
    INPUTS,
    ROWS,
    assert_same,
    data_set,
    gradient,
    kernel_gradients,
    made_private,
    network,
    script_gradients,
    train,
)
from torch import nn
from torch.utils.data import TensorDataset

from sordino.errors import UsageError


def one_hot(labels):
    return F.one_hot(labels, 3).float()


def written_out(outputs, labels):
    return -(outputs.log_softmax(dim=-1) * one_hot(labels)).sum(dim=1).mean()


SAME_AS_CROSS_ENTROPY = {
    "a module": nn.CrossEntropyLoss(),
    "negative log likelihood": lambda outputs, labels: F.nll_loss(F.log_softmax(outputs, dim=1), labels),
    "written out": written_out,
    "probabilities for labels": lambda outputs, labels: F.cross_entropy(outputs, one_hot(labels)),
    "a mean of losses": lambda outputs, labels: F.cross_entropy(outputs, labels, reduction="none").mean(),
    "a sum of two": lambda outputs, labels: (
        0.25 * F.cross_entropy(outputs, labels) + 0.75 * written_out(outputs, labels)
    ),
}


@pytest.mark.parametrize("name", SAME_AS_CROSS_ENTROPY)
def test_a_loss_is_followed_however_it_is_written(name):
    found = script_gradients(3, criterion=SAME_AS_CROSS_ENTROPY[name])
    assert_same(found, kernel_gradients(network(), data_set(), 3))


LOSSES = {
    "mse": F.mse_loss,
    "l1": F.l1_loss,
    "huber": F.huber_loss,
    "smooth l1": F.smooth_l1_loss,
    "binary": F.binary_cross_entropy_with_logits,
    "binary of probabilities": lambda o, t: F.binary_cross_entropy(o.sigmoid(), t),
    "kl": lambda o, t: F.kl_div(o.log_softmax(1), t, reduction="batchmean"),
}


@pytest.mark.parametrize("name", LOSSES)
def test_usual_losses_with_a_mean_are_followed(name):
    criterion = LOSSES[name]
    target = torch.rand(ROWS, 3, generator=torch.Generator().manual_seed(3))
    data = TensorDataset(data_set().tensors[0], target / target.sum(dim=1, keepdim=True))

    def of_one_row(outputs, target):  # the kernel sums a loss over the elements of its row
        return criterion(outputs, target).reshape(())

    found = script_gradients(3, criterion=criterion, data=data)
    assert_same(found, kernel_gradients(network(), data, 3, loss=of_one_row))


def test_a_sum_is_not_divided():
    model = network()
    _, module, optimizer, loader = made_private(model=model, loss_reduction="sum")
    optimizer.param_groups[0]["lr"] = 0.0
    train(module, optimizer, loader, nn.CrossEntropyLoss(reduction="sum"))
    expected = kernel_gradients(network(), data_set(), 5)[-1]
    assert_same([gradient(model) / 8], [expected])


@pytest.mark.parametrize("declared, used", [("mean", "sum"), ("sum", "mean")])
def test_a_reduction_other_than_declared_is_refused(declared, used):
    with pytest.raises(UsageError, match=f"loss_reduction is '{declared}', but the loss is the {used} over the batch"):
        train(*made_private(loss_reduction=declared)[1:], nn.CrossEntropyLoss(reduction=used))


def contrastive(outputs, labels):
    return F.cross_entropy(outputs @ outputs.T, torch.arange(len(outputs)))


MIXING = {
    "similarity": contrastive,
    "softmax over the batch": lambda o, t: F.nll_loss(o.log_softmax(dim=0), t),
    "centred": lambda o, t: F.cross_entropy(o - o.mean(dim=0), t),
    "rolled": lambda o, t: F.cross_entropy(o.roll(1, 0), t),
    "labels of others": lambda o, t: F.cross_entropy(o, t.flip(0)),
    "class weights in the mean": lambda o, t: F.cross_entropy(o, t, weight=torch.tensor([1.0, 5.0, 1.0])),
    "the largest loss": lambda o, t: F.cross_entropy(o, t, reduction="none").max(),
    "a variance": lambda o, t: o.var(),
}


@pytest.mark.parametrize("name", MIXING)
def test_a_loss_that_mixes_rows_is_refused(name):
    with pytest.raises(UsageError, match="criterion"):
        train(*made_private()[1:], MIXING[name])


def test_rows_stay_apart_even_if_the_check_is_passed_by():
    """The check only gives a better message: rows cannot mix, because each is run alone."""
    _, module, _, loader = made_private()
    session = loader.session
    session._check_loss = lambda *_: None
    inputs, labels = next(iter(loader))
    outputs = module(inputs)
    passed = next(iter(session._part.passes.values())).groups[0][1]
    rows = []
    honest = passed.contributions

    def contributions(losses_of):
        each = honest(losses_of)
        rows.append(torch.cat(list(each.rows(100))))
        return each

    object.__setattr__(passed, "contributions", contributions)
    (F.cross_entropy(outputs, labels) * outputs.sum(dim=0).sum()).backward()
    for row, x, label in zip(rows[0], *session._part.batch.inputs, session._part.batch.target, strict=True):
        alone = network()
        given = alone(x[None])
        (F.cross_entropy(given, label[None]) * given.sum()).backward()
        assert torch.allclose(row, gradient(alone), atol=1e-5)


def test_class_weights_are_had_by_a_criterion():
    criterion = nn.CrossEntropyLoss(weight=torch.tensor([1.0, 5.0, 0.5]))
    _, module, optimizer, loader = made_private(criterion=criterion)
    optimizer.param_groups[0]["lr"] = 0.0
    train(module, optimizer, loader, criterion)
    expected = kernel_gradients(network(), data_set(), 5, loss=criterion)[-1]
    assert_same([gradient(module)], [expected])


def test_another_loss_than_the_criterion_is_refused():
    with pytest.raises(UsageError, match=r"must be criterion\(outputs, target\)"):
        train(*made_private(criterion=nn.CrossEntropyLoss(label_smoothing=0.1))[1:], F.cross_entropy)


def test_labels_from_elsewhere_are_refused():
    def elsewhere(outputs, labels):
        return F.cross_entropy(outputs, torch.zeros(len(outputs), dtype=torch.int64))

    with pytest.raises(UsageError, match="the batch's own tensors"):
        train(*made_private()[1:], elsewhere)


def test_a_penalty_on_weights_is_refused_with_the_way_out():
    _, module, _, loader = made_private()
    inputs, labels = next(iter(loader))
    with pytest.raises(UsageError, match="weight_decay"):
        F.cross_entropy(module(inputs), labels) + sum(p.norm() for p in module.parameters())


def test_rows_may_be_changed_before_the_model():
    _, module, optimizer, loader = made_private(model=nn.Sequential(nn.Flatten(), network()))
    optimizer.param_groups[0]["lr"] = 0.0
    for inputs, labels in loader:
        F.cross_entropy(module(((inputs.float() - 0.5) / 2).view(-1, 2, 2)), labels).backward()
        optimizer.step()
    inputs, labels = data_set().tensors
    scaled = TensorDataset((inputs - 0.5) / 2, labels)
    expected = kernel_gradients(network(), scaled, 5)[-1]
    assert_same([gradient(module)], [expected])


@pytest.mark.parametrize(
    "change",
    [lambda x: x - x.mean(dim=0), lambda x: x.roll(1, 0), lambda x: x[torch.randperm(len(x))], lambda x: x[:2]],
)
def test_rows_that_are_mixed_before_the_model_are_refused(change):
    _, module, _, loader = made_private()
    inputs, _ = next(iter(loader))
    with pytest.raises(UsageError, match="row"):
        module(change(inputs))


def test_a_batch_cannot_be_changed_in_place():
    *_, loader = made_private()
    inputs, _ = next(iter(loader))
    with pytest.raises(UsageError, match="cannot be computed in place"):
        inputs.add_(1.0)
    with pytest.raises(UsageError, match="cannot be computed in place"):
        inputs[0] = 0.0
    with pytest.raises(UsageError, match="cannot be computed in place"):
        torch.mul(inputs, 2.0, out=torch.empty(0))


def test_changing_what_was_detached_changes_nothing():
    _, module, optimizer, loader = made_private()
    optimizer.param_groups[0]["lr"] = 0.0
    for inputs, labels in loader:
        inputs.detach().fill_(1e6)
        labels.detach().zero_()
        outputs = module(inputs)
        outputs.detach().zero_()
        F.cross_entropy(outputs, labels).backward()
        optimizer.step()
    expected = kernel_gradients(network(), data_set(), 5)[-1]
    assert_same([gradient(module)], [expected])


def test_an_autoencoder_has_its_inputs_for_targets():
    def model():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(INPUTS, 2), nn.Linear(2, INPUTS))

    _, module, optimizer, loader = made_private(model=model())
    optimizer.param_groups[0]["lr"] = 0.0
    for inputs, _ in loader:
        F.mse_loss(module(inputs), inputs).backward()
        optimizer.step()
    inputs, _ = data_set().tensors
    expected = kernel_gradients(model(), (inputs, inputs), 5, loss=lambda o, t: F.mse_loss(o, t).reshape(()))[-1]
    assert_same([gradient(module)], [expected])


def test_a_sum_of_losses_can_be_kept():
    _, module, optimizer, loader = made_private()
    total, kept = 0.0, torch.zeros(())
    for inputs, labels in loader:
        loss = F.cross_entropy(module(inputs), labels)
        loss /= 1
        loss.backward()
        optimizer.step()
        total += loss
        kept += loss
    assert float(total) == pytest.approx(float(kept)) != 0


def test_an_ignored_label_changes_nothing_for_the_others():
    inputs, labels = data_set().tensors
    labels = labels.clone()
    labels[::2] = -100
    data = TensorDataset(inputs, labels)
    assert_same(script_gradients(3, data=data), kernel_gradients(network(), data, 3))
