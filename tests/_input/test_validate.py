"""What a message says of a value that is not what was asked for."""

from dataclasses import dataclass

import pytest
import torch.nn.functional as F

import sordino as so
from sordino._input import validate
from sordino.errors import UsageError
from sordino.kernel.noise import Noise


@dataclass(frozen=True)
class Half:
    """A noise that is not finished."""

    secret: float

    def add(self, total, at):
        return so.Gaussian(1.0).add(total, at)

    def with_multiplier(self, noise_multiplier):
        return self


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"noise": Half(0.123)}, "noise must be a Noise, got Half, which lacks the attribute `event` and the method "
                                 "`tail_risk(sensitivity, steps)`."),
        ({"noise": so.Gaussian}, "noise must be a Noise, got type Gaussian: make an instance, as Gaussian(...)."),
        ({"clip": "1.5"}, "clip must be a Clip, got str of length 3, which lacks the method `__call__(each)` and the "
                          "attribute `bound`."),
        ({"clip": lambda each: each}, "clip must be a Clip, got function, which lacks the attribute `bound`."),
    ],
)  # fmt: skip
def test_what_a_stage_lacks_is_named(given, said):
    stages = {"clip": so.ClipByNorm(1.0), "noise": so.Gaussian(1.0)} | given
    with pytest.raises(UsageError) as refused:
        so.Plan(so.Poisson(0.1, 5), so.LossGradient(F.cross_entropy), **stages)
    assert str(refused.value) == said


def test_members_of_a_protocol_that_another_one_extends_are_named_too():
    from sordino.kernel.noise import NormalNoise

    with pytest.raises(UsageError, match=r"must be a NormalNoise, got Half, .*`event`.*`std\(bound\)`.*`tail_risk"):
        validate.instance(NormalNoise, noise=Half(0.1))


def test_a_type_that_is_no_protocol_has_no_hint():
    with pytest.raises(UsageError, match=r"^number must be a int, got float\.$"):
        validate.instance(int, number=0.5)
    validate.instance((Noise, type(None)), noise=None)
