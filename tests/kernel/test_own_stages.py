"""The stages in docs/own-stages.md pass the contract tests, and verification does not refute their plan."""

from functools import cache, cached_property

import pytest
from contracts import ClipContract, EncodingContract, NoiseContract
from pages import run_examples

import sordino as so
from sordino.accounting import Adjacency
from sordino.verification import noise_checks


@cache
def page():
    """The names of the page, which trains and verifies: not while tests are collected."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(noise_checks, "_MOST_STEPS", 40)  # of 400: the noise is not the subject
        return run_examples("docs/own-stages.md")


class TestSmoothClip(ClipContract):
    @cached_property
    def clip(self):
        return page()["SmoothClip"](1.5)


class TestMoreOnSome(NoiseContract):
    @cached_property
    def noise(self):
        return page()["MoreOnSome"](1.0, extra=0.5, names=("weight",))


class TestOneAtATime(EncodingContract):
    @cached_property
    def encoding(self):
        return page()["OneAtATime"]()


def test_the_plan_of_the_page_keeps_its_promise():
    assert 1.9 < page()["plan"].guarantee(delta=1e-4).epsilon <= 2.0
    assert page()["verdict"].passed, str(page()["verdict"])


def test_extra_noise_is_on_the_chosen_parameters_only():
    noise, plain = page()["MoreOnSome"](2.0, extra=3.0, names=("weight",)), so.Gaussian(2.0)
    found, usual = (TestMoreOnSome.add(_with(each), bound=2.0).value for each in (noise, plain))
    assert float((found - usual).std()) == pytest.approx(3.0 * 2.0 * 2.0, rel=0.03)
    none = page()["MoreOnSome"](2.0, extra=3.0, names=("other",))
    assert TestMoreOnSome.add(_with(none), bound=2.0).value.equal(usual)
    assert noise.event == plain.event and plan_costs(noise) == plan_costs(plain)


def _with(noise):
    suite = TestMoreOnSome()
    suite.noise = noise
    return suite


def plan_costs(noise):
    return so.Plan(so.Poisson(0.1, 9, Adjacency.ZERO_OUT), page()["plan"].contribution, so.ClipByNorm(1.0), noise).event
