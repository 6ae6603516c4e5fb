"""Digests by which run folders identify plans: old ones are accepted, and another plan has another one."""

import hashlib
from dataclasses import dataclass, make_dataclass, replace

import pytest
import torch

import sordino as so
from sordino.accounting import Adjacency
from sordino.convex import GatedReLU, NoisyCGD
from sordino.encodings import RandomSparsify
from sordino.kernel.encoding import Unchanged
from sordino.optimized_noise import Fixed, OptimizedNoise, SquaredCost, isotropic
from sordino.training.plan_identity import digest_of, stage_key

USUAL = so.Poisson(0.5, 3), so.ClipByNorm(1.0), so.Gaussian(2.0), Unchanged()
OPTIMIZED = OptimizedNoise(1.5)
HIDDEN = NoisyCGD(so.Cyclic(3, 2), GatedReLU(5), clip=0.5, noise_multiplier=6.0, learning_rate=0.5)


def test_a_digest_of_version_0_1_is_accepted():
    earlier = hashlib.blake2b(repr(USUAL).encode(), digest_size=16).hexdigest()
    assert digest_of(*USUAL) != earlier and digest_of(*USUAL).identifies(earlier)
    assert not digest_of(*USUAL[:3], so.Freeze(("weight",))).identifies(earlier)


@pytest.mark.parametrize(
    ("stages", "digest"),
    [
        (USUAL, "4a7ea3f29a0768d64689ee748502e98a"),
        (
            (OPTIMIZED, RandomSparsify.throughout(10, final_rate=0.5, steps_per_epoch=2)),
            "ab0bf0acb01f4681c024dd9d91161930",
        ),
        ((HIDDEN,), "2631ec8eafd36b965acb74c73efabbdf"),
    ],
    ids=["usual", "optimized", "hidden"],
)
def test_a_digest_of_this_version_stays(stages, digest):
    """A field that is renamed, or a default that changes, would refuse runs, or take one for another."""
    assert digest_of(*stages) == digest


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (so.Poisson(0.5, 3), so.Poisson(0.5, 3, Adjacency.REPLACE_ONE)),
        (so.ClipByNorm(1.0), so.Normalise(1.0)),
        (OPTIMIZED, replace(OPTIMIZED, fit=isotropic)),
        (OPTIMIZED, replace(OPTIMIZED, cost=SquaredCost())),
        (OptimizedNoise(1.0, Fixed(torch.ones(3))), OptimizedNoise(1.0, Fixed(torch.tensor([1.0, 1.0, 2.0])))),
        (HIDDEN, replace(HIDDEN, learning_rate=0.25)),
    ],
)
def test_a_plan_that_differs_in_anything_has_another_digest(one, other):
    assert not digest_of(one).identifies(digest_of(other)) and digest_of(one) == digest_of(replace(one))


def test_a_field_that_is_added_with_a_default_changes_no_digest():
    before = make_dataclass("Stage", [("rate", float)], frozen=True)
    after = make_dataclass("Stage", [("rate", float), ("views", int, 1)], frozen=True)
    assert stage_key(before(0.5)) == stage_key(after(0.5)) == {"class": "Stage", "rate": 0.5}
    assert stage_key(after(0.5, views=2)) == {"class": "Stage", "rate": 0.5, "views": 2}


def test_a_stage_of_ones_own_is_identified_by_its_repr():
    class Own:
        def __repr__(self):
            return "Own(3)"

    @dataclass(frozen=True)
    class Held:
        part: Own

    assert stage_key(Held(Own()))["part"] == "Own(3)"
