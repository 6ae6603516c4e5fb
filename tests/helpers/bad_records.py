"""Checks of records with arbitrary contents. The name of a check is the statement that it tests."""

import functools
import inspect

import torch
import torch.nn.functional as F
from torch import nn
from unharmed_trainings import fixed_model, gradients, trains
from watched_attempts import INPUTS, LABELS, NAN, Watched, fitting, making, refuses, running

import sordino as so
from sordino.errors import DataError


def contributes_nothing(*, pixel=None, label=None, loss=F.cross_entropy):
    """The third example adds exact zeros, the others add what they would without it, and training continues."""

    def check():
        inputs, labels = INPUTS.clone(), LABELS.clone()
        if pixel is not None:
            inputs[2, 1] = pixel
        if label is not None:
            labels[2] = label
        clean, poisoned = gradients(loss=loss), gradients(inputs[:6], labels[:6], loss=loss)
        assert (poisoned[2] == 0).all() and (clean[2] != 0).any()
        others = [0, 1, 3, 4, 5]
        torch.testing.assert_close(poisoned[others], clean[others])
        trains((inputs, labels))

    return check


def an_overflowing_record_is_clipped_or_absent():
    inputs = INPUTS[:6].clone()
    inputs[2] = 1e38
    each = so.LossGradient(F.cross_entropy).of(
        fixed_model(), so.as_records((inputs, LABELS[:6])).gather(torch.tensor([2])), torch.tensor([0])
    )
    assert float(so.ClipByNorm(1.0)(each).value.norm()) <= 1.0
    trains((torch.where(torch.arange(100)[:, None] == 2, 1e38, INPUTS), LABELS))


def pixels_are_clamped_to_the_public_range():
    outside = torch.tensor([[-5.0, 0.5, 300.0, 1.0]]).expand(6, 4)
    inside = torch.tensor([[0.0, 0.5, 1.0, 1.0]]).expand(6, 4)
    torch.testing.assert_close(gradients(outside, input_range=(0.0, 1.0)), gradients(inside))


def with_every_record_poisoned_noise_is_all_there_is():
    poisoned = trains((torch.full_like(INPUTS, NAN), LABELS))
    noise_only = trains((INPUTS, torch.full_like(LABELS, -1)))
    assert torch.equal(poisoned, noise_only) and (poisoned != 0).any()


def a_denormal_record_is_a_record():
    inputs = torch.full((6, 4), 1e-42)
    torch.testing.assert_close(gradients(inputs), gradients(torch.zeros(6, 4)))
    assert (gradients(inputs) != 0).any(dim=1).all()


def an_ignored_label_contributes_nothing_whatever_its_number():
    contributes_nothing(label=-100)()
    ignoring = functools.partial(F.cross_entropy, ignore_index=int(LABELS[2]))
    assert (gradients(loss=ignoring)[LABELS[:6] == LABELS[2]] == 0).all()


def labels_must_be_whole_numbers(labels):
    in_memory, read_when_drawn = (INPUTS, labels), Watched(labels)
    return refuses(lambda _: running()(in_memory), lambda _: running()(read_when_drawn), error=DataError)


def classes_are_those_of_the_model():
    """With a model of two classes, an example with label 2 is out of range and ignored."""
    narrow = gradients(model=nn.Linear(4, 2))
    assert ((narrow == 0).all(dim=1) == (LABELS[:6] == 2)).all() and (LABELS[:6] == 2).any()
    everything = inspect.signature(so.fit).parameters | inspect.signature(so.as_records).parameters
    assert not [name for name in everything if "class" in name or "label" in name]


def no_row_is_scaled_by_what_other_rows_hold():
    """A record does not depend on other records; only a public range can scale it."""
    others = torch.cat([INPUTS[:1], 1000 * INPUTS[1:] + 50])
    first = torch.tensor([0])
    for inputs in (INPUTS, others):
        assert torch.equal(so.as_records((inputs, LABELS)).gather(first).inputs[0], INPUTS[:1])
    everything = inspect.signature(so.fit).parameters | inspect.signature(so.as_records).parameters
    assert not [name for name in everything if any(word in name for word in ("mean", "std", "scale", "normal"))]


def the_unit_is_named_and_joins_a_batch_once():
    """A person with two rows counts as two examples, and the guarantee says so. `by_user` makes the person the unit."""
    twice = (INPUTS.repeat(2, 1), LABELS.repeat(2))
    assert "for every example" in running()(twice).guarantee(delta=1e-3).statement
    people = so.by_user(twice, torch.arange(100).repeat(2), rows_per_user=2)
    assert "for every user" in running()(people).guarantee(delta=1e-3).statement
    refuses(lambda data: so.as_records(data).gather(torch.tensor([4, 4])), saying="at most once")()


def weighted_samplers_have_no_place():
    weighted = torch.utils.data.WeightedRandomSampler([0.1, 0.9], num_samples=2)
    refuses(fitting(sampler=weighted, steps=None), making(so.Plan, weighted, so.LossGradient(F.cross_entropy),
            so.ClipByNorm(1.0), so.Gaussian(1.0)), saying="sampler must be a Sampler")()  # fmt: skip
    for sampler in (so.Poisson, so.BallsInBins, so.Shuffled, so.Cyclic, so.FixedSize, so.TruncatedPoisson):
        assert not [name for name in inspect.signature(sampler).parameters if "weight" in name or "class" in name]
