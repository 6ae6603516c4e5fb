"""What happens to inputs that are wrong, hostile or merely odd: one row each, and none of them leaks, hangs or guesses.

A wrong argument is refused with one line before data is touched. A bad record contributes nothing, without a message:
a message would tell that it was drawn. What nobody should be able to ask for has no name to ask with.
"""

import functools
import warnings
from dataclasses import dataclass

import pytest
import torch
from bad_models import (
    Bare,
    MinusMean,
    Scaled,
    Shifting,
    a_loss_that_is_not_a_number_counts_as_absent,
    an_integer_parameter_cannot_be_trained_and_does_no_harm,
    an_unused_parameter_gets_noise,
    contrastive,
    dropout_is_drawn_for_each_example,
    exact_by_hand,
    frozen_parameters_get_no_noise,
    frozen_public_statistics_are_allowed,
    half_frozen,
    sparse_embedding,
    the_reduction_of_the_loss_changes_nothing,
    with_dtype,
)
from bad_records import (
    a_denormal_record_is_a_record,
    an_ignored_label_contributes_nothing_whatever_its_number,
    an_overflowing_record_is_clipped_or_absent,
    classes_are_those_of_the_model,
    contributes_nothing,
    labels_must_be_whole_numbers,
    no_row_is_scaled_by_what_other_rows_hold,
    pixels_are_clamped_to_the_public_range,
    the_unit_is_named_and_joins_a_batch_once,
    weighted_samplers_have_no_place,
    with_every_record_poisoned_noise_is_all_there_is,
)
from bad_settings import (
    a_bound_on_the_rows_of_a_user_has_no_default,
    a_budget_without_a_delta_refuses_gaussian_noise,
    a_large_delta_can_be_asked_for,
    a_secret_size_takes_no_part_in_any_error,
    a_seed_is_named_in_the_guarantee,
    a_tiny_delta_is_answered_without_a_jump,
    a_weak_target_can_be_asked_for,
    every_clip,
    every_delta,
    every_epsilon,
    every_noise,
    every_steps,
    no_central_limit_accountant_exists,
    nothing_is_spent_before_anything_is_released,
    replacing_one_doubles_the_sensitivity,
    shuffled_batches_cannot_be_called_poisson,
    software_aes_draws_the_same_noise_silently,
    trainings_at,
    without_cryptography_nothing_can_be_imported,
)
from torch import nn
from torch.nn.utils.parametrizations import spectral_norm
from watched_attempts import INF, LABELS, NAN, answers, exits, fitting, making, planning, refuses, running, targeting

import sordino as so
from sordino.kernel.randomness import Key
from sordino.recipes.planning import SamplerName


@dataclass(frozen=True)
class Row:
    """One bad input, and what must hold of it."""

    number: int
    what: str
    checks: tuple

    def __init__(self, number, what, *checks):
        for name, value in (("number", number), ("what", what), ("checks", checks)):
            object.__setattr__(self, name, value)


ids = (torch.randint(0, 5, (100, 2)), LABELS)
frozen = nn.Linear(4, 3).requires_grad_(False)
batchnorm = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 3))
replace_one, add_or_remove = so.Adjacency.REPLACE_ONE, so.Adjacency.ADD_OR_REMOVE
ROWS = [
    Row(1, "epsilon is 0", every_epsilon(0), exits(dict(epsilon="0"))),
    Row(2, "epsilon is negative", every_epsilon(-1.0), exits(dict(epsilon="-1"))),
    Row(3, "epsilon is not a number", every_epsilon(NAN), exits(dict(epsilon="nan"))),
    Row(4, "epsilon is infinite", every_epsilon(INF), exits(dict(epsilon="inf"))),
    Row(5, "epsilon is text", every_epsilon("1,0"), every_epsilon(""),
        exits(*(dict(epsilon=text) for text in ("1,0", "1e", "")), saying="must be a number, got")),
    Row(6, "epsilon is next to no protection",
        refuses(fitting(epsilon=30.0), targeting(epsilon=30.0), saying="allow_weak"),
        a_weak_target_can_be_asked_for, exits(dict(epsilon="30"), saying="--allow-weak"),
        answers(epsilon="30", allow_weak=True)),
    Row(7, "epsilon needs absurd noise",
        refuses(fitting(epsilon=1e-7, delta=1e-12), targeting(epsilon=1e-6, delta=1e-12),
                saying=r"needs a noise multiplier of \d\.\d+e\+0\d, which is above"),
        exits(dict(epsilon="1e-6", delta="1e-12"), saying="needs a noise multiplier of 1.3")),
    Row(8, "delta is 0",
        refuses(*trainings_at(0), a_budget_without_a_delta_refuses_gaussian_noise, saying="delta must be in"),
        exits(dict(delta="0"))),
    Row(9, "delta is negative", every_delta(-1e-5), exits(dict(delta="-1e-5"))),
    Row(10, "delta is 1 or more", every_delta(1), every_delta(1.5), exits(dict(delta="1"), dict(delta="2"))),
    Row(11, "delta is not a number", every_delta(NAN), exits(dict(delta="nan"))),
    Row(12, "delta allows to publish one example",
        refuses(fitting(delta=0.01), planning(delta=1e-3), targeting(delta=0.5), saying="below 1 / examples"),
        a_large_delta_can_be_asked_for, exits(dict(delta="1e-3"), saying="--allow-large-delta"),
        answers(delta="1e-3", allow_large_delta=True), answers(delta="0.5", allow_large_delta=True)),
    Row(13, "delta is denormal", every_delta(1e-310), exits(dict(delta="1e-310"))),
    Row(14, "delta is tiny", a_tiny_delta_is_answered_without_a_jump, answers(delta="1e-18")),
    Row(15, "no noise", every_noise(0), exits(dict(noise_multiplier="0"))),
    Row(16, "negative noise", every_noise(-1.0), exits(dict(noise_multiplier="-1"))),
    Row(17, "noise is not a number", every_noise(NAN), exits(dict(noise_multiplier="nan"))),
    Row(18, "infinite noise", every_noise(INF), exits(dict(noise_multiplier="inf"))),
    Row(19, "noise that hides nothing", every_noise(1e-12), exits(dict(noise_multiplier="1e-12"))),
    Row(20, "clip norm 0", every_clip(0)),
    Row(21, "clip norm negative", every_clip(-1.0)),
    Row(22, "clip norm not a number", every_clip(NAN)),
    Row(23, "clip norm infinite", every_clip(INF)),
    Row(24, "clip norm underflows", every_clip(1e-30)),
    Row(25, "sample rate 0",
        refuses(making(so.Poisson, 0, 5), making(so.TruncatedPoisson, 0.0, 5, 10, 5), saying="rate"),
        refuses(fitting(batch_size=0), planning(batch_size=0), saying="batch_size"), exits(dict(batch_size="0"))),
    Row(26, "sample rate is no probability",
        refuses(*(making(so.Poisson, rate, 5) for rate in (1.5, -0.1, NAN)), saying="rate must be in"),
        refuses(fitting(batch_size=-5), planning(batch_size=-5)), exits(dict(batch_size="-5"))),
    Row(27, "batch larger than the data",
        refuses(fitting(batch_size=101), planning(batch_size=1001), saying="batch_size must be"),
        refuses(making(so.FixedSize, 11, 10, 5), making(so.TruncatedPoisson, 0.1, 5, 10, 11), saying="from 1 to 10"),
        exits(dict(batch_size="1001")), a_secret_size_takes_no_part_in_any_error),
    Row(28, "no steps", every_steps(0), exits(dict(steps="0"), dict(epochs="0"))),
    Row(29, "negative steps", every_steps(-1), exits(dict(steps="-1"), dict(epochs="-1"))),
    Row(30, "steps that are no count, or too many", every_steps(1.5), every_steps(10**18), every_steps(True),
        refuses(fitting(steps=None, epochs=1e18), planning(steps=None, epochs=NAN), saying="epochs"),
        exits(dict(steps="1.5"), dict(steps="1e18"), dict(steps="9" * 18), dict(epochs="inf"), dict(epochs="1e300"))),
    Row(31, "epochs and steps", refuses(fitting(epochs=1), planning(epochs=1.0)),
        refuses(fitting(sampler=so.Poisson(0.1, 3)), saying="belong to the sampler"),
        exits(dict(epochs="3", steps="10"), saying="exclude each other")),
    Row(32, "a typo", refuses(fitting(sampler="poisson"), planning(sampler="poisson"), planning(adjacency="zero-out"),
                              planning(unit="example"), making(so.Poisson, 0.1, 5, "zero-out")),
        exits(dict(accountant="pld"), dict(unit="person")),
        exits(dict(sampler="poison"), saying="--sampler must be one of poisson, truncated-poisson, balls-in-bins"),
        exits(dict(noise_multiplyer="1"), saying="--noise-multiplier")),
    Row(33, "an accountant that is no bound", no_central_limit_accountant_exists, exits(dict(accountant="gdp"))),
    Row(34, "shuffled batches accounted as Poisson", shuffled_batches_cannot_be_called_poisson,
        exits(dict(sample_rate="0.1"))),
    Row(35, "batches of fixed size and a secret size",
        refuses(making(so.FixedSize, 5, 10, 3, add_or_remove), making(so.FixedSize, 5, 10, 3, so.Adjacency.ZERO_OUT),
                planning(sampler=SamplerName.FIXED_SIZE, adjacency=add_or_remove), saying="replace-one only"),
        exits(dict(sampler="fixed-size", adjacency="add-or-remove"), saying="replace-one only")),
    Row(36, "replace-one with noise for one norm", replacing_one_doubles_the_sensitivity),
    Row(37, "users with many rows", a_bound_on_the_rows_of_a_user_has_no_default, answers(unit="user")),
    Row(38, "a seed where a secret belongs", refuses(running(seed=1, key=Key.fresh()), saying="exclude each other"),
        refuses(running(seed=-1), running(seed="1"), running(key="secret")), a_seed_is_named_in_the_guarantee),
    Row(39, "no cryptographic generator", without_cryptography_nothing_can_be_imported),
    Row(40, "no AES instructions", software_aes_draws_the_same_noise_silently),
    Row(41, "learning rate",
        refuses(*(fitting(learning_rate=rate) for rate in (NAN, INF, 0, -0.1)), saying="learning_rate must be"),
        refuses(*(fitting(optimizer=functools.partial(torch.optim.SGD, lr=lr)) for lr in (NAN, INF, 0)), saying="lr")),
    Row(45, "a pixel that is not a number", contributes_nothing(pixel=NAN)),
    Row(46, "an infinite pixel", contributes_nothing(pixel=INF), contributes_nothing(pixel=-INF)),
    Row(47, "a pixel whose square overflows", an_overflowing_record_is_clipped_or_absent),
    Row(48, "a pixel outside the range", pixels_are_clamped_to_the_public_range),
    Row(49, "every record poisoned", with_every_record_poisoned_noise_is_all_there_is),
    Row(50, "a denormal record", a_denormal_record_is_a_record),
    Row(51, "a label above the classes", contributes_nothing(label=3), contributes_nothing(label=2**40)),
    Row(52, "label -1", contributes_nothing(label=-1)),
    Row(53, "the ignored label", an_ignored_label_contributes_nothing_whatever_its_number),
    Row(54, "labels that are no whole numbers", labels_must_be_whole_numbers(LABELS.float()),
        labels_must_be_whole_numbers(LABELS * NAN), labels_must_be_whole_numbers(LABELS > 0)),
    Row(55, "the number of classes read off the data", classes_are_those_of_the_model),
    Row(56, "normalising by the data", no_row_is_scaled_by_what_other_rows_hold),
    Row(57, "one person twice", the_unit_is_named_and_joins_a_batch_once),
    Row(58, "balancing classes by the data", weighted_samplers_have_no_place),
    Row(59, "BatchNorm",
        refuses(running(batchnorm), fitting(batchnorm), saying=r"layer '1' .* sordino.replace_batchnorm")),
    Row(60, "BatchNorm with frozen public statistics", frozen_public_statistics_are_allowed),
    Row(61, "a layer across examples",
        refuses(running(nn.Sequential(MinusMean(), nn.Linear(4, 3))), saying=r"'0' \(MinusMean\) mixes the examples")),
    Row(62, "a loss across examples", refuses(running(loss=contrastive), saying="the loss mixes the examples")),
    Row(63, "the reduction of the loss", the_reduction_of_the_loss_changes_nothing),
    Row(64, "a loss that is no number, or has no gradient",
        refuses(running(loss=lambda outputs, target: outputs.sum(dim=1)), saying="single number"),
        refuses(running(loss=lambda outputs, target: outputs.detach().sum()), saying="no gradient"),
        refuses(making(so.LossGradient, None), making(so.LossGradient, "cross_entropy")),
        a_loss_that_is_not_a_number_counts_as_absent),
    Row(65, "nothing to train",
        refuses(running(frozen), fitting(frozen), running(nn.Flatten()), saying="no trainable parameter")),
    Row(66, "some parameters frozen", frozen_parameters_get_no_noise, exact_by_hand(half_frozen)),
    Row(67, "a parameter that is not used", an_unused_parameter_gets_noise),
    Row(68, "tied weights", exact_by_hand(Bare)),
    Row(69, "a parameter outside any layer", exact_by_hand(Bare)),
    Row(70, "dropout", dropout_is_drawn_for_each_example),
    Row(71, "layers that keep statistics",
        refuses(running(nn.Sequential(nn.Unflatten(1, (2, 2)), nn.InstanceNorm1d(2, track_running_stats=True),
                                      nn.Flatten(), nn.Linear(4, 3))), saying="running statistics"),
        refuses(running(nn.Sequential(spectral_norm(nn.Linear(4, 3)))), saying="changes its buffer")),
    Row(72, "a model that learns in its forward pass",
        refuses(running(nn.Sequential(Shifting(), nn.Linear(4, 3))), saying="'0' .* changes its own 'mean'")),
    Row(73, "sparse gradients", refuses(lambda data: running(sparse_embedding())(ids), saying="sparse=False")),
    Row(74, "parameters of other dtypes",
        *(refuses(running(with_dtype(dtype))) for dtype in (torch.float16, torch.bfloat16, torch.complex64)),
        an_integer_parameter_cannot_be_trained_and_does_no_harm),
    Row(75, "parameters without axes or entries", exact_by_hand(Scaled)),
    Row(114, "asked before any step", nothing_is_spent_before_anything_is_released),
]  # fmt: skip


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.number}: {row.what}")
def test_bad_input(row):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for check in row.checks:
            check()


def test_every_row_is_there_once():
    assert [row.number for row in ROWS] == [*range(1, 42), *range(45, 76), 114]
    assert all(row.checks for row in ROWS)
