"""A recipe is verified by its own plan and network, on rows of the public shape, and a bug in the kernel refutes it."""

import json
from dataclasses import dataclass, replace

import pytest
import torch
import torch.nn.functional as F
import typer
from mutants import MUTANTS, planted
from torch import nn

import sordino as so
from sordino.cli.checks import verify
from sordino.convex.model import ConvexModel, GatedReLU
from sordino.convex.noisy_cgd import NoisyCGD
from sordino.data import loading
from sordino.errors import UsageError
from sordino.kernel.sampling import Cyclic
from sordino.optimized_noise.noise import OptimizedNoise
from sordino.recipes import Recipe, carry_out, prepared
from sordino.recipes.methods import method_of
from sordino.recipes.prepared import rehearse, verify_recipe
from sordino.report.verdict import verdict_page
from sordino.training.schedules import Cosine
from sordino.verification import Verdict, hidden_state
from sordino.verification.hidden_state import verify_hidden_state
from sordino.verification.noise_histogram import noise_picture
from sordino.verification.verdict import at_most, probable

LINEAR = Recipe("digits", "linear", epsilon=3.0, delta=1e-4, batch_size=256, steps=4, seed=0)
HIDDEN = Recipe("digits", "gated-relu", epsilon=3.0, delta=1e-4, method="noisy-cgd", gates=4, epochs=1, seed=0)
ROWS = torch.zeros(100, 12), torch.zeros(100, dtype=torch.int64)


def plan(noise):
    return so.Plan(so.Poisson(0.1, 50), so.LossGradient(F.cross_entropy), so.ClipByNorm(2.0), noise)


@pytest.mark.parametrize(
    "recipe",
    [LINEAR, replace(LINEAR, sparsify=0.5, steps=12, sampler="truncated-poisson"), HIDDEN],
    ids=lambda r: r.method,
)
def test_the_plan_that_is_verified_is_the_one_that_training_promises(recipe, tmp_path):
    promised = carry_out(recipe, tmp_path / "run", progress=False).privacy()
    found = method_of(recipe).plan(rehearse(recipe))
    assert promised["event"] == f"ComposedDpEvent(events=[{found.event}])"
    assert found.guarantee(delta=recipe.delta).epsilon == promised["epsilon"]


def test_no_private_value_is_looked_at(monkeypatch):
    honest = rehearse(LINEAR)
    data = loading.load("digits")
    others = replace(data.train, inputs=torch.full_like(data.train.inputs, 3), target=-data.train.target - 7)
    monkeypatch.setattr(prepared, "load", lambda *arguments, **settings: replace(data, train=others))
    found = rehearse(LINEAR)
    everybody = torch.arange(found.records.num_units)
    for one, other in zip(honest.records.gather(everybody).inputs, found.records.gather(everybody).inputs, strict=True):
        assert torch.equal(one, other)
    assert found.examples == honest.examples == len(data.train.target)


@pytest.mark.usefixtures("quick_verification")
def test_the_verdict_has_a_line_for_each_check(capsys, tmp_path):
    verify(data="digits", model="linear", epsilon=3.0, delta=1e-4, out=tmp_path / "page")
    printed = capsys.readouterr().out
    checks = ("sensitivity", "scale", "independence", "tail", "sampler", "ledger", "accountant")
    lines = printed.splitlines()
    assert all(any(name in line and "not refuted" in line for line in lines) for name in checks)
    assert "linear on digits by dp-sgd: not refuted" in printed and "verified" not in printed
    page = (tmp_path / "page" / "verification.html").read_text()
    assert page.count("<svg") == 3 and "<script" not in page and "verified" not in page
    numbers = json.loads((tmp_path / "page" / "verification.json").read_text())
    assert numbers["verdict"] == "not refuted" and len(numbers["noise"]["scales"]) == 2


@pytest.mark.usefixtures("quick_verification")
def test_a_run_folder_is_verified_as_its_recipe_is(capsys, tmp_path):
    run = carry_out(replace(LINEAR, steps=2), tmp_path / "run", progress=False)
    for path in (run.path, run.path / "recipe.toml"):
        verify(path, as_json=True)
    printed = capsys.readouterr().out
    assert printed[: len(printed) // 2] == printed[len(printed) // 2 :]
    with pytest.raises(UsageError, match="there is no run in"):
        verify(tmp_path)


@pytest.mark.usefixtures("quick_verification")
def test_a_bug_in_the_kernel_refutes_with_exit_code_one(capsys):
    poisoned = next(mutant for mutant in MUTANTS if mutant.name == "a record that is not finite poisons the sum")
    with planted(poisoned), pytest.raises(typer.Exit) as ended:
        verify(data="digits", model="linear", epsilon=3.0, delta=1e-4, as_json=True)
    assert ended.value.exit_code == 1
    found = json.loads(capsys.readouterr().out)
    assert found["verdict"] == "REFUTED"
    assert any(not finding["passed"] for finding in found["findings"])


@pytest.mark.usefixtures("quick_verification")
def test_what_cannot_be_checked_of_a_hidden_state_is_said():
    found = verify_recipe(HIDDEN)
    assert found.verdict.passed, str(found.verdict)
    assert hidden_state.NAME in [check.name for check in found.verdict.checks]
    page = verdict_page(found.title, found.verdict, found.noise, found.not_checked)
    assert "Not checked" in page and "which is proved and not measured" in page


@dataclass(frozen=True)
class Understated:
    """Features whose norm is above the bound that they state."""

    model: ConvexModel
    feature_bound: float

    def build(self, inputs, outputs):
        return self.model.build(inputs, outputs)


@pytest.mark.usefixtures("quick_verification")
def test_features_that_are_longer_than_they_say_are_noticed():
    model = Understated(GatedReLU(8), 0.4)  # with which steps of 11 would contract
    longer = NoisyCGD(Cyclic(4, 2), model, clip=1.0, noise_multiplier=4.0, learning_rate=11.0)
    assert verify_hidden_state(longer, ROWS, outputs=3).failed_checks == (hidden_state.NAME,)


def test_noise_that_fades_cannot_be_verified():
    fading = NoisyCGD(Cyclic(4, 2), GatedReLU(8), 1.0, 4.0, 1.0, noise_schedule=Cosine(final=0.5))
    with pytest.raises(UsageError, match="constant noise schedule"):
        verify_hidden_state(fading, ROWS, outputs=3)


def test_the_picture_shows_the_scale_of_each_parameter():
    model = nn.Sequential(nn.Linear(12, 16), nn.Tanh(), nn.Linear(16, 4))
    honest = noise_picture(plan(so.Gaussian(1.0)), model, ROWS)
    assert [each.name for each in honest.scales] == ["0.weight", "0.bias", "2.weight", "2.bias"]
    assert sum(each.low <= 1 <= each.high for each in honest.scales) >= 3
    assert all(each.low < each.drawn < each.high for each in honest.quantiles[::10])
    assert honest.end > 13 and sum(honest.densities) * 0.2 == pytest.approx(1, abs=1e-3)
    with planted(next(mutant for mutant in MUTANTS if mutant.name == "no noise on the bias")):
        broken = noise_picture(plan(so.Gaussian(1.0)), model, ROWS)
    assert [round(each.scale, 1) for each in broken.scales] == [1.0, 1.0, 1.0, 0.0]


def test_noise_that_is_not_normal_is_not_drawn_beside_a_normal_law():
    with pytest.raises(UsageError, match="noise must be normal"):
        noise_picture(plan(OptimizedNoise(1.0)), nn.Linear(12, 4), ROWS)


def test_a_verdict_shows_what_is_beyond_or_nearest_to_what_is_allowed():
    near, far = at_most("clip", "near", 1.9, 2.0), at_most("clip", "far", 0.1, 2.0)
    rare, usual = probable("noise", "rare", 1e-4), probable("noise", "usual", 0.5)
    assert [check.closest.what for check in Verdict((far, near, usual, rare)).checks] == ["near", "rare (p-value)"]
    broken = at_most("clip", "not a number", float("nan"), 2.0)
    verdict = Verdict((near, broken, far, usual))
    assert verdict.checks[0].closest is broken and verdict.says == "REFUTED"
    assert [check.says for check in verdict.checks] == ["REFUTED", "not refuted"]
    assert verdict.failed_checks == ("clip",) and "not a number is nan, allowed at most 2" in str(verdict)
